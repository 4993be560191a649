"""One pass over the seeds: which batches, with which keys, from where on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..batch.tensors import tensors_made
from ..ops.streams import Event, NoStreams
from ..sampling import rng
from ..types import BatchKey
from .prefetcher import Prefetcher
from .stream_schedule import Handover, Schedule

if TYPE_CHECKING:
    from .base import DirectLoader

STATE_VERSION = 1


class Task(NamedTuple):
    """One batch to make."""

    index: Any  # positions in the loader's `input_nodes`, as the batch sampler gave them
    key: BatchKey
    asked: Event  # when the consumer asked for it
    grad: bool  # modes of the thread that asks for the batch: torch keeps them by thread
    inference: bool


@dataclass
class Progress:
    """Where a loader stands; what `state_dict` saves."""

    seed: int | None  # as the user gave it
    epoch: int = -1  # the epoch that was begun last
    batch: int = 0  # batches of it that were handed out
    finished: bool = True
    base_seed: int = 0  # of that epoch's draws
    # Random states from before the epoch, for samplers that draw from them when they are iterated.
    default_state: Tensor | None = None
    generator_state: Tensor | None = None
    resume: bool = field(default=False, compare=False)  # the next epoch continues this one

    def state_dict(self) -> dict[str, Any]:
        """Return everything a new process needs to go on, as tensors and numbers."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "batch": self.batch,
            "finished": self.finished,
            "base_seed": self.base_seed,
            "default_state": self.default_state,
            "generator_state": self.generator_state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next epoch go on where `state` was saved.

        Raises:
            ValueError: not such a state, or saved by a loader with another seed.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"state_dict has version {state.get('version')!r}, this pyg_direct reads version "
                f"{STATE_VERSION}: pass what the loader's state_dict() returned."
            )
        if state["seed"] != self.seed:
            raise ValueError(
                f"The state was saved with seed={state['seed']}, this loader has "
                f"seed={self.seed}. Build the loader with the same seed."
            )
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.finished, self.base_seed = state["finished"], state["base_seed"]
        self.default_state = state["default_state"]
        self.generator_state = state["generator_state"]
        self.resume = not self.finished


class _Inline:
    """Makes each batch when it is asked for, in the thread that asks."""

    def __init__(self, work: Callable[[Task], Handover]) -> None:
        self._work = work
        self._tasks: Iterator[Task] = iter(())

    def begin(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks

    def __next__(self) -> Handover:
        return self._work(next(self._tasks))

    def close(self) -> None:
        self._tasks = iter(())


def _weak_work(loader: DirectLoader, schedule: Schedule) -> Callable[[Task], Handover]:
    """Return the producers' work. Their threads must not keep the loader alive by themselves."""
    reference = weakref.ref(loader)

    def work(task: Task) -> Handover:
        alive = reference()
        if alive is None:
            raise RuntimeError("The loader was deleted.")
        return alive._work(task, schedule)

    return work


class Epoch:
    """Iterator over the batches of one epoch, what `iter(loader)` returns."""

    def __init__(self, loader: DirectLoader) -> None:
        self._loader = loader
        backend = loader._backend
        producers = max(loader.num_workers, backend.default_producers)
        depth = loader.prefetch * producers
        streams = backend.streams if depth else NoStreams()
        # Of the loader only the graph: a producer must not keep the loader alive.
        self._schedule = Schedule(streams, partial(tensors_made, loader.data))
        work = _weak_work(loader, self._schedule)
        self._results: _Inline | Prefetcher[Task, Handover]
        if depth == 0:
            self._results = _Inline(work)
        else:
            start = loader.worker_init_fn if loader.num_workers else None
            self._results = Prefetcher(work, producers, depth, start, loader.timeout)
        self._begin()

    def _begin(self) -> None:
        progress = self._loader._progress
        batches = self._resume(progress) if progress.resume else self._start(progress)
        self._number = progress.epoch
        # A base seed that was drawn for this epoch says it all: the same one, the same epoch.
        epoch = 0 if progress.seed is None else progress.epoch
        seed, first = progress.base_seed, progress.batch
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._results.begin(
            Task(index, rng.derive(seed, epoch, batch), self._schedule.ask(), *modes)
            for batch, index in enumerate(batches, first)
        )

    def _start(self, progress: Progress) -> Iterator[Any]:
        """Begin a new epoch. Draws in the order in which PyG's loader would."""
        loader = self._loader
        progress.default_state = torch.get_rng_state()
        progress.generator_state = None
        if loader.generator is not None:
            progress.generator_state = loader.generator.get_state()
        progress.epoch, progress.batch, progress.finished = progress.epoch + 1, 0, False
        # Also with a seed, so that the order of the seed nodes does not depend on it.
        drawn = rng.draw_seed(loader.generator)
        progress.base_seed = drawn if progress.seed is None else progress.seed
        loader._seed_shuffle(progress.epoch)
        return iter(loader._index_sampler)

    def _resume(self, progress: Progress) -> Iterator[Any]:
        """Go on with an epoch begun before, perhaps in another process."""
        loader = self._loader
        progress.resume = False
        assert progress.default_state is not None
        ambient = torch.get_rng_state()
        torch.set_rng_state(progress.default_state)
        try:
            if loader.generator is not None and progress.generator_state is not None:
                loader.generator.set_state(progress.generator_state)
            rng.draw_seed(loader.generator)
            loader._seed_shuffle(progress.epoch)
            batches = iter(loader._index_sampler)
            # One more than was done: samplers draw their order when the first batch is asked for.
            ahead = list(islice(batches, progress.batch + 1))[progress.batch :]
        finally:
            torch.set_rng_state(ambient)
        return _chain(ahead, batches)

    def _reset(self, loader: DirectLoader, first_iter: bool = False) -> None:
        """Begin the next epoch with the same threads; for `persistent_workers`."""
        self._begin()

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        return len(self._loader)  # not earlier: a sampler need not know its length

    def __next__(self) -> Any:
        loader, progress = self._loader, self._loader._progress
        current = progress.epoch == self._number and not progress.resume
        try:
            handover = next(self._results)
        except StopIteration:
            if current:
                progress.finished = True
            if not loader.persistent_workers:
                self._results.close()
            raise
        if current:
            progress.batch += 1
        out = self._schedule.take(handover)
        return out if loader.filter_per_worker else loader.filter_fn(out)


def _chain(head: list[Any], tail: Iterator[Any]) -> Iterator[Any]:
    yield from head
    yield from tail
