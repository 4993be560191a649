"""The thread that makes the batches of an epoch together with other ranks, window by window."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .board import Board, ExchangeError
from .channel import Channel

S = TypeVar("S")

CLOSED = 1 << 62  # the iteration of a rank whose loader is gone


class Terms(NamedTuple):
    """What a rank asks of an exchange.

    Attributes:
        group: the process group of the ranks; None for this process alone.
        board: of the loader over that group; None for one rank.
        timeout_seconds: of one exchange.
        window: most batches of this rank that may be made together.
    """

    group: Any
    board: Board | None
    timeout_seconds: float
    window: int


class Place(NamedTuple):
    """Which batch of a loader one is."""

    iteration: int  # of the loader, from 1 on
    step: int  # in it


ALONE = Place(CLOSED, 0)  # of a batch outside of an iteration


class _Window(NamedTuple):
    """What ranks make together: some steps of an iteration, one after another."""

    iteration: int
    epoch: int
    number: int  # of the first step in the epoch
    steps: range  # in the iteration, for which this rank has batches; perhaps none

    @property
    def words(self) -> list[int]:
        """What must be the same on all ranks."""
        return [self.iteration, self.epoch, self.number]


class _Request(NamedTuple):
    """A batch that a producer thread waits for."""

    place: Place
    asked: Any
    done: SimpleQueue[tuple[Any, str | None]]


class _Ended(NamedTuple):
    """An iteration whose batches nobody waits for any more, and all before it."""

    iteration: int


_Event: TypeAlias = _Window | _Request | _Ended | None


class Windows:
    """Makes batches in windows, in which every rank has as many steps of an epoch.

    All ranks take the same steps, so each enters the same windows in the same order, and is in a
    collective only if its own loop has come so far. A window begins with an exchange in which each
    rank says which one it is at. Where a loop was left early, some ranks may be at a later
    iteration than others; then the window of those is not made, which they notice if their loop
    asks for it. A rank whose loader is gone is at the last of all iterations. After any failure no
    more windows are made on any rank.

    Args:
        channel: to the other ranks; only this thread calls it.
        make: makes some batches, given what was asked for of each, perhaps none; collective.
        size: steps of a window; the same on all ranks.

    Attributes:
        asked_since: when the loop began to wait for a batch, None while it does not.
    """

    def __init__(self, channel: Channel, make: Callable[[list[Any]], list[Any]], size: int) -> None:
        self._channel, self._make, self.size = channel, make, size
        self.asked_since: float | None = None
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._iterations = 0  # that were begun
        self._expected: deque[_Window] = deque()
        self._pending: dict[Place, _Request] = {}
        self._left_out = 0, ""  # the last iteration of which no more windows are made, and why
        self._lock = threading.Lock()
        self._ended = ""  # why no more batches can be made
        self._closed = False
        self._here = threading.local()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="pyg_direct-exchange", daemon=True)

    def start(self) -> None:
        """Begin; all ranks must."""
        _running.add(self)
        atexit.unregister(_leave_all)
        atexit.register(_leave_all)  # before what is there already, which waits for producers
        self._thread.start()

    # --- what other threads call ---

    def iterate(self, epoch: int, first_step: int) -> Iteration:
        """Begin an iteration, which ends all before it.

        Args:
            epoch: its number.
            first_step: number in the epoch of its first step.

        Raises:
            ExchangeError: no more batches can be made.
        """
        self.check()
        self._events.put(_Ended(self._iterations))
        self._iterations += 1
        made = Iteration(self, self._iterations, epoch, first_step)
        ending = _Ended(self._iterations)
        weakref.finalize(made, self._events.put, ending).atexit = False
        return made

    def expect(self, window: _Window) -> None:
        """Let a window be made once all of its batches are asked for."""
        self._events.put(window)

    @contextmanager
    def at(self, place: Place | None) -> Iterator[None]:
        """Tell which batch is made within; None for none of an iteration."""
        self._here.place = place
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise
        finally:
            self._here.place = None

    @property
    def place(self) -> Place | None:
        """The batch that this thread makes."""
        found: Place | None = getattr(self._here, "place", None)
        return found

    def made(self, asked: Any) -> Any:
        """Return what `make` makes of the batch of this thread, once its window is made.

        Raises:
            RuntimeError: it is none of an iteration.
            ExchangeError: a rank has failed, is gone or takes other steps.
        """
        if self.place is None and self._channel.size > 1:
            raise RuntimeError(
                "Ranks make batches together in the steps of an epoch only. Iterate the loader on "
                "all of them; for a batch of your own build one of this rank alone."
            )
        request = _Request(self.place or ALONE, asked, SimpleQueue())
        with self._lock:
            self._check()
            self._events.put(request)
        found, problem = request.done.get()
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
        board = self._channel.board
        failed = None if board is None else board.failure
        if failed is not None:
            self._ended = self._ended or f"Rank {self._channel.rank} failed: {failed}"
        if self._ended:
            raise _no_more(self._ended)

    def fail(self, error: BaseException) -> None:
        """Tell all ranks that this one could not make a batch."""
        if isinstance(error, ExchangeError):
            return
        text = f"{type(error).__name__}: {error}"
        self._end(f"Rank {self._channel.rank} failed: {text}")
        if self._channel.board is not None:
            self._channel.board.tell(text)
        self._channel.given_up = self._ended
        self._events.put(None)

    def close(self) -> None:
        """Note that the loader is gone."""
        self._closed = True
        self._events.put(None)

    def leave(self) -> None:
        """End, as the process does."""
        self._channel.given_up = "This process ends."
        self._end(self._channel.given_up)
        self._events.put(None)
        self._thread.join(1.0)

    def _end(self, problem: str) -> None:
        with self._lock:
            self._ended = self._ended or problem

    # --- the thread ---

    def _run(self) -> None:
        problem = "The exchange with other ranks has ended."
        try:
            while not self._ended:
                self._note(self._events.get())
                while self._expected and not self._ended and self._is_complete(self._expected[0]):
                    self._enter(self._expected[0])
                if self._closed:
                    self._channel.ended = self._part()
                    break
        except ExchangeError as error:
            problem = str(error)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            problem = f"Rank {self._channel.rank} failed: {text}"
            self._channel.fail(text)
        finally:
            self._end(problem)
            while not self._events.empty():
                self._note(self._events.get())
            self._drop(CLOSED, self._ended)
            _running.discard(self)

    def _note(self, event: _Event) -> None:
        if isinstance(event, _Ended):
            self._drop(event.iteration, "Another iteration of this loader has begun.")
        elif isinstance(event, _Window):
            if event.iteration > self._left_out[0]:
                self._expected.append(event)
        elif event is not None:
            iteration, why = self._left_out
            if event.place.iteration <= iteration:
                event.done.put((None, why))
                return
            self._pending[event.place] = event
            if event.place == ALONE and not self._ended:
                self._answer([ALONE])

    def _answer(self, places: Sequence[Place]) -> None:
        """Make batches that were asked for, and hand them out."""
        made = self._make([self._pending[place].asked for place in places])
        for place, batch in zip(places, made, strict=True):
            self._pending.pop(place).done.put((batch, None))

    def _drop(self, iteration: int, why: str) -> None:
        """Make no more windows of an iteration and those before."""
        if iteration <= self._left_out[0]:
            return
        self._left_out = iteration, why
        self._expected = deque(w for w in self._expected if w.iteration > iteration)
        for place in [place for place in self._pending if place.iteration <= iteration]:
            self._pending.pop(place).done.put((None, why))

    def _is_complete(self, window: _Window) -> bool:
        return all(Place(window.iteration, step) in self._pending for step in window.steps)

    def _enter(self, window: _Window) -> None:
        """Make a window with the other ranks, or leave it out if some are at a later iteration."""
        every = self._channel.open(window.words, lambda: self.asked_since)
        latest = max(iteration for iteration, _, _ in every)
        if latest > window.iteration:
            self._drop(window.iteration, self._why_not(window, every, latest))
        elif all(iteration == latest for iteration, _, _ in every):
            if any(words != window.words for words in every):
                at = "; ".join(f"rank {p}: {_named(words)}" for p, words in enumerate(every))
                raise ExchangeError(
                    f"The ranks are at different steps: {at}. Iterate the loaders in the same "
                    f"order on all ranks, and load the same state on all of them."
                )
            self._expected.popleft()
            self._answer([Place(window.iteration, step) for step in window.steps])
        # Else some ranks are behind, and this one waits for them in the next exchange.

    def _part(self) -> bool:
        """Let the other ranks know that there is no loader here; return whether that goes for all.

        Where there is no other one, nothing is exchanged.
        """
        while self._channel.size > 1:
            every = self._channel.open([CLOSED, 0, 0], lambda: None)
            if all(iteration == CLOSED for iteration, _, _ in every):
                return True
        return False

    def _why_not(self, window: _Window, every: Sequence[Sequence[int]], latest: int) -> str:
        rank = next(p for p, words in enumerate(every) if words[0] == latest)
        if latest == CLOSED:
            return f"Rank {rank} has no such loader any more."
        return (
            f"Rank {rank} has left its loop and is at {_named(every[rank])}, so no rank can make "
            f"{_named(window.words)}. Each rank must take the same steps: leave loops at the same "
            f"one."
        )


class Iteration:
    """One pass of a loop over batches.

    Args:
        windows: make them.
        number: of the iteration.
        epoch: its number.
        first_step: number in the epoch of its first step.
    """

    def __init__(self, windows: Windows, number: int, epoch: int, first_step: int) -> None:
        self._windows, self._number = windows, number
        self._epoch, self._first_step = epoch, first_step
        self._begun = False

    def place(self, step: int) -> Place:
        """Return the place of the batch of a step of the epoch."""
        return Place(self._number, step - self._first_step)

    def in_windows(self, steps: Iterator[S], steps_of_all: Callable[[], int]) -> Iterator[S]:
        """Return steps, whose windows are expected as they come.

        Args:
            steps: of this rank.
            steps_of_all: returns, at their end, how many steps some rank has.

        Raises:
            RuntimeError: it is called once more, as the loop was interrupted.
        """
        if self._begun:
            raise RuntimeError(
                "This loop was interrupted within a step that ranks make together, and cannot go "
                "on. Call iter(loader) on all ranks, after load_state_dict(state_dict()) to go on "
                "in the middle of the epoch."
            )
        self._begun = True
        return self._in_windows(steps, steps_of_all)

    def _in_windows(self, steps: Iterator[S], steps_of_all: Callable[[], int]) -> Iterator[S]:
        for first in count(0, self._windows.size):
            try:
                chunk = list(islice(steps, self._windows.size))
                if not chunk and first >= steps_of_all():
                    return
            except Exception as error:  # a sampler of seeds
                self._windows.fail(error)
                raise
            own, number = range(first, first + len(chunk)), self._first_step + first
            self._windows.expect(_Window(self._number, self._epoch, number, own))
            yield from chunk

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the loop waits for a batch within."""
        self._windows.asked_since = monotonic()
        try:
            yield
        finally:
            self._windows.asked_since = None


def _named(words: Sequence[int]) -> str:
    iteration, epoch, step = words
    return "its end" if iteration == CLOSED else f"step {step} of epoch {epoch}"


def _no_more(problem: str) -> ExchangeError:
    return ExchangeError(
        f"{problem}\nNo rank can go on with this loader. Build it anew on all ranks, and load a "
        f"state_dict() to go on in the middle of the epoch."
    )


_running: set[Windows] = set()
"""Those whose thread runs."""
_left: list[Windows] = []  # keep their last collectives until the interpreter is gone


def _leave_all() -> None:
    """End all threads while the interpreter can still run them to an end."""
    _left.extend(w for w in list(_running) if w._pid == os.getpid())
    for windows in _left:
        with suppress(RuntimeError):
            windows.leave()
