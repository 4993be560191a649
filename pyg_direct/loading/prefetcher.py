"""Producer threads that work ahead and deliver results in order."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, NoReturn, TypeAlias, TypeVar

from ..core.threads import after_fork_in_child

T = TypeVar("T")
R = TypeVar("R")

EXIT_SECONDS = 2.0  # how long the interpreter waits, at exit, for unfinished work

Start = Callable[[int], None]
"""Called once in each producer, with its number, before its first task."""
Results: TypeAlias = "SimpleQueue[tuple[int, R | Failure] | None]"
"""Numbers and results of one iteration as they are finished; None once the board was closed."""


class Failure:
    """An exception in place of a result.

    It is not a StopIteration, which would end the epoch of the caller.

    Args:
        error: the exception.
        where: what may have raised it, to begin a sentence with.
    """

    def __init__(
        self, error: BaseException, where: str = "In a batch a transform, a sampler or a store"
    ) -> None:
        if isinstance(error, StopIteration):
            stopped = RuntimeError(
                f"{where} raised StopIteration({error.value!r}). The epoch would have ended there."
            )
            stopped.__cause__ = error
            error = stopped
        self.error = error

    def raise_once(self) -> NoReturn:
        """Raise the exception, with its own traceback, and forget it.

        The traceback refers to the frames through which it went, and those to what a batch was
        being made of: a reference back to the exception would be a cycle, which keeps that memory
        until a garbage collection.
        """
        error = self.error
        del self.error
        try:
            raise error
        finally:
            del error


class NotReadyError(RuntimeError):
    """No result is ready; the iterator has not advanced."""


class _Board(Generic[T, R]):
    """What the producers and the consumer share.

    The threads hold this and not the `Prefetcher`, so that a prefetcher without references
    is collected, and its threads end.

    Only the `Prefetcher` holds results and failures: the frames of a failure's traceback lead to
    the loader, and so to the prefetcher, which threads would keep alive for ever.

    What is shared are queues of C and single values, and no locks: a signal handler may raise in
    the consumer between any two calls of Python's, also between those that take and release a
    `threading.Condition`, and the garbage collector may call `stop` in any thread at any time.
    """

    def __init__(self, work: Callable[[T], R], num_threads: int) -> None:
        self.work, self.num_threads = work, num_threads
        self.tasks: SimpleQueue[tuple[int, T] | None] = SimpleQueue()
        self.results: Callable[[], Results[R] | None] = lambda: None  # those of this iteration
        self.start_failures: Callable[[], deque[Failure] | None] = lambda: None
        self.first_wanted = 0  # tasks and results below belong to an abandoned iteration
        self.closed = False

    def stop(self) -> None:
        """Tell the producers to end, and a waiting consumer that they do."""
        self.closed = True
        for _ in range(self.num_threads):
            self.tasks.put(None)
        results = self.results()
        if results is not None:
            results.put(None)


_open_boards: weakref.WeakKeyDictionary[_Board[object, object], list[threading.Thread]]
_open_boards = weakref.WeakKeyDictionary()


def _stop_at_exit() -> None:
    """Stop all producers while the interpreter can still run them to an end.

    One that is in compiled code when the interpreter ends may abort the process. One that runs a
    function of the user's that does not return must not delay the end for long.
    """
    boards = list(_open_boards.items())
    for board, _ in boards:
        board.stop()
    deadline = time.monotonic() + EXIT_SECONDS
    for _, threads in boards:
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _forget_after_fork() -> None:
    """The producers of the parent process do not run in a forked child."""
    _open_boards.clear()


atexit.register(_stop_at_exit)
after_fork_in_child(_forget_after_fork)


def _produce(board: _Board[T, R], number: int, start: list[Start]) -> None:
    """Body of a producer thread."""
    if _start(board, number, start):
        while _produce_one(board):
            pass


def _start(board: _Board[T, R], number: int, start: list[Start]) -> bool:
    """Prepare a producer.

    Args:
        board: of the prefetcher.
        number: of the thread.
        start: what to call, if anything. It is taken out of the list, so that the thread does not
            keep it alive: it may lead to the loader, as that of `enable_cpu_affinity` does.
    """
    try:
        while start and not board.closed:
            start.pop()(number)
    except BaseException as error:
        failures = board.start_failures()
        if failures is not None:
            failures.append(Failure(error, "worker_init_fn"))
        del failures  # the traceback refers to this frame
        board.stop()  # else the other threads would wait for tasks without a consumer
        return False
    return True


def _produce_one(board: _Board[T, R]) -> bool:
    """Do one task. A function of its own, so that an idle producer keeps no batch alive."""
    entry = board.tasks.get()
    if entry is None or board.closed:
        return False
    number, task = entry
    if number < board.first_wanted:
        return True
    result: R | Failure
    try:
        result = board.work(task)
    except BaseException as error:  # the consumer raises it again, whatever it is
        result = Failure(error)
    results = board.results()
    # In this order: results that are replaced in between are dropped with what is put there.
    if results is not None and number >= board.first_wanted:
        results.put((number, result))
    del result, results  # a failure's traceback refers to this frame
    return True


class Prefetcher(Generic[T, R]):
    """Gives ``work(task)`` in the order of the tasks, with threads working ahead.

    The tasks are drawn in the consumer's thread. An exception of `work` is raised, with its own
    traceback, where its result would have come; the iteration can continue after it.

    After a signal handler has raised in `begin` or while a result was asked for, as Ctrl-C does, a
    task or a result may be missing: `begin` again with what is left.

    Args:
        work: called in the producer threads.
        num_threads: how many producers, at least 1.
        depth: how many tasks may be in progress, or done and not fetched, at least 1.
        start: called once in each producer, with its number, before its first task.
        timeout_seconds: how long to wait for one result; 0 for ever.
        burst: tasks are handed out only once so many can be, for producers that do them together.

    Raises:
        RuntimeError: the system starts no more threads.
    """

    def __init__(
        self,
        work: Callable[[T], R],
        num_threads: int,
        depth: int,
        start: Start | None = None,
        timeout_seconds: float = 0.0,
        burst: int = 1,
    ) -> None:
        self._board: _Board[T, R] = _Board(work, num_threads)
        self._depth, self._burst = max(1, depth), burst
        self._timeout_seconds = timeout_seconds
        self._pid = os.getpid()
        self._issued = 0
        self._start_failures: deque[Failure] = deque()
        self._board.start_failures = weakref.ref(self._start_failures)
        self._threads: list[threading.Thread] = []
        self.begin(iter(()))
        # Only tells the threads to stop: the garbage collector may call this in any thread, at a
        # moment when waiting for another one may never end.
        weakref.finalize(self, self._board.stop).atexit = False
        _open_boards[self._board] = self._threads  # type: ignore[index]
        try:
            for number in range(num_threads):
                self._start_thread(number, [] if start is None else [start])
        except BaseException:
            self._board.stop()
            raise

    def _start_thread(self, number: int, start: list[Start]) -> None:
        name = f"pyg_direct-producer-{number}"
        thread = threading.Thread(
            target=_produce, args=(self._board, number, start), name=name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise RuntimeError(
                f"The system could not start producer thread {number + 1} of "
                f"{self._board.num_threads} ({error}). Pass a smaller num_workers=, or raise the "
                f"limit of threads (ulimit -u)."
            ) from error
        self._threads.append(thread)

    @property
    def closed(self) -> bool:
        """Whether the producers were stopped, could not start, or run in another process."""
        return self._board.closed or self._pid != os.getpid()

    def begin(self, tasks: Iterator[T]) -> None:
        """Drop unfinished tasks, and begin to work on `tasks`."""
        self._fetched = self._board.first_wanted = self._issued
        self._results: Results[R] = SimpleQueue()
        self._board.results = weakref.ref(self._results)
        self._ready: dict[int, R | Failure] = {}
        self._tasks = tasks
        self._task_failure: Failure | None = None
        self._issue()

    def take(self) -> R | Failure:
        """Return the next result, or what `work` raised in its place.

        Raises:
            StopIteration: no task is left.
            NotReadyError: the wait exceeded `timeout_seconds`, the iterator was closed, or it was
                begun in another process.
            BaseException: what `start` raised, or the iterator over the tasks.
        """
        if self._pid != os.getpid():
            raise NotReadyError(
                "This iterator was begun in another process, whose producer threads do not exist "
                "here. Call iter(loader) after the fork."
            )
        self._issue()
        if self._fetched == self._issued:
            if self._task_failure is None:
                raise StopIteration
            failure, self._task_failure = self._task_failure, None
            failure.raise_once()
        result = self._wait(self._fetched)
        self._fetched += 1
        self._issue()
        return result

    def _issue(self) -> None:
        """Hand out tasks until `depth` of them are ahead of the consumer."""
        if self._issued - self._fetched > self._depth - self._burst:
            return
        while self._issued - self._fetched < self._depth and self._task_failure is None:
            try:
                task = next(self._tasks)
            except StopIteration:
                return
            except Exception as error:
                self._task_failure = Failure(error)  # results before it come first
                return
            # Counted first: `begin` never gives the number to another task.
            self._issued += 1
            self._board.tasks.put((self._issued - 1, task))

    def _wait(self, number: int) -> R | Failure:
        board, ready = self._board, self._ready
        deadline = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None
        while number not in ready:
            if self._start_failures:
                raise self._start_failures[0].error
            if board.closed:
                raise NotReadyError("The loader's producers were stopped.")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                finished = self._results.get(timeout=left)
            except Empty:
                raise NotReadyError(
                    f"The loader timed out: batch {number} took more than "
                    f"{self._timeout_seconds} seconds. Raise timeout=, or use 0 to wait."
                ) from None
            if finished is not None:
                ready[finished[0]] = finished[1]
        return ready.pop(number)

    def close(self) -> None:
        """Stop the producers and wait for what they are doing. Idempotent."""
        self._board.stop()
        self._ready.clear()
        if self._pid == os.getpid():
            for thread in self._threads:
                thread.join()
