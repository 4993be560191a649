"""Fingerprints of arrays: what they tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pyg_direct.core.mapped_files import fingerprint_of

ARRAY = torch.arange(6)


@pytest.mark.parametrize(
    "other",
    [
        [ARRAY.int()],
        [ARRAY.view(2, 3)],
        [ARRAY[:5]],
        [torch.tensor([0, 1, 2, 3, 4, 6])],  # the last element
        [torch.tensor([7, 1, 2, 3, 4, 5])],
        [ARRAY, None],
        [None, ARRAY],
        [ARRAY, ARRAY],
        [],
    ],
    ids=str,
)
def test_other_arrays_have_another(other: list[Any]) -> None:
    assert fingerprint_of(other) != fingerprint_of([ARRAY])


def test_the_order_of_arrays_counts() -> None:
    assert fingerprint_of([None, ARRAY]) != fingerprint_of([ARRAY, None])
    assert fingerprint_of([ARRAY[:2], ARRAY]) != fingerprint_of([ARRAY, ARRAY[:2]])


def test_equal_arrays_have_the_same_one() -> None:
    """Whatever holds them; states that were saved hold it as well, so it never changes."""
    assert fingerprint_of([ARRAY]) == "1ed69447d8445fe9"
    spread = torch.arange(12)[::2] // 2
    assert fingerprint_of([spread]) == fingerprint_of([ARRAY.numpy()]) == fingerprint_of([ARRAY])


def test_positions_are_spread_from_the_first_to_the_last() -> None:
    """Of 10 elements 4 are read, at 0, 3, 6 and 9."""
    array, plain = np.zeros(10), fingerprint_of([np.zeros(10)], 4)
    seen = []
    for i in range(10):
        array[i] = 1
        seen.append(fingerprint_of([array], 4) != plain)
        array[i] = 0
    assert np.flatnonzero(seen).tolist() == [0, 3, 6, 9]
