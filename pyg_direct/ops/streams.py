"""CUDA streams behind an interface small enough to fake: what runs where, and waits for what."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias

from torch import Tensor

Event: TypeAlias = Any
"""A point in the work of a stream, as `Streams.mark` gives it. Opaque to everybody else."""


class Streams(Protocol):
    """The streams of one device. What is current is so for the calling thread."""

    def on(self, stage: str) -> AbstractContextManager[None]:
        """Make the stream of a stage ('sample' or 'gather') the current one."""

    def mark(self) -> Event:
        """Return the point in the current stream that all its work so far leads to."""

    def wait(self, event: Event) -> None:
        """Let later work of the current stream wait for `event`; the host goes on."""

    def join(self, event: Event) -> None:
        """Let the host wait for `event`."""

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of tensors of other streams until the current stream is done with them.

        Else their memory would be used again by the stream that they came from, once nobody refers
        to them, though the current stream has yet to read them.
        """

    def lane(self) -> int:
        """Return a number of the current stream."""


class InOrder:
    """No streams at all: everything runs where it is called, one after another."""

    def on(self, stage: str) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def mark(self) -> Event:
        """Return nothing."""
        return None

    def wait(self, event: Event) -> None:
        """Do nothing."""

    def join(self, event: Event) -> None:
        """Do nothing."""

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Do nothing."""

    def lane(self) -> int:
        """Return 0."""
        return 0
