"""Graphs whose CSC exists already, such as those in files; it is used in place."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType, NodeType

from ..core.lazy_tensor import LazyTensor
from ..core.private_torch import wrapper_tensor, writes_to
from ..core.pyg import stores_of
from ..core.types import EDGE_TIME, NO_TIME, Csc, WeightTable, damaged_graph
from .verify import NOT_IN_ORDER, verified
from .weights import with_alias_tables

LARGE_BYTES = 1 << 30  # from here on, what materialising an edge_index takes is worth a message

logger = logging.getLogger("pyg_direct")


@dataclass(frozen=True)
class CompressedGraph:
    """A graph as it was saved or shared.

    Its arrays are of our own and never written to, so loaders need no copies of them. Nobody has
    read those in files, so their ids are checked where they are used (`Csc.verified` is False).
    """

    name: str  # what messages call it
    csc: Csc
    node_types: Sequence[NodeType | None]
    edge_types: Sequence[EdgeType | None]
    time_attr: str | None  # what its neighbour lists are sorted by
    weight_attr: str | None  # what it has tables for
    attributes: Mapping[tuple[Any, str], Tensor]
    """The times and weights as the data object holds them, by (type, name)."""
    versions: Mapping[tuple[Any, str], int] = field(default_factory=dict)
    """How often torch had changed them in place when the graph was made; 0 without an entry."""
    id_dtype: torch.dtype = torch.int64  # of `edge_index`: int64 or int32
    refusal: str | None = None  # why nothing but its own loaders can use it

    def has_order_for(self, time_attr: str | None) -> bool:
        """Whether neighbour lists are in the order that loaders with or without times draw from.

        A graph that was shared with times still has the `edge_index` of the user, in whose order
        lists are without times. That of a graph in files is in the order of its lists.
        """
        same = time_attr == self.time_attr or self.csc.perm is None
        num_bytes = 2 * self.csc.indices.nbytes
        if not same and num_bytes >= LARGE_BYTES:
            logger.warning(
                "%s has neighbours by time_attr=%r: for loaders without it, lists of about %.1f GB "
                "are built in memory. Share it without times where no loader asks for them.",
                self.name, self.time_attr, num_bytes / 1e9,
            )  # fmt: skip
        return same

    def with_attributes(
        self, time_attr: str | None, weight_attr: str | None, checks_ids: bool
    ) -> Csc:
        """Return the CSC with the times and weights of these names, and no others.

        Args:
            time_attr: None for no times.
            weight_attr: None for no weights.
            checks_ids: the caller checks ids and lists when it uses them. Otherwise, and where
                times of nodes or weights are found by ids, all of them are read and checked, once.

        Raises:
            ValueError: arrays that hold what they cannot hold.
        """
        csc = self.csc
        by_node = time_attr is not None and csc.times is not None and (csc.times.base >= 0).any()
        if not checks_ids or by_node or weight_attr is not None:
            csc = self.verified
        times = csc.times if time_attr is not None else None
        weights = None
        if weight_attr is not None:
            weights = csc.weights if time_attr is not None else self._weights_of_whole_lists
        return replace(csc, times=times, weights=weights)

    @cached_property
    def verified(self) -> Csc:
        """The CSC, after all its ids and lists were checked.

        Raises:
            ValueError: arrays that hold what they cannot hold.
        """
        return verified(self.csc, self.name)

    @cached_property
    def _weights_of_whole_lists(self) -> WeightTable | None:
        """The weights for draws that no time bounds.

        Those are made by alias tables, which a graph that was saved with times lacks where they
        bound all draws: they are built here, once, in memory.
        """
        csc = self.verified
        missing = csc.weighted & (csc.time_base != NO_TIME)
        if csc.weights is None or not missing.any():
            return csc.weights
        num_bytes = csc.weights.weight.nbytes
        if num_bytes >= LARGE_BYTES:
            logger.warning(
                "%s was saved with time_attr=%r: to draw by weight_attr=%r without times, tables "
                "of %.1f GB are built in memory. Save it with weight_attr= only to have them in a "
                "file.",
                self.name, self.time_attr, self.weight_attr, num_bytes / 1e9,
            )  # fmt: skip
        return with_alias_tables(csc, csc.weights, missing)

    def node_times(self) -> dict[NodeType | None, npt.NDArray[np.int64]]:
        """Return the times int64 [num_nodes] of the node types that have some."""
        csc, found = self.csc, {}
        if csc.times is not None and not (csc.times.base == EDGE_TIME).any():
            for t, node_type in enumerate(self.node_types):
                if (node_type, self.time_attr) in self.attributes:
                    found[node_type] = csc.times.time[csc.node_base[t] : csc.node_base[t + 1]]
        return found


class CscEdgeIndex(LazyTensor):
    """The `edge_index` [2, E] of one relation of a `CompressedGraph`, of its `id_dtype`.

    Its columns are in the order that `Csc.perm` gives; by destination without one. Only the CSC
    exists; a plain tensor takes 16 bytes an edge, or 8 of int32.
    """

    graph: CompressedGraph
    relation: int

    @staticmethod
    def __new__(cls, graph: CompressedGraph, relation: int) -> CscEdgeIndex:
        """Return the `edge_index` of relation number `relation`."""
        first, last = graph.csc.edge_base[relation : relation + 2].tolist()
        self: CscEdgeIndex = wrapper_tensor(
            cls, (2, last - first), graph.id_dtype, torch.device("cpu")
        )
        self.graph, self.relation = graph, relation
        return self

    def dense(self) -> Tensor:
        """Return a plain tensor [2, E].

        Raises:
            ValueError: neighbour lists that are not in order, in a damaged file.
        """
        csc, r = self.graph.csc, self.relation
        first, last = csc.edge_base[r : r + 2].tolist()
        num_bytes = 2 * self.graph.id_dtype.itemsize * (last - first)
        if num_bytes >= LARGE_BYTES:
            logger.warning(
                "%s: all %d edges are written out as an edge_index of %.1f GB, as something other "
                "than a loader of pyg_direct asked for them.",
                self.graph.name, last - first, num_bytes / 1e9,
            )  # fmt: skip
        begin, nodes = int(csc.indptr_base[r]), int(csc.num_nodes[csc.dst_type[r]])
        degree = np.diff(csc.indptr[begin : begin + nodes + 1])
        if (degree < 0).any() or int(degree.sum(dtype=np.int64)) != last - first:
            raise ValueError(damaged_graph(NOT_IN_ORDER, self.graph.name))
        out = torch.empty((2, last - first), dtype=self.graph.id_dtype)
        rows = out.numpy()
        columns = slice(None) if csc.perm is None else csc.perm[first:last]
        rows[0, columns] = csc.indices[first:last]
        rows[1, columns] = np.repeat(np.arange(nodes), degree)
        return out

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return its type and shape, without computing its elements."""
        return f"CscEdgeIndex(size={tuple(self.shape)}, graph={self.graph.name!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> CscEdgeIndex:
        """Return itself, as it never changes."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain tensor."""
        return self.dense().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def share_memory_(self) -> CscEdgeIndex:
        """Do nothing: its graph is shared already, in a file or in memory."""
        return self


def compressed_graph(
    data: Any, time_attr: str | None, weight_attr: str | None
) -> CompressedGraph | None:
    """Return the graph whose CSC can be used for `data`; None if one must be built.

    It can where nodes, edges, times and weights are all those that were saved or shared.
    """
    if not isinstance(data, (Data, HeteroData)):
        return None
    stores = data.edge_stores
    index = stores[0].get("edge_index") if stores else None
    if not isinstance(index, CscEdgeIndex):
        return None
    graph = index.graph
    if graph.refusal is not None:
        raise ValueError(f"{graph.name} {graph.refusal}")
    node_types, edge_types = data.metadata() if isinstance(data, HeteroData) else ([None], [None])
    num_nodes = [store.num_nodes for store in data.node_stores]
    names = [name for name in (time_attr, weight_attr) if name is not None]
    named = {
        (key, name): store[name]
        for key, store in stores_of(data).items()
        for name in names
        if name in store
    }
    saved = {key: value for key, value in graph.attributes.items() if key[1] in names}
    same = (
        list(node_types) == list(graph.node_types)
        and list(edge_types) == list(graph.edge_types)
        and num_nodes == graph.csc.num_nodes.tolist()
        and all(_is_relation(store, graph, r) for r, store in enumerate(stores))
        and time_attr in (None, graph.time_attr)
        and weight_attr in (None, graph.weight_attr)
        and named.keys() == saved.keys()
        # The very tensors that were opened or shared, and not written to since then by torch.
        and all(
            named[key] is value and writes_to(value) == graph.versions.get(key, 0)
            for key, value in saved.items()
        )
    )
    return graph if same else None


def _is_relation(store: Any, graph: CompressedGraph, relation: int) -> bool:
    index = store.get("edge_index")
    others = any(key in store for key in ("adj", "adj_t"))  # those come before edge_index
    return (
        isinstance(index, CscEdgeIndex)
        and index.graph is graph
        and index.relation == relation
        and not others
    )
