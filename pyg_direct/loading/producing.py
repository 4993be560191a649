"""What producer threads know of the loader they make batches for, and do not keep alive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..ops.streams import Streams
from .stages import FORKED, BatchTask, Handover, Stages, serial_after_fork

Loaders = tuple[weakref.ref[Any], ...]


class _Producing(threading.local):
    """The loaders that a thread makes batches for: its own, and those whose producers began it."""

    loaders: Loaders = ()

    def with_loader(self, loader: Any) -> Loaders:
        """Return the loaders of a thread that this one starts for another loader."""
        return *self.loaders, weakref.ref(loader)

    def refuse(self, loader: Any) -> None:
        """Raise a RuntimeError if this thread was started, also by others, for `loader`."""
        if any(reference() is loader for reference in self.loaders):
            raise RuntimeError(
                "A producer thread iterates the loader that it belongs to, in worker_init_fn, "
                "transform or a sampler, which would start more of them without end. Build "
                "another loader for that."
            )


producing = _Producing()


def start_producer(
    streams: Streams, init: Callable[[int], None] | None, loaders: Loaders, number: int
) -> None:
    """Prepare a producer thread, before anything of the user's runs in it.

    Args:
        streams: of the device.
        init: the user's `worker_init_fn`, if any.
        loaders: from `with_loader`.
        number: of the thread.
    """
    producing.loaders = loaders
    streams.start_thread()
    if init is not None:
        init(number)


def weak_work(loader: Any, stages: Stages) -> Callable[[BatchTask], Handover]:
    """Return the producers' work. Their threads must not keep the loader alive by themselves."""
    reference = weakref.ref(loader)

    def work(task: BatchTask) -> Handover:
        alive = reference()
        if alive is None:
            raise RuntimeError("The loader was deleted.")
        make: Callable[..., Handover] = serial_after_fork(alive._work) if FORKED else alive._work
        if task.place is None:
            return make(task, stages)
        with alive._exchange.at(task.place):
            return make(task, stages)

    return work
