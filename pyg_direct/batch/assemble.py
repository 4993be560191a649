"""From a sampler's output to the batch that PyG's loader would return."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType

from ..core.arguments import shown
from ..core.lazy_tensor import OrderedTensor
from ..core.pyg import (
    SPARSE,
    TOPOLOGY,
    BaseStorage,
    cat_dim,
    fields_of,
    filter_custom_hetero_store,
    filter_custom_store,
    shallow_copy,
    store_of,
    stores_of,
)
from ..core.types import Ends
from ..ops import clock
from ..ops.ids import HostIds
from .gather import Gatherer, tables_in
from .roles import Attribute, KnownRoles, Roles, check_feature_dtype, converted
from .sampled import EdgesOfType, NodesOfType, Sampled, of_parts
from .sparse import ROWS_UNREADABLE, MatrixEntries

HOP_COUNTS = ("num_sampled_nodes", "num_sampled_edges")

Fields = dict[str, Any]
"""The attributes of one store of a batch, by name.

Written past the store, which would look for each name in what it has cached of its attributes: a
new batch has no cache.
"""


def assemble(
    data: Any,
    sampled: Sampled,
    labels: dict[Any, dict[str, Any]],
    gatherer: Gatherer,
    custom_cls: Any = None,
    ends: Ends | None = None,
    roles: KnownRoles | None = None,
) -> Any:
    """Return a batch: the sampled subgraph with its attributes.

    The batch is a shallow copy of `data`, so its class, its graph-level attributes and everything
    that is not a tensor carry over by reference. From remote stores a new batch is made.

    Args:
        data: the full graph: `Data`, `HeteroData`, or (`FeatureStore`, `GraphStore`).
        sampled: the subgraph; its edge ids are columns of the `edge_index` of `data`.
        labels: what the seeds add, by node or edge type, as of `link_labels`.
        gatherer: gathers the rows, and brings the ids to where they shall be.
        custom_cls: class of the batch in case of remote stores.
        ends: what all ids in `sampled` are known to be below; None if that has to be checked.
        roles: what is known of the attributes of `data` from earlier batches.

    Raises:
        IndexError: an attribute has no row for an id.
    """
    ids = gatherer.ids
    known = KnownRoles() if roles is None else roles
    parts, target = _Parts(sampled, ends, gatherer), dict[Any, BaseStorage]()
    if isinstance(data, (Data, HeteroData)):
        batch = shallow_copy(data)
        # A homogeneous graph has one store for nodes and edges, and the one type None.
        target = gatherer.stores = stores_of(batch)
        stores = []
        for key, store in stores_of(data).items():
            roles_there = known.of(key, store)
            stores.append((key, store, roles_there))
            if not isinstance(key, tuple):
                parts.add_nodes(store, target[key], key, roles_there.node)
        for key, store, roles_there in stores:
            if not isinstance(key, str):
                parts.add_edges(store, target[key], key, roles_there.edge)
    else:
        batch = _from_stores(data, parts, custom_cls)
    for key, labelled in labels.items():
        fields = fields_of(target[key] if key in target else store_of(batch, key))
        for name, value in labelled.items():
            if name == "input_id":
                value = value if ids.in_place else ids.of_seeds(value)
            elif isinstance(value, Tensor) and not ids.in_place:
                value = gatherer.memory.to_batch(value, value.device)
            if value is not None:
                fields[name] = value
            else:
                fields.pop(name, None)  # as PyG's stores do
    if not ids.in_place:
        ids.wait()
    if not known.named:
        known.named = True
        _check_names(data, batch, known, labels)
    return batch


def _check_names(
    data: Any, batch: Any, known: KnownRoles, labels: dict[Any, dict[str, Any]]
) -> None:
    """Warn where a graph and its loader mean different things by one name.

    A `Batch` of several graphs has a property `batch_size`, their number, which hides that of the
    seeds, and an attribute `batch` of its nodes, which the loader takes for that of subgraphs.
    """
    texts = []
    if isinstance(data, Data):
        texts = _names_of_both(data, batch, known.of(None, store_of(data, None)), labels[None])
    elif isinstance(data, HeteroData) and hasattr(type(data), "batch_size"):
        texts = [
            f"{type(data).__name__} has a property batch_size of its own, so batch.batch_size is "
            f"{shown(batch.batch_size)}. The loader's is batch[{kind!r}].batch_size, here {size}."
            for kind, fields in labels.items()
            if (size := fields.get("batch_size")) is not None
        ]
    for text in texts:
        warnings.warn(text, UserWarning, stacklevel=2)


def _names_of_both(data: Data, batch: Data, roles: Roles, labels: dict[str, Any]) -> list[str]:
    """Return what to say of names that both a homogeneous graph and its loader use."""
    fields, texts = fields_of(store_of(batch, None)), []
    for name in ("n_id", "e_id", *HOP_COUNTS, *labels):
        seen = getattr(batch, name, None)
        if name in fields and seen is not fields[name]:
            texts.append(
                f"{type(data).__name__} has a property {name} of its own, so batch.{name} is "
                f"{shown(seen)}. The loader's is batch[{name!r}], here {shown(fields[name])}; or "
                f"give it plain data: Data.from_dict(data.to_dict())."
            )
    made_by_a_loader = "input_id" in data and "n_id" in data
    own = set() if made_by_a_loader else {"batch", *labels}
    for name in own & {attribute.name for attribute in roles.node}:
        texts.append(
            f"data.{name}, an attribute of the nodes, is in no batch, as {name} is a name of the "
            f"loader's own there. Rename it: data.my_{name} = data.{name}; del data.{name}."
        )
    return texts


def attributes_of(data: Any) -> Iterator[tuple[str, str, Any, BaseStorage]]:
    """Yield the node and edge attributes of a graph: label for messages, name, value, store.

    Remote stores are asked for each batch, so nothing is known of what they hold.
    """
    if isinstance(data, (Data, HeteroData)):
        for key, store in stores_of(data).items():
            for name, value in store.items():
                if name not in TOPOLOGY and (store.is_node_attr(name) or store.is_edge_attr(name)):
                    label = f"data.{name}" if key is None else f"data[{key!r}].{name}"
                    yield label, name, value, store


def tables_of(data: Any, without: Container[int] = ()) -> Iterator[tuple[str, Tensor]]:
    """Yield the attributes of a graph whose rows a backend can gather, with names for messages.

    Args:
        data: the graph.
        without: tables that are left out, by `id`.
    """
    for label, name, value, store in attributes_of(data):
        tables = tables_in(value)
        if tables and cat_dim(store, name, value) == 0:
            yield from ((label, table) for table in tables if id(table) not in without)


def node_tables_of(data: Any) -> Iterator[tuple[Any, str, Tensor, Tensor | None]]:
    """Yield the tables among `tables_of` that have a row for each node.

    That is: node type, name, table, and at which of its rows each node is (None for its id).
    """
    if isinstance(data, (Data, HeteroData)):
        for key, store in stores_of(data).items():
            if isinstance(key, tuple):
                continue
            label = "data" if key is None else f"data[{key!r}]"
            for name, value in store.items():
                if not store.is_node_attr(name):
                    continue
                if cat_dim(store, name, value) == 0:
                    positions = value.positions if isinstance(value, OrderedTensor) else None
                    for table in tables_in(value):
                        if table.dim() > 0 and len(table) == store.num_nodes:
                            by = None if table is positions else positions
                            yield key, f"{label}.{name}", table, by


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


def _from_stores(data: Any, parts: _Parts, custom_cls: Any) -> Any:
    """Ask the stores for the features; PyG's way, since the stores are the user's."""
    sampled, gatherer = parts.sampled, parts.gatherer
    out: Any = sampled.output
    filter_stores: Any = filter_custom_hetero_store if sampled.is_typed else filter_custom_store
    # A store indexes tensors of its own, so it is asked with ids on the host.
    host = parts.ids if isinstance(parts.ids, HostIds) else gatherer.memory.ids(on_host=True)
    node = of_parts(out.node, sampled.nodes, lambda nodes: host.of(nodes.given))
    edge = of_parts(out.edge, sampled.edges, lambda edges: host.of(edges.given))
    row = of_parts(out.row, sampled.edges, lambda edges: edges.edge_index[0])
    col = of_parts(out.col, sampled.edges, lambda edges: edges.edge_index[1])
    host.wait()
    begin = clock.instant()
    batch = filter_stores(*data, node, row, col, edge, custom_cls)
    if sampled.is_typed:
        _add_edge_features(data[0], batch, edge)
    gatherer.gathers.append((begin, clock.instant()))
    for store in batch.stores:
        for name, value in store.items():
            if isinstance(value, Tensor):
                wanted = converted(value, gatherer.feature_dtype)
                store[name] = gatherer.memory.to_batch(wanted, value.device)
    for key in out.node if sampled.is_typed else [None]:
        parts.name(fields_of(store_of(batch, key)), parts.nodes_of(key))
    for key in (out.edge or {}) if sampled.is_typed else [None]:
        parts.name(fields_of(store_of(batch, key)), parts.edges_of(key))
    return batch


def _add_edge_features(feature_store: Any, batch: Any, edge: dict[Any, Tensor | None]) -> None:
    """Ask a store for the rows of edge types, which PyG leaves out, by positions of edges."""
    wanted = [
        attr
        for attr in feature_store.get_all_tensor_attrs()
        if edge.get(attr.group_name) is not None
    ]
    for attr in wanted:
        attr.index = edge[attr.group_name]
    rows = feature_store.multi_get_tensor(wanted) if wanted else []
    for attr, value in zip(wanted, rows, strict=True):
        batch[attr.group_name][attr.attr_name] = value


class _Parts:
    """Puts what was sampled of each type into the stores of a batch."""

    def __init__(self, sampled: Sampled, ends: Ends | None, gatherer: Gatherer) -> None:
        self.sampled, self.gatherer, self._ends = sampled, gatherer, ends
        self.ids = gatherer.ids

    def nodes_of(self, key: Any) -> NodesOfType:
        return self.sampled.nodes_of(key, self.gatherer.backend.device)

    def edges_of(self, key: Any) -> EdgesOfType:
        return self.sampled.edges_of(key, self.gatherer.backend.device)

    def _told(self, count: int) -> Any:
        """Return a number as a tensor on the device of the batch."""
        return self.gatherer.memory.to_batch(torch.tensor(count), self.gatherer.backend.device)

    def add_nodes(
        self,
        source: BaseStorage,
        target: BaseStorage,
        key: Any,
        attributes: tuple[Attribute, ...],
    ) -> None:
        """Add the nodes of a type, and their rows of the attributes in `source`."""
        found = self.sampled.nodes.get(key) or self.nodes_of(key)
        given, fields = fields_of(source), fields_of(target)
        if "num_nodes" in given:
            fields["num_nodes"] = found.node.numel()
        if self.sampled.own is not None:
            fields["num_real_nodes"] = self._told(self.sampled.own.node[key])
        elif found.real is not None:
            fields["num_real_nodes"] = found.real
        end = None if self._ends is None else self._ends.node.get(key)
        rows = self.gatherer.named_rows(given, attributes, found.node, end)
        for attribute, values in zip(attributes, rows, strict=True):
            fields[attribute.name] = values
        self.name(fields, found)

    def add_edges(
        self,
        source: BaseStorage,
        target: BaseStorage,
        key: Any,
        attributes: tuple[Attribute, ...],
    ) -> None:
        """Add the edges of a type, and their entries of the attributes in `source`."""
        found = self.sampled.edges.get(key) or self.edges_of(key)
        to_batch = self.gatherer.memory.to_batch
        given, fields = fields_of(source), fields_of(target)
        if "edge_index" in given:
            edge_index, home = found.edge_index, given["edge_index"].device
            there = edge_index.device == home
            fields["edge_index"] = edge_index if there else to_batch(edge_index, home)
        for name in SPARSE:
            if name in given:
                edges = MatrixEntries(found.edge_index[0], found.edge_index[1], found.edge)
                home = given[name].device
                sparse = edges.like(name, given[name], target.size())
                fields[name] = to_batch(sparse, home() if callable(home) else home)
        if self.sampled.own is not None:
            fields["num_real_edges"] = self._told(self.sampled.own.edge[key])
        elif found.real is not None:
            fields["num_real_edges"] = found.real
        if found.edge is None:
            for attribute in attributes:
                fields.pop(attribute.name)
        elif attributes:
            end = None if self._ends is None else self._ends.edge.get(key)
            rows = self.gatherer.named_rows(given, attributes, found.edge, end)
            for attribute, values in zip(attributes, rows, strict=True):
                fields[attribute.name] = values
        self.name(fields, found)

    def name(self, fields: Fields, found: NodesOfType | EdgesOfType) -> None:
        """Add ids, subgraphs and counts of nodes or edges, as the sampler gave them."""
        ids = found.given
        if isinstance(found, NodesOfType):
            name, told = "n_id", {"batch": found.batch, "num_sampled_nodes": found.num_sampled}
        else:
            name, told = "e_id", {"num_sampled_edges": found.num_sampled}
            if found.original is not None:
                fields["_orig_edge_index"] = found.original
        if ids is not None and name not in fields:
            fields[name] = ids if self.ids.in_place else self.ids.of(ids)
        for name, value in told.items():
            if value is not None:
                fields[name] = value
            elif not self.sampled.is_typed:  # absent: an attribute of the user's goes, too
                fields.pop(name, None)
