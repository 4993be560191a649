"""Which rows of some tables a cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.units import blocks_of_row

LINE_BYTES = 128  # what a read of host memory asks for
PRESAMPLED_BATCHES = 64  # at most an epoch, whose visits are counted where they tell what is hot
SLOT_BYTES = 4  # of each row of a table with a cache: where the row is held


class Candidate(NamedTuple):
    """A table whose rows may be cached."""

    name: str  # for the user
    table: Tensor  # [N, ...], contiguous
    visits: Tensor  # float64 [N]: how often each row is expected to be gathered, on any scale


def hottest_rows(tables: Sequence[Candidate], room_bytes: int) -> list[Tensor]:
    """Return the rows of each table, int64 [C_t] in ascending order, that a cache should hold.

    Rows go by the reads of host memory that they are expected to save for their bytes, over all
    tables; rows that are never visited are left out. A table with a cache takes 4 bytes for each
    of its rows, which must fit as well, so tables that are left without any cached row are tried
    without.

    Example: rows of 128 bytes visited [3, 0, 9, 1] times and room for two of them and the table
    of slots give [0, 2].
    """
    kept = list(range(len(tables)))
    while True:
        room = room_bytes - SLOT_BYTES * sum(len(tables[t].table) for t in kept)
        picked = _picked([tables[t] for t in kept], room)
        useful = [t for t, rows in zip(kept, picked, strict=True) if len(rows) > 0]
        if useful == kept or not kept:
            found = dict(zip(kept, picked, strict=True))
            none = torch.empty(0, dtype=torch.int64)
            return [found.get(t, none) for t in range(len(tables))]
        # Where none fits, the widest table goes first: it may leave room for the others.
        widest = max(kept, key=lambda t: len(tables[t].table))
        kept = useful or [t for t in kept if t != widest]


def _picked(tables: Sequence[Candidate], room_bytes: int) -> list[Tensor]:
    if room_bytes <= 0 or not tables:
        return [torch.empty(0, dtype=torch.int64) for _ in tables]
    sizes = [table.nbytes // len(table) for _, table, _ in tables]
    saved = torch.cat(
        [
            visits.to(torch.float64) * (blocks_of_row(size, LINE_BYTES) / size)
            for (_, _, visits), size in zip(tables, sizes, strict=True)
        ]
    )
    counts = torch.tensor([len(table) for _, table, _ in tables])
    widths = torch.repeat_interleave(torch.tensor(sizes), counts)
    order = saved.argsort(descending=True, stable=True)
    order = order[: int((saved > 0).sum())]
    within = widths[order].cumsum(0) <= room_bytes
    chosen = torch.zeros(len(saved), dtype=torch.bool)
    chosen[order[within]] = True
    return [part.nonzero().view(-1) for part in torch.split(chosen, counts.tolist())]
