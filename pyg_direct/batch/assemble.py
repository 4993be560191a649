"""From a sampler's output to the batch that PyG's loader would return."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.loader.utils import filter_custom_hetero_store, filter_custom_store
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType, NodeType

from ..ops.backend import Backend
from ..types import Ends
from .gather import gather_all, tables_in
from .ids import HostIds, Ids, of_the_users
from .narrow import check_feature_dtype, converted
from .roles import SPARSE, TOPOLOGY, Attribute, KnownRoles
from .sparse import ROWS_UNREADABLE, SampledEdges
from .tensors import moved

Fields = dict[str, Any]
"""The attributes of one store of a batch, by name."""


def assemble(
    data: Any,
    out: SamplerOutput | HeteroSamplerOutput,
    labels: dict[Any, dict[str, Any]],
    backend: Backend,
    custom_cls: Any = None,
    ends: Ends | None = None,
    ids: Ids | None = None,
    feature_dtype: torch.dtype | None = None,
    roles: KnownRoles | None = None,
) -> Any:
    """Return a batch: the sampled subgraph with its attributes.

    The batch is a shallow copy of `data`, so its class, its graph-level attributes and everything
    that is not a tensor carry over by reference. From remote stores a new batch is made.

    Args:
        data: the full graph: `Data`, `HeteroData`, or (`FeatureStore`, `GraphStore`).
        out: from a sampler whose `edge` holds columns of the `edge_index` of `data`.
        labels: what the seeds add, by node or edge type: from `node_labels` or `link_labels`.
        backend: gathers the rows.
        custom_cls: class of the batch in case of remote stores.
        ends: what all ids in `out` are known to be below; None if that has to be checked.
        ids: where the ids in the batch shall be; None for the host.
        feature_dtype: of attributes that are stored narrow; see `gather.gather`.
        roles: what is known of the attributes of `data` from earlier batches.

    Raises:
        IndexError: an attribute has no row for an id.
    """
    ids = HostIds(backend) if ids is None else ids
    known = KnownRoles() if roles is None else roles
    parts = _Parts(out, ends, ids, backend.device, feature_dtype, known)
    if isinstance(data, (Data, HeteroData)):
        batch = copy.copy(data)
        # A homogeneous graph has one store for nodes and edges, and the one type None.
        source, target = _stores(data), _stores(batch)
        for node_type in parts.node_types(source):
            _nodes(source[node_type], target[node_type], parts, node_type, backend)
        for edge_type in parts.edge_types(source):
            _edges(source[edge_type], target[edge_type], parts, edge_type, backend)
    else:
        batch = _from_stores(data, parts, custom_cls, backend)
        for key in parts.types("node"):
            _name_nodes(_store(batch, key)._mapping, parts, key, parts.of(key))
        for key in parts.types("edge"):
            _name_edges(_store(batch, key)._mapping, parts, key, parts.of(key))
    for key, labelled in labels.items():
        fields = _store(batch, key)._mapping
        for name, value in labelled.items():
            if name == "input_id":
                value = ids.of_seeds(value)
            elif isinstance(value, Tensor):
                value = backend.memory.to_batch(value, value.device)
            _put(fields, name, value)
    ids.wait()
    return batch


def _put(fields: Fields, name: str, value: Any) -> None:
    """Set an attribute of a batch, or remove it, as PyG's stores do with a None.

    Written past the store, which would look for the name in what it has cached of its attributes:
    a new batch has no cache.
    """
    if value is not None:
        fields[name] = value
    else:
        fields.pop(name, None)


def attributes_of(data: Any) -> Iterator[tuple[str, str, Any, BaseStorage]]:
    """Yield the node and edge attributes of a graph: label for messages, name, value, store.

    Remote stores are asked for each batch, so nothing is known of what they hold.
    """
    if isinstance(data, (Data, HeteroData)):
        for key, store in _stores(data).items():
            for name, value in store.items():
                if name not in TOPOLOGY and (store.is_node_attr(name) or store.is_edge_attr(name)):
                    label = f"data.{name}" if key is None else f"data[{key!r}].{name}"
                    yield label, name, value, store


def tables_of(data: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the attributes of a graph whose rows a backend can gather, with names for messages."""
    for label, name, value, store in attributes_of(data):
        tables = tables_in(value)
        if tables and store._parent().__cat_dim__(name, value, store) == 0:
            yield from ((label, table) for table in tables)


def check_attributes(data: Any, feature_dtype: Any) -> torch.dtype | None:
    """Return `feature_dtype` if batches can be gathered from the attributes of a graph.

    Raises:
        ValueError: the rows of an attribute cannot be selected, whatever the batch, or
            `feature_dtype` is none that it may be, or has no attribute to apply to.
    """
    known = isinstance(data, (Data, HeteroData))
    attributes = [(label, value) for label, _, value, _ in attributes_of(data)]
    for label, value in attributes:
        if isinstance(value, Tensor) and value.layout in ROWS_UNREADABLE:
            raise ValueError(
                f"{label} has the layout {value.layout}, from which rows cannot be selected. Use "
                f"{label}.to_sparse_csr(), or .to_dense()."
            )
    return check_feature_dtype(feature_dtype, attributes if known else None)


def node_labels(metadata: Any, input_type: NodeType | None) -> dict[Any, dict[str, Any]]:
    """Return what seed nodes add: their positions in the input, their times, their number.

    Args:
        metadata: (input ids int64 [seeds], times [seeds] or None).
        input_type: node type of the seeds; None if the graph is homogeneous.
    """
    input_id, seed_time = metadata
    fields = {"input_id": input_id, "seed_time": seed_time, "batch_size": input_id.numel()}
    return {input_type: fields}


def link_labels(
    metadata: Any, input_type: EdgeType | None, triplet: bool
) -> dict[Any, dict[str, Any]]:
    """Return what seed links add: their end points in the batch and their labels.

    A None removes an attribute of that name which the graph has itself.

    Args:
        metadata: (input ids, edge_label_index, edge_label, times), or for triplets (input ids, src,
            dst_pos, dst_neg, times).
        input_type: edge type of the seeds; None if the graph is homogeneous.
        triplet: whether negatives are destinations for each source.
    """
    if not triplet:
        names = ("input_id", "edge_label_index", "edge_label", "edge_label_time")
        return {input_type: dict(zip(names, metadata, strict=True))}
    input_id, src, dst_pos, dst_neg, seed_time = metadata
    removed = {"edge_label_index": None, "edge_label_time": None}
    ends = ({"src_index": src}, {"dst_pos_index": dst_pos, "dst_neg_index": dst_neg})
    if input_type is None:
        return {
            None: {"input_id": input_id, "seed_time": seed_time, **ends[0], **ends[1]} | removed
        }
    labels: dict[Any, dict[str, Any]] = {input_type: {"input_id": input_id, **removed}}
    for node_type, fields in zip((input_type[0], input_type[-1]), ends, strict=True):
        labels.setdefault(node_type, {"seed_time": seed_time}).update(fields)
    return labels


def _from_stores(data: Any, parts: _Parts, custom_cls: Any, backend: Backend) -> Any:
    """Ask the stores for the features; PyG's way, since the stores are the user's."""
    filter_stores: Any = filter_custom_hetero_store if parts.hetero else filter_custom_store
    # A store indexes tensors of its own, so it is asked with ids on the host.
    host = parts.ids if isinstance(parts.ids, HostIds) else HostIds(backend)
    node, edge = (_each(field, host.of) for field in (parts.given.node, parts.given.edge))
    host.wait()
    batch = filter_stores(*data, node, parts.out.row, parts.out.col, edge, custom_cls)
    for store in batch.stores:
        for name, value in store.items():
            if isinstance(value, Tensor):
                wanted = converted(value, parts.feature_dtype)
                store[name] = backend.memory.to_batch(wanted, value.device)
    return batch


def _each(field: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a sampler's field, by type or not, with every tensor replaced."""
    if isinstance(field, dict):
        return {key: _each(value, function) for key, value in field.items()}
    return None if field is None else function(field)


def _store(batch: Any, key: Any) -> Any:
    return batch._store if key is None else batch[key]


def _stores(data: Data | HeteroData) -> dict[Any, BaseStorage]:
    if isinstance(data, Data):
        return {None: data._store}
    return {**dict(data.node_items()), **dict(data.edge_items())}


class _Parts:
    """A sampler's output by type, whether the graph has types or the one type None."""

    def __init__(
        self,
        out: SamplerOutput | HeteroSamplerOutput,
        ends: Ends | None,
        ids: Ids,
        device: torch.device,
        feature_dtype: torch.dtype | None,
        roles: KnownRoles,
    ) -> None:
        self.given, self.ids, self.feature_dtype, self.roles = out, ids, feature_dtype, roles
        self.out = moved(out, device)
        self.node_end: Any = ends.node.get if ends else lambda key: None
        self.edge_end: Any = ends.edge.get if ends else lambda key: None
        self.hetero = isinstance(out, HeteroSamplerOutput)

    def of(self, key: Any) -> Any:
        """Return what has the fields for one type as attributes; None where they are absent."""
        return _OneType(self.out, key) if self.hetero else self.out

    def given_to(self, key: Any) -> Any:
        """Return the same before anything was moved to the device of the batch."""
        return _OneType(self.given, key) if self.hetero else self.given

    def id_of(self, field: str, key: Any) -> Tensor | None:
        """Return the ids ('node' or 'edge') of one type for the user; None for a lack of edges.

        A foreign sampler may leave out what it did not reach, and edge ids altogether.
        """
        value = getattr(self.given_to(key), field)
        if value is None:
            if field == "edge" and self.of(key).row is not None:
                return None
            value = torch.empty(0, dtype=torch.int64)
        return self.ids.of(value)

    def node_types(self, stores: dict[Any, BaseStorage]) -> list[Any]:
        return [key for key in stores if isinstance(key, str)] if self.hetero else [None]

    def edge_types(self, stores: dict[Any, BaseStorage]) -> list[Any]:
        return [key for key in stores if isinstance(key, tuple)] if self.hetero else [None]

    def types(self, field: str) -> list[Any]:
        """Return the types that a field speaks of."""
        return list(getattr(self.out, field) or {}) if self.hetero else [None]

    def gathered(
        self,
        given: Fields,
        attributes: tuple[Attribute, ...],
        index: Tensor,
        end: int | None,
        backend: Backend,
    ) -> Fields:
        """Return the entries `index` of some attributes of the graph, by name."""
        values = [(given[name], dim) for name, dim in attributes]
        selected = gather_all(values, index, backend, end, self.feature_dtype)
        return {
            name: of_the_users(name, rows, self.ids)
            for (name, _), rows in zip(attributes, selected, strict=True)
        }

    def assign(self, fields: Fields, name: str, value: Any) -> None:
        """Set a field of a batch. In a homogeneous graph an absent one removes a user's own."""
        if value is not None or not self.hetero:
            _put(fields, name, value)


class _OneType:
    """What a heterogeneous output holds for one type."""

    def __init__(self, out: Any, key: Any) -> None:
        self._out, self._key = out, key

    def __getattr__(self, name: str) -> Any:
        return (getattr(self._out, name) or {}).get(self._key)


def _nodes(
    source: BaseStorage, target: BaseStorage, parts: _Parts, key: Any, backend: Backend
) -> None:
    found = parts.of(key)
    node = found.node
    if node is None:  # a foreign sampler may leave out what it did not reach
        node = torch.empty(0, dtype=torch.int64, device=backend.device)
    given, fields, roles = source._mapping, target._mapping, parts.roles.of(key, source).node
    if "num_nodes" in given:
        fields["num_nodes"] = node.numel()
    fields |= parts.gathered(given, roles, node, parts.node_end(key), backend)
    _name_nodes(fields, parts, key, found)


def _name_nodes(fields: Fields, parts: _Parts, key: Any, found: Any) -> None:
    if "n_id" not in fields:
        fields["n_id"] = parts.id_of("node", key)
    parts.assign(fields, "batch", found.batch)
    parts.assign(fields, "num_sampled_nodes", found.num_sampled_nodes)


def _edges(
    source: BaseStorage, target: BaseStorage, parts: _Parts, key: Any, backend: Backend
) -> None:
    found = parts.of(key)
    row, col, edge = found.row, found.col, found.edge
    if row is None:
        row = col = edge = torch.empty(0, dtype=torch.int64, device=backend.device)
    given, fields, roles = source._mapping, target._mapping, parts.roles.of(key, source).edge
    if "edge_index" in given:
        home = given["edge_index"].device
        fields["edge_index"] = backend.memory.to_batch(_stack(row, col), home)
    for name in SPARSE:
        if name in given:
            sparse = SampledEdges(row, col, edge).like(name, given[name], target.size())
            home = given[name].device
            fields[name] = backend.memory.to_batch(sparse, home() if callable(home) else home)
    if edge is None:
        for name, _ in roles:
            fields.pop(name)
    elif roles:
        fields |= parts.gathered(given, roles, edge, parts.edge_end(key), backend)
    _name_edges(fields, parts, key, found)


def _name_edges(fields: Fields, parts: _Parts, key: Any, found: Any) -> None:
    edge = parts.id_of("edge", key)
    if edge is not None and "e_id" not in fields:
        fields["e_id"] = edge
    parts.assign(fields, "num_sampled_edges", found.num_sampled_edges)
    if found.orig_row is not None and found.orig_col is not None:
        fields["_orig_edge_index"] = torch.stack([found.orig_row, found.orig_col])


def _stack(row: Tensor, col: Tensor) -> Tensor:
    """Return [row; col], without a copy where one lies behind the other, as in our outputs."""
    size, both = row.numel(), row._base
    if both is not None and both is col._base and both.shape == (2, size) and size > 0:
        first, second = both.data_ptr(), both.data_ptr() + row.nbytes
        if both.is_contiguous() and (row.data_ptr(), col.data_ptr()) == (first, second):
            return both
    adjacent = (
        row.data_ptr() + row.nbytes == col.data_ptr()
        and size == col.numel() > 0
        and row.dtype == col.dtype
        and row.is_contiguous()
        and col.is_contiguous()
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    )
    return row.as_strided((2, size), (size, 1)) if adjacent else torch.stack([row, col])
