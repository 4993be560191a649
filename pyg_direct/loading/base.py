"""What both loaders are made of: argument checks, producers, keys and resuming."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch import Tensor
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

from ..arguments import check_count, check_data, check_loader_options, check_mode, check_seed
from ..batch.assemble import assemble, check_layouts, tables_of
from ..batch.edges import with_sampled_edges
from ..batch.tensors import moved
from ..config import resolve_device
from ..kernels.threads import available_cores
from ..ops.backend import Backend
from ..ops.devices import backend_for, best_device
from ..ops.placement import Placement
from ..sampling import rng
from ..sampling.sampler import NeighborSampler, NumNeighborsLike
from ..types import BatchKey
from .epoch import Epoch, Progress, Task
from .stream_schedule import Handover, Schedule

DEFAULT_PREFETCH = 2


class Placing(NamedTuple):
    """Where the user wants things: arguments of both loaders."""

    device: torch.device | str | int | None
    topology: str
    features: str
    device_bytes: int | None


class DirectLoader(torch.utils.data.DataLoader[Any]):
    """The part of a loader that does not depend on what its seeds are.

    Stands before a loader class of PyG's in the list of bases, whose initialiser sets the
    attributes named below.
    """

    data: Any
    input_data: Any
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    filter_per_worker: bool
    custom_cls: Any
    _hands_out_hops = False
    # Set by PyG's mixins.
    loader_cores: Any
    _worker_threads: int
    _old_worker_init_fn: Callable[[int], None]

    def _prepare(
        self,
        data: Any,
        num_neighbors: NumNeighborsLike,
        sampling: dict[str, Any],
        sampler: BaseSampler | None,
        placing: Placing,
        seed: int | None,
        prefetch: int,
        kwargs: dict[str, Any],
    ) -> BaseSampler:
        """Check what both loaders take, and return the sampler: `sampler`, or a new one.

        Must come before the initialiser of PyG's class. May add a generator to `kwargs`, those of
        DataLoader.
        """
        device, topology, features, device_bytes = placing
        check_data(data)
        check_layouts(data)
        check_loader_options(kwargs, data)
        check_mode("features", features)
        self._progress = Progress(check_seed(seed))
        self.prefetch = _check_prefetch(prefetch, kwargs)
        if kwargs.get("batch_size", 1) is None:
            raise ValueError(
                "batch_size=None (no batching) has no meaning here: pass a size, or batch_sampler=."
            )
        if sampler is None:
            threads = min(available_cores(), torch.get_num_threads())
            sampler = NeighborSampler(
                data,
                num_neighbors,
                **sampling,
                device=resolve_device(device) or best_device(),
                topology=topology,
                device_bytes=device_bytes,
                seed=seed,
                # With several producers, batches are what runs in parallel.
                threads=threads if kwargs.get("num_workers", 0) <= 1 else 1,
            )
        else:
            if not isinstance(sampler, BaseSampler):
                raise TypeError(
                    f"neighbor_sampler must be a sampler such as pyg_direct.NeighborSampler, got "
                    f"{sampler!r}."
                )
            placed = {"topology": topology, "device_bytes": device_bytes}
            _refuse_beside_sampler({**sampling, **placed})
        self._sampler = sampler
        self._backend = self._backend_of(sampler, device)
        self._backend.memory.place_tables(tables_of(data), features)
        self._ends = sampler.ends if isinstance(sampler, NeighborSampler) else None
        # With a seed, the order of the seeds follows it, unless a generator is to decide.
        self._shuffle_generator: torch.Generator | None = None
        if seed is not None and kwargs.get("generator") is None and kwargs.get("shuffle"):
            self._shuffle_generator = kwargs["generator"] = torch.Generator()
        return sampler

    def _backend_of(self, sampler: BaseSampler, device: torch.device | str | int | None) -> Backend:
        """Return the backend that makes the batches: that of our own sampler, else a new one."""
        wanted = resolve_device(device)
        if not isinstance(sampler, NeighborSampler):
            return backend_for(wanted or best_device())
        here = sampler.backend.device
        if device is not None and not _same_device(wanted, here):
            raise ValueError(
                f"device={str(device)!r} contradicts neighbor_sampler=, which samples on "
                f"{str(here)!r}. Pass the device to the sampler."
            )
        return sampler.backend

    @property
    def placement(self) -> Placement:
        """What lies where: the graph, and the attributes that batches are gathered from."""
        return self._backend.memory.placement

    def hand_out_hops(self) -> str:
        """Make the edges of all batches from now on `SampledEdges`; see `pyg_direct.accelerate`.

        Returns:
            Why the sampler's edges do not come hop by hop, sorted by destination; "" if they do.
        """
        sampler = self._sampler
        if not isinstance(sampler, NeighborSampler):
            reason = f"neighbor_sampler= is a {type(sampler).__name__}, not pyg_direct's"
        elif sampler.subgraph_type != SubgraphType.directional:
            reason = f"subgraph_type is {sampler.subgraph_type.value!r}, not 'directional'"
        elif sampler.sample_direction != "forward":
            reason = f"sample_direction is {sampler.sample_direction!r}, not 'forward'"
        elif self.transform_sampler_output:
            reason = "transform_sampler_output= may change the edges"
        else:
            self._hands_out_hops, reason = True, ""
        return reason

    def _sample(self, inputs: Any, key: BatchKey | None) -> Any:
        """Sample around a slice of `input_data`; without a key, with a new one."""
        raise NotImplementedError

    def _labels(self, out: Any) -> dict[Any, dict[str, Any]]:
        """Return what the seeds add to a batch, by node or edge type."""
        raise NotImplementedError

    def _num_seeds(self) -> int:
        raise NotImplementedError

    def collate_fn(self, index: Tensor | list[int]) -> Any:
        """Sample the batch of the seeds at positions `index`, with a key of its own."""
        return self._collate(index, None)

    def filter_fn(self, out: Any) -> Any:
        """Gather the attributes of a sampled subgraph, assemble the batch and transform it."""
        if self.transform_sampler_output:
            out = self.transform_sampler_output(out)
        if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
            raise TypeError(
                f"transform_sampler_output and neighbor_sampler must give a SamplerOutput or "
                f"HeteroSamplerOutput, got {type(out).__name__}."
            )
        out = _with_edge_ids(out, self._sampler.edge_permutation)
        # Of our own sampler's ids it is known where they are and how large; others' are looked at.
        ends = None if self.transform_sampler_output else self._ends
        out = moved(out, self._backend.device) if ends is None else out
        labels = self._labels(out)
        batch = assemble(self.data, out, labels, self._backend, self.custom_cls, ends)
        if self._hands_out_hops:
            return with_sampled_edges(batch, self.transform)
        return batch if self.transform is None else self.transform(batch)

    def _collate(self, index: Any, key: BatchKey | None) -> Any:
        # Positions may come in any shape; they are taken one after the other.
        out = self._sample(self.input_data[torch.as_tensor(index, dtype=torch.int64).view(-1)], key)
        return self.filter_fn(out) if self.filter_per_worker else out

    def _work(self, task: Task, schedule: Schedule) -> Handover:
        """Make one batch; runs in a producer thread where there are any."""
        with torch.inference_mode(task.inference), torch.set_grad_enabled(task.grad):
            return schedule.produce(
                task.asked,
                lambda: self._sample(self.input_data[task.index], task.key),
                self._finish if self.filter_per_worker else None,
            )

    def _finish(self, out: Any) -> Any:
        """Make a batch of a sampled subgraph, in pinned memory where that is asked for."""
        batch = self.filter_fn(out)
        return self._backend.memory.pin(batch) if self.pin_memory else batch

    def _get_iterator(self) -> Any:
        return Epoch(self)

    def check_worker_number_rationality(self) -> None:
        """Say nothing: DataLoader warns of too many processes, and there are none."""

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

    def _seed_shuffle(self, epoch: int) -> None:
        seed = self._progress.seed
        if self._shuffle_generator is not None and seed is not None:
            key = rng.derive(seed, epoch, 0, rng.SHUFFLE_DOMAIN)
            self._shuffle_generator.manual_seed(rng.as_seed(key))

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, also in the middle of an epoch.

        After `load_state_dict` the next epoch yields exactly the batches that were left, in this or
        in another process. Where `sampler=` or `batch_sampler=` is given, it must give the same
        order again when it is iterated under the same state of torch's default generator (or of
        `generator=`).
        """
        state = self._progress.state_dict()
        return {**state, **self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next epoch go on where `state_dict` was taken.

        Raises:
            ValueError: saved by a loader with another seed, batch size or number of seeds.
        """
        for name, value in self._fingerprint().items():
            if state.get(name, value) != value:
                raise ValueError(
                    f"The state was saved with {name}={state[name]}, this loader has "
                    f"{name}={value}. Build the loader with the same arguments."
                )
        self._progress.load_state_dict(state)

    def _fingerprint(self) -> dict[str, Any]:
        """What must be the same for a saved state to mean the same batches."""
        return {"num_seeds": self._num_seeds(), "batch_size": self.batch_size}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}


def _same_device(wanted: torch.device | None, here: torch.device) -> bool:
    """Whether a device that a user named is `here`; without a number it may be any of its kind."""
    if wanted is None or wanted.type != here.type:
        return wanted is None
    return wanted.index == here.index or None in (wanted.index, here.index)


def _check_prefetch(prefetch: int, kwargs: dict[str, Any]) -> int:
    """Return how far each producer works ahead: `prefetch`, or DataLoader's name for it."""
    factor = kwargs.get("prefetch_factor")
    if factor is not None and prefetch not in (DEFAULT_PREFETCH, factor):
        raise ValueError(
            f"prefetch={prefetch} and prefetch_factor={factor} contradict each other; pass one."
        )
    if factor is not None:
        return check_count("prefetch_factor", factor)
    return check_count("prefetch", prefetch)


def _refuse_beside_sampler(sampling: dict[str, Any]) -> None:
    """Raise if an argument about sampling was given beside a ready sampler."""
    defaults = {
        "subgraph_type": "directional",
        "temporal_strategy": "uniform",
        "directed": True,
        "topology": "auto",
    }
    given = [
        name
        for name, value in sampling.items()
        if value not in (defaults.get(name, False), None, SubgraphType.directional)
    ]
    if given:
        raise ValueError(
            f"neighbor_sampler= decides how to sample, so {', '.join(given)} would be ignored. Set "
            f"it on the sampler."
        )


def _with_edge_ids(out: Any, permutation: Any) -> Any:
    """Return the output of a sampler of PyG's, whose `edge` is a position, with edge ids instead.

    Our own sampler has no permutation to apply.
    """
    if permutation is None or out.edge is None:
        return out
    out = copy.copy(out)
    if isinstance(out, SamplerOutput):
        out.edge = permutation[out.edge]
    else:
        out.edge = {
            key: edge if edge is None or permutation.get(key) is None else permutation[key][edge]
            for key, edge in out.edge.items()
        }
    return out
