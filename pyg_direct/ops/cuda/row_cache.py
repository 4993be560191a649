"""Rows of tables in host memory that device memory holds as well."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...core.units import size_text
from ..host.hottest import Candidate, hottest_rows
from ..placement import ON_DEVICE, Placement, Row
from . import memory as device_memory
from .placer import row_bytes_of, version_of, whereabouts

LEAST_BYTES = 1 << 16  # where so little does not fit, there is no cache

Gather = Callable[[Tensor, Tensor, Tensor, int], None]
"""`CudaBackend.gather_bytes`: table, ids, output, rows."""


class RowCache:
    """The rows of one table that device memory holds.

    Args:
        table: as kernels read it, in host memory.
        rows: int64 [C], ascending: which of its rows are held.
        device: that holds them.

    Attributes:
        slots: int32 [N] on the device: the row of `held`, or -1.
        held: uint8 [C * row_bytes] on the device.
    """

    def __init__(self, table: Tensor, rows: Tensor, device: torch.device) -> None:
        self._table, self._lies = weakref.ref(table), whereabouts(table)
        self._version: int | None = None
        self._lock = threading.Lock()
        slots = torch.full((len(table),), -1, dtype=torch.int32)
        slots[rows] = torch.arange(len(rows), dtype=torch.int32)
        self.slots = device_memory.upload(slots, device)
        self._rows = device_memory.upload(rows, device)
        self.held = device_memory.empty(len(rows) * row_bytes_of(table), torch.uint8, device)

    def is_of(self, table: Tensor) -> bool:
        """Whether it holds rows of this tensor, which lies where it did."""
        return self._table() is table and self._lies == whereabouts(table)

    def refresh(self, table: Tensor, gather: Gather, synchronize: Callable[[], None]) -> None:
        """Read the rows, unless they are those of the table as it is now."""
        if self._version == version_of(table):
            return
        with self._lock, torch.inference_mode(False), torch.no_grad():
            version = version_of(table)
            synchronize()  # earlier batches may be reading the old values
            flat = table.detach().view(-1).view(torch.uint8)
            gather(flat, self._rows, self.held, len(self._rows))
            synchronize()  # other streams will read them
            self._version = version


class RowCaches:
    """The caches of one backend, by table.

    Args:
        device: that holds the rows.
        placement: which is told of each cache.
        synchronize: waits for the device.
    """

    def __init__(
        self, device: torch.device, placement: Placement, synchronize: Callable[[], None]
    ) -> None:
        self._device, self._placement, self._synchronize = device, placement, synchronize
        self._caches: dict[int, RowCache] = {}

    def fill(self, tables: Sequence[Candidate], room_bytes: int, gather: Gather) -> None:
        """Hold the hottest rows of tables; fewer of them where there is too little memory.

        Args:
            tables: as kernels read them, in host memory.
            room_bytes: device memory that may be taken.
            gather: reads rows of a table.
        """
        room = room_bytes
        while room > 0:
            picked = hottest_rows(tables, room)
            try:
                self._hold(tables, picked, gather)
                break
            except torch.cuda.OutOfMemoryError:
                self._caches.clear()
                room = room // 2 if room >= 2 * LEAST_BYTES else 0
        if room < room_bytes:
            warnings.warn(
                f"cache={size_text(room_bytes)} does not fit into the memory of {self._device}; "
                f"{size_text(room)} are used.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _hold(self, tables: Sequence[Candidate], picked: Sequence[Tensor], gather: Gather) -> None:
        made = []
        for (name, table, _), rows in zip(tables, picked, strict=True):
            if len(rows) > 0:
                cache = RowCache(table, rows, self._device)
                cache.refresh(table, gather, self._synchronize)
                self._caches[id(table)] = cache
                text = f"cache of {name}: {len(rows):,} of {len(table):,} rows"
                made.append(Row(text, cache.held.nbytes + cache.slots.nbytes, ON_DEVICE))
        for row in made:
            self._placement.add(row)

    def of(self, table: Tensor, gather: Gather) -> RowCache | None:
        """Return the cache of a table in its present state, or None."""
        cache = self._caches.get(id(table)) if self._caches else None
        if cache is None or not cache.is_of(table):
            return None
        cache.refresh(table, gather, self._synchronize)
        return cache
