"""`NeighborLoader`: PyG's signature and semantics over our stages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

from . import rng
from .assemble import assemble
from .config import resolve_device
from .epoch import Epoch, Progress, Task
from .ops import Backend, backend_for
from .ops.parallel import available_cores
from .sampler import NeighborSampler, NumNeighborsLike, check_ids
from .types import BatchKey

DEFAULT_PREFETCH = 2


class NeighborLoader(torch_geometric.loader.NeighborLoader):
    """Drop-in replacement of `torch_geometric.loader.NeighborLoader`.

    A real subclass with PyG's arguments, batches and attributes; its class documentation holds
    here, too. What differs is said below. Batch i of epoch e depends on the data, the arguments,
    `seed`, e and i alone: not on `num_workers`, `prefetch` or timing.

    Args:
        data: `torch_geometric.data.Data` or `HeteroData`.
        num_neighbors: fan-out of each hop; negative for all neighbours, 0 for none. With edge
            types, one list for all of them or a dict with a list for each.
        input_nodes: seeds, as ids, a bool mask [num_nodes], or None for all nodes. With node
            types, a type, or (type, seeds).
        input_time: int64 [num_seeds], the time of each seed; needs `time_attr`. Without it, the
            seeds' own times hold.
        replace: sample with replacement.
        subgraph_type: 'directional', 'bidirectional' or 'induced'.
        disjoint: give every seed a subgraph of its own; `batch.batch` tells which.
        temporal_strategy, time_attr, weight_attr: see `NeighborSampler`. Both may be combined.
        transform: called with each finished batch.
        transform_sampler_output: called with each `SamplerOutput`, before features are gathered.
        is_sorted: `edge_index` is sorted by column. It need not be said: sorted edges are found.
        filter_per_worker: gather and transform in the producers (True, the default) or in the
            thread that asks for the batch (False).
        neighbor_sampler: a ready sampler; excludes the arguments that describe sampling.
        directed: deprecated; False means ``subgraph_type='induced'``.
        device: where the batches are; None means `PYG_DIRECT_DEVICE` or, without it, the CPU. This
            version has the CPU backend.
        seed: base seed in [0, 2^64) of the neighbour draws and of `shuffle`. None draws one from
            `generator`, or from torch's default generator, at the beginning of each epoch, so that
            `torch.manual_seed` governs as it does in PyG.
        prefetch: batches that each producer works ahead, at least 1 where there are producers.
            Without any (`num_workers=0`) batches are made when they are asked for.
        **kwargs: of `torch.utils.data.DataLoader`. `num_workers` counts threads over the one copy
            of the data, not processes, so `multiprocessing_context` has nothing to act on.
            `prefetch_factor` is another name for `prefetch`; `worker_init_fn` runs once in each
            thread; batches always come in order.

    Raises:
        ValueError, TypeError: a wrong argument; the message says which.
        IndexError: `input_nodes` out of range.
        NotImplementedError: what is called not supported above.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighborsLike,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        prefetch: int = DEFAULT_PREFETCH,
        **kwargs: Any,
    ) -> None:
        self._progress = Progress(rng.check_seed(seed))
        self.prefetch = _check_prefetch(prefetch, kwargs)
        sampling: dict[str, Any] = {
            "subgraph_type": subgraph_type,
            "replace": replace,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
            "is_sorted": is_sorted,
            "directed": directed,
        }
        self._backend: Backend
        if neighbor_sampler is None:
            threads = min(available_cores(), torch.get_num_threads())
            neighbor_sampler = NeighborSampler(
                data,
                num_neighbors,
                **sampling,
                device=resolve_device(device),
                seed=seed,
                # With several producers, batches are what runs in parallel.
                threads=threads if kwargs.get("num_workers", 0) <= 1 else 1,
            )
        else:
            _refuse_beside_sampler(sampling)
        if isinstance(neighbor_sampler, NeighborSampler):
            self._backend = neighbor_sampler.backend
        else:
            self._backend = backend_for(resolve_device(device))
        if kwargs.get("batch_size", 1) is None:
            raise ValueError(
                "batch_size=None (no batching) has no meaning here: pass a size, or batch_sampler=."
            )
        # With a seed, the order of the seeds follows it, unless a generator is to decide.
        self._shuffle_generator = None
        if seed is not None and kwargs.get("generator") is None and kwargs.get("shuffle"):
            self._shuffle_generator = kwargs["generator"] = torch.Generator()
        _check_input_time(input_time, neighbor_sampler, time_attr)
        # Past the initialiser of PyG's NeighborLoader, which would build a sampler of its own.
        torch_geometric.loader.NodeLoader.__init__(
            self,
            data,
            node_sampler=neighbor_sampler,
            input_nodes=_as_input(input_nodes, data),
            input_time=input_time,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )
        input_type = self.input_data.input_type
        num_nodes = data.num_nodes if input_type is None else data[input_type].num_nodes
        check_ids(self.input_data.node, num_nodes, "input_nodes")
        self.input_nodes = input_nodes
        if isinstance(neighbor_sampler, NeighborSampler):  # find wrong times here, not in an epoch
            neighbor_sampler.seed_time(input_type, self.input_data.node, self.input_data.time)

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
        out = _with_edge_ids(out, self.node_sampler.edge_permutation)
        assert isinstance(self.data, (Data, HeteroData))
        batch = assemble(self.data, out, self.input_data.input_type, self._backend)
        return batch if self.transform is None else self.transform(batch)

    def _collate(self, index: Any, key: BatchKey | None) -> Any:
        inputs = self.input_data[index]
        sampler: BaseSampler = self.node_sampler
        if isinstance(sampler, NeighborSampler) and key is not None:
            out: Any = sampler.sample_nodes(inputs, key)
        else:
            out = sampler.sample_from_nodes(inputs)
        return self.filter_fn(out) if self.filter_per_worker else out

    def _work(self, task: Task) -> Any:
        """Make one batch; runs in a producer thread where there are any."""
        out = self._collate(task.index, task.key)
        if self.pin_memory and self.filter_per_worker and torch.cuda.is_available():
            out = out.pin_memory() if hasattr(out, "pin_memory") else out
        return out

    def _get_iterator(self) -> Any:
        return Epoch(self)

    def check_worker_number_rationality(self) -> None:
        """Say nothing: DataLoader warns of too many processes, and there are none."""

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
        return {"num_seeds": self.input_data.node.numel(), "batch_size": self.batch_size}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}


def _check_prefetch(prefetch: int, kwargs: dict[str, Any]) -> int:
    """Return how far each producer works ahead: `prefetch`, or DataLoader's name for it."""
    factor = kwargs.get("prefetch_factor")
    if factor is not None and prefetch not in (DEFAULT_PREFETCH, factor):
        raise ValueError(
            f"prefetch={prefetch} and prefetch_factor={factor} contradict each other; pass one."
        )
    value = prefetch if factor is None else factor
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"prefetch must be an int of 0 or more, got {value!r}.")
    return value


def _check_input_time(input_time: Any, sampler: BaseSampler, time_attr: str | None) -> None:
    temporal = getattr(sampler, "is_temporal", time_attr is not None)
    if input_time is not None and not isinstance(input_time, Tensor):
        raise TypeError(f"input_time must be a tensor, got {type(input_time).__name__}.")
    if input_time is not None and not temporal:
        raise ValueError("input_time is set, but time_attr is not: it would have no effect.")


def _refuse_beside_sampler(sampling: dict[str, Any]) -> None:
    """Raise if an argument about sampling was given beside a ready sampler."""
    defaults = {"subgraph_type": "directional", "temporal_strategy": "uniform", "directed": True}
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


def _as_input(input_nodes: Any, data: Any) -> Any:
    """Return `input_nodes` as PyG takes them: a tensor or None; with its type if there are types.

    Raises:
        ValueError: no node type where the graph has some, a mask of the wrong length, or ids that
            are not integers of one dimension.
    """
    if not isinstance(data, HeteroData):
        return _as_nodes(input_nodes, data.num_nodes)
    pair = (input_nodes, None) if isinstance(input_nodes, str) else input_nodes
    if not isinstance(pair, (list, tuple)) or len(pair) != 2 or pair[0] not in data.node_types:
        raise ValueError(
            f"input_nodes must name a node type of {data.node_types}, alone or as (type, nodes), "
            f"got {input_nodes!r}."
        )
    return pair[0], _as_nodes(pair[1], data[pair[0]].num_nodes)


def _as_nodes(input_nodes: Any, num_nodes: int) -> Tensor | None:
    if input_nodes is None:
        return None
    nodes = input_nodes if isinstance(input_nodes, Tensor) else torch.as_tensor(input_nodes)
    if nodes.numel() == 0 and nodes.dim() == 1 and not isinstance(input_nodes, Tensor):
        nodes = nodes.to(torch.int64)  # an empty list has no dtype
    kinds = (torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if nodes.dtype not in kinds or nodes.dim() != 1:
        raise ValueError(
            f"input_nodes must be node ids or a bool mask of one dimension, got {nodes.dtype} of "
            f"shape {tuple(nodes.shape)}."
        )
    if nodes.dtype == torch.bool:
        if len(nodes) != num_nodes:
            raise ValueError(
                f"A mask for input_nodes needs {num_nodes} entries, one for each node, got "
                f"{len(nodes)}."
            )
        return nodes
    return nodes.to(torch.int64)
