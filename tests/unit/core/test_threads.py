"""Ranges that threads share."""

from pyg_direct.core.threads import split


def test_ranges_cover_all_once() -> None:
    for n in range(1, 9):
        for pieces in range(10):
            found: list[int] = []
            split(n, pieces, lambda first, last, found=found: found.extend(range(first, last)))
            assert sorted(found) == list(range(n)), (n, pieces)
