"""The common base of the loaders: argument checks, producers, keys and resuming."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch import Tensor
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput

from ..batch.assemble import assemble, check_attributes
from ..batch.edges import with_sampled_edges
from ..batch.gather import Gatherer
from ..batch.roles import KnownRoles
from ..batch.sampled import COPIES, Sampled, begin_copies, of_output
from ..batch.tensors import tensors_made, with_edge_ids
from ..core.arguments import (
    check_cache,
    check_choice,
    check_count,
    check_data,
    check_loader_options,
    check_mode,
    check_seed,
)
from ..core.lazy_tensor import with_rows_of
from ..core.placing import Placing
from ..core.pyg import SubgraphType
from ..core.types import BatchKey
from ..ops import clock
from ..ops.backend import Backend
from ..ops.placement import Placement
from ..ranks.split import take_split
from ..ranks.windows import Place, Terms
from ..sampling.sampler import NeighborSampler, NumNeighborsLike
from .cache import fill_cache
from .epoch import Epoch, Producers
from .options import (
    PACKAGE,
    Given,
    check_assignment,
    check_names,
    check_prefetch,
    describe,
    rebuilding_by_lightning,
    refuse_unused,
    threads_of_a_batch,
)
from .producing import producing, start_producer, weak_work
from .progress import Progress
from .recorder import Recorded, Recorder
from .resuming import Resuming
from .seeds import integers, seeds_at
from .shapes import StaticShapes, static_shapes_of
from .site import Site, check_ready_sampler
from .stages import BatchTask, Handover, SerialAfterFork, Stages, batch_keys

UNDECIDED = object()
# Attributes that do not go to other processes with a loader.
NOT_COPIED = ("_iterator", "_reusing", "_board", "_direct_for", "_kept_replay")


class DirectLoader(SerialAfterFork, Recorded, Resuming, torch.utils.data.DataLoader[Any]):
    """The part of a loader that does not depend on what its seeds are.

    Stands before a loader class of PyG's in the list of bases, whose initialiser sets the
    attributes named below.
    """

    _draws_on_cpu = False  # whether the sampler stays on the CPU, wherever the batches are
    data: Any
    input_data: Any
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    filter_per_worker: bool
    custom_cls: Any
    _gives_whole_subgraphs = False  # not what was sampled hop by hop around seeds
    _can_cooperate = False  # whether ranks can make its batches together
    _direct_for: Any = UNDECIDED  # what a subclass decided for the sampler; until an assignment
    _shapes: StaticShapes | None = None  # what all batches are padded to
    _is_built = False  # whether arguments have been read; see `__setattr__`
    _hands_out_hops = False  # edges as `SampledEdges`; see `hand_out_hops`
    # Set by PyG's mixins.
    loader_cores: Any
    _worker_threads: int
    _old_worker_init_fn: Callable[[int], None]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Look at the names of all arguments first: a wrong one may leave another one missing."""
        if cls.__init__.__module__.startswith(PACKAGE):  # not a user's, which may take others
            check_names(kwargs, cls)
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change arguments that are not read again, in a loader of this package."""
        if name[0] != "_":
            if self._is_built and type(self).__module__.startswith(PACKAGE):
                check_assignment(self, name)
            self.__dict__["_direct_for"] = UNDECIDED
        super().__setattr__(name, value)

    def _prepare(
        self,
        data: Any,
        num_neighbors: NumNeighborsLike,
        sampling: dict[str, Any],
        sampler: BaseSampler | None,
        given: Given,
    ) -> BaseSampler:
        """Check what both loaders take, and return the sampler: `sampler`, or a new one.

        Must come before the initialiser of PyG's class. Takes what is for ranks out of
        `given.passed_on`, and may add a generator.
        """
        placing, seed, kwargs = given.placing, given.seed, given.passed_on
        check_data(data)
        self._feature_dtype = check_attributes(data, given.feature_dtype)
        self._split = take_split(kwargs, check_seed(seed))
        check_loader_options(kwargs, data)
        check_mode("topology", placing.topology)
        check_mode("features", placing.features)
        check_cache(placing.cache, placing.cache_policy)
        refuse_unused(kwargs, DirectLoader)
        if placing.gather_blocks is not None:
            check_count("gather_blocks", placing.gather_blocks, least=1)
        self._progress = Progress(check_seed(seed))
        self._recorder, self._roles = Recorder(), KnownRoles()
        self.prefetch = check_prefetch(given.prefetch, kwargs)
        if kwargs.get("batch_size", 1) is None:
            raise ValueError(
                "batch_size=None (no batching) has no meaning here: pass a size, or batch_sampler=."
            )
        self._host_ids = check_choice("ids", placing.ids, ("host", "device")) == "host"
        if sampler is not None:
            check_ready_sampler(sampler, sampling, placing)

        def make_sampler(device: torch.device, topology: str) -> NeighborSampler:
            return NeighborSampler(
                data,
                num_neighbors,
                **sampling,
                device=device,
                topology=topology,
                device_bytes=placing.device_bytes,
                seed=seed,
                threads=threads_of_a_batch(kwargs),
            )

        self._exchange, placing = self._exchange_for(data, placing)
        self._site = Site(data, placing, sampler, make_sampler, self._draws_on_cpu, self._exchange)
        if self._exchange is not None:
            changes_output = bool(kwargs.get("transform_sampler_output"))
            self._exchange.check_sampler(self._site.sampler, changes_output)
        if given.own["static_shapes"] is not False:
            self._shapes = static_shapes_of(given.own["static_shapes"], self, data, kwargs)
        # With a seed, the order of the seeds follows it, unless a generator is to decide.
        self._shuffle_generator: torch.Generator | None = None
        if seed is not None and kwargs.get("generator") is None and kwargs.get("shuffle"):
            self._shuffle_generator = kwargs["generator"] = torch.Generator()
        return self._site.sampler

    def _exchange_for(self, data: Any, placing: Placing) -> tuple[Any, Placing]:
        """Return what a loader exchanges with other ranks, if anything, and where batches are."""
        return self._exchange, placing

    @property
    def placement(self) -> Placement:
        """Where the graph and the attributes of batches are stored, with the reasons.

        With ``device=None`` the device is decided anew at each iteration until it is a GPU.
        """
        return self._site.placement

    def __getattr__(self, name: str) -> Any:
        """Refuse, by name, to be built anew by Lightning with another sampler.

        Only arguments with attributes of the same names would be kept. Lightning asks for this
        attribute first, which a loader has that was built in one of its hooks.
        """
        if name == "__pl_saved_args" and "dataset" in self.__dict__:
            raise TypeError(rebuilding_by_lightning(type(self).__name__))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        sampler, arguments = self._sampler, dict[str, Any]()
        if isinstance(sampler, NeighborSampler):
            arguments["num_neighbors"] = sampler.num_neighbors.values
        arguments["batch_size"] = self.batch_size
        name, ends = type(self).__name__, self._site.ends
        return describe(name, ends, self._num_seeds(), arguments, self.placement)

    def __str__(self) -> str:
        return f"{type(self).__name__}()"  # as PyG's

    @property
    def _sampler(self) -> BaseSampler:
        return self._site.sampler

    @property
    def _backend(self) -> Backend:
        return self._site.backend

    def _decide_device(self) -> bool:
        """Decide where batches are made, if that is open; return whether it has changed."""
        names, changed = self._sampler_names(), self._site.decide()
        for name in names:
            setattr(self, name, self._sampler)
        return changed

    def _sampler_names(self) -> list[str]:
        """Return the attributes of PyG's class that name the sampler."""
        return [n for n in ("node_sampler", "link_sampler") if vars(self).get(n) is self._sampler]

    def _sample(self, inputs: Any, key: BatchKey | None) -> Any:
        """Sample around a slice of `input_data`; without a key, with a new one."""
        raise NotImplementedError

    def _sample_for_batch(self, inputs: Any, key: BatchKey) -> Any:
        """As `_sample`; may be a `Sampled` if nobody looks at it but `filter_fn` of this class."""
        raise NotImplementedError

    def _labels(self, out: Any) -> dict[Any, dict[str, Any]]:
        """Return what the seeds add to a batch, by node or edge type."""
        raise NotImplementedError

    def collate_fn(self, index: Tensor | list[int]) -> Any:
        """Make the batch of the seeds at positions `index`; a subclass may override this.

        In an epoch the draws follow the number of the batch, else they are new at every call.
        """
        key = batch_keys.next()
        if key is None:  # outside of an epoch, at whose beginning it was decided
            self._decide_device()
        # Positions may come in any shape; they are taken one after the other.
        inputs = seeds_at(self.input_data, integers(index))
        out = self._sample(inputs, key)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Gather the attributes of a sampled subgraph, assemble the batch and transform it."""
        return self._assembled(out if type(out) is Sampled else self._checked(out))

    def _assembled(self, sampled: Sampled) -> Any:
        recorder, site, transform = self._recorder, self._site, self.transform
        if self._shapes is not None and sampled.own is None and sampled.later is None:
            self._shapes.pad(self, sampled, self._progress.size_steps[0])
        if self._exchange is not None:
            if site.is_apart:
                sampled.bring(site.backend.device, self._brought)
            nodes, padded = sampled.nodes, sampled.own is not None
            recorder.timed("gathering", lambda: self._exchange.bring_rows(nodes, padded))
        # Of our own sampler's ids it is known how large they are; others' are looked at.
        ends = site.ends if self.transform_sampler_output is None else None
        ids = sampled.ids or site.backend.memory.ids(self._host_ids)
        gatherer = Gatherer(site.backend, ids, self._feature_dtype, recorder.found)
        labels, known = self._labels(sampled), self._roles
        batch = assemble(self.data, sampled, labels, gatherer, self.custom_cls, ends, known)
        made = recorder.assembled(batch, gatherer, sampled.own, sampled.later is not None)
        if sampled.later is not None:
            return sampled.later(batch, made)
        if sampled.cooperation is not None:
            batch.cooperation = sampled.cooperation
        timed = transform and (lambda b: recorder.timed("transform", lambda: transform(b)))
        if self._hands_out_hops:
            return with_sampled_edges(batch, timed, sampled.reused)
        return batch if timed is None else timed(batch)

    def _checked(self, out: Any) -> Sampled:
        """Return the output of a sampler, transformed and by type."""
        change, copies = self.transform_sampler_output, getattr(out, COPIES, None)
        if change is not None:
            out = self._recorder.timed("transform", lambda: change(out))
        if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
            raise TypeError(
                f"transform_sampler_output and neighbor_sampler must give a SamplerOutput or "
                f"HeteroSamplerOutput, got {type(out).__name__}."
            )
        out = with_edge_ids(out, self._site.sampler.edge_permutation)
        sampled = of_output(out, self._backend.device, self._brought)
        sampled.ids = copies
        return sampled

    def _brought(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device of the batch, with the rows that are kept with ids."""
        return with_rows_of(tensor, self._backend.memory.to_batch(tensor, self._backend.device))

    def _work(self, task: BatchTask, stages: Stages) -> Handover:
        """Make one batch; runs in a producer thread where there are any."""
        if getattr(self.collate_fn, "__func__", None) is not DirectLoader.collate_fn:
            return stages.produce(task, self._collated, None)
        gather = self._gathered if self.filter_per_worker else None
        return stages.produce(task, self._sampled, gather)

    def _sampled(self, task: BatchTask) -> Any:
        """Sample, and begin to bring the ids to the host, beside what comes next."""
        inputs = seeds_at(self.input_data, task.index)
        shapes = self._shapes if type(self).filter_fn is DirectLoader.filter_fn else None
        key = task.key if shapes is None else shapes.key_of(self, task)
        start = clock.instant()
        out = self._sample_for_batch(inputs, key)
        self._recorder.add("sampling", start, clock.instant())
        ids = self._site.backend.memory.ids(self._host_ids)
        if shapes is not None:
            out = shapes.padded(self, out, task)
        if type(out) is Sampled:
            out.ids = ids
        if ids.copies:
            self._recorder.timed("copying", lambda: begin_copies(out, ids))
        return out

    def _gathered(self, out: Any) -> Any:
        # Nobody else reads a `Sampled`; see `_sample_for_batch`.
        batch = self._assembled(out) if type(out) is Sampled else self.filter_fn(out)
        return self._pinned(batch) if self.pin_memory else batch

    def _collated(self, task: BatchTask) -> Any:
        """Make one batch by the `collate_fn` of a subclass, as PyG would."""
        with batch_keys.of(task.key):
            index = task.index
            batch = self.collate_fn(index.tolist() if isinstance(index, np.ndarray) else index)
        return self._pinned(batch) if self.filter_per_worker and self.pin_memory else batch

    def _pinned(self, batch: Any) -> Any:
        return self._recorder.timed("copying", lambda: self._backend.memory.pin(batch))

    def _complete(self, product: Any, place: Place | None) -> Any:
        """Do what is left to the thread that asks for the batch, without `filter_per_worker`."""
        with nullcontext() if place is None else self._exchange.at(place):
            return self.filter_fn(product)

    def __iter__(self) -> Any:
        before = copy.copy(self._progress)
        try:
            self._met()
            return self._recorder.starting(self._start)
        except BaseException as error:  # no epoch was begun, and none that was loaded is lost
            self._tell(error)
            self._progress.__dict__.update(before.__dict__)
            raise

    def _start(self) -> Any:
        producing.refuse(self)
        self._site.check_files()
        if self._decide_device():
            self._iterator = None  # persistent producers keep to the device they began on
        fill_cache(self)
        if self._shapes is not None:  # measure here, not in the producers
            self._shapes.sizes(self, 0)
        return super().__iter__()

    def _get_iterator(self) -> Any:
        self._decide_device()
        backend = self._backend
        threads = min(max(self.num_workers, backend.default_producers), backend.most_producers)
        init = self.worker_init_fn if self.num_workers else None
        depth, burst, exchange = self.prefetch * threads, 1, self._exchange
        if exchange is not None:
            most = exchange.window_of(self.prefetch > 0, not self.filter_per_worker)
            group, board = self._met()
            terms = Terms(group, board, self._seconds(), most)
            burst = exchange.begin(self._sampler, self._site.host_backend(), terms)
            self._recorder.exchanged = exchange.traffic
        if burst == 0:
            exchange, burst = None, 1
        elif exchange is not None and self.prefetch > 0:
            # A producer waits for each batch of a window.
            threads, depth = max(threads, burst), max(depth, 2 * burst)
        producers = Producers(
            threads,
            depth,
            partial(start_producer, backend.streams, init, producing.with_loader(self)),
            0.0 if exchange is not None else self.timeout,  # which bounds each exchange then
            self.persistent_workers,
            burst,
            exchange,
        )
        streams = backend.streams if producers.depth_batches else backend.streams_of_caller
        # Of the loader only the graph: a producer must not keep the loader alive.
        stages = Stages(streams, partial(tensors_made, self.data))
        return Epoch(
            weak_work(self, stages), None if self.filter_per_worker else self._complete,
            self._progress, self._order(), stages, producers, self._num_batches, self._recorder,
            None if self._reusing is None else partial(self._reusing.begin, backend),
        )  # fmt: skip

    def check_worker_number_rationality(self) -> None:
        """Say nothing of too many processes, as there are none. DataLoader is built then."""
        self._is_built = True

    def _aff_init_fn(self, worker_id: int) -> None:
        """Pin one producer for `enable_cpu_affinity`.

        PyG pins the worker's process, which here is the user's own.

        Raises:
            NotImplementedError: the system cannot pin single threads.
        """
        if not hasattr(os, "sched_setaffinity"):
            raise NotImplementedError(
                "enable_cpu_affinity pins producer threads to cores, which this system does not "
                "offer (os.sched_setaffinity is missing). Iterate without it."
            )
        cores = self.loader_cores[worker_id]
        os.sched_setaffinity(0, cores if isinstance(cores, list) else [cores])
        self._old_worker_init_fn(worker_id)

    def _mt_init_fn(self, worker_id: int) -> None:
        """Let each producer use several threads, for `enable_multithreading`.

        PyG sets torch's number of threads, which here is the user's own.
        """
        self._backend.threads = int(self._worker_threads)
        self._old_worker_init_fn(worker_id)

    def __getstate__(self) -> dict[str, Any]:
        site = self._site.reopened()
        state = {**self.__dict__, **dict.fromkeys(NOT_COPIED), "_site": site}
        return state | {name: site.sampler for name in self._sampler_names()}


def hand_out_hops(loader: DirectLoader) -> str:
    """Make the edges of all batches from now on `SampledEdges`; see `pyg_direct.accelerate`.

    Returns:
        Why the sampler's edges do not come hop by hop, sorted by destination; "" if they do.
    """
    if loader._gives_whole_subgraphs:
        return f"the batches of a {type(loader).__name__} are whole subgraphs"
    sampler = loader._sampler
    if not isinstance(sampler, NeighborSampler):
        return f"neighbor_sampler= is a {type(sampler).__name__}, not pyg_direct's"
    if sampler.subgraph_type != SubgraphType.directional:
        return f"subgraph_type is {sampler.subgraph_type.value!r}, not 'directional'"
    if sampler.sample_direction != "forward":
        return f"sample_direction is {sampler.sample_direction!r}, not 'forward'"
    if loader.transform_sampler_output:
        return "transform_sampler_output= may change the edges"
    if loader._shapes is not None:
        return "static_shapes= pads the batches, and the hops of padding are not known"
    loader._hands_out_hops = True
    return ""
