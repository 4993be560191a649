"""Parts of nodes as users give them, and the ranks that own these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pyg_direct.exchange.owners import check_parts, ranks_of

TYPED: dict[str, Any] = {"a": torch.tensor([0, 3, 1]), "b": torch.tensor([2, 2])}


def parts_of(value: Any, typed: bool) -> list[Any]:
    kinds, counts = (["a", "b"], [3, 2]) if typed else ([None], [3])
    return check_parts(value, "owners", kinds, counts, 4, "'hash'")


def test_parts_are_those_given() -> None:
    one, two = parts_of(dict(reversed(TYPED.items())), True)  # in the order of the types
    assert (one.tolist(), two.tolist(), one.dtype) == ([0, 3, 1], [2, 2], np.int16)
    assert parts_of(torch.tensor([3, 0, 0], dtype=torch.uint8), False)[0].tolist() == [3, 0, 0]
    assert check_parts(torch.empty(0).long(), "owners", [None], [0], 4, "x")[0].tolist() == []


@pytest.mark.parametrize(
    ("value", "typed", "error", "message"),
    [
        (torch.tensor([0, 4, 0]), False, ValueError, r"hold parts in \[0, 4\), got 0 to 4"),
        (torch.tensor([0, -1, 0]), False, ValueError, r"hold parts in \[0, 4\), got -1 to 0"),
        (torch.tensor([0.0, 1.0, 0.0]), False, ValueError, "one integer for each of 3 nodes"),
        (torch.tensor([True, False, True]), False, ValueError, "one integer for each of 3 nodes"),
        (torch.zeros(3, 1).long(), False, ValueError, "one integer for each of 3 nodes"),
        (torch.zeros(4).long(), False, ValueError, "one integer for each of 3 nodes"),
        ([0, 1, 0], False, ValueError, "one integer for each of 3 nodes"),
        (TYPED, False, TypeError, "or a tensor with the part of each node, got dict"),
        (TYPED["a"], True, TypeError, "or a dict of tensors by node type with the part"),
        ({"a": TYPED["a"]}, True, ValueError, r"the node types \['a', 'b'\], got \['a'\]"),
        ({**TYPED, "c": TYPED["b"]}, True, ValueError, r"got \['a', 'b', 'c'\]"),
        ({**TYPED, "b": TYPED["a"]}, True, ValueError, r"owners\['b'\] must hold one integer"),
    ],
    ids=str,
)
def test_owners_of_wrong_kind_or_range_are_refused(
    value: Any, typed: bool, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        parts_of(value, typed)


def test_ranks_of_parts() -> None:
    """Rank r of W holds the parts p with p mod W = r; without parts, a hash spreads the nodes."""
    given = parts_of(TYPED, True)
    assert [part.tolist() for part in ranks_of(given, [3, 2], 2)] == [[0, 1, 1], [0, 0]]
    (hashed,) = ranks_of(None, [3000], 3)
    assert np.bincount(hashed, minlength=3).min() > 900
    assert hashed.dtype == ranks_of(given, [3, 2], 2)[0].dtype == np.int16
