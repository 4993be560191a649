"""Draws from one list by weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import BatchKey
from ...kernels import alias, weighted
from ...kernels.gaps import Span
from .keys import uniforms

NO_DOUBLES = np.empty(0, np.float64)


def by_weight(table: npt.NDArray[Any], size: int, key: BatchKey) -> Tensor:
    """Return places that are drawn independently, each in proportion to its weight.

    Args:
        table: int64 [n], the alias table of the weights (Walker 1977; see `kernels/alias.py`).
        size: how many to draw.
        key: of the draws.

    Returns:
        int64 [size], each in [0, n).
    """
    place = np.empty(size, np.int64)
    weighted.pick_with_replacement(
        place, weighted.ItemPicks(0, size, 0, np.uint64(0)), Span(0, len(table), 0.0),
        uniforms(key, 0, size).numpy(), True, *alias.parts(table), NO_DOUBLES, NO_DOUBLES,
    )  # fmt: skip
    return torch.from_numpy(place)
