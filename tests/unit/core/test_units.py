"""Numbers with units, and blocks of memory that rows touch."""

import numpy as np
import pytest

from pyg_direct.core.units import blocks_of_row


@pytest.mark.parametrize("address", [0, 16, 64, 100])
@pytest.mark.parametrize("block_bytes", [32, 128])
@pytest.mark.parametrize("row_bytes", [1, 4, 100, 128, 400, 512, 1000])
def test_blocks_of_a_row_are_counted(row_bytes, block_bytes, address) -> None:
    starts = address + np.arange(1024) * row_bytes
    blocks = (starts + row_bytes - 1) // block_bytes - starts // block_bytes + 1
    assert blocks_of_row(row_bytes, block_bytes, address) == pytest.approx(blocks.mean())
