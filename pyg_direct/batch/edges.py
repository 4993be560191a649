"""Sampled edges that know their order and their hops, as PyG's own `EdgeIndex`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from ..core.cooperation import Cooperation
from ..core.private_torch import COPIES, pointers_of, tree_leaves, writes_to
from ..core.pyg import cached_indptr, edge_index_by_column, store_of, stores_of


class HopEnds(NamedTuple):
    """How many nodes and edges there are up to each hop; those of hop h come before those of h + 1.

    Example: 2 seeds that find 3 nodes over 4 edges, which find 1 node over 2 edges, all of one
    type, are ``HopEnds((2, 5, 6), (2, 5, 6), (4, 6))``.
    """

    source: tuple[int, ...]  # [hops + 1], nodes of the edges' source type
    destination: tuple[int, ...]  # [hops + 1], nodes of their destination type
    edge: tuple[int, ...]  # [hops]
    reused: Any = None  # rows that a model has from earlier steps; see `loading/reusing.py`
    common: Cooperation | None = None  # of a batch of several ranks, whose nodes have other orders


class SampledEdges(EdgeIndex):
    """The edges of one type in a sampled batch, int [2, E]: hop by hop, sorted by destination.

    An `EdgeIndex` with sort order ``"col"``, its sparse size (number of sources, number of
    destinations), its `indptr`, and `hops`. It shares the memory of the tensor it is made of.
    Copies (`.to()`, `pin_memory`, `clone`, pickling) and `detach` have all this, too; any other
    operation gives a plain tensor.

    Args:
        edge_index: int64 or int32 [2, E], contiguous. Not checked.
        hops: how many nodes and edges each hop has.

    Example:
        >>> hops = HopEnds((2, 3), (2, 3), (3,))
        >>> edges = SampledEdges(torch.tensor([[2, 0, 1], [0, 1, 1]]), hops)
        >>> edges.get_indptr()
        tensor([0, 1, 3, 3])
    """

    _hops: HopEnds
    _versions: tuple[int, int]

    @staticmethod
    def __new__(
        cls: Any, edge_index: Tensor, hops: HopEnds, indptr: Tensor | None = None
    ) -> SampledEdges:
        """Make one without copying `edge_index`; `indptr` is counted if it is not given."""
        size = hops.source[-1], hops.destination[-1]
        if indptr is None:
            indptr = pointers_of(edge_index[1], size[1])
        out = edge_index_by_column(cls, edge_index, size, indptr)
        out._hops = hops
        out._versions = out._versions_now()
        made: SampledEdges = out
        return made

    def __init__(self, edge_index: Tensor, hops: HopEnds, indptr: Tensor | None = None) -> None:
        pass

    @property
    def hops(self) -> HopEnds | None:
        """The counts by hop; None after the edges were written to, as they need not hold then."""
        return self._hops if self._versions == self._versions_now() else None

    @property
    def common(self) -> Cooperation | None:
        """The ranks that make the batch together; None for one rank's."""
        return self._hops.common

    def _versions_now(self) -> tuple[int, int]:
        # torch does not count writes to tensors made in inference mode: this one, or its numbers.
        if self.is_inference() or self.as_tensor().is_inference():
            return 0, 0
        return writes_to(self), writes_to(self.as_tensor())

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on the edges.

        Raises:
            RuntimeError: they are one rank's part of a batch, and the operation no copy.
        """
        if func not in COPIES and func is not torch.ops.aten.detach.default:
            _refuse_parts(func, args)
        source = args[0] if func in COPIES else None
        hops = source.hops if isinstance(source, SampledEdges) else None
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.detach.default and isinstance(args[0], SampledEdges):
            hops, indptr = args[0].hops, cached_indptr(args[0])  # PyG gives a plain tensor
            return out if hops is None else SampledEdges(out, hops, indptr)
        indptr = cached_indptr(out) if isinstance(out, EdgeIndex) else None
        if hops is None or indptr is None:
            # An EdgeIndex says how many nodes it is between, which need not hold for what layers
            # make of edges: HGTConv adds offsets to those of all types and joins them.
            return out.as_tensor() if isinstance(out, EdgeIndex) and out is not args[0] else out
        return SampledEdges(out.as_tensor(), hops, indptr)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        hops = self.hops
        if hops is None:
            return EdgeIndex, (self.as_tensor(),)
        return SampledEdges, (self.as_tensor(), hops, cached_indptr(self))


def _refuse_parts(func: Any, args: Any) -> None:
    """Refuse an operation on the edges that a rank has of a batch that ranks make together.

    A plain model would compute wrong numbers with them: others have the in-edges of others' nodes.
    """
    for edges in tree_leaves(args):
        if isinstance(edges, SampledEdges) and edges.common is not None:
            raise RuntimeError(
                f"{func} on the edges of a batch of cooperative=True, of which each rank has a "
                f"part: a model computes right numbers only as pyg_direct.accelerate(model, "
                f"loader). To look at this rank's edges take edge_index.as_tensor()."
            )


def with_sampled_edges(
    batch: Any, transform: Callable[[Any], Any] | None, reused: Any = None
) -> Any:
    """Apply a transform to a batch, then make its sampled edges `SampledEdges`.

    Edges that the transform replaced, wrote to, or gave another number of nodes stay as they are.

    Args:
        batch: from `assemble`, of a sampler that lists edges hop by hop, by destination.
        transform: the user's, or None. It sees plain tensors.
        reused: what the edges are to know of rows of earlier steps.

    Raises:
        RuntimeError: the transform has changed edges that leave out those of reused rows.
        ValueError: it changed edges of a batch that ranks make together.
    """
    sampled = list(_sampled(batch))
    batch = batch if transform is None else transform(batch)
    if not isinstance(batch, (Data, HeteroData)):
        sampled = []
    known = reused is None
    for key, edge_index, version, hops in sampled:
        if key is not None and key not in batch.edge_types:
            continue
        store = store_of(batch, key)
        same = store.get("edge_index") is edge_index and _version(edge_index) == version
        sizes = (hops.source[-1], hops.destination[-1])
        if same and _num_nodes(batch, key) == sizes:
            store["edge_index"] = SampledEdges(edge_index, hops._replace(reused=reused))
            known = True
        elif hops.common is not None:
            raise ValueError(
                f"transform= changed the edges or the number of nodes of a cooperative batch"
                f"{'' if key is None else f', of type {key}'}, of which each rank has a part. "
                f"Change the graph before, or leave cooperative=True out."
            )
    if not known:
        raise RuntimeError(
            "transform= has changed the edges of a batch for a model with accelerate(reuse=), "
            "which leaves out edges. Apply it to the whole graph, or leave reuse= out."
        )
    return batch


def _sampled(batch: Data | HeteroData) -> Iterator[tuple[Any, Tensor, int, HopEnds]]:
    """Yield the edges that were sampled hop by hop: (edge type, edges, version, hops)."""
    common: Cooperation | None = getattr(batch, "cooperation", None)
    for key, store in stores_of(batch).items():
        if isinstance(key, str):
            continue
        edge_index, edges = store.get("edge_index"), store.get("num_sampled_edges")
        ends = [store] * 2 if key is None else [store_of(batch, end) for end in key[::2]]
        nodes: list[Any] = [end.get("num_sampled_nodes") for end in ends]
        if common is not None:  # seeds, then all others
            of_ends = [common.nodes[t] for t in ([None] * 2 if key is None else key[::2])]
            nodes = [(n.num_seeds, sum(n.own_by_hop) + sum(n.others_by_hop)) for n in of_ends]
        if isinstance(edge_index, Tensor) and edges and None not in nodes:
            source, destination = (tuple(accumulate(counts)) for counts in nodes)
            hops = HopEnds(source, destination, tuple(accumulate(edges)), common=common)
            if edge_index.size(1) == hops.edge[-1]:
                yield key, edge_index, _version(edge_index), hops


def _num_nodes(batch: Data | HeteroData, key: Any) -> tuple[int | None, int | None]:
    if key is None:
        count = batch.num_nodes  # PyG looks at all attributes for it
        return count, count
    return batch[key[0]].num_nodes, batch[key[-1]].num_nodes


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else writes_to(tensor)
