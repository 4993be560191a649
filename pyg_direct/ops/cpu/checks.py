"""Checks of what a batch reads of a graph that is not `Csc.verified`; none for any other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy.typing as npt

from ...core.types import Csc, damaged_graph, unknown_node
from ...kernels import bounds

Ints = npt.NDArray[Any]


def check_items(csc: Csc, item_base: Ints, start: Ints, degree: Ints) -> None:
    """Raise a ValueError unless the list of each item lies within its relation.

    Args:
        csc: the graph.
        item_base: [R + 1], first item of each relation.
        start: [items], first position of each list.
        degree: [items], length of each list.
    """
    if not csc.verified:
        for r, (first, last) in enumerate(pairwise(item_base.tolist())):
            _check_lists(csc, r, start, degree, first, last)


def check_sources(csc: Csc, edge_ptr: Ints, row: Ints) -> None:
    """Raise a ValueError unless the sources of a hop are nodes of their types.

    Args:
        csc: the graph.
        edge_ptr: [R + 1], first edge of each relation.
        row: [edges], global ids of the sources.
    """
    if not csc.verified:
        for r, (first, last) in enumerate(pairwise(edge_ptr.tolist())):
            _check_ids(csc, r, row, first, last)


def check_whole_lists(csc: Csc, relation: int, start: Ints, degree: Ints) -> None:
    """Raise a ValueError unless some lists, and all ids in them, can be read."""
    if not csc.verified:
        _check_lists(csc, relation, start, degree, 0, len(start))
        for first, size in zip(start.tolist(), degree.tolist(), strict=True):
            _check_ids(csc, relation, csc.indices, first, first + size)


def _check_lists(csc: Csc, relation: int, start: Ints, degree: Ints, first: int, last: int) -> None:
    edges = csc.edge_base[relation : relation + 2].tolist()
    if bounds.first_bad_list(start, degree, first, last, edges[0], edges[1]) >= 0:
        raise ValueError(damaged_graph("a neighbour list does not lie within its edges"))


def _check_ids(csc: Csc, relation: int, ids: Ints, first: int, last: int) -> None:
    end = int(csc.num_nodes[csc.src_type[relation]])
    at = bounds.first_bad_id(ids, first, last, end)
    if at >= 0:
        raise ValueError(damaged_graph(unknown_node(int(ids[at]), end)))
