"""Puts arrays where a GPU can read them: in its memory, or in pinned host memory."""

from __future__ import annotations

import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...core.types import Csc
from ...core.units import size_text
from ..ids import DeviceIds, HostIds, Ids
from ..placement import (
    FREE_SHARE,
    ON_DEVICE,
    PINNED_COPY,
    REGISTERED,
    STAGED,
    Placement,
    Row,
)
from ..streams import Streams
from . import memory as device_memory
from .file_view import registrable
from .pinning import Lease, PinningError, Registry

# Smaller tensors may share pages with other objects, so they are copied instead of registered: CUDA
# refuses to copy memory of which only a part is registered ("API synchronization behavior" in the
# driver's documentation), such as a tensor that ends on a page of a registered one. From this size
# on glibc gives each allocation pages of its own (DEFAULT_MMAP_THRESHOLD_MAX of malloc).
MIN_REGISTER_BYTES = 32 << 20
# A row costs at least one sector of 32 bytes on the link. Tables whose rows use no more than half
# of it, as labels and masks do, take little device memory and much of the link.
NARROW_ROW_BYTES = 16


class Copy:
    """What a GPU reads in place of one of the user's tensors, and of which version of it."""

    def __init__(self, source: Tensor, tensor: Tensor) -> None:
        self._source, self._lies = weakref.ref(source), whereabouts(source)
        self.tensor, self.version = tensor, version_of(source)
        self._lock = threading.Lock()

    def is_of(self, source: Tensor) -> bool:
        """Whether it was made from this tensor, and the tensor still lies where it did."""
        return self._source() is source and self._lies == whereabouts(source)

    def refresh(self, source: Tensor, registry: Registry) -> None:
        """Follow a source that was changed in place."""
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if self.version != version_of(source):
                version = version_of(source)
                registry.runtime.synchronize()  # earlier batches may be reading the old values
                registry.copy(self.tensor, source)
                registry.runtime.synchronize()  # as in `Placer._place`
                self.version = version


Copies: TypeAlias = "weakref.WeakValueDictionary[int, Copy]"
"""The copies in one device's memory, by the id of their source; shared by all loaders."""


class _Held:
    """One of the user's tensors, and how the GPU gets at it."""

    def __init__(self, source: Tensor, name: str, forget: Callable[[object], None]) -> None:
        self.source, self.lies = weakref.ref(source, forget), whereabouts(source)
        self.name = name
        self.copy: Copy | None = None  # read in place of the source
        self.lease: Lease | None = None  # on the source's own memory, or on its file's pages
        self.staged = False  # the GPU cannot get at it
        self.row: Row | None = None  # of `Placement`

    @property
    def reads_file(self) -> bool:
        """Whether the GPU reads the pages of the source's file, which do not follow it."""
        return self.copy is not None and self.lease is not None


class Placer:
    """`ops.backend.Memory` of a GPU: puts arrays where it can read them, and remembers where.

    Args:
        device: the GPU.
        registry: of host memory.
        copies: of the device.
        free_bytes: returns how much device memory is free.
        streams: of the device.
    """

    checks_reads = False

    def __init__(
        self,
        device: torch.device,
        registry: Registry,
        copies: Copies,
        free_bytes: Callable[[], int],
        streams: Streams,
    ) -> None:
        self._device, self._registry, self._free_bytes = device, registry, free_bytes
        self._copies, self._streams = copies, streams
        self.placement = Placement(device)
        self._left: int | None = None  # of the budget
        self._features = "auto"
        self._held: dict[int, _Held] = {}
        self._leases: list[Lease] = []  # of the topology, and of files that tables have left
        self._lock = threading.Lock()

    def open_budget(self, device_bytes: int | None) -> None:
        """Say how much device memory may be used; None for FREE_SHARE of what is free."""
        if device_bytes is None:
            device_bytes = int(self._free_bytes() * FREE_SHARE)
        self._left = self.placement.budget_bytes = device_bytes

    def left_bytes(self) -> int:
        """Return how much of the budget nothing was placed in, as far as it is free now."""
        if self._left is None:
            self.open_budget(None)
        assert self._left is not None
        return min(self._left, int(self._free_bytes() * FREE_SHARE))

    def place_graph(self, csc: Csc, topology: str = "auto", device_bytes: int | None = None) -> Csc:
        """Return `csc` with its arrays as tensors in device memory, or in pinned host memory."""
        if not csc.verified:
            raise ValueError("Kernels of the GPU check no id, so a graph must be verified before.")
        self.open_budget(device_bytes)
        arrays = ((name, torch.as_tensor(array).contiguous()) for name, array in csc.arrays())
        return csc.with_arrays(self._place_arrays(arrays, topology))

    def to_numpy(self, csc: Csc) -> Csc:
        """Return a placed graph with NumPy arrays."""
        return csc.with_arrays({name: array.cpu().numpy() for name, array in csc.arrays()})

    def ids(self, on_host: bool) -> Ids:
        """Return what copies ids to the host, or what leaves them on the GPU."""
        if on_host:
            return HostIds(device_memory.begin_download, self._streams)
        return DeviceIds(lambda tensor: self.to_batch(tensor, tensor.device))

    def to_batch(self, value: Any, device: torch.device) -> Any:
        """Return a part of a batch on the GPU: it is what PyG's would be after ``.to("cuda")``."""
        plain = type(value) is Tensor and value.layout == torch.strided
        if plain and not value.requires_grad:  # autograd follows `to`
            return device_memory.upload(value, self._device)
        return value.to(self._device)

    def pin(self, batch: Any) -> Any:
        """Return a batch as it is: it is on the GPU already."""
        return batch

    def _place_arrays(self, arrays: Iterable[tuple[str, Tensor]], mode: str) -> dict[str, Tensor]:
        """Return arrays of ours as the GPU reads them, the most useful first.

        Raises:
            PinningError: an array must stay on the host, and cannot be pinned.
        """
        placed = {}
        for name, array in arrays:
            copy, place = self._copied(array, name, mode), ON_DEVICE
            if copy is None:
                copy, lease, place = self._pinned(array, name)
                if lease is not None:
                    self._leases.append(lease)
            placed[name] = copy
            self.placement.add(Row(name, nbytes_of(array), place))
        self._registry.runtime.synchronize()  # as in `_place`
        return placed

    def place_tables(self, tables: Iterable[tuple[str, Tensor]], features: str = "auto") -> None:
        """Place the user's tables, the small ones first, as most of them fit then.

        Raises:
            ValueError: another loader over the same sampler has placed them in another way.
        """
        if self._held and features != self._features:
            raise ValueError(
                f"features={features!r} contradicts features={self._features!r} of another loader "
                f"over the same neighbor_sampler=. Pass the same to both, or a sampler to each."
            )
        self._features = features
        for name, table in sorted(tables, key=lambda pair: nbytes_of(pair[1])):
            self.readable(table, name)

    def readable(self, table: Tensor, name: str = "an attribute") -> Tensor | None:
        """Return what the GPU reads for a table: itself or a copy; None if it cannot read any.

        A copy follows its source: after a change in place, which torch's version counter tells, it
        is made anew. What writes to the memory past torch, as NumPy does, goes unnoticed.
        """
        if table.device == self._device:
            return table
        if table.device.type != "cpu":
            return None
        held = self._find(table)
        if held is None:
            with self._lock, torch.inference_mode(False), torch.no_grad():
                held = self._find(table) or self._place(table, name)
        if held.staged:
            return None
        if held.copy is None:
            return table
        if held.copy.version != version_of(table):
            if held.reads_file:
                self._leave_file(held)
                return self.readable(table, held.name)
            held.copy.refresh(table, self._registry)
        return held.copy.tensor

    def _leave_file(self, held: _Held) -> None:
        """Have a table placed anew that is not as its file any more."""
        with self._lock:
            source = held.source()
            if self._held.get(id(source)) is not held:
                return  # another thread was faster
            del self._held[id(source)]
            # A thread may be about to read the file's pages.
            assert held.lease is not None
            self._leases.append(held.lease)
            if held.row is not None:
                self.placement.rows.remove(held.row)

    def _find(self, table: Tensor) -> _Held | None:
        held = self._held.get(id(table))
        known = held is not None and held.source() is table and held.lies == whereabouts(table)
        return held if known else None

    def _place(self, table: Tensor, name: str) -> _Held:
        # Without a reference to `self`, which would keep everything alive until a collection.
        held = _Held(table, name, partial(_forget, self._held, id(table)))
        held.copy, place = self._on_device(table, name), ON_DEVICE
        if held.copy is None:
            try:
                readable, held.lease, place = self._pinned(table, name)
                held.copy = None if readable is table else Copy(table, readable)
            except PinningError as error:
                held.staged, place = True, STAGED
                _warn(
                    f"{error} So the CPU selects its rows and copies them for each batch, which "
                    f"takes as long as in PyG."
                )
        # Other streams will read what this one copied. torch waits for the transfer, but need not
        # wait for a kernel of its own after it, as of a copy that changes the layout.
        self._registry.runtime.synchronize()
        self._held[id(table)] = held
        held.row = Row(name, nbytes_of(table), place)
        self.placement.add(held.row)
        return held

    def _on_device(self, table: Tensor, name: str) -> Copy | None:
        """Return the copy of a table in device memory; another loader may have made it."""
        mode = self._features
        if mode == "host" and row_bytes_of(table) <= NARROW_ROW_BYTES:
            mode = "auto"
        copy = self._copies.get(id(table)) if mode != "host" else None
        if copy is None or not copy.is_of(table):
            tensor = self._copied(table, name, mode)
            copy = None if tensor is None else Copy(table, tensor)
            if copy is not None:
                self._copies[id(table)] = copy
        return copy

    def _copied(self, array: Tensor, name: str, mode: str) -> Tensor | None:
        """Return a copy in device memory, or None where `mode` and the budget leave it outside."""
        if self._left is None:
            self.open_budget(None)
        assert self._left is not None
        if nbytes_of(array) == 0:  # nothing to pin, and nothing that takes memory
            mode = "device"
        if mode == "host" or (mode == "auto" and nbytes_of(array) > self._left):
            return None
        try:
            copy = torch.empty(array.shape, dtype=array.dtype, device=self._device)
            self._registry.copy(copy, array)
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:  # MemoryError: RMM's
            if mode == "auto":
                self._left = 0
                return None
            raise torch.cuda.OutOfMemoryError(
                f"{name} ({size_text(nbytes_of(array))}) does not fit into the memory of "
                f"{self._device}. Leave it on the host with topology='host' or features='host'. "
                f"({error})"
            ) from error
        self._left = max(0, self._left - nbytes_of(array))
        return copy

    def _pinned(self, array: Tensor, name: str) -> tuple[Tensor, Lease | None, str]:
        """Return what the GPU reads in host memory for an array, and how it got there."""
        if nbytes_of(array) >= MIN_REGISTER_BYTES:
            try:
                readable = registrable(array, name)
                return readable, self._registry.lease(readable, name), REGISTERED
            except PinningError as error:
                copy = self._registry.pinned_copy(array, name)
                _warn(f"{error} A pinned copy was made, which takes that much memory again.")
                return copy, None, PINNED_COPY
        return self._registry.pinned_copy(array, name), None, PINNED_COPY


def nbytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def row_bytes_of(table: Tensor) -> int:
    """Return the bytes of one row of a table [N, ...]."""
    return math.prod(table.shape[1:]) * table.element_size()


def whereabouts(tensor: Tensor) -> tuple[int, torch.Size]:
    """Return the address and shape of a tensor, which the user may change at any time."""
    return tensor.data_ptr(), tensor.shape


def version_of(tensor: Tensor) -> int:
    """Return how often torch changed a tensor in place; inference tensors do not count it."""
    return -1 if tensor.is_inference() else tensor._version


def _forget(held: dict[int, _Held], key: int, _: object) -> None:
    held.pop(key, None)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
