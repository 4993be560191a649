"""What draws are given between hops, and which of it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyg_direct.core.types import Frontier
from pyg_direct.ops.picks import check_frontier

NODES, LOCAL = torch.tensor([4, 2]), torch.tensor([0, 1], dtype=torch.int32)


def frontier(**changes: Any) -> Frontier:
    return Frontier([NODES], [LOCAL], None)._replace(**changes)


def test_valid_frontiers_pass_the_check() -> None:
    check_frontier(frontier(), 1, torch.int64, False)
    check_frontier(frontier(seed_of=[LOCAL]), 1, torch.int64, True)


@pytest.mark.parametrize(
    ("items", "disjoint", "message"),
    [
        (frontier(), True, "seed_of must be given, as the plan is disjoint"),
        (frontier(seed_of=[LOCAL]), False, "seed_of must be None, as the plan is not disjoint"),
        (frontier(node=[NODES.int()]), False, r"Frontier\.node"),
        (frontier(local=[NODES]), False, r"Frontier\.local"),
        (frontier(local=[LOCAL[:1]]), False, r"Frontier\.local"),
        (frontier(local=[]), False, r"Frontier\.local must have 1 tensors, got 0"),
        (frontier(node=[NODES, NODES]), False, r"Frontier\.node must have 1 tensors, got 2"),
        (frontier(seed_of=[LOCAL[:1]]), True, r"Frontier\.seed_of"),
    ],
    ids=range(8),
)
def test_invalid_frontiers_are_refused(items: Frontier, disjoint: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_frontier(items, 1, torch.int64, disjoint)
