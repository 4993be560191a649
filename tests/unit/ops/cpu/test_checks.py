"""Checks of what a batch reads of a graph whose files may be damaged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyg_direct.ops.cpu.drawing import check_items, check_sources, check_whole_lists


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def typed_graph(verified: bool = False) -> Any:
    """Edges 0 to 2 of relation 0, whose sources are 4 nodes, and 3 to 5 of relation 1, with 2."""
    return SimpleNamespace(
        verified=verified,
        edge_base=ints(0, 3, 6),
        num_nodes=ints(4, 2),
        src_type=ints(0, 1),
        indices=ints(0, 3, 1, 0, 1, 2),
    )


@pytest.mark.parametrize("start", [2, 5])
def test_a_list_lies_within_the_edges_of_its_relation(start: int) -> None:
    """Item 0 is of relation 0, item 1 of relation 1, whose edges begin at 3 and end at 6."""
    check_items(typed_graph(), ints(0, 1, 2), ints(0, 3), ints(2, 3))
    wrong = ints(0, 1, 2), ints(0, start), ints(2, 2)
    with pytest.raises(ValueError, match="a neighbour list does not lie within its edges"):
        check_items(typed_graph(), *wrong)
    check_items(typed_graph(verified=True), *wrong)


def test_sources_are_nodes_of_their_type() -> None:
    check_sources(typed_graph(), ints(0, 1, 2), ints(3, 1))
    with pytest.raises(ValueError, match="2"):
        check_sources(typed_graph(), ints(0, 1, 2), ints(3, 2))


def test_whole_lists_name_nodes_of_their_type() -> None:
    check_whole_lists(typed_graph(), 1, ints(3), ints(2))
    with pytest.raises(ValueError, match="2"):
        check_whole_lists(typed_graph(), 1, ints(3), ints(3))
    with pytest.raises(ValueError, match="does not lie within its edges"):
        check_whole_lists(typed_graph(), 0, ints(2), ints(2))
