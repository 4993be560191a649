"""Numbers with units, as messages and reports write them."""

from __future__ import annotations

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(num_bytes: int) -> str:
    """Return a number of bytes with a decimal unit.

    Example: 1_500_000 is "1.5 MB", 12 is "12 bytes".
    """
    for factor, unit in UNITS:
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes} bytes"
