"""`NeighborSampler`: PyG's `BaseSampler` with all sampling policy."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    NumNeighbors,
)
from torch_geometric.typing import EdgeType

from ..core.arguments import (
    check_bytes,
    check_choice,
    check_count,
    check_data,
    check_exclusion,
    check_flag,
    check_ids,
    check_key,
    check_mode,
    check_partner,
    check_seed,
    check_strategy,
    check_subgraph_type,
    check_window,
)
from ..core.config import as_device
from ..core.pyg import DataType, SubgraphType, edge_sample, node_sample
from ..core.types import BatchKey, ExcludedEdges, SampledGraph
from ..graph.from_pyg import Graph
from ..graph.shared import shared_graph_of
from ..graph.verify import verified
from ..ops.devices import backend_for
from .fanouts import Setting, as_num_neighbors, check_fanouts, check_simple, fanouts_of
from .keyed import KeyedSampler, Settings
from .negatives import (
    KeyedNegatives,
    RetryCounts,
    Strict,
    check_strict,
    sample_ends,
    triplet_sources,
)
from .outputs import Output, SampledLinks, in_both_directions, output_of
from .time_bounds import NO_BOUNDS, TimeBounds, bounds_of

NumNeighborsLike: TypeAlias = NumNeighbors | list[int] | dict[EdgeType, list[int]]


class NeighborSampler(BaseSampler):
    """Samples neighbourhoods, with PyG's `NeighborSampler` signature.

    Works in `pyg_direct.NeighborLoader` and in PyG's own `NodeLoader`. Without replacement each
    node gets ``min(k, degree)`` of its in-edges, every subset equally likely (Floyd's algorithm);
    with replacement, k independent uniform draws if it has any. A negative fan-out takes all
    in-edges, in their order. Parallel edges count one by one. Nodes are numbered by first
    occurrence, seeds first; duplicated seeds keep their places and draw independently.

    Of a list of d edges, at a fan-out of k below d:

    =============== ========== ==================================================================
    ``sampling``    reads      pays
    =============== ========== ==================================================================
    ``"uniform"``   k entries  always: the default
    ``"labor"``     d entries  where lists are longer than k and overlap, so that a batch has fewer
                               nodes, and a model, or rows of features, cost more than reading
                               lists; not where a GPU reads the graph over PCIe
    ``"adaptive"``  k entries  where some lists are short and others long, and a model would rather
                               have batches of an even size: long lists get what short ones leave
    =============== ========== ==================================================================

    Args:
        data: `torch_geometric.data.Data` or `HeteroData`. Its edges are grouped by destination
            once, here; features are not touched.
        num_neighbors: fan-out of each hop; negative for all neighbours, [] for only the seeds.
        subgraph_type: 'directional', 'bidirectional' or 'induced', each with any other argument. Of
            several edges between two nodes, 'bidirectional' keeps the attributes of the first: of
            the edges in the order in which they were sampled, then of their opposites.
            With `time_attr` an induced edge, too, is no later than its seed.
        replace: sample with replacement.
        disjoint: give every seed a subgraph of its own.
        temporal_strategy: with `time_attr`, 'uniform' draws from all neighbours that are no later
            than the seed, 'last' takes the latest of them, with `weight_attr` the latest of
            positive weight; refused without `time_attr`.
        time_attr: integer attribute of nodes or of edges. No neighbour is later than the seed of
            its subgraph, at any hop; makes the sampler disjoint. Node types (or edge types) without
            it are not bound.
        weight_attr: attribute of edges, finite and not negative. With replacement, each draw takes
            an edge with probability weight / sum of weights, up to a factor of 1 +- 2^-24. Without,
            draws follow one another, each from the edges left in proportion to weight (the law of
            Efraimidis and Spirakis, 2006). An edge of weight 0 is taken only by a negative fan-out.
            Edge types without it are sampled uniformly. Both backends take the same edges, bit for
            bit: a draw is made of sums and products of doubles in one order, each rounded alone.
        is_sorted: `edge_index` is sorted by column and, with `time_attr`, by time within a column.
            Sorted edges are found without it, too.
        share_memory: accepted for PyG's sake; nothing is copied to other processes.
        directed: deprecated in PyG; False means ``subgraph_type='induced'``.
        sample_direction: 'forward' samples the sources of edges into the frontier, 'backward' the
            destinations of edges out of it. Edges keep their direction in the output.
        device: where to sample; None means the CPU, as PyG's own loaders select the features there
            (those of pyg_direct choose for themselves).
        topology: where the graph is stored for a GPU: 'host' (pinned, read over PCIe), 'device', or
            'auto' for the device as far as `device_bytes` go.
        device_bytes: device memory that may be used in 'auto'; None for half of what is free.
        seed: base seed in [0, 2^64) of all draws. None draws a key from torch's default generator
            at every call, so that `torch.manual_seed` governs.
        threads: CPU threads that may share one batch.
        time_window: with `time_attr`: no neighbour is older than its seed's time minus this.
        exclude_seed_edges: of links, what no message goes over; see `LinkNeighborLoader`.
        strict_negatives: of links: draw negatives again that are edges; see `LinkNeighborLoader`.
        sampling: 'uniform', where every list draws on its own, or 'labor', where all lists of a hop
            rank their sources by the same random numbers, so that a batch has fewer nodes. Of a
            single list every subset is equally likely in both, so models need no weights. LABOR
            reads whole lists, and a uniform draw only what it takes. Not with `replace`,
            `disjoint`, `time_attr`, `weight_attr` or parallel edges. (Balin and Catalyurek,
            "Layer-Neighbor Sampling", NeurIPS 2023, in its sequential form.)
            Or 'adaptive', where a fan-out is the mean of a metapath: the nodes that a batch (with
            `disjoint`, a seed) found by one sequence of edge types share as many edges as there
            were if every list had been long enough, the product of the fan-outs so far. Short lists
            are taken whole, and the others get equally many of what is left, to which hops before
            add what they found too few of. So batches are larger than with the same fan-outs and
            'uniform', at most as large as their product. A list is drawn from uniformly, or by
            `temporal_strategy`. Not with `replace`, `weight_attr` or negative fan-outs. (The rule
            of pyg-lib's `HeteroNeighborSampler`.)
        layer_dependency: of LABOR: all hops have the same random numbers, so that they share more
            nodes still; then a sum over two hops or more is no longer an unbiased estimate.

    Raises:
        ValueError: bad edges, fan-outs or options; times that are not integers, or on nodes and
            edges at once; weights that are not on edges, negative, infinite or NaN.

    Example:
        >>> from torch_geometric.loader import NodeLoader
        >>> from torch_geometric.sampler import NodeSamplerInput
        >>> sampler = pyg_direct.NeighborSampler(data, [5, 5], seed=0)
        >>> out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(8)))
        >>> out.node[:8].tolist(), len(out.num_sampled_nodes)
        ([0, 1, 2, 3, 4, 5, 6, 7], 3)
        >>> loader = NodeLoader(data, node_sampler=sampler, batch_size=50)  # of PyG
        >>> len(loader)
        6
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighborsLike,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: Literal["forward", "backward"] = "forward",
        *,
        device: torch.device | str | None = None,
        topology: str = "auto",
        device_bytes: int | None = None,
        seed: int | None = None,
        threads: int = 1,
        time_window: int | None = None,
        exclude_seed_edges: Any = None,
        strict_negatives: bool = False,
        sampling: str = "uniform",
        layer_dependency: bool = False,
    ) -> None:
        check_data(data)
        subgraph_type = check_subgraph_type(subgraph_type)
        if not check_flag("directed", directed):
            if subgraph_type == SubgraphType.bidirectional:
                raise ValueError(
                    "directed=False means subgraph_type='induced', which contradicts "
                    "subgraph_type='bidirectional'; pass only subgraph_type."
                )
            subgraph_type = SubgraphType.induced
            text = "directed=False is deprecated; use subgraph_type='induced'."
            warnings.warn(text, FutureWarning, stacklevel=2)
        check_choice("sample_direction", sample_direction, ("forward", "backward"))
        check_choice("sampling", sampling, ("uniform", "labor", "adaptive"))
        temporal_strategy = check_strategy(temporal_strategy, time_attr)
        layer_dependency = check_flag("layer_dependency", layer_dependency)
        if layer_dependency:
            check_partner("layer_dependency=True", "sampling='labor'", sampling == "labor")
        time_window = check_window(time_window, time_attr)
        backward, is_sorted = sample_direction == "backward", check_flag("is_sorted", is_sorted)
        check_flag("share_memory", share_memory)
        replace = check_flag("replace", replace)
        disjoint = check_flag("disjoint", disjoint)
        threads = check_count("threads", threads, least=1)
        where = (check_mode("topology", topology), check_bytes("device_bytes", device_bytes))
        graph = shared_graph_of(data, is_sorted, time_attr, weight_attr, backward)
        self._take_graph(data, graph)
        fanouts = self._checked_fanouts(num_neighbors, replace)
        mirrored = subgraph_type == SubgraphType.bidirectional
        settings = Settings(
            fanouts, replace, disjoint, subgraph_type, temporal_strategy, time_window,
            sample_direction, check_exclusion(exclude_seed_edges, graph.edge_types, mirrored),
            sampling, layer_dependency, check_flag("strict_negatives", strict_negatives),
        )  # fmt: skip
        backend = backend_for(as_device("cpu" if device is None else device, "device"), threads)
        # Shallow copies share it, and each may have other settings.
        KeyedSampler(graph, backend, where, None, settings).check_law()
        if sampling == "labor":
            graph = dataclasses.replace(graph, csc=verified(graph.csc))
            check_simple(graph.csc, graph.edge_types)
        self._keyed = KeyedSampler.placed(graph, backend, where, check_seed(seed), settings)
        self.num_nodes: Any = self._keyed.num_nodes  # as in PyG: a dict for heterogeneous graphs

    def _take_graph(self, data: Any, graph: Graph) -> None:
        """Set the attributes that PyG's samplers have of a graph."""
        self.data_type = DataType.from_data(data)
        self.node_types, self.edge_types = graph.node_types, graph.edge_types
        self.keep_orig_edges = False
        self.negative_counts = RetryCounts()

    replace: Any = Setting()
    subgraph_type: Any = Setting()
    temporal_strategy: Any = Setting()
    time_window: Any = Setting()
    sample_direction: Any = Setting()

    @property
    def num_neighbors(self) -> NumNeighbors:
        """The fan-out of each hop; can be set, also on a shallow copy (as Lightning does)."""
        value: NumNeighbors = self._keyed.settings.num_neighbors
        return value

    @num_neighbors.setter
    def num_neighbors(self, value: NumNeighborsLike) -> None:
        fanouts = self._checked_fanouts(value, self.replace)
        self._keyed = self._keyed.with_setting("num_neighbors", fanouts)

    def _checked_fanouts(self, value: NumNeighborsLike, replace: bool) -> NumNeighbors:
        if isinstance(value, (np.ndarray, Tensor)):
            value = value.tolist()
        fanouts = as_num_neighbors(value)
        check_fanouts(fanouts, fanouts_of(fanouts, self.edge_types, self.is_hetero), replace)
        return fanouts

    @property
    def is_hetero(self) -> bool:
        """Whether the graph has named node and edge types."""
        return list(self.node_types) != [None]

    @property
    def is_temporal(self) -> bool:
        """Whether sampling respects time."""
        return self._keyed.graph.node_times is not None

    @property
    def disjoint(self) -> bool:
        """Whether every seed has a subgraph of its own; always so with times."""
        return self._keyed.disjoint

    @disjoint.setter
    def disjoint(self, value: bool) -> None:
        self._keyed = self._keyed.with_setting("disjoint", bool(value))

    @property
    def edge_permutation(self) -> None:
        """None, as `SamplerOutput.edge` holds columns of the user's `edge_index` already."""
        return None

    def sample_from_nodes(
        self, index: NodeSamplerInput, *, key: tuple[int, int] | None = None, **kwargs: Any
    ) -> Output:
        """Sample the neighbourhood of the seeds `index.node`.

        Args:
            index: seeds of one node type, and their times. Without `time_attr`, times bind nothing
                and are passed on in the output's metadata, as in PyG.
            key: the two 32-bit words that all draws follow from; None for new ones.
            **kwargs: none; PyG's samplers may have some.

        Raises:
            ValueError: `key` is not two words in [0, 2^32).
            IndexError: a seed out of range. They are checked for each batch, as they may be changed
                while a loader goes through them.
        """
        if kwargs:
            raise TypeError(f"sample_from_nodes takes no argument {', '.join(kwargs)}.")
        self._keyed.num_nodes_of(index.input_type)  # so that the type is one of the graph's
        sample = partial(self._sample, self._key(key))
        if (bounds := bounds_of(index)) != NO_BOUNDS:
            sample = partial(sample, bounds=lambda count: bounds)
        return self._in_both_directions(node_sample(index, sample))

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        *,
        key: tuple[int, int] | None = None,
    ) -> Output:
        """Sample the neighbourhoods of both ends of links and of negatives.

        The rules of links and negatives are PyG's own function; only the draws are ours.

        Args:
            index: links of one edge type, their labels and times.
            neg_sampling: how many links, or ends of links, to add that are not in the graph.
            key: as in `sample_from_nodes`.

        Raises:
            ValueError: `key` is not two words in [0, 2^32).
            IndexError: an end out of range.
        """
        sampled, metadata = links_sampled(self, index, neg_sampling, self._key(key))
        out = self._output_of(sampled)
        out.metadata = metadata
        return self._in_both_directions(out)

    def _strict(self, index: EdgeSamplerInput, config: NegativeSampling) -> Strict:
        """Return how the negatives of a batch avoid edges.

        Raises:
            ValueError: negatives have times to mind, too.
        """
        edges, times = self._keyed.edges, self._keyed.graph.node_times
        assert edges is not None, "else negatives may be edges"
        check_strict(index.input_type, times)
        find = partial(edges.are_edges, index.input_type)
        amount = int(config.amount) if config.is_triplet() else 0
        sources = triplet_sources(index.row.to(torch.int64), amount, self.disjoint)
        return Strict(find, sources, self.negative_counts)

    def _key(self, words: tuple[int, int] | None) -> BatchKey:
        """Return the key of two words, or the next one."""
        if words is None:
            return self._keyed.next_key()
        return words if isinstance(words, BatchKey) else BatchKey(*check_key(words))

    def _in_both_directions(self, out: Output) -> Output:
        """Return the output, with each edge's opposite if the subgraph is bidirectional."""
        if self.subgraph_type == SubgraphType.bidirectional:
            return in_both_directions(out, self.keep_orig_edges)
        return out

    def _sample(self, key: BatchKey, seed: Any, *rules: Any, **of_links: Any) -> Output:
        """Sample around seeds as PyG's helper passes them, and return an output of PyG's."""
        return self._output_of(self._around(key, seed, *rules, **of_links))

    def _around_links(self, key: BatchKey, seed: Any, *rules: Any, **of_links: Any) -> SampledLinks:
        """Sample around the ends of links as PyG's helper passes them."""
        return SampledLinks.of(self._around(key, seed, *rules, **of_links), self.node_types)

    def _output_of(self, sampled: SampledGraph) -> Output:
        backward = self.sample_direction == "backward"
        return output_of(sampled, self.node_types, self.edge_types, backward)

    def _around(
        self,
        key: BatchKey,
        seed: Any,
        seed_time: Any = None,
        excluded: Callable[[int], ExcludedEdges] | None = None,
        bounds: Callable[[int], TimeBounds] | None = None,
    ) -> SampledGraph:
        """Sample around seeds: a tensor, or a dict by node type.

        `excluded` returns the edges to leave out, and `bounds` the windows, for so many seeds.
        """
        nodes, times = (seed, seed_time) if self.is_hetero else ({None: seed}, {None: seed_time})
        if seed_time is None or not self.is_temporal:  # then they are for the model alone
            times = {}
        return self._keyed.sample_around(nodes, times, key, excluded, bounds)


def links_sampled(
    sampler: NeighborSampler,
    index: EdgeSamplerInput,
    neg_sampling: NegativeSampling | None,
    key: BatchKey,
) -> tuple[SampledGraph, Any]:
    """Return the subgraph of links, and what PyG's samplers say of them in `metadata`.

    Args:
        sampler: which may be of a subclass.
        index, neg_sampling: as in `sample_from_edges`.
        key: of all draws.
    """
    keyed, disjoint = sampler._keyed, sampler._keyed.disjoint
    ends = (None, None) if index.input_type is None else index.input_type[::2]
    check_ids(index.row, keyed.num_nodes_of(ends[0]), "sources of seed links")
    check_ids(index.col, keyed.num_nodes_of(ends[1]), "destinations of seed links")
    times = keyed.graph.node_times
    node_time: Any = None
    if times:
        own = {kind: torch.from_numpy(value) for kind, value in times.items()}
        node_time = own if sampler.is_hetero else own[None]
    negatives = None
    if neg_sampling is not None:
        strict = None if keyed.edges is None else sampler._strict(index, neg_sampling)
        negatives = KeyedNegatives(neg_sampling, key, strict)
    excluded, paired = None, negatives is None or negatives.is_binary()
    if keyed.seed_edges is not None:
        excluded = keyed.seed_edges.of_batch(index, disjoint, paired)
    sample = partial(sampler._around_links, key, excluded=excluded)
    if times is not None and (bounds := bounds_of(index)) != NO_BOUNDS:
        num_links = len(index.row)
        sample = partial(sample, bounds=lambda n: bounds.of_links(n, num_links, paired))
    if disjoint and negatives is not None and negatives.is_binary():
        sample = partial(sample_ends, sample)
    links: Any = edge_sample(index, sample, sampler.num_nodes, disjoint, node_time, negatives)
    return links.with_batch(sampler.node_types), links.metadata


# What a `NeighborSampler` is made of, for the loaders of this package. Another object after each
# change of a setting or of the device. A call of it costs no frame of Python.
keyed: Callable[[BaseSampler], KeyedSampler] = attrgetter("_keyed")


def moved(
    sampler: NeighborSampler, device: torch.device, where: tuple[str, int | None]
) -> NeighborSampler:
    """Return a copy that samples on `device`; `where` is its (topology, device_bytes)."""
    twin = copy.copy(sampler)
    twin._keyed = sampler._keyed.moved(backend_for(device), where)
    return twin
