"""Whether a graph that nobody has read before, as one in a file, can be sampled from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.threads import MIN_EDGES_PER_THREAD, available_cores, run_all
from ..core.types import Csc, WeightTable, damaged_graph, unknown_node
from ..kernels import bounds
from ..kernels.alias import parts

Ints = npt.NDArray[Any]

NO_TABLES = np.empty(0, np.int64)
NOT_IN_ORDER = "its neighbour lists are not in order"


def verified(csc: Csc, name: str = "the graph") -> Csc:
    """Return `csc`, with its arrays on the host, after reading and checking all of it.

    Raises:
        ValueError: lists or ids out of range, or weights that do not fit their tables.
    """
    if csc.verified:
        return csc
    for r in range(csc.num_relations):
        begin, nodes = int(csc.indptr_base[r]), int(csc.num_nodes[csc.dst_type[r]])
        first, last = csc.edge_base[r : r + 2].tolist()
        ends = csc.indptr[[begin, begin + nodes]].tolist()
        if ends != [first, last] or bounds.first_decrease(csc.indptr, begin, begin + nodes) >= 0:
            raise ValueError(damaged_graph(NOT_IN_ORDER, name))
        _verify_ids(csc.indices, first, last, int(csc.num_nodes[csc.src_type[r]]), name)
        if csc.weights is not None and csc.weights.relations[r]:
            _verify_weights(csc.weights, csc.indptr[begin : begin + nodes + 1], name)
    return replace(csc, verified=True)


def _verify_ids(ids: Ints, first: int, last: int, end: int, name: str) -> None:
    pieces = max(1, min(available_cores(), (last - first) // MIN_EDGES_PER_THREAD))
    cuts = [first + (last - first) * i // pieces for i in range(pieces + 1)]
    for at in run_all([partial(bounds.first_bad_id, ids, a, b, end) for a, b in pairwise(cuts)]):
        if at >= 0:
            raise ValueError(damaged_graph(unknown_node(ids[at], end), name))


def _verify_weights(weights: WeightTable, indptr: Ints, name: str) -> None:
    weight, cumulative = weights.weight, weights.cumulative
    other = parts(NO_TABLES if weights.alias is None else weights.alias)[1]
    bad = bounds.first_bad_weights(indptr, weight, cumulative, other, 0, len(indptr) - 1) >= 0
    if bad or (weights.positive and bool((weight[indptr[0] : indptr[-1]] <= 0).any())):
        raise ValueError(damaged_graph("its weights do not fit their tables", name))
