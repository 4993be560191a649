"""Training whose steps are replayed: `NeighborLoader.replay`.

A step is two CUDA graphs on the consumer's stream, one after the other: the hops, ids and rows of a
batch, and the user's step over it. In between the host reads the counts of the batch, so that one
that did not fit is made again, in larger sizes, and trained on in the ordinary way. What differs
between batches is uploaded before: seeds and key, by `begin` of the workspace, and the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ..batch.assemble import HOP_COUNTS, assemble
from ..batch.gather import Gatherer, is_plain
from ..batch.sampled import Sampled
from ..core.arguments import shown
from ..core.pyg import fields_of, store_of, stores_of
from ..ops.streams import Graphs
from ..sampling.sampler import keyed
from .base import DirectLoader
from .seeds import seeds_at
from .shapes import PaddedLoader, may_come_late
from .stages import BatchTask, Handover, Stages

WARM_UP = 3  # ordinary steps before the first capture, as torch's documentation has it

Labels = dict[Any, dict[str, Any]]
TrainStep = Callable[[Any], Tensor]


class ReplayLoader(PaddedLoader):
    """The part of a loader that hands batches to a step, and replays both where it can."""

    _kept_replay: Replay | None = None  # the last one, with what it has captured

    def replay(self, step: TrainStep) -> Iterator[Tensor]:
        """Train on one epoch of batches of one shape; on a GPU by CUDA graphs.

        Without a GPU, or with device memory that is not of torch's own allocator, this is
        ``for batch in loader: yield step(batch)``. On a GPU the first three steps are ordinary
        ones, too; then the making of a batch is captured, and the step, and both are replayed.
        Batches and their order are those of the loader, and its state and statistics count them.
        Ordinary steps are those on a batch that did not fit the shape, and on one of fewer seeds.

        Args:
            step: trains on a batch and returns a tensor, such as the loss: a function of the batch,
                which has no `num_sampled_nodes` and `num_sampled_edges`, and of what stays where it
                is in memory. What it reads in Python is read when it is captured; it must not wait
                for the GPU. Pass the same object in each epoch: another one is captured anew.

        Yields:
            What the step returned for each batch, detached, in memory of its own.

        Raises:
            ValueError: a loader without `static_shapes`, or, on a GPU, with arguments by which
                making a batch waits for the host. The message names them.
            TypeError: `step` is no function, or returns something else.

        Example: see the guide "Batches of one shape", and ``examples/captured_step.py``.
        """
        loader: Any = self
        if not callable(step):
            raise TypeError(f"step must be a function of a batch, got {shown(step)}.")
        if loader._shapes is None:
            raise ValueError("replay needs batches of one shape. Pass static_shapes=True.")
        loader._decide_device()
        graphs = loader._backend.graphs
        if graphs is None:
            return _ordinary(loader, step)
        _check(loader)
        if self._kept_replay is None or self._kept_replay.step is not step:
            self._kept_replay = Replay(step, graphs)
        return self._kept_replay.run(loader)


def _result(step: TrainStep, batch: Any) -> Tensor:
    """Train on a batch, and return what the step did without its graph for a backward."""
    for store in stores_of(batch).values():
        for name in HOP_COUNTS:  # which a capture would take for those of all batches
            fields_of(store).pop(name, None)
    found = step(batch)
    if not isinstance(found, Tensor):
        raise TypeError(f"step must return a tensor, such as the loss, got {shown(found)}.")
    return found.detach()


def _ordinary(loader: DirectLoader, step: TrainStep) -> Iterator[Tensor]:
    """Yield the results of an epoch, which begins when the first one is asked for."""
    for batch in loader:
        yield _result(step, batch)


def _check(loader: DirectLoader) -> None:
    """Raise a ValueError if making a batch would wait, or read what a capture cannot."""
    plan = keyed(loader._sampler).plan
    refused = {
        "ids on the host (pass ids='device')": loader._host_ids,
        "cache=": loader._backend.cache is not None,
        "transform=": loader.transform is not None,
        "filter_per_worker=False": not loader.filter_per_worker,
        "rows that ranks share": loader._exchange is not None,
        "fan-outs of all neighbours": bool((plan.fanouts < 0).any()),
        "sampling='adaptive'": plan.adaptive,
        "subgraph_type='induced', sample_direction='backward' or a method that was replaced": not (
            may_come_late(loader)
            and getattr(loader.collate_fn, "__func__", None) is DirectLoader.collate_fn
        ),
    }
    for what, is_so in refused.items():
        if is_so:
            raise ValueError(f"On a GPU, replay cannot be used with {what}. Iterate the loader.")


class Replay:
    """A step, and the graphs of it and of its batches."""

    def __init__(self, step: TrainStep, graphs: Graphs) -> None:
        self.step, self._graphs = step, graphs
        self._ordinary = 0  # steps so far that were not replayed
        self._seeds: int | None = None  # of a batch that is replayed
        self._values: list[tuple[Any, int]] = []  # attributes of the graph, and where they lie
        self._batch: _CapturedBatch | None = None
        self._train: tuple[Callable[[], None], Tensor] | None = None

    def run(self, loader: DirectLoader) -> Iterator[Tensor]:
        """Yield the results of an epoch of a loader."""
        given = (value for store in loader.data.stores for value in store.values())
        values = [(value, value.data_ptr() if is_plain(value) else 0) for value in given]
        known = len(values) == len(self._values) and all(
            value is before and at == at_before
            for (value, at), (before, at_before) in zip(values, self._values, strict=True)
        )
        if not known:
            self._values, self._batch = values, None
        # The same loader, whose batches are made here, when they are asked for.
        inline, work = object.__new__(type(loader)), partial(self._work, loader)
        own = {"prefetch": 0, "persistent_workers": False, "_iterator": None, "_work": work}
        vars(inline).update(vars(loader), **own)
        for batch in inline:
            if self._batch is None or batch is not self._batch.batch:
                self._ordinary += 1
                yield self._graphs.apart(partial(_result, self.step, batch))
                continue
            if self._train is None:
                capture = self._graphs.capture
                self._train = capture(partial(_result, self.step, batch))
            train, result = self._train
            train()
            yield result.clone()

    def _work(self, loader: DirectLoader, task: BatchTask, stages: Stages) -> Handover:
        """Make a batch, by its graph if it can be."""
        warm = self._ordinary >= WARM_UP and task.number not in task.sizes.larger
        if warm and self._seeds is None:
            self._seeds = loader.batch_size or len(task.index)
        if not warm or len(task.index) != self._seeds:
            made: Handover = loader._work(task, stages)
            return made
        batch, core = self._batch, keyed(loader._sampler)
        if batch is None or batch.core is not core or batch.step != task.sizes.step:
            self._batch = self._train = batch = None  # their memory is free before it is taken anew
            batch = self._batch = _CapturedBatch(loader, task, self._graphs)
        return Handover(batch.late(loader, task), None)


class _CapturedBatch:
    """The making of a batch as a CUDA graph, for one shape and number of seeds.

    To the sampler it is the pool of its workspaces, and the one workspace in it.
    """

    def __init__(self, loader: DirectLoader, task: BatchTask, graphs: Graphs) -> None:
        self.core, self.step = keyed(loader._sampler), task.sizes.step
        pool: Any = self
        self._own = replace(self.core, shared=replace(self.core.shared, workspaces=pool))
        self._shapes: Any = loader._shapes
        self._work: Any = loader._backend.workspace(self.core.graph.csc, self.core.plan)
        self._replay: Callable[[], None] | None = None
        self._has_begun = False
        sampled = self._sampled(loader, task)  # which takes memory and prepares the launches
        labels = loader._labels(sampled)
        first, _ = self._assembled(loader, sampled, labels)
        self._has_begun = self._work.begin(*self._given)
        self._replay, (self.batch, gatherer) = graphs.capture(
            lambda: self._assembled(loader, self._sampled(loader, task), {})
        )
        self._has_begun = False
        for kind, named in labels.items():
            there, fields = (fields_of(store_of(of, kind)) for of in (first, self.batch))
            fields.update({name: there[name] for name in named if name in there})
        self._made = loader._recorder.assembled(self.batch, gatherer, None, True)

    def _sampled(self, loader: DirectLoader, task: BatchTask) -> Sampled:
        inputs, key = seeds_at(loader.input_data, task.index), self._shapes.key_of(loader, task)
        sampled: Sampled = loader._sampled_by(self._own, inputs, key)
        return sampled

    def _assembled(
        self, loader: DirectLoader, sampled: Sampled, labels: Labels
    ) -> tuple[Any, Gatherer]:
        site, recorder, own = loader._site, loader._recorder, loader.custom_cls
        ids = site.backend.memory.ids(on_host=False)
        gatherer = Gatherer(site.backend, ids, loader._feature_dtype, recorder.found)
        made = assemble(loader.data, sampled, labels, gatherer, own, site.ends, loader._roles)
        return made, gatherer

    def take(self, kind: Any) -> _CapturedBatch:
        """Return the workspace; see `WorkspacePool`."""
        return self

    def give_back(self, kind: Any, workspace: Any) -> None:
        """Do nothing."""

    def sample_padded(self, *given: Any) -> Any:
        """See `Workspace`."""
        *self._given, sizes = given
        if self._has_begun:  # and is captured
            self._graph = self._work.launch(sizes)
            return self._graph
        if not self._work.begin(*self._given):
            return None
        if self._replay is None:
            return self._work.launch(sizes)
        self._replay()
        return self._work.counted(self._graph)

    def late(self, loader: DirectLoader, task: BatchTask) -> Any:
        """Make the batch of a task, and return it as a `LateBatch`."""
        sampled = self._sampled(loader, task)
        to_batch, device = loader._backend.memory.to_batch, loader._backend.device
        for kind, named in loader._labels(sampled).items():
            fields = fields_of(store_of(self.batch, kind))
            for name, value in named.items():
                if isinstance(value, Tensor):
                    fields[name].copy_(to_batch(value, device))
        return self._shapes.late(loader._recorder, task, sampled, self.batch, self._made)
