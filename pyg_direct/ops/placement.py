"""Where the arrays of a graph lie for a GPU: in its memory, or in host memory that it reads."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .pinning import Lease, PinningError, Registry

logger = logging.getLogger("pyg_direct")

MODES = ("auto", "host", "device")
FREE_SHARE = 0.5  # of the free device memory: the rest is for the model and its batches
# Smaller tensors share their pages with other objects, so they are copied instead of registered.
MIN_REGISTER_BYTES = 1 << 20

ON_DEVICE = "GPU memory"
REGISTERED = "host memory, registered where it lies"
PINNED_COPY = "host memory, a pinned copy"
STAGED = "host memory, selected by the CPU and copied for each batch"


class Row(NamedTuple):
    """What was decided for one array."""

    name: str
    nbytes: int
    place: str


@dataclass
class Placement:
    """What lies where, as ``loader.placement``; `str` gives a table.

    Args:
        device: where the batches are.
        budget_bytes: GPU memory that graph and features may take; None without a GPU.
    """

    device: torch.device
    budget_bytes: int | None = None
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Note a decision."""
        self.rows.append(row)
        logger.info("%s: %s (%s)", row.name, row.place, megabytes(row.nbytes))

    def __str__(self) -> str:
        budget = (
            "" if self.budget_bytes is None else f", at most {megabytes(self.budget_bytes)} of it"
        )
        lines = [f"batches on {self.device}{budget}"]
        width = max((len(row.name) for row in self.rows), default=0)
        lines += [f"  {r.name:<{width}}  {megabytes(r.nbytes):>12}  {r.place}" for r in self.rows]
        return "\n".join(lines)


def megabytes(nbytes: int) -> str:
    """Return a size as text."""
    return f"{nbytes / 1e6:,.1f} MB"


def check_mode(mode: str, name: str) -> str:
    """Return `mode`, a value of the argument `name`.

    Raises:
        ValueError: it is none of MODES.
    """
    if mode not in MODES:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, MODES))}, got {mode!r}.")
    return mode


def check_bytes(nbytes: int | None, name: str) -> int | None:
    """Return `nbytes`, a value of the argument `name`.

    Raises:
        ValueError: neither None nor an int of 0 or more.
    """
    if nbytes is not None and (
        isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0
    ):
        raise ValueError(f"{name} must be None or a number of bytes of 0 or more, got {nbytes!r}.")
    return nbytes


class _Held:
    """One of the user's tensors, and what the GPU reads in its place."""

    def __init__(self, source: Tensor, forget: Callable[[object], None]) -> None:
        self.source = weakref.ref(source, forget)
        self.address, self.version = source.data_ptr(), version_of(source)
        self.readable: Tensor | None = None  # a copy, or None if the source itself is read
        self.lease: Lease | None = None
        self.staged = False


class Placer:
    """Puts arrays where a GPU can read them, and remembers where.

    Args:
        device: the GPU.
        registry: of host memory.
        free_bytes: returns how much device memory is free.
    """

    def __init__(
        self, device: torch.device, registry: Registry, free_bytes: Callable[[], int]
    ) -> None:
        self._device, self._registry, self._free_bytes = device, registry, free_bytes
        self.placement = Placement(device)
        self._left: int | None = None  # of the budget
        self._features = "auto"
        self._held: dict[int, _Held] = {}
        self._leases: list[Lease] = []  # of the topology
        self._lock = threading.Lock()

    def open_budget(self, device_bytes: int | None) -> None:
        """Say how much device memory may be used; None for FREE_SHARE of what is free."""
        if device_bytes is None:
            device_bytes = int(self._free_bytes() * FREE_SHARE)
        self._left = self.placement.budget_bytes = device_bytes

    def topology(self, arrays: Iterable[tuple[str, Tensor]], mode: str) -> dict[str, Tensor]:
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
        self._registry.runtime.synchronize()
        return placed

    def hold(self, tables: Iterable[tuple[str, Tensor]], mode: str) -> None:
        """Place the user's tables, the small ones first, as most of them fit then."""
        self._features = mode
        for name, table in sorted(tables, key=lambda pair: nbytes_of(pair[1])):
            self.reach(table, name)
        self._registry.runtime.synchronize()

    def reach(self, table: Tensor, name: str = "an attribute") -> Tensor | None:
        """Return what the GPU reads for a table: itself or a copy; None if it cannot read any.

        A copy follows its source: after a change in place, which torch's version counter tells, it
        is made anew. What writes to the memory past torch, as NumPy does, goes unnoticed.
        """
        if table.device == self._device and self._device.type != "cpu":
            return table
        if table.device.type != "cpu":
            return None
        held = self._find(table)
        if held is None:
            with self._lock, torch.inference_mode(False), torch.no_grad():
                held = self._find(table) or self._place(table, name)
        if held.staged:
            return None
        if held.readable is None:
            return table
        if held.version != version_of(table):
            with self._lock, torch.inference_mode(False), torch.no_grad():
                self._refresh(held, table)
        return held.readable

    def _find(self, table: Tensor) -> _Held | None:
        held = self._held.get(id(table))
        known = held is not None and held.source() is table and held.address == table.data_ptr()
        return held if known else None

    def _place(self, table: Tensor, name: str) -> _Held:
        # Without a reference to `self`, which would keep everything alive until a collection.
        held = _Held(table, partial(_forget, self._held, id(table)))
        held.readable = self._copied(table, name, self._features)
        place = ON_DEVICE
        if held.readable is None:
            try:
                readable, held.lease, place = self._pinned(table, name)
                held.readable = None if readable is table else readable
            except PinningError as error:
                held.staged, place = True, STAGED
                _warn(
                    f"{error} So the CPU selects its rows and copies them for each batch, which "
                    f"takes as long as in PyG."
                )
        self._held[id(table)] = held
        self.placement.add(Row(name, nbytes_of(table), place))
        return held

    def _refresh(self, held: _Held, table: Tensor) -> None:
        assert held.readable is not None
        self._registry.runtime.synchronize()  # earlier batches may be reading the old values
        held.version = version_of(table)
        held.readable.copy_(table.detach())
        self._registry.runtime.synchronize()

    def _copied(self, array: Tensor, name: str, mode: str) -> Tensor | None:
        """Return a copy in device memory, or None where `mode` and the budget leave it outside."""
        if self._left is None:
            self.open_budget(None)
        assert self._left is not None
        if mode == "host" or (mode == "auto" and nbytes_of(array) > self._left):
            return None
        try:
            copy = array.detach().to(self._device, copy=True).contiguous()
        except torch.cuda.OutOfMemoryError as error:
            if mode == "auto":
                self._left = 0
                return None
            raise torch.cuda.OutOfMemoryError(
                f"{name} ({megabytes(nbytes_of(array))}) does not fit into the memory of "
                f"{self._device}. Leave it on the host with topology='host' or features='host'. "
                f"({error})"
            ) from error
        self._left = max(0, self._left - nbytes_of(array))
        return copy

    def _pinned(self, array: Tensor, name: str) -> tuple[Tensor, Lease | None, str]:
        """Return an array that the GPU reads in host memory, and how it got there."""
        if nbytes_of(array) >= MIN_REGISTER_BYTES:
            try:
                return array, self._registry.lease(array, name), REGISTERED
            except PinningError as error:
                copy = self._registry.pinned_copy(array, name)
                _warn(f"{error} A pinned copy was made, which takes that much memory again.")
                return copy, None, PINNED_COPY
        return self._registry.pinned_copy(array, name), None, PINNED_COPY


def nbytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def version_of(tensor: Tensor) -> int:
    """Return how often torch changed a tensor in place; inference tensors do not count it."""
    return -1 if tensor.is_inference() else tensor._version


def _forget(held: dict[int, _Held], key: int, _: object) -> None:
    held.pop(key, None)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
