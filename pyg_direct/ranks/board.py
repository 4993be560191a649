"""What the ranks of a process group leave for each other in its store: values, and failures."""

from __future__ import annotations

import atexit
import contextlib
import pickle
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any, TypeVar

import torch.distributed as dist

from ..core.private_torch import group_store

T = TypeVar("T")

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.05  # between two looks at the store
TELLING_SECONDS = 5.0  # that a rank which has failed waits for the store, at most
STORE_MARGIN_SECONDS = 3.0  # that the store may take to answer, beyond a wait for ranks
ENDING_SECONDS = 2.0  # that a process which ends waits for answers of the store, at most

_calls: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that have called the store, of which some may still run."""


class ExchangeError(RuntimeError):
    """The ranks cannot go on together; the message says why."""


class Board:
    """Where the ranks that work with one loader each leave texts and values.

    It works beside any backend, and also where a collective of the ranks is stuck. The store is
    asked by threads of its own, as it does not answer where the process that has it was stopped.
    The n-th board that a rank makes over a process group is the same as the n-th of the others.

    Args:
        group: a process group, of any backend.
        way: how this rank's loader works with the others, for messages.
    """

    def __init__(self, group: Any, way: str) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.failure: str | None = None  # of this rank, which has told it
        self._store, self._way, self._topics = group_store(group), way, 0
        number = within(TELLING_SECONDS, lambda: self._store.add(f"pyg_direct/{self.rank}", 1))
        self._prefix = f"pyg_direct/{number}"

    def values(self, value: Any, seconds: float) -> list[Any]:
        """Return the values of all ranks, by rank, once all have called it.

        Args:
            value: of this rank; can be pickled.
            seconds: to wait for the others.

        Raises:
            ExchangeError: not all ranks came in time, or one has failed.
            ValueError: the ranks' loaders work in different ways; on all ranks.
        """
        self._topics += 1
        topic, deadline = self._topics, monotonic() + seconds
        content = pickle.dumps((self._way, value))
        said = within(
            seconds + STORE_MARGIN_SECONDS, lambda: self._collected(topic, content, deadline)
        )
        missing = [rank for rank, found in enumerate(said) if found is None]
        if missing:
            text = (
                f"Rank {', '.join(map(str, missing))} did not come within {seconds:g} s: it was "
                f"stopped, or does something else. timeout= sets another limit."
            )
            self.tell(f"It has waited in vain. {text}")
            raise ExchangeError(text)
        ways = [way for way, _ in said]
        if len(set(ways)) > 1:
            named = "; ".join(f"rank {rank}: {way}" for rank, way in enumerate(ways))
            raise ValueError(
                f"The ranks iterate loaders that work together in different ways: {named}. Build "
                f"the loaders with the same arguments on all ranks, and iterate them in the same "
                f"order."
            )
        return [value for _, value in said]

    def _collected(self, topic: int, content: bytes, deadline: float) -> list[Any]:
        """Return what each rank has said of a topic; None of those that have not in time."""
        keys = [f"{self._prefix}/{topic}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], content)
        found: list[Any] = [None] * self.size
        pause = SHORTEST_PAUSE
        for rank, key in enumerate(keys):
            while not self._store.check([key]):
                if failure := self.told():
                    raise ExchangeError(failure)
                if monotonic() > deadline:
                    break
                sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                found[rank] = pickle.loads(self._store.get(key))
        if None not in found and topic > 1:  # all have read what was said before
            with contextlib.suppress(Exception):
                self._store.delete_key(f"{self._prefix}/{topic - 1}/{self.rank}")
        return found

    def tell(self, text: str) -> None:
        """Tell the others why this rank has failed, as far as the store answers."""
        self.failure = self.failure or text

        def write() -> None:
            self._store.set(f"{self._prefix}/failed/{self.rank}", text)
            self._store.set(f"{self._prefix}/failed", "1")

        with contextlib.suppress(Exception):
            within(TELLING_SECONDS, write)

    def told(self) -> str:
        """Return what other ranks have told, ""; may wait as long as the store does not answer."""
        if not self._store.check([f"{self._prefix}/failed"]):
            return ""
        keys = {rank: f"{self._prefix}/failed/{rank}" for rank in range(self.size)}
        return "\n".join(
            f"Rank {rank} failed: {self._store.get(key).decode()}"
            for rank, key in keys.items()
            if self._store.check([key])
        )

    def told_within(self, seconds: float) -> str:
        """Return what `told` does, "" where the store does not answer in time."""
        try:
            return within(seconds, self.told)
        except Exception:  # it is gone with the process that had it
            return ""


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return ``function()``, called in a thread that nobody waits for longer than some seconds.

    Raises:
        ExchangeError: it took longer, or the store is gone.
        Exception: that of the function.
    """
    done: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def call() -> None:
        try:
            done.put((function(), None))
        except Exception as error:
            done.put((None, error))

    thread = threading.Thread(target=call, name="pyg_direct-store", daemon=True)
    thread.start()
    _calls.add(thread)
    try:
        found, error = done.get(timeout=seconds)
    except Empty:
        raise ExchangeError(
            f"The store of the process group did not answer within {seconds:g} s: the process "
            f"that has it, rank 0 or the launcher, was stopped or cannot be reached."
        ) from None
    thread.join()
    if isinstance(error, RuntimeError) and not isinstance(error, ExchangeError):
        raise ExchangeError(
            f"The store of the process group is lost: the process that has it, rank 0 or the "
            f"launcher, has ended or cannot be reached. {error}"
        ) from error
    if error is not None:
        raise error
    return found  # type: ignore[no-any-return]


@atexit.register
def _end_calls() -> None:
    """Wait for calls of the store that nobody waits for any longer.

    One that returned to Python while the interpreter ends would abort the process: its thread would
    be unwound through destructors of C++ that must not throw.
    """
    deadline = monotonic() + ENDING_SECONDS
    for thread in list(_calls):
        thread.join(max(0.0, deadline - monotonic()))
