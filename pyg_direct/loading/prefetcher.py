"""Producer threads that work ahead and deliver results in order."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

from ..core.threads import after_fork_in_child

T = TypeVar("T")
R = TypeVar("R")

EXIT_SECONDS = 10.0  # how long the interpreter waits, at exit, for unfinished work


class _Failure:
    """An exception that a producer hands to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Results(dict[int, "R | _Failure"], Generic[R]):
    """Results by number, and the failure of a producer that could not start.

    Only the `Prefetcher` holds them: the frames of a failure's traceback lead to the loader, and so
    to the prefetcher, which threads would keep alive for ever.
    """

    start_failure: _Failure | None = None


class _Board(Generic[T, R]):
    """What the producers and the consumer share.

    The threads hold this and not the `Prefetcher`, so that a prefetcher without references
    is collected, and its threads end.
    """

    def __init__(
        self,
        work: Callable[[T], R],
        num_threads: int,
        start: Callable[[int], None] | None,
        results: _Results[R],
    ) -> None:
        self.work, self.start = work, start
        self.num_threads = self.starting = num_threads
        self.tasks: SimpleQueue[tuple[int, T] | None] = SimpleQueue()
        self.changed = threading.Condition()  # the results; the consumer waits for it
        self.results = weakref.ref(results)
        self.first_wanted = 0  # tasks and results below belong to an abandoned iteration
        self.closed = False

    def stop(self) -> None:
        """Tell the producers to end, where no consumer waits any more.

        The garbage collector calls this in any thread, a producer too, between any two
        instructions. A `SimpleQueue` allows that; a condition would lose the notification if the
        same thread was just about to wait, or to notify.
        """
        self.closed, self.start = True, None
        for _ in range(self.num_threads):
            self.tasks.put(None)

    def close(self) -> None:
        """Tell the producers to end, and a waiting consumer that they do."""
        self.stop()
        with self.changed:
            self.changed.notify_all()


_open_boards: weakref.WeakKeyDictionary[_Board[object, object], list[threading.Thread]]
_open_boards = weakref.WeakKeyDictionary()


def _stop_at_exit() -> None:
    """Stop all producers while the interpreter can still run them to an end."""
    boards = list(_open_boards.items())
    for board, _ in boards:
        board.close()
    deadline = time.monotonic() + EXIT_SECONDS
    for _, threads in boards:
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _forget_after_fork() -> None:
    """The producers of the parent process do not run in a forked child."""
    _open_boards.clear()


atexit.register(_stop_at_exit)
after_fork_in_child(_forget_after_fork)


def _produce(board: _Board[T, R], number: int) -> None:
    """Body of a producer thread."""
    if _start(board, number):
        while _produce_one(board):
            pass


def _start(board: _Board[T, R], number: int) -> bool:
    """Prepare a producer. A function of its own, so that the thread does not keep `start` alive."""
    try:
        start = board.start
        if start is not None:
            start(number)
    except BaseException as error:
        results = board.results()
        if results is not None:
            with board.changed:
                results.start_failure = results.start_failure or _Failure(error)
        board.close()  # else the other threads would wait for tasks without a consumer
        return False
    with board.changed:
        board.starting -= 1
        if board.starting == 0:
            board.start = None  # it may lead to the loader, as that of `enable_cpu_affinity` does
    return True


def _produce_one(board: _Board[T, R]) -> bool:
    """Do one task. A function of its own, so that an idle producer keeps no batch alive."""
    entry = board.tasks.get()
    if entry is None or board.closed:
        return False
    number, task = entry
    if number < board.first_wanted:
        return True
    result: R | _Failure
    try:
        result = board.work(task)
    except BaseException as error:  # the consumer raises it again, whatever it is
        result = _Failure(error)
    results = board.results()
    if results is not None:
        with board.changed:
            if number >= board.first_wanted and not board.closed:
                results[number] = result
                board.changed.notify_all()
    return True


class Prefetcher(Generic[T, R]):
    """Iterates over ``work(task)`` in the order of the tasks, with threads working ahead.

    The tasks are drawn in the consumer's thread. An exception of `work` is raised, with its own
    traceback, where its result would have come; the iteration can go on behind it.

    Args:
        work: called in the producer threads.
        num_threads: how many producers, at least 1.
        depth: how many tasks may be in progress, or done and not fetched, at least 1.
        start: called once in each producer, with its number, before its first task.
        timeout_seconds: how long to wait for one result; 0 for ever.
    """

    def __init__(
        self,
        work: Callable[[T], R],
        num_threads: int,
        depth: int,
        start: Callable[[int], None] | None = None,
        timeout_seconds: float = 0.0,
    ) -> None:
        self._results: _Results[R] = _Results()
        self._board: _Board[T, R] = _Board(work, num_threads, start, self._results)
        self._depth = max(1, depth)
        self._timeout_seconds = timeout_seconds
        self._tasks: Iterator[T] = iter(())
        self._task_failure: BaseException | None = None
        self._pid = os.getpid()
        self._issued = self._fetched = 0
        threads = [
            threading.Thread(
                target=_produce,
                args=(self._board, number),
                name=f"pyg_direct-producer-{number}",
                daemon=True,
            )
            for number in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        self._threads = threads
        _open_boards[self._board] = threads  # type: ignore[index]
        # Only tells the threads to stop: the garbage collector may call this in any thread, at a
        # moment when waiting for another one may never end.
        weakref.finalize(self, self._board.stop).atexit = False

    @property
    def closed(self) -> bool:
        """Whether the producers were stopped, could not start, or run in another process."""
        return self._board.closed or self._pid != os.getpid()

    def begin(self, tasks: Iterator[T]) -> None:
        """Drop unfinished tasks, and begin to work on `tasks`."""
        with self._board.changed:
            self._results.clear()
            self._board.first_wanted = self._fetched = self._issued
        self._tasks, self._task_failure = tasks, None
        self._issue()

    def __next__(self) -> R:
        """Return the next result.

        Raises:
            StopIteration: no task is left.
            RuntimeError: the wait exceeded `timeout_seconds`, the iterator was closed, or it was
                begun in another process.
        """
        if self._pid != os.getpid():
            raise RuntimeError(
                "This iterator was begun in another process, whose producer threads do not exist "
                "here. Call iter(loader) after the fork."
            )
        self._issue()
        if self._fetched == self._issued:
            if self._task_failure is not None:
                failure, self._task_failure = self._task_failure, None
                raise failure
            raise StopIteration
        result = self._wait(self._fetched)
        # A KeyboardInterrupt in between leaves a result that can be fetched again.
        self._fetched += 1
        self._forget(self._fetched)
        self._issue()
        if isinstance(result, _Failure):
            raise result.error
        return result

    def _issue(self) -> None:
        """Hand out tasks until `depth` of them are ahead of the consumer."""
        while self._issued - self._fetched < self._depth:
            try:
                task = next(self._tasks)
            except StopIteration:
                return
            except BaseException as error:
                # Results before it come first.
                self._task_failure, self._tasks = error, iter(())
                return
            self._board.tasks.put((self._issued, task))
            self._issued += 1

    def _wait(self, number: int) -> R | _Failure:
        board, results = self._board, self._results
        deadline = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None
        with board.changed:
            while number not in results:
                if results.start_failure is not None:
                    return results.start_failure
                if board.closed:
                    raise RuntimeError("The loader's producers were stopped.")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError(
                        f"The loader timed out: batch {number} took more than "
                        f"{self._timeout_seconds} seconds. Raise timeout=, or use 0 to wait."
                    )
                board.changed.wait(left)
            return results[number]

    def _forget(self, end: int) -> None:
        """Release the results before `end`."""
        with self._board.changed:
            for number in [n for n in self._results if n < end]:
                del self._results[number]

    def close(self) -> None:
        """Stop the producers and wait for what they are doing. Idempotent."""
        self._board.close()
        self._results.clear()
        if self._pid == os.getpid():
            for thread in self._threads:
                thread.join()
