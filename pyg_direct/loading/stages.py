"""Stream synchronisation for prefetched batches.

While the model trains on batch i, the rows of batch i+1 are gathered and batch i+2 is sampled, each
on a stream of its own::

    sample   | i+2 |
    gather   | i+1 |      <- waits for its sample
    consumer |  i  |      <- waits for its gather

The consumer's stream waits only for the batch that it asks for. In the other direction the host
waits before it begins a batch, in the thread that makes it, for what the consumer had
queued when it asked for that batch. So what the consumer wrote into a table is read by the batches
it asks for afterwards, and a host that runs ahead of the device does not fill its memory.

In a forked child torch would wait for the threads of OpenMP that the parent had, in any operation
that it divides among threads. PyTorch's own workers set the number of threads to 1; here that
holds only while a loader works, so that nothing changes for the user's program.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..core.threads import after_fork_in_child
from ..core.types import BatchKey, maker
from ..ops.host import keys as rng
from ..ops.streams import Event, Streams


class EpochSizes(NamedTuple):
    """The step of the envelope in an epoch, and the steps of larger batches by their numbers.

    See `shapes.StaticShapes`; without one, of no batch.
    """

    step: int
    larger: dict[int, int]


class BatchTask(NamedTuple):
    """One batch to make."""

    number: int  # in the epoch, of the first batch of its step
    index: Any  # positions in the loader's `input_nodes`, from `positions_of`
    key: BatchKey
    asked: Event  # when the consumer asked for it
    grad: bool  # modes of the thread that asks for the batch: torch keeps them by thread
    inference: bool
    place: Any  # its `Place`, where ranks make batches together; else None
    sizes: EpochSizes


new_task = maker(BatchTask)


class LateBatch(NamedTuple):
    """A batch whose counts are on their way from a device, so that it may lack something.

    They have normally arrived when it is handed out, as they were copied right after the sampling.
    """

    batch: object
    settle: Callable[[], BatchTask | None]
    """Waits for the counts, and writes them to the batch; or returns what to make instead of it."""


class Handover(NamedTuple):
    """A finished product, for the consumer to take."""

    product: Any
    ready: Event  # None where nothing has to be waited for


new_handover = maker(Handover)


class Stages:
    """Orders the two stages of a batch with each other and with the consumer.

    Args:
        streams: where the stages run; `NoStreams` for one after another.
        tensors_of: returns the tensors in what a stage returns.
    """

    def __init__(self, streams: Streams, tensors_of: Callable[[Any], Iterable[Tensor]]) -> None:
        self._streams, self._tensors_of = streams, tensors_of
        # Returns the moment at which the consumer asks for a batch; called in its thread.
        self.ask: Callable[[], Event] | None = None if streams.in_order else streams.record_event

    def produce(
        self,
        task: Any,
        sample: Callable[[Any], Any],
        gather: Callable[[Any], Any] | None,
    ) -> Handover:
        """Run the stages of one batch, in any thread.

        Args:
            task: what to make; its `asked` is the moment when it was asked for, from `ask`.
            sample: the first stage, called with the task.
            gather: the second one, called with what the first returned; None if the consumer is to
                run it itself.
        """
        streams = self._streams
        if streams.in_order:
            product = sample(task)
            product = product if gather is None else gather(product)
            if streams.finish is not None:
                streams.finish()
            return new_handover((product, None))
        streams.synchronize(task.asked)
        with streams.on("sample"):
            product = sample(task)
            ready = streams.record_event()
        if gather is not None:
            with streams.on("gather"):
                self._receive(product, ready)
                product = gather(product)
                ready = streams.record_event()
        return Handover(product, ready)

    def take(self, handover: Handover) -> Any:
        """Return a product to the consumer, in its thread, for use on its current stream."""
        if handover.ready is not None:
            self._receive(*handover)
        return handover.product

    def _receive(self, product: Any, ready: Event) -> None:
        self._streams.wait_event(ready)
        self._streams.record_stream(self._tensors_of(product))


class _BatchKeys(threading.local):
    """The keys of the batch that a thread makes in an epoch."""

    key: BatchKey | None = None
    calls = 0

    @contextmanager
    def of(self, key: BatchKey) -> Iterator[None]:
        """Draw from a key meanwhile."""
        self.key, self.calls = key, 0
        try:
            yield
        finally:
            self.key = None

    def next(self) -> BatchKey | None:
        """Return the key of the batch, at later calls one derived from it; None outside of one."""
        if self.key is None:
            return None
        calls, self.calls = self.calls, self.calls + 1
        if calls == 0:
            return self.key
        return rng.derive(rng.as_seed(self.key), 0, calls, rng.CALL_DOMAIN)


batch_keys = _BatchKeys()


P = ParamSpec("P")
R = TypeVar("R")


FORKED: list[bool] = []  # empty unless the process was forked from one that had this module
after_fork_in_child(functools.partial(FORKED.append, True))


class _Given(threading.local):
    threads: int | None = None  # the user's number, while torch has one thread


_given = _Given()


def torch_threads() -> int:
    """Return how many threads the user lets torch have."""
    return _given.threads or torch.get_num_threads()


def serial_after_fork(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` such that, in a forked child, torch has one thread while it runs."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not FORKED or _given.threads is not None:
            return function(*args, **kwargs)
        _given.threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(_given.threads)
            _given.threads = None

    return run


class SerialAfterFork:
    """A base of loaders, of whose subclasses these methods are `serial_after_fork`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("__init__", "__call__", "__iter__", "collate_fn", "filter_fn"):
            if name in vars(cls):
                setattr(cls, name, serial_after_fork(vars(cls)[name]))
