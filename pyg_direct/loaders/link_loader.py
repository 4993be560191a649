"""`LinkNeighborLoader`: PyG's signature and semantics over our stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_geometric.loader
from torch import Tensor
from torch_geometric.sampler import BaseSampler, NegativeSampling
from typing_extensions import Unpack

from ..batch.assemble import link_labels
from ..batch.sampled import Sampled, of_graph
from ..core.arguments import (
    check_dense,
    check_ids,
    check_input_id,
    check_negatives,
    check_partner,
    check_tensor,
)
from ..core.pyg import SubgraphType
from ..core.types import BatchKey
from ..exchange.parted_sampler import parted_sampler
from ..loading.options import (
    OF_SAMPLING,
    LinkOptions,
    check_dependency,
    given,
    takes,
    threads_of_a_batch,
)
from ..loading.seeds import link_seeds, own_times, with_windows
from ..loading.shapes import PaddedLoader
from ..sampling.negatives import check_strict, check_weights
from ..sampling.sampler import NeighborSampler, NumNeighborsLike, keyed, links_sampled
from ..sampling.time_bounds import bounds_of
from .base import RankLoader, check_sampler


class LinkNeighborLoader(RankLoader, PaddedLoader, torch_geometric.loader.LinkNeighborLoader):  # type: ignore[misc]
    """Drop-in replacement of `torch_geometric.loader.LinkNeighborLoader`.

    A real subclass with PyG's arguments, batches and attributes. Arguments that are not named here
    mean what they mean in `pyg_direct.NeighborLoader`.

    Args:
        data: `torch_geometric.data.Data`, `HeteroData` or (`FeatureStore`, `GraphStore`).
        num_neighbors: fan-out of each hop around both ends of every link.
        edge_label_index: seed links, int64 [2, num_links]; None for all edges. With edge types, an
            edge type, or (edge type, links or None).
        edge_label: labels [num_links, ...]. With binary negatives and a smallest label of 0, labels
            move up by 1, since 0 then means "negative".
        edge_label_time: int64 [num_links]; to be given with `time_attr`, and only with it.
        input_start_time, input_end_time: int64 [num_links], a window for both ends of each link,
            and for its negatives; see `pyg_direct.NeighborLoader`.
        neg_sampling: `NegativeSampling`, 'binary' or 'triplet'. Negatives are drawn from the key of
            the batch, as its neighbours are; `strict_negatives` avoids edges among them. With
            `disjoint`, both ends of a link are in the subgraph of one number: link i of the batch,
            positives first, in number i modulo the positives. PyG numbers the two ends of one link
            differently where `amount` is not an integer.
        strict_negatives: draw the destination of a negative again where the pair is an edge of the
            links' type, up to 16 times, looking it up in the destination's list; sources are drawn
            as before, and of each source's destinations the others keep their proportions.
            ``loader.link_sampler.negative_counts`` tells how many were drawn, redrawn, and are
            edges all the same. Not with times of nodes. On a GPU, a copy of the graph stays in host
            memory for that.
        neg_sampling_ratio: older way to ask for binary negatives; 0 means none.
        exclude_seed_edges: leave out the edges that are to be predicted, so that no message goes
            over them. True or 'self' leaves out each seed link's edge, parallel ones included;
            'reverse' also its reverse: the edge back, or, with edge types, the edge in the type
            that has `rev_` before its name (or lacks it), else, if both ends are of one node type,
            the edge back in the same type; an edge type names the type of the reverse edges. Draws
            are made from what is left of a neighbour list, so the law is that of the graph without
            these edges. A batch leaves out all its links; with `disjoint` (or times) each subgraph
            leaves out the link of its own number, also around negatives. Where edges have times of
            their own, an edge counts as the link only at the link's time: earlier edges between
            the same ends are history, and stay. Negatives that happen to be edges leave out
            nothing. The lists of both ends of each link are read once a batch; on a GPU, the graph
            stays in host memory for that.

    Raises:
        ValueError, TypeError: a wrong argument; the message says which.
        IndexError: `edge_label_index` out of range.

    Example:
        >>> loader = pyg_direct.LinkNeighborLoader(
        ...     data, [10, 5], batch_size=32, neg_sampling="binary", exclude_seed_edges="reverse"
        ... )
        >>> batch = next(iter(loader))
        >>> batch.edge_label_index.shape, batch.edge_label.mean().item()
        (torch.Size([2, 64]), 0.5)
    """

    neg_sampling: Any  # NegativeSampling or None: PyG's cast has lost its type

    @takes(LinkOptions)
    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighborsLike,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | None = None,
        neg_sampling_ratio: int | float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        **kwargs: Unpack[LinkOptions],
    ) -> None:
        if neighbor_sampler is None:
            _check_both(edge_label_time, time_attr)
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
            "exclude_seed_edges": own["exclude_seed_edges"],
            "strict_negatives": own["strict_negatives"],
            **{name: own[name] for name in OF_SAMPLING},
        }
        asked = {
            **arguments, **options, **own,
            "neg_sampling": neg_sampling, "neg_sampling_ratio": neg_sampling_ratio,
            "neighbor_sampler": neighbor_sampler,
        }  # fmt: skip
        parted = parted_sampler(data, num_neighbors, asked, threads_of_a_batch(kwargs))
        if parted is not None:
            self._exchange, neighbor_sampler, arguments = parted.exchange, parted, {}
        sampler = self._prepare(data, num_neighbors, arguments, neighbor_sampler, found)
        self._progress.batch_dependency = check_dependency(own["batch_dependency"], sampler)
        self._begin_order(own["order"], options)
        _check_tensors(edge_label_index, edge_label, edge_label_time)
        # PyG asks for the smallest label, also of none.
        no_labels = edge_label is not None and edge_label.numel() == 0
        # Past the initialiser of PyG's LinkNeighborLoader, which would build a sampler of its own.
        torch_geometric.loader.LinkLoader.__init__(
            self,
            data,
            link_sampler=sampler,
            edge_label_index=link_seeds(edge_label_index, data, sampler),
            edge_label=None if no_labels else edge_label,
            edge_label_time=own_times(edge_label_time),
            neg_sampling=check_negatives(neg_sampling, neg_sampling_ratio),
            **options,
        )
        self.__dict__["edge_label_index"] = edge_label_index  # as it was given
        links = self.input_data
        check_sampler(kwargs.get("sampler"), len(links.row), "links")
        self._finish_order(own["order"], links.col, links.input_type and links.input_type[-1])
        if no_labels:
            self.input_data.label = edge_label
        self._check_links(sampler)
        self.input_data = with_windows(
            links, own["input_start_time"], own["input_end_time"], sampler
        )

    def _check_links(self, sampler: BaseSampler) -> None:
        """Find what is wrong with the seeds here, not in an epoch."""
        links = self.input_data
        if links.time is not None:
            times = getattr(sampler, "is_temporal", True)  # a sampler of the user's may use them
            check_partner("edge_label_time", "time_attr", times)
        for name, value in (("edge_label", links.label), ("edge_label_time", links.time)):
            if value is not None and value.shape[:1] != links.row.shape:
                raise ValueError(
                    f"{name} needs one entry for each of {links.row.numel()} links, got a tensor "
                    f"of shape {tuple(value.shape)}."
                )
        check_input_id(links.input_id, links.row.numel())
        if isinstance(sampler, NeighborSampler):
            ends = (None, None) if links.input_type is None else links.input_type[::2]
            graph = keyed(sampler)
            counts = [graph.num_nodes_of(node_type) for node_type in ends]
            for i, (ids, count) in enumerate(zip((links.row, links.col), counts, strict=True)):
                check_ids(ids, count, f"edge_label_index[{i}]")
                graph.seed_time(ends[i], ids, links.time, "edge_label_time")
            if graph.seed_edges is not None:
                graph.seed_edges.relations_of(links.input_type)
            if graph.edges is not None:
                drawn = self.neg_sampling is not None
                check_partner("strict_negatives=True", "neg_sampling", drawn)
                check_strict(links.input_type, graph.graph.node_times)
            if self.neg_sampling is not None:
                check_weights(self.neg_sampling, counts[0], counts[1])

    def _sample(self, inputs: Any, key: BatchKey | None) -> Any:
        if isinstance(self._sampler, NeighborSampler) and key is not None:
            return self._sampler.sample_from_edges(inputs, self.neg_sampling, key=key)
        return self._sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling)

    def _samples_directly(self) -> bool:
        own = type(self)._sample is LinkNeighborLoader._sample
        return own and self._reads_graphs_of(NeighborSampler.sample_from_edges)

    def _sampled_by(self, core: Any, inputs: Any, key: BatchKey) -> Sampled:
        sampler: Any = self._site.sampler
        sampled, metadata = links_sampled(sampler, inputs, self.neg_sampling, key)
        return of_graph(sampled, core.graph.node_types, core.graph.edge_types, metadata)

    def _labels(self, out: Any) -> dict[Any, dict[str, Any]]:
        triplet = self.neg_sampling is not None and self.neg_sampling.is_triplet()
        return link_labels(out.metadata, self.input_data.input_type, triplet)

    def _num_seeds(self) -> int:
        return int(self.input_data.row.numel())

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        links, negatives = self.input_data, self.neg_sampling
        arguments: dict[str, Any] = {
            "loader": "LinkNeighborLoader",
            "input_type": str(links.input_type),
            "neg_sampling": None,
        }
        tensors = [links.row, links.col, links.label, links.time, links.input_id]
        if negatives is not None:
            arguments["neg_sampling"] = f"{negatives.mode.value} {negatives.amount}"
            tensors += [negatives.src_weight, negatives.dst_weight]
        windows, bounds = bounds_of(links).parts()
        return {**arguments, **windows}, [*tensors, *bounds]


def _check_tensors(links: Any, label: Any, time: Any) -> None:
    check_dense("edge_label_index", links)
    for name, value in (("edge_label", label), ("edge_label_time", time)):
        check_tensor(name, value)
        check_dense(name, value)


def _check_both(edge_label_time: Tensor | None, time_attr: str | None) -> None:
    """Raise a ValueError if there is one of two arguments that need each other."""
    if (edge_label_time is None) != (time_attr is None):
        states = {True: "set", False: "not set"}
        raise ValueError(
            f"'edge_label_time' is {states[edge_label_time is not None]} while 'time_attr' is "
            f"{states[time_attr is not None]}. Temporal sampling needs both of them."
        )
