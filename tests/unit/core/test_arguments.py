"""Single arguments, at the ends of their ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyg_direct.core.arguments import check_exclusion, check_key, check_share


@pytest.mark.parametrize("key", [(0, 1 << 32), (-1, 0), (1,), (1, 2, 3), (0.5, 1), 7])
def test_keys_are_two_words(key: Any) -> None:
    assert check_key((0, np.int64((1 << 32) - 1))) == (0, (1 << 32) - 1)
    with pytest.raises(ValueError, match=r"key must be two integers in \[0, 2\*\*32\)"):
        check_key(key)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan"), True, "1"])
def test_shares_are_above_0_and_at_most_1(share: Any) -> None:
    assert (check_share("alpha", 1), check_share("alpha", 1e-9)) == (1.0, 1e-9)
    with pytest.raises(ValueError, match=r"alpha must be a number in \(0, 1\]"):
        check_share("alpha", share)


@pytest.mark.parametrize("value", [False, np.False_, None])
def test_false_values_exclude_no_seed_edges(value: Any) -> None:
    assert check_exclusion(value, [None], mirrored=True) is None
    assert check_exclusion(np.True_, [None], mirrored=False) == "self"
