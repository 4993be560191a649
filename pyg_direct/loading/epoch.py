"""One pass over the seeds: the iterator over batches that `iter(loader)` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..core.types import BatchKey, maker
from ..ops.streams import Event
from .forked import serial_after_fork
from .prefetcher import Prefetcher
from .progress import Progress, SeedOrder
from .recorder import Recorder
from .stages import Handover, Schedule


class Task(NamedTuple):
    """One batch to make."""

    number: int  # in the epoch
    index: Any  # positions in the loader's `input_nodes`, from `positions_of`
    key: BatchKey
    asked: Event  # when the consumer asked for it
    grad: bool  # modes of the thread that asks for the batch: torch keeps them by thread
    inference: bool


new_task = maker(Task)


class Producers(NamedTuple):
    """Who makes the batches, and how far ahead."""

    threads: int
    depth_batches: int  # being made or ready at a time; 0: made in the thread that asks
    start: Callable[[int], None] | None  # called once in each thread, with its number
    timeout_seconds: float
    persistent: bool  # the threads stay for the next epoch


Made = tuple[int, Handover]
"""A finished batch, with its number in the epoch."""


class _Inline:
    """Makes each batch when it is asked for, in the thread that asks."""

    closed = False

    def __init__(self, work: Callable[[Task], Handover]) -> None:
        self._work = work
        self._tasks: Iterator[Task] = iter(())

    def begin(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks

    def __next__(self) -> Made:
        task = next(self._tasks)
        try:
            return task.number, self._work(task)
        except StopIteration as error:
            raise _stopped(error) from error

    def close(self) -> None:
        self._tasks = iter(())


def _in_advance(work: Callable[[Task], Handover], recorder: Recorder) -> Callable[[Task], Made]:
    """Return work for producer threads.

    It tells the batch's number and when it was ready, cannot end the epoch by a StopIteration, and
    sets torch's modes, which it keeps by thread, to those of the thread that asks.
    """

    def run(task: Task) -> Made:
        try:
            with torch.inference_mode(task.inference), torch.set_grad_enabled(task.grad):
                made = task.number, work(task)
            recorder.ready(task.number)
            return made
        except StopIteration as error:
            raise _stopped(error) from error

    return run


def _stopped(error: StopIteration) -> RuntimeError:
    return RuntimeError(
        f"A transform, a sampler or a store raised StopIteration({error.value!r}) while a batch "
        f"was made. The epoch would have ended there."
    )


class Epoch:
    """Iterator over the batches of one epoch, what `iter(loader)` returns.

    Args:
        work: makes one batch, in a producer thread if there are any, which keep it alive.
        complete: called with each batch, in the thread that asks for it.
        progress: of the loader.
        order: of the seeds.
        schedule: hands the batches over.
        producers: the threads.
        num_batches: returns how many batches a whole epoch has, or raises a TypeError.
        recorder: adds up the waiting times of loader and consumer.
    """

    def __init__(
        self,
        work: Callable[[Task], Handover],
        complete: Callable[[Any], Any],
        progress: Progress,
        order: SeedOrder,
        schedule: Schedule,
        producers: Producers,
        num_batches: Callable[[], int],
        recorder: Recorder,
    ) -> None:
        self._work, self._complete = work, complete
        self._progress, self._order = progress, order
        self._schedule, self._producers = schedule, producers
        self._num_batches, self._recorder = num_batches, recorder
        self._results = self._new_results()
        self._begin()

    def _new_results(self) -> _Inline | Prefetcher[Task, Made]:
        producers = self._producers
        if producers.depth_batches == 0:
            return _Inline(self._work)
        return Prefetcher(
            _in_advance(self._work, self._recorder),
            producers.threads,
            producers.depth_batches,
            producers.start,
            producers.timeout_seconds,
        )

    def _begin(self) -> None:
        steps = self._progress.begin(self._order)
        self._recorder.begin()
        self._ticket, self._first = self._progress.ticket, self._progress.batch
        ask = self._schedule.ask
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._results.begin(new_task((*step, ask(), *modes)) for step in steps)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin the next epoch with the same threads; for `persistent_workers`."""
        if self._results.closed:  # a thread could not start, or they are those of a parent process
            self._results = self._new_results()
        self._begin()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Return how many batches this iterator gives: of a resumed epoch what was left."""
        return self._num_batches() - self._first

    @serial_after_fork
    def __next__(self) -> Any:
        progress, asked, number = self._progress, self._recorder.ask(), None
        try:
            try:
                made, handover = next(self._results)
            except StopIteration:
                self._end()
                raise
            # Of two iterators the one that was begun last sets the state of the loader.
            if progress.ticket == self._ticket:
                progress.batch = made + 1
            product = self._schedule.take(handover)
            try:
                batch = self._complete(product)
            except StopIteration as error:
                raise _stopped(error) from error
            number = made
            return batch
        finally:
            self._recorder.hand_over(asked, number)

    def _end(self) -> None:
        if self._progress.ticket == self._ticket:
            self._progress.finished = True
        if not self._producers.persistent:
            self._results.close()
