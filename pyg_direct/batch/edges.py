"""Sampled edges that know how many of them each hop has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.cooperation import Cooperation
from ..core.private_torch import no_torch_function, writes_to
from ..core.pyg import store_of, stores_of

IDS = (torch.int64, torch.int32)


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


class SampledEdges(Tensor):
    """The edges of one type in a sampled batch, int [2, E]: hop by hop, sorted by destination.

    A tensor like any other, which shares the memory of the one it is made of and knows `hops` in
    addition: an accelerated model looks for them, and nothing else does. Copies (`.to()`,
    `pin_memory`, `clone`, pickling) and `detach` have them, too; whatever else is done with it
    gives plain tensors.

    Args:
        edge_index: int64 or int32 [2, E], contiguous. Not checked.
        hops: how many nodes and edges each hop has.

    Example:
        >>> hops = HopEnds((2, 3), (2, 3), (3,))
        >>> edges = SampledEdges(torch.tensor([[2, 0, 1], [0, 1, 1]]), hops)
        >>> edges.clone().hops.edge, type(edges[:, :2]) is torch.Tensor
        ((3,), True)
    """

    _tensor: Tensor
    _hops: HopEnds
    _written: int
    __torch_function__ = no_torch_function

    @staticmethod
    def __new__(cls: Any, edge_index: Tensor, hops: HopEnds) -> SampledEdges:
        """Make one without copying `edge_index`."""
        made: Any = edge_index.as_subclass(
            _PartOfEdges if hops.common is not None else SampledEdges
        )
        made._tensor, made._hops, made._written = edge_index, hops, _version(edge_index)
        return cast(SampledEdges, made)

    def __init__(self, edge_index: Tensor, hops: HopEnds) -> None:
        pass

    def as_tensor(self) -> Tensor:
        """Return the tensor that it was made of."""
        return self._tensor

    @property
    def hops(self) -> HopEnds | None:
        """The counts by hop; None after the edges were written to, as they need not hold then."""
        return self._hops if _version(self._tensor) == self._written else None

    @property
    def num_ends(self) -> tuple[int, int]:
        """The numbers of nodes of both ends' types, as sampled."""
        return self._hops.source[-1], self._hops.destination[-1]

    @property
    def common(self) -> Cooperation | None:
        """The ranks that make the batch together; None for one rank's."""
        return self._hops.common

    def record_stream(self, stream: Any) -> None:
        """Note that a stream reads them."""
        self._tensor.record_stream(stream)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        hops = self.hops
        if hops is None:
            return self._tensor.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        return SampledEdges, (self._tensor, hops)


def _copied_by(name: str) -> Callable[..., Tensor]:
    """Return a method of tensors that keeps the hops."""
    method = getattr(Tensor, name)

    @functools.wraps(method)
    def copied(self: SampledEdges, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = method(self._tensor, *args, **kwargs)
        if found is self._tensor:
            return self
        hops = self.hops
        return found if hops is None or found.dtype not in IDS else SampledEdges(found, hops)

    return copied


for _name in ("clone", "detach", "to", "cpu", "cuda", "pin_memory", "int", "long", "contiguous"):
    setattr(SampledEdges, _name, _copied_by(_name))
# As plain tensors are, they can be loaded with `weights_only=True`.
torch.serialization.add_safe_globals([SampledEdges, HopEnds])


class _PartOfEdges(SampledEdges):
    """The edges that a rank has of a batch that ranks make together.

    A plain model would compute wrong numbers with them: others have the in-edges of others' nodes.
    """

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse whatever is done with them.

        Raises:
            RuntimeError: always; copies are made of `as_tensor()`.
        """
        raise RuntimeError(
            f"{func} on the edges of a batch of cooperative=True, of which each rank has a part: a "
            f"model computes right numbers only as pyg_direct.accelerate(model, loader). To look "
            f"at this rank's edges take edge_index.as_tensor()."
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
        now = store.get("edge_index")
        same = _version(edge_index) == version and _are_equal(now, edge_index)
        sizes = (hops.source[-1], hops.destination[-1])
        if same and _num_nodes(batch, key) == sizes:
            store["edge_index"] = SampledEdges(now, hops._replace(reused=reused))
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


def _are_equal(edges: Any, sampled: Tensor) -> bool:
    """Whether edges are those that were sampled, or a copy, as of ``batch.clone()``."""
    if edges is sampled:
        return True
    like = type(edges) is Tensor and edges.dtype in IDS and edges.is_contiguous()
    return like and edges.device == sampled.device and torch.equal(edges, sampled.to(edges.dtype))


def _num_nodes(batch: Data | HeteroData, key: Any) -> tuple[int | None, int | None]:
    if key is None:
        count = batch.num_nodes  # PyG looks at all attributes for it
        return count, count
    return batch[key[0]].num_nodes, batch[key[-1]].num_nodes


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else writes_to(tensor)
