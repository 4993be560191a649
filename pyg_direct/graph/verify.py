"""Checks of a graph that was not read before, such as one in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.threads import MIN_EDGES_PER_THREAD, available_cores, run_all
from ..core.types import NO_TIME, Csc, damaged_graph, unknown_node
from ..kernels import bounds, temporal
from ..kernels.alias import parts

Ints = npt.NDArray[Any]

NOT_IN_ORDER = "its neighbour lists are not in order"


def verified(csc: Csc, name: str = "the graph") -> Csc:
    """Return `csc`, with its arrays on the host, after reading and checking all of it.

    Raises:
        ValueError: lists or ids out of range, or weights that do not fit their tables.
    """
    if csc.verified:
        return csc
    problem = problem_of(csc)
    if problem is not None:
        raise ValueError(damaged_graph(problem, name))
    return replace(csc, verified=True)


def problem_of(csc: Csc) -> str | None:
    """Check all of `csc` but its times; return the first error, or None."""
    problems = (_problem_of_relation(csc, r) for r in range(csc.num_relations))
    return next((problem for problem in problems if problem is not None), None)


def _problem_of_relation(csc: Csc, r: int) -> str | None:
    (first, last), indptr = csc.edge_base[r : r + 2].tolist(), _lists(csc, r)
    nodes, edges, ids = len(indptr) - 1, last - first, csc.indices
    if indptr[[0, -1]].tolist() != [first, last] or bounds.first_decrease(indptr, 0, nodes) >= 0:
        return NOT_IN_ORDER
    end = int(csc.num_nodes[csc.src_type[r]])
    at = _first(lambda a, b: bounds.first_bad_id(ids, a, b, end), first, last, edges)
    if at >= 0:
        return unknown_node(ids[at], end)
    if csc.weights is None or not csc.weights.relations[r]:
        return None
    weight, cumulative, alias, _, positive = csc.weights
    tables = (indptr, weight, cumulative)
    bad = _first(lambda a, b: bounds.first_bad_weights(*tables, a, b), 0, nodes, edges) >= 0
    if not bad and csc.time_base[r] == NO_TIME and alias is not None:
        aliased = (*tables, *parts(alias))
        bad = _first(lambda a, b: bounds.first_bad_alias(*aliased, a, b), 0, nodes, edges) >= 0
    if bad or (positive and bool((weight[first:last] <= 0).any())):
        return "its weights do not fit their tables"
    return None


def first_unsorted_relation(csc: Csc) -> int:
    """Return the first relation with a list that is not sorted by time, or -1.

    All else in `csc` is known to be right.
    """
    relations = range(csc.num_relations)
    return next((r for r in relations if csc.time_base[r] != NO_TIME and _is_unsorted(csc, r)), -1)


def _is_unsorted(csc: Csc, r: int) -> bool:
    assert csc.times is not None
    indptr, times = _lists(csc, r), (csc.indices, csc.times.time, int(csc.time_base[r]))
    nodes, edges = len(indptr) - 1, int(indptr[-1] - indptr[0])
    return _first(lambda a, b: temporal.first_unsorted(indptr, a, b, *times), 0, nodes, edges) >= 0


def _lists(csc: Csc, r: int) -> Ints:
    """Return the `indptr` of one relation."""
    begin, nodes = int(csc.indptr_base[r]), int(csc.num_nodes[csc.dst_type[r]])
    return csc.indptr[begin : begin + nodes + 1]  # type: ignore[no-any-return]


def _first(check: Callable[[int, int], int], first: int, last: int, edges: int) -> int:
    """Return what `check(a, b)` finds first in [first, last), or -1; by threads if it is long."""
    pieces = max(1, min(available_cores(), edges // MIN_EDGES_PER_THREAD))
    cuts = [first + (last - first) * i // pieces for i in range(pieces + 1)]
    found = run_all([partial(check, a, b) for a, b in pairwise(cuts)])
    return next((at for at in found if at >= 0), -1)


def parallel_edges(csc: Csc) -> tuple[int, int, int] | None:
    """Return the first edge that has a parallel one: relation, source, destination.

    Args:
        csc: a graph on the host, verified; all of it is read.
    """
    for r in range(csc.num_relations):
        seen = np.full(int(csc.num_nodes[csc.src_type[r]]), -1, np.int64)
        at = bounds.first_parallel(_lists(csc, r), csc.indices, seen)
        if at >= 0:
            destination = int(np.searchsorted(_lists(csc, r), at, side="right")) - 1
            return r, int(csc.indices[at]), destination
    return None
