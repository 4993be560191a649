"""Numbers with units, as messages and reports write them."""

from __future__ import annotations

import math
from decimal import Decimal

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(num_bytes: int) -> str:
    """Return a number of bytes with a decimal unit.

    Example: 1_500_000 is "1.5 MB", 12 is "12 bytes".
    """
    for factor, unit in UNITS:
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes} bytes"


def seconds_text(seconds: float) -> str:
    """Return a time with its unit, and about three digits.

    Example: 12.34 is "12.3 s", 0.05 is "50 ms", 0.0000042 is "4.2 µs", 4321.5 is "4,322 s".
    """
    units = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"))
    factor, unit = next((entry for entry in units if seconds >= entry[0]), units[-1])
    value = seconds / factor
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def blocks_of_row(row_bytes: int, block_bytes: int, address: int = 0) -> float:
    """Return how many aligned blocks of memory a row of a table touches, averaged over its rows.

    Args:
        row_bytes: size of a row, 1 or more.
        block_bytes: size of a block, a power of two: 128 for a line, 32 for a sector of it.
        address: where the table begins.

    Example: rows of 400 bytes from address 0 begin at any multiple of 16 in a line of 128 bytes,
    and touch 4 lines on average; from address 8 they begin 8 bytes later, and touch 4.125.
    """
    step = math.gcd(row_bytes, block_bytes)
    return 1 + (row_bytes - (0 if address % step else step)) / block_bytes


COUNTS = {"K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
COUNTS_END = 1 << 63


def count_of(text: str) -> int:
    """Return the whole number that a text such as "1.6B" (of edges) or "6G" (of bytes) stands for.

    Raises:
        ValueError: it stands for none, or for one of 2^63 or more.

    Example: "1.003M" is 1_003_000, which it would not be as a product of floats.
    """
    factor = COUNTS.get(text[-1:].upper(), 1)
    try:
        number = Decimal(text[:-1] if factor > 1 else text) * factor
        if 0 <= number < COUNTS_END and number == int(number):
            return int(number)
    except ArithmeticError:  # no number at all
        pass
    raise ValueError(
        f"{text!r} is not a whole number, as 1000, 24K, 111M, 1.6B or, of bytes, 16G are."
    )
