"""`NeighborLoader`: PyG's signature and semantics; how often each node is in its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_geometric.loader
from torch import Tensor
from torch_geometric.sampler import BaseSampler
from typing_extensions import Unpack

from ..batch.sampled import Sampled, of_graph
from ..core.arguments import check_dense, check_ids, check_partner, check_tensor
from ..core.pyg import SubgraphType
from ..core.types import BatchKey, ExtendedKey
from ..exchange.parted_sampler import PartedSampler, parted_sampler
from ..loading.options import (
    OF_SAMPLING,
    NeighborOptions,
    check_dependency,
    given,
    takes,
    threads_of_a_batch,
)
from ..loading.replaying import ReplayLoader
from ..loading.seeds import integers, node_seeds, own_times, seeds_at, with_windows
from ..loading.visits import visits_of_batches, why_no_visits
from ..sampling.sampler import NeighborSampler, NumNeighborsLike, keyed
from ..sampling.time_bounds import NO_BOUNDS, bounds_of
from .base import RankLoader, check_sampler
from .link_loader import LinkNeighborLoader


class NeighborLoader(RankLoader, ReplayLoader, torch_geometric.loader.NeighborLoader):  # type: ignore[misc]
    """Drop-in replacement of `torch_geometric.loader.NeighborLoader`.

    A real subclass with PyG's arguments, batches and attributes; its class documentation holds
    here, too. What differs is said below. Batch i of epoch e depends on the data, the arguments,
    `seed`, e and i: not on `num_workers`, `prefetch` or timing.

    The edges, times, weights and seeds are copied when the loader is built, ids as 32-bit integers
    where they fit: what happens to the tensors that they came from changes no draw. All attributes
    in a batch are read from the user's tensors when the batch is made. On the CPU, a loader shares
    the copy of a living one that was built over the same tensors (by identity, not by value) with
    the same arguments about the graph, unless they were changed in place since.

    Args:
        data: `torch_geometric.data.Data`, `HeteroData` or (`FeatureStore`, `GraphStore`).
        num_neighbors: fan-out of each hop; negative for all neighbours, 0 for none. With edge
            types, one list for all of them or a dict with a list for each.
        input_nodes: seeds, as ids, a bool mask [num_nodes], or None for all nodes. With node
            types, a type, or (type, seeds). A mask of integers is refused: as many as there are
            nodes, three or more, and all of them 0 or 1.
        input_time: int64 [num_seeds], the time of each seed; refused without `time_attr`, as it
            would have no effect. Without it, the seeds' own times hold; where they have none, as
            with times of edges, it must be given.
        replace: sample with replacement.
        subgraph_type: 'directional', 'bidirectional' or 'induced'.
        disjoint: give every seed a subgraph of its own; `batch.batch` says which.
        temporal_strategy, time_attr, weight_attr: see `NeighborSampler`. They may be combined with
            each other and with everything above.
        transform: called with each finished batch.
        transform_sampler_output: called with each `SamplerOutput`, before features are gathered.
        is_sorted: `edge_index` is sorted by column. It need not be said: sorted edges are found.
        filter_per_worker: gather and transform in the producers (True, the default) or in the
            thread that asks for the batch (False).
        neighbor_sampler: a ready sampler; excludes the arguments that describe sampling.
        directed: deprecated; False means ``subgraph_type='induced'``.
        device: where batches are made, and are. None means `PYG_DIRECT_DEVICE` or, without it, what
            the process uses when it begins to iterate: the CUDA device of the data, else the one on
            which it holds tensors (its model), of several the current one, or `LOCAL_RANK`'s where
            that was not set; without any, the CPU, until an iteration finds some. On a GPU all that
            a model consumes arrives there: attributes, labels, times, `edge_index`, `batch`.
        gpu: a `pyg_direct.Gpu`: where graph, attributes and ids are stored for a GPU, and a cache
            of rows in its memory. `topology`, `features`, `device_bytes`, `gather_blocks`, `cache`,
            `cache_policy` and `ids` may be given as arguments in its place.
        feature_dtype: torch.float32, float16 or bfloat16: what batches get the narrow attributes
            of nodes and edges in, which are those stored as float16, bfloat16 or by
            `pyg_direct.quantize`. They are decoded while they are gathered, and have the bits of
            ``.to(feature_dtype)`` after the gather. All others stay as they are. None gives
            float32 for quantized attributes, and the dtype of the tensor for all others.
        seed: base seed in [0, 2^64) of the neighbour draws and of `shuffle`. None draws one from
            `generator`, or from torch's default generator, at the beginning of each epoch, so that
            `torch.manual_seed` governs as it does in PyG.
        prefetch: batches that each producer works ahead. Producers are `num_workers` threads, at
            least one for a GPU, where a batch is sampled on one stream and gathered on another
            beside the training. 0, or no producers: batches are made when they are asked for, in
            the thread and on the stream that ask.
        time_window: with `time_attr`: no neighbour, at any hop, is older than the time of its seed
            minus this; one that is exactly so old may be taken. Holds for both strategies.
        input_start_time, input_end_time: int64 [num_seeds], with `time_attr`: a window of its own
            for each seed. No neighbour, at any hop, is earlier than the start or later than the
            end; those at these very times may be taken. Either may be left out: neighbours are of
            any age then, or as late as the seed. An end is no later than its seed's time, which is
            what `batch.seed_time` holds. `time_window` is a start for all seeds alike.
        sampling, layer_dependency: 'labor' shares nodes between lists, 'adaptive' fan-outs between
            nodes; see `NeighborSampler`.
        batch_dependency: of LABOR: over how many batches each node's random number changes once,
            a share of 1 / batch_dependency of them from one batch to the next. Batches in a row
            then have nodes in common, for caches; each of them alone has the law of a batch with 1,
            the default. Ranks count together. Above 256 a warning is given. (Balin, LaSalle and
            Catalyurek, "Cooperative Minibatching in Graph Neural Networks", TMLR 2025.)
        order: 'proximity', or integers [num_seeds], a cluster for each seed: in place of `shuffle`,
            seeds come cluster by cluster, so that batches in a row have more nodes in common.
            Clusters, and the seeds of each, are in a new random order in each epoch, and every
            batch takes seeds of 128 parts of that order, which mixes their labels. 'proximity'
            takes as clusters 16 seeds in a row of a breadth-first search over in-neighbours.
            'parts', of a `pyg_direct.partition` or with `owners`: each batch has seeds of one part,
            and is made by the rank that holds it where the ranks divide the parts.
        static_shapes: True: all batches have one number of nodes and one of edges, so that a
            compiled model is compiled once. Padding comes after the nodes and edges of a batch,
            sends them no messages, and has -1 as ids (`n_id`, `e_id`); `batch.num_real_nodes` and
            `num_real_edges`, int64 [], count the others. The numbers are measured with up to 64
            batches; or a dict gives them, as the attribute `static_shapes` does:
            ``{"nodes": 9000, "edges": 30000}``, with types dicts by type. A larger batch is padded
            to 1.25, 1.25^2, ... times as much, as are all batches of the epochs after it. The last
            batch has fewer seeds without `drop_last`. See the guide "Batches of one shape".
        **kwargs: of `torch.utils.data.DataLoader`. `num_workers` counts threads over the one copy
            of the data, not processes, so `multiprocessing_context` has nothing to act on.
            `prefetch_factor` is another name for `prefetch`; `worker_init_fn` runs once in each
            thread; batches always come in order. And of all loaders here, `ranks`, a
            `pyg_direct.Ranks`: several processes share the batches of an epoch. `split_by_rank`,
            `rank`, `world_size`, `tail`, `share_rows`, `owners` and `cooperative` may be given as
            arguments in its place. Over a `pyg_direct.partition`, ranks exchange hops and rows as
            well, by gloo in a thread of their own. They must take the same steps then, as with
            `share_rows` and `cooperative`; `timeout` is how long a loop waits for other ranks (0:
            half an hour).

    Raises:
        ValueError, TypeError: a wrong argument; the message says which.
        IndexError: `input_nodes` out of range.
        RuntimeError: `split_by_rank=True`, and there is no process group when the loader is
            iterated or asked for its length.

    Example:
        >>> loader = pyg_direct.NeighborLoader(
        ...     data, [10, 5], input_nodes=data.train_mask, batch_size=64, shuffle=True, seed=0
        ... )
        >>> batch = next(iter(loader))
        >>> batch.batch_size, batch.x.shape[1]
        (64, 16)
        >>> bool((batch.x == data.x[batch.n_id]).all())
        True
    """

    _can_cooperate = True

    @takes(NeighborOptions)
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
        **kwargs: Unpack[NeighborOptions],
    ) -> None:
        found = given(
            type(self),
            kwargs,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
        )
        own, options = found.own, found.passed_on
        arguments = {
            "subgraph_type": subgraph_type,
            "replace": replace,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
            "is_sorted": is_sorted,
            "directed": directed,
            **{name: own[name] for name in OF_SAMPLING},
        }
        asked = {
            **arguments, **options, **own,
            "input_time": input_time, "neighbor_sampler": neighbor_sampler,
        }  # fmt: skip
        parted = parted_sampler(data, num_neighbors, asked, threads_of_a_batch(kwargs))
        if parted is not None:
            self._exchange, neighbor_sampler, arguments = parted.exchange, parted, {}
        sampler = self._prepare(data, num_neighbors, arguments, neighbor_sampler, found)
        self._progress.batch_dependency = check_dependency(own["batch_dependency"], sampler)
        self._begin_order(own["order"], options)
        _check_input_time(input_time, sampler, time_attr)
        check_dense("input_nodes", input_nodes)
        # Past the initialiser of PyG's NeighborLoader, which would build a sampler of its own.
        torch_geometric.loader.NodeLoader.__init__(
            self,
            data,
            node_sampler=sampler,
            input_nodes=node_seeds(input_nodes, options.get("input_id"), data, sampler),
            input_time=own_times(input_time),
            **options,
        )
        self.__dict__["input_nodes"] = input_nodes  # as it was given, which PyG takes apart
        seeds = self.input_data
        check_sampler(kwargs.get("sampler"), len(seeds.node), "seeds")
        self._finish_order(own["order"], seeds.node, seeds.input_type)
        if isinstance(sampler, NeighborSampler):  # find what is wrong here, not in an epoch
            seeds, graph = self.input_data, keyed(sampler)
            for name in ("exclude_seed_edges", "strict_negatives"):
                if getattr(graph.settings, name):
                    check_partner(f"{name} of a sampler", "links: LinkNeighborLoader", False)
            check_ids(seeds.node, graph.num_nodes_of(seeds.input_type), "input_nodes")
            graph.seed_time(seeds.input_type, seeds.node, seeds.time)
        self.input_data = with_windows(
            seeds, own["input_start_time"], own["input_end_time"], sampler
        )

    def __call__(self, index: Tensor | list[int], input_time: Tensor | None = None) -> Any:
        """Return the batch of the seeds at positions `index`.

        `input_time`, int64 [len(index)], takes the place of the times that these seeds have. Their
        `input_start_time` and `input_end_time` stay.
        """
        if input_time is None:
            return super().__call__(index)
        _check_input_time(input_time, self._sampler, None)
        self._decide_device()
        inputs = seeds_at(self.input_data, integers(index))
        inputs.time = input_time
        return self.filter_fn(self._sample(inputs, None))

    def _sample(self, inputs: Any, key: BatchKey | None) -> Any:
        if self._split.cooperative:
            return self._exchange.sampled(inputs, key)
        if isinstance(self._sampler, NeighborSampler) and key is not None:
            return self._sampler.sample_from_nodes(inputs, key=key)
        return self._sampler.sample_from_nodes(inputs)

    def _sampled_by(self, core: Any, inputs: Any, key: BatchKey) -> Sampled:
        kind, time = inputs.input_type, inputs.time
        bounds = NO_BOUNDS if core.graph.node_times is None else bounds_of(inputs)
        sampled = core.sample_around(
            {kind: inputs.node},
            {} if time is None else {kind: time},
            key,
            bounds=None if bounds is NO_BOUNDS else lambda count: bounds,
        )
        metadata = inputs.input_id, time
        source = key.source if isinstance(key, ExtendedKey) else None
        found = of_graph(sampled, core.graph.node_types, core.graph.edge_types, metadata)
        found.reused = source and source.arranged(sampled)
        return found

    def _samples_directly(self) -> bool:
        own = type(self)._sample is NeighborLoader._sample and not self._split.cooperative
        return own and self._reads_graphs_of(NeighborSampler.sample_from_nodes)

    def _num_seeds(self) -> int:
        return int(self.input_data.node.numel())

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        seeds = self.input_data
        arguments = {"loader": "NeighborLoader", "input_type": str(seeds.input_type)}
        windows, bounds = bounds_of(seeds).parts()
        return {**arguments, **windows}, [seeds.node, seeds.time, seeds.input_id, *bounds]


def _check_input_time(input_time: Any, sampler: BaseSampler, time_attr: str | None) -> None:
    temporal = getattr(sampler, "is_temporal", time_attr is not None)
    check_tensor("input_time", input_time)
    check_dense("input_time", input_time)
    if input_time is not None and not temporal:
        raise ValueError("input_time is set, but time_attr is not: it would have no effect.")


def expected_visits(loader: Any) -> Tensor | dict[Any, Tensor]:
    """Return how likely each node is in a batch of a loader, by its seeds, fan-outs and degrees.

    What `cache=` of a loader and ``save(..., row_order=)`` go by: one pass over the edges for each
    hop, in memory of 8 bytes a node and hop. Seeds, ends of links and negatives have the
    probability that they have. Nodes of the hops count as drawn independently of each other, and
    how many there are in each hop, which that overstates where several paths lead from one seed to
    the same node, is taken from 64 batches that are sampled: so the sum over the nodes is
    that of batches, and of single nodes those near many others are given less than they have.
    Nothing that the loader draws changes.

    Args:
        loader: a `NeighborLoader` or `LinkNeighborLoader` whose sampler is this package's own.

    Returns:
        float64 [N], in [0, 1]; a dict of such by node type if nodes have types.

    Raises:
        ValueError: something else, a loader with another sampler, or one over a partition; or with
            `sampler=`, `batch_sampler=`, LABOR or adaptive fan-outs, times, weights, `disjoint`,
            `exclude_seed_edges`, `strict_negatives`, `transform_sampler_output` or `cooperative`,
            which decide what is visited and are not looked at.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=32)
        >>> visits = pyg_direct.expected_visits(loader)
        >>> pyg_direct.save(data, "by_visits", row_order=visits)
    """
    of_hops = isinstance(loader, (NeighborLoader, LinkNeighborLoader))
    sampler = loader._sampler if of_hops else None
    if not isinstance(sampler, NeighborSampler):
        raise ValueError(
            f"expected_visits needs a NeighborLoader or LinkNeighborLoader with pyg_direct's own "
            f"NeighborSampler, got {type(loader).__name__}."
        )
    if isinstance(sampler, PartedSampler):
        raise ValueError(
            "expected_visits goes over all edges, and those of a partition lie in parts. Give a "
            "loader over the graph that it was made of."
        )
    argument = why_no_visits(loader)
    if argument:
        raise ValueError(
            f"expected_visits does not know what {argument} does to batches. Give a loader without "
            f"it, or count the nodes of some batches: numbers [num_nodes] of yours are taken as "
            f"cache_policy= and row_order= as well."
        )
    found = visits_of_batches(loader)
    return found[None] if list(found) == [None] else found
