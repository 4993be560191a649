"""CUDA streams behind an interface small enough to fake; the methods are named as torch's are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

T = TypeVar("T")
Event: TypeAlias = Any
"""A point in the work of a stream, from `Streams.record_event`; opaque to its callers."""


class Streams(Protocol):
    """The side streams of one device. As in torch, each thread has a current stream of its own."""

    in_order: bool  # whether all work is done when a call of it returns: there are no streams

    def on(self, stage: str) -> AbstractContextManager[None]:
        """Make the stream of a stage ('sample' or 'gather') the current one."""

    def record_event(self) -> Event:
        """Return an event that completes when the current stream has done its work so far."""

    def wait_event(self, event: Event) -> None:
        """Make later work of the current stream wait for `event`; the host does not wait."""

    def synchronize(self, event: Event) -> None:
        """Make the host wait for `event`."""

    def record_stream(self, tensors: Iterable[Tensor]) -> None:
        """Tell the allocator that the current stream uses tensors allocated on other streams.

        Without it, memory that is freed on the host goes back to the stream that allocated it,
        which may overwrite it before the current stream has read it.
        """

    def stream_id(self) -> int:
        """Return a number that identifies the current stream."""

    def start_thread(self) -> None:
        """Prepare the calling thread, which makes batches only on this device. Called once."""

    @property
    def finish(self) -> Callable[[], None] | None:
        """Ends a batch that was made on the current stream alone; None where nothing has to."""


class Graphs(Protocol):
    """The CUDA graphs of a device."""

    def apart(self, work: Callable[[], T]) -> T:
        """Return what a call does, on the stream of captures, in order with the current one."""

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Note what a call launches, which does not run; it may neither wait nor upload.

        Returns:
            What launches it on the current stream, and what the call returned: tensors that each
            launch writes anew.
        """


class NoStreams:
    """A device without streams: work runs where it is called, in order."""

    in_order = True
    finish: Callable[[], None] | None = None

    def on(self, stage: str) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def record_event(self) -> Event:
        """Return None."""
        return None

    def wait_event(self, event: Event) -> None:
        """Do nothing."""

    def synchronize(self, event: Event) -> None:
        """Do nothing."""

    def record_stream(self, tensors: Iterable[Tensor]) -> None:
        """Do nothing."""

    def stream_id(self) -> int:
        """Return 0."""
        return 0

    def start_thread(self) -> None:
        """Do nothing."""
