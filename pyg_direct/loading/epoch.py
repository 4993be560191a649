"""One pass over the seeds: the iterator over batches that `iter(loader)` returns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ..core.types import BatchKey
from ..ops import clock
from ..ranks.windows import Iteration, Place
from .prefetcher import Failure, NotReadyError, Prefetcher
from .progress import Progress, SeedOrder
from .recorder import Recorder
from .stages import (
    FORKED,
    BatchTask,
    EpochSizes,
    Handover,
    LateBatch,
    Stages,
    new_task,
    serial_after_fork,
)
from .steps import Step, Steps


class Producers(NamedTuple):
    """Who makes the batches, and how far ahead."""

    threads: int
    depth_batches: int  # being made or ready at a time; 0: made in the thread that asks
    start: Callable[[int], None] | None  # called once in each thread, with its number
    timeout_seconds: float
    persistent: bool  # the threads stay for the next epoch
    burst: int = 1  # batches that they make together
    exchange: Any = None  # with other ranks, a `BatchExchange`, if any


class _Inline:
    """Makes each batch when it is asked for, in the thread that asks."""

    closed = False

    def __init__(self, work: Callable[[BatchTask], Handover]) -> None:
        self._work = work
        self._tasks: Iterator[BatchTask] = iter(())

    def begin(self, tasks: Iterator[BatchTask]) -> None:
        self._tasks = tasks

    def take(self) -> Handover | Failure:
        task = next(self._tasks)
        try:
            return self._work(task)
        except Exception as error:
            return Failure(error)

    def close(self) -> None:
        self._tasks = iter(())


def _in_advance(
    work: Callable[[BatchTask], Handover], recorder: Recorder
) -> Callable[[BatchTask], Handover]:
    """Return work for producer threads.

    It notes when the batch was ready, and sets torch's modes, which it keeps by thread, to those of
    the thread that asks.
    """

    def run(task: BatchTask) -> Handover:
        with torch.inference_mode(task.inference), torch.set_grad_enabled(task.grad):
            made = work(task)
        recorder.ready(task.number)
        return made

    return run


class Epoch:
    """Iterator over the batches of one epoch, what `iter(loader)` returns.

    Where making a batch raises an exception, so does the call that asks for it, and the next call
    continues after the batch. Where a signal handler raises one inside of a call, as Ctrl-C does,
    or a sampler fails, the next call returns the batch that the interrupted one would have
    returned. (While a batch is made in the thread that asks, an `Exception` of a signal handler
    cannot be told from one of the batch; a KeyboardInterrupt can.)

    Args:
        work: makes one batch, in a producer thread if there are any, which keep it alive.
        complete: called with each batch and its `BatchTask.place`, in the thread that asks for it;
            None where nothing is left to do.
        progress: of the loader.
        order: of the seeds, and the ranks that share the batches.
        stages: hand the batches over.
        producers: the threads.
        num_batches: returns how many batches a whole epoch of all ranks has, or raises a TypeError.
        recorder: adds up the waiting times of loader and consumer.
        keyed: called whenever batches are asked for anew; returns what changes their keys.
    """

    def __init__(
        self,
        work: Callable[[BatchTask], Handover],
        complete: Callable[[Any, Place | None], Any] | None,
        progress: Progress,
        order: SeedOrder,
        stages: Stages,
        producers: Producers,
        num_batches: Callable[[], int],
        recorder: Recorder,
        keyed: Callable[[], Callable[[BatchKey], BatchKey]] | None = None,
    ) -> None:
        self._keyed = keyed
        self._work, self._complete = work, complete
        self._progress, self._order = progress, order
        self._stages, self._producers = stages, producers
        self._num_batches, self._recorder = num_batches, recorder
        self._results = self._new_results()
        self._begin()

    def _new_results(self) -> _Inline | Prefetcher[BatchTask, Handover]:
        producers = self._producers
        if producers.depth_batches == 0:
            return _Inline(self._work)
        return Prefetcher(
            _in_advance(self._work, self._recorder),
            producers.threads,
            producers.depth_batches,
            producers.start,
            producers.timeout_seconds,
            producers.burst,
        )

    def _begin(self) -> None:
        positions = self._progress.begin(self._order)
        self._steps = Steps(copy.copy(self._progress), self._order, positions)
        self._recorder.begin()
        self._ticket, self._first = self._progress.ticket, self._progress.batch
        self._size_step = self._progress.size_steps[0]
        self._modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._iteration: Iteration | None = None
        if self._producers.exchange is not None:
            step = self._first // self._order.ranks.world_size
            self._iteration = self._producers.exchange.iterate(self._progress.epoch, step)
        self._ask_for(self._steps)

    def _ask_for(self, steps: Iterator[Step]) -> None:
        """Restart production at `steps`; drop batches in flight."""
        self._torn = True  # whether something may be missing if the results are asked for
        if self._keyed is not None:
            keyed = self._keyed()
            steps = ((number, index, keyed(key)) for number, index, key in steps)
        ask, modes, place_of = self._stages.ask, self._modes, None
        sizes = self._sizes = EpochSizes(self._size_step, {})
        if self._iteration is not None:
            steps = self._iteration.in_windows(steps, self._steps.of_all)
            place_of = partial(_place_of, self._iteration, self._order.ranks.world_size)
        self._results.begin(
            new_task((*step, ask and ask(), *modes, place_of and place_of(step[0]), sizes))
            for step in steps
        )
        self._torn = False

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin the next epoch with the same threads; for `persistent_workers`."""
        self._complete = None if loader.filter_per_worker else loader._complete
        if self._results.closed:  # a thread could not start, or they are those of a parent process
            self._results = self._new_results()
        self._begin()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Return how many batches this iterator gives: of a resumed epoch what was left."""
        return self._order.ranks.steps(self._num_batches() - self._first)

    def __next__(self) -> Any:
        progress, steps, asked = self._progress, self._steps, clock.instant()
        try:
            made = serial_after_fork(self._outcome)() if FORKED else self._outcome()
        except (StopIteration, NotReadyError):
            self._recorder.hand_over(asked, None)
            self._torn = False
            raise
        failed, number = isinstance(made, Failure), steps.first
        following, done = steps.after(number)
        self._recorder.hand_over(asked, None if failed else number)
        if failed:
            steps.first, self._torn = following, False
            made.raise_once()
        # Of two iterators the one that was begun last sets the state of the loader.
        counting: Any = progress if progress.ticket == self._ticket else SimpleNamespace()
        # No signal handler runs between these assignments, nor between them and the end of the
        # function: the interpreter runs them where functions are called, in loops, and before
        # Python 3.11 at every conditional jump.
        steps.first = following
        counting.batch = done
        if number in self._sizes.larger:
            now, following = progress.size_steps
            counting.size_steps = now, max(following, self._sizes.larger.pop(number))
            self._recorder.larger_batch()
        self._torn = False
        return made

    def _outcome(self) -> Any:
        """Return the next batch, or the `Failure` of making it."""
        if self._torn:
            self._ask_for(self._steps.left())
        self._torn = True
        try:
            if self._iteration is None:
                made = self._results.take()
            else:
                with self._iteration.waiting():
                    made = self._results.take()
        except StopIteration:
            self._end()
            raise
        if isinstance(made, Failure):
            return made
        try:
            product = self._stages.take(made) if made.ready is not None else made.product
            if self._complete is None:
                return product if type(product) is not LateBatch else self._settled(product)
            ranks = self._order.ranks.world_size
            return self._complete(product, _place_of(self._iteration, ranks, self._steps.first))
        except Exception as error:
            return Failure(error)

    def _settled(self, late: LateBatch) -> object:
        """Return a batch that fits its sizes, made here in larger ones where it did not."""
        while (task := late.settle()) is not None:
            late = self._stages.take(self._work(task))
        return late.batch

    def _end(self) -> None:
        if self._progress.ticket == self._ticket:
            self._progress.finished = True
        if not self._producers.persistent:
            self._results.close()


def _place_of(iteration: Iteration | None, world_size: int, number: int) -> Place | None:
    """Return where the step whose first batch has a number is; None without other ranks."""
    return None if iteration is None else iteration.place(number // world_size)
