"""The thread that makes batches together with those of other ranks, and answers theirs."""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from .channel import (
    CLOSED,
    IDLE,
    LEAVING,
    WORKING,
    Channel,
    ExchangeError,
    OtherRankError,
    RankWord,
    ranks_agree,
)

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.03  # that a rank waits for its next batch
LINGER_SECONDS = 10.0  # how long a process that ends goes on answering ranks that make batches


class _Request:
    """A batch that a producer thread waits for."""

    def __init__(self, asked: Any) -> None:
        self.asked = asked
        self.done: SimpleQueue[tuple[Any, str | None]] = SimpleQueue()


class _Offer:
    """A value that the thread of the loop wants to exchange for those of all ranks."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.done: SimpleQueue[tuple[list[bytes], str | None]] = SimpleQueue()


class Rounds:
    """Makes batches in rounds, in each of which every rank makes a window of them or none.

    A round begins with an exchange in which each rank says what it does and how many batches it
    makes, so no rank decides alone what follows: if none makes any, nothing does. Before it, a rank
    whose loop needs batches waits for them half as long as the last round took: those that come too
    late would take a round of their own from all ranks. A rank without batches to make, since its
    loop pauses, has ended early or is in another epoch, still takes part and answers. The thread
    ends when the loaders of all ranks are gone; when one process ends; and when any rank has
    failed, with its text on all ranks.

    Args:
        channel: to the other ranks; only this thread calls it.
        make: makes some batches, given what was asked for of each, perhaps none; collective, as it
            is called in every round in which any rank makes batches.
        window: most batches of this rank in a round.
    """

    def __init__(
        self, channel: Channel, make: Callable[[list[Any]], list[Any]], window: int
    ) -> None:
        self._channel, self._make, self._window = channel, make, window
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._held: list[_Request] = []  # that a later round makes
        self._offers: deque[_Offer] = deque()
        self._lock = threading.Lock()
        self._failure: str | None = None  # of this rank, to be told to the others
        self._ended: str | None = None  # why no more batches can be made
        self._closed = self._leaving = False
        self._together, self._patience_seconds = 1, SHORTEST_PAUSE
        self._linger_seconds = LINGER_SECONDS
        self._is_working: Callable[[], bool] = lambda: False
        self._is_stale: Callable[[int], bool] = lambda ticket: False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="pyg_direct-exchange", daemon=True)

    def start(self) -> None:
        """Begin; all ranks must."""
        # Unlike `atexit`, it is also called where a process of `multiprocessing` ends.
        leaving = multiprocessing.util.Finalize(
            None,
            _leave,
            args=(weakref.ref(self), weakref.ref(self._thread), self._pid),
            exitpriority=10,
        )
        weakref.finalize(self._thread, leaving.cancel).atexit = False
        self._thread.start()

    def made(self, asked: Any) -> Any:
        """Return what `make` makes of one batch, in any thread but that of the rounds.

        Waits for a round.

        Raises:
            ExchangeError: a rank has failed or is gone; the message has its text.
        """
        request = _Request(asked)
        with self._lock:
            self._check()
            self._requests.put(request)
        found, problem = request.done.get()
        if problem is not None:
            raise _no_more(problem)
        return found

    def gather(self, value: bytes) -> list[bytes]:
        """Return the values of all ranks, by rank, once all have called it.

        Raises:
            ExchangeError: a rank has failed or is gone before; the message has its text.
        """
        offer = _Offer(value)
        with self._lock:
            self._check()
            self._offers.append(offer)
            self._requests.put(None)
        found, problem = offer.done.get()
        if problem is not None:
            raise _no_more(problem)
        return found

    def check(self) -> None:
        """Raise an ExchangeError if no more batches can be made."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ExchangeError(
                "This loader's exchange with other ranks began in another process, whose threads "
                "do not exist here. Build a loader in this process."
            )
        if self._ended is not None:
            raise _no_more(self._ended)

    def fail(self, error: BaseException) -> None:
        """Tell all ranks that this one could not make a batch."""
        if not isinstance(error, ExchangeError):
            self._failure = self._failure or f"{type(error).__name__}: {error}"
            self._requests.put(None)

    def works_for(
        self,
        is_working: Callable[[], bool],
        is_stale: Callable[[int], bool],
        together: int,
    ) -> None:
        """Let others know, by a function, whether a loop of this rank still needs batches.

        Args:
            is_working: called in any thread.
            is_stale: likewise, with the ticket of an iterator: whether its batches are of no use.
            together: how many batches the loop asks for at a time.
        """
        self._is_working, self._is_stale, self._together = is_working, is_stale, together

    def close(self) -> None:
        """Note that the loader is gone. The thread answers the others until all of theirs are."""
        self._closed = True
        self._requests.put(None)

    def leave(self) -> None:
        """End, as the process does: at once after an error, else when no rank makes batches."""
        self._leaving = True
        self._requests.put(None)
        self._thread.join(LINGER_SECONDS + 1.0)
        self._channel.abandoned.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        window: list[_Request] = []
        problem = "The exchange with other ranks has ended."
        try:
            pause, leaving_at = SHORTEST_PAUSE, None
            others_work = True
            while True:
                self._fill(window, pause)
                if self._leaving and leaving_at is None:
                    raised = hasattr(sys, "last_value")
                    leaving_at = monotonic() + (0.0 if raised else self._linger_seconds)
                status = self._status(leaving_at, others_work)
                offer = self._offers[0] if self._offers else None
                word = RankWord(status, len(window), offer is not None, self._step(window))
                every = self._channel.open(word, self._failure)
                statuses = [word.status for word in every]
                ended = self._end(every)
                if ended is not None:
                    problem = ended
                    return
                if all(status == CLOSED for status in statuses):
                    self._channel.ended = True
                    return
                others_work = WORKING in statuses
                if offer is not None and all(word.offers for word in every):
                    offer.done.put((self._channel.gather(offer.value), None))
                    self._offers.popleft()
                elif offer is not None and CLOSED in statuses:  # which offers nothing any more
                    gone = statuses.index(CLOSED)
                    offer.done.put(([], f"Rank {gone} has no such loader any more."))
                    self._offers.popleft()
                if not ranks_agree(every):
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                pause, begun = SHORTEST_PAUSE, monotonic()
                self._round(window)
                self._patience_seconds = min((monotonic() - begun) / 2, LONGEST_PAUSE)
        except ExchangeError as error:
            problem = str(error)
        except OtherRankError:
            problem = self._told("")
        except BaseException as error:
            problem = self._told(f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._ended = problem
            while not self._requests.empty():
                request = self._requests.get()
                window += [request] if request is not None else []
            for request in window + self._held:
                request.done.put((None, problem))
            for offer in self._offers:
                offer.done.put(([], problem))

    def _told(self, text: str) -> str:
        """Tell the others of a failure on this rank, and return what all have told."""
        try:
            self._channel.fail(text)
        except Exception as error:
            return str(error)
        return text

    def _status(self, leaving_at: float | None, others_work: bool) -> int:
        if leaving_at is not None and (not others_work or monotonic() >= leaving_at):
            return LEAVING
        if self._closed:
            return CLOSED
        return WORKING if self._is_working() and leaving_at is None else IDLE

    def _end(self, every: Sequence[RankWord]) -> str | None:
        """Return why no rank can go on after what all of them said; None if they can."""
        statuses = [word.status for word in every]
        if LEAVING in statuses:
            return f"Rank {statuses.index(LEAVING)} has ended its program."
        return None

    def _step(self, window: list[_Request]) -> int:
        """Return which step a window is of."""
        return 0

    def _fill(self, window: list[_Request], pause: float) -> None:
        """Add the next batches to make to a window; none if nobody asks for any in time."""
        patience = self._patience_seconds if self._is_working() else 0.0
        seconds, found = max(pause, patience), 0
        while len(window) < self._window:
            request = self._next_request(seconds)
            if request is None:
                break
            window.append(request)
            found += 1
            seconds = patience if found < self._together else 0.0

    def _next_request(self, seconds: float) -> _Request | None:
        """Return what is asked for next; None if that is nothing in time, or no batch."""
        try:
            return self._requests.get(timeout=seconds)
        except Empty:
            return None

    def _round(self, window: list[_Request]) -> None:
        """Make the batches of a window, and take them out of it; the others do the same."""
        made = self._make([request.asked for request in window])
        done = list(zip(window, made, strict=True))
        window.clear()
        for request, batch in done:
            request.done.put((batch, None))


def _no_more(problem: str) -> ExchangeError:
    return ExchangeError(
        f"{problem}\nNo rank can go on with this loader. Build it anew on all ranks, and load a "
        f"state_dict() to go on in the middle of the epoch."
    )


_left: list[Rounds] = []  # keep their last collectives until the interpreter is gone


def _leave(rounds: weakref.ref[Rounds], thread: weakref.ref[threading.Thread], pid: int) -> None:
    """End rounds where their process ends, while the interpreter can still run them to an end."""
    alive, running = rounds(), thread()
    if pid != os.getpid():
        return
    if alive is not None:
        alive.leave()
        _left.append(alive)
    elif running is not None:  # it closes the process group, in which no thread must be ended
        running.join(LINGER_SECONDS)
