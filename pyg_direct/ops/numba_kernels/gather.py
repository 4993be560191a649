"""Rows of a table, picked by id."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import kernel, prefetch

AHEAD = 6  # rows asked for in advance
LINE_BYTES = 64


@kernel
def gather_rows(
    table: npt.NDArray[Any],  # [N * words]
    index: npt.NDArray[Any],  # [rows], each in [0, N)
    words: int,  # words of a row
    words_per_line: int,  # words of a cache line
    first: int,  # the range of rows to do
    last: int,
    out: npt.NDArray[Any],  # [rows * words]
) -> None:
    """Copy the rows `index` of `table` to `out`, as words of any width.

    Example: rows of 2 words, index [2, 0], table [a b c d e f] gives [e f a b].
    """
    for i in range(first, last):
        if i + AHEAD < last:
            ahead = index[i + AHEAD] * words
            for j in range(0, words, words_per_line):
                prefetch(table, ahead + j)
        source, target = index[i] * words, i * words
        for j in range(words):
            out[target + j] = table[source + j]
