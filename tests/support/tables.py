"""Tables of rows at chosen addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from pyg_direct.ops.cuda import tuning

BASES = (0, 4, 16, 32, 64, 96)


RANDOM = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 300_000, np.uint8))


def table_at(base: int, rows: int, row_bytes: int) -> Tensor:
    """Return random bytes [rows, row_bytes] whose address is `base` modulo 128."""
    skip = (base - RANDOM.data_ptr()) % 128
    return RANDOM[skip : skip + rows * row_bytes].view(rows, row_bytes)


@contextmanager
def read_by_id(wanted: bool = True) -> Iterator[None]:
    """Let rows of every table in host memory be read by ascending ids, or of none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "SORTED_TABLE_BYTES", 0 if wanted else 1 << 60)
        yield


def least_requests(table: Tensor, index: Tensor) -> int:
    """Return the lines that the rows lie on, row by row."""
    size = table.shape[1] * table.element_size()
    first = table.data_ptr() + index * size
    return int(((first + size - 1) // 128 - first // 128 + 1).sum())
