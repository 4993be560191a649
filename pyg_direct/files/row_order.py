"""The order in which a saved graph has the rows of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..core.types import IntTable, SeedVisits
from ..graph.from_pyg import Graph
from ..graph.verify import verified
from ..graph.visits import Doubles, expected_visits, out_degrees

FANOUTS, BATCH_SIZE = (15, 10, 5), 1024  # of the batches that "visits" stands for
NAMES = ("visits", "degree")


def row_orders(graph: Graph, row_order: Any) -> list[IntTable] | None:
    """Return which node's row is the k-th of its type, int64 [N_t] by type; None for ids' order.

    Of equal numbers, the lower id comes first.

    Args:
        graph: the nodes and edges.
        row_order: as `save` takes it.

    Raises:
        ValueError: another name, or numbers that are missing, not one for each node, or NaN.
    """
    if row_order is None:
        return None
    if isinstance(row_order, str) and row_order in NAMES:
        csc = verified(graph.csc)
        if row_order == "degree":
            numbers = out_degrees(csc)
        else:
            counts = csc.num_nodes.tolist()
            share = min(1.0, BATCH_SIZE / max(1, sum(counts)))
            seeds = [SeedVisits(np.full(count, share)) for count in counts]
            fanouts = np.repeat(np.array(FANOUTS)[:, None], csc.num_relations, axis=1)
            numbers = expected_visits(csc, seeds, fanouts)
    else:
        numbers = _given(row_order, graph.node_types, graph.csc.num_nodes.tolist())
    return [np.argsort(-of_type, kind="stable") for of_type in numbers]


def _given(row_order: Any, kinds: Sequence[Any], counts: list[int]) -> list[Doubles]:
    """Return the user's numbers as float64 [N_t] by type.

    Raises:
        ValueError: they are missing, not one for each node, or NaN.
    """
    if isinstance(row_order, Tensor) and list(kinds) == [None]:
        row_order = {None: row_order}
    if not isinstance(row_order, Mapping) or set(row_order) != set(kinds):
        what = "[N]" if list(kinds) == [None] else f"of each of {list(kinds)}, in a dict"
        raise ValueError(
            f"row_order must be 'visits', 'degree', None, or a tensor {what}, got {row_order!r}."
        )
    found = []
    for kind, count in zip(kinds, counts, strict=True):
        numbers = row_order[kind]
        shape = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
        if shape != (count,) or bool(numbers.isnan().any()):
            label = "" if kind is None else f" for {kind!r}"
            raise ValueError(
                f"row_order must hold one number{label} for each of {count} nodes, and no NaN, got "
                f"{shape}."
            )
        found.append(numbers.detach().cpu().double().numpy())
    return found


def is_moved(value: Any, num_nodes: int) -> bool:
    """Whether an attribute of nodes is stored in the order: one of rows, not of single numbers."""
    return isinstance(value, Tensor) and value.dim() > 1 and len(value) == num_nodes
