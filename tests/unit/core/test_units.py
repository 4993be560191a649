"""Numbers with units, and blocks of memory that rows touch."""

import numpy as np
import pytest

from pyg_direct.core.units import blocks_of_row, count_of, size_text


def test_size_text_picks_the_largest_unit_not_above() -> None:
    sizes = [0, 999, 1000, 999_999, 1_500_000, 2 * 10**9, 3 * 10**12]
    texts = ["0 bytes", "999 bytes", "1.0 kB", "1,000.0 kB", "1.5 MB", "2.0 GB", "3,000.0 GB"]
    assert [size_text(size) for size in sizes] == texts


def test_counts_are_exact() -> None:
    """Products of floats would be 1002999.9999999999 and 67000000.00000001."""
    texts = ["0", "12", "24K", "24k", "1.003M", "0.067B", "1.6b", "2T", "6G", "1e3"]
    counts = [0, 12, 24_000, 24_000, 1_003_000, 67_000_000, 1_600_000_000, 2 * 10**12, 6 * 10**9]
    assert [count_of(text) for text in texts] == [*counts, 1000]


@pytest.mark.parametrize(
    "text", ["", "K", "many", "-1", "1.5", "0.0001K", "inf", "nan", "1e400", "1e99999999", "2P"]
)
def test_text_that_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number, as 1000, 24K"):
        count_of(text)


@pytest.mark.parametrize("address", [0, 16, 64, 100])
@pytest.mark.parametrize("block_bytes", [32, 128])
@pytest.mark.parametrize("row_bytes", [1, 4, 100, 128, 400, 512, 1000])
def test_blocks_of_a_row_are_counted(row_bytes, block_bytes, address) -> None:
    starts = address + np.arange(1024) * row_bytes
    blocks = (starts + row_bytes - 1) // block_bytes - starts // block_bytes + 1
    assert blocks_of_row(row_bytes, block_bytes, address) == pytest.approx(blocks.mean())
