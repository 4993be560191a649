"""`pyg_direct.save`: PyG data to a directory of arrays, its rows in the order asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.lazy_tensor import OrderedTensor
from ..core.pyg import N_KEYS, NOT_ATTRIBUTES, graph_fields_of, store_of
from ..core.quantized import QuantizedTensor
from ..core.types import EDGE_TIME, Csc, IntTable, SeedVisits
from ..graph.from_pyg import Graph, graph_of
from ..graph.verify import verified
from ..graph.visits import Doubles, expected_visits, out_degrees
from .arrays import ArrayWriter, dtype_name, write_array
from .directory import FileNames, NewDirectory
from .header import (
    ITEM_BYTES,
    ArrayFile,
    EdgeGroup,
    Header,
    NodeGroup,
    RowOrder,
    TimesFile,
    WeightsFile,
    write_header,
)

STEP_ROWS_BYTES = 64 << 20  # of an edge attribute that are brought into order at a time
SCALARS = (bool, int, float, str, type(None))


def save(
    data: Data | HeteroData,
    path: str | os.PathLike[str],
    *,
    time_attr: str | None = None,
    weight_attr: str | None = None,
    row_order: str | Tensor | Mapping[str, Tensor] | None = None,
    overwrite: bool = False,
) -> None:
    """Save a graph as a directory that `pyg_direct.open` maps into memory.

    Edges are stored by destination, and within a destination in their order in `edge_index`, or
    with `time_attr` by time; attributes of edges are brought into the same order. So edge ids
    (`e_id`) of batches count in the saved order.

    Args:
        data: the graph. Node and edge attributes must be dense tensors or NumPy arrays of booleans,
            integers or floats; other values are stored if JSON can hold them.
        path: the new directory. It appears when all is written.
        time_attr: what loaders will be given as `time_attr=`: neighbours are sorted by it now.
        weight_attr: what loaders will be given as `weight_attr=`: its tables, 24 bytes an edge, are
            made now.
        row_order: the order of the rows of node attributes with two or more dimensions in
            their files, so that rows which batches read often fill whole pages. Node ids stay as
            they are. "visits": by how often batches are expected to hold each node
            (`expected_visits` with its defaults), "degree": by how many edges leave each node, or
            a number for each node, [N] or by node type, the largest first: those of
            `expected_visits` with your seeds and fan-outs, or the cluster of each node. None for
            the order of ids. See the guide on large graphs for when it pays.
        overwrite: replace a saved graph at `path`; never anything else.

    Raises:
        FileExistsError: there is something at `path`; with `overwrite`, something else than a saved
            graph or an empty directory.
        ValueError: attributes that cannot be stored (named), a graph with ids out of range, or a
            `row_order` that does not fit its nodes.
        OSError: it cannot be written, such as on a full disk. Nothing is left at `path`.

    Example:
        >>> pyg_direct.save(data, "citations")
        >>> pyg_direct.open("citations").num_nodes
        300
    """
    if not isinstance(data, (Data, HeteroData)):
        raise ValueError(f"data must be a Data or HeteroData, got {type(data).__name__}.")
    graph = graph_of(data, time_attr=time_attr, weight_attr=weight_attr)
    orders = row_orders(graph, row_order)
    with NewDirectory(path, overwrite) as folder:
        write_header(_write(data, graph, folder, (time_attr, weight_attr), orders), folder)


def _write(
    data: Any,
    graph: Graph,
    folder: Path,
    sorted_by: tuple[str | None, str | None],
    orders: list[IntTable] | None,
) -> Header:
    """Write all arrays.

    Args:
        data: the graph.
        graph: it, compressed.
        folder: a new one.
        sorted_by: the names of the times and of the weights.
        orders: of the rows of each node type, see `row_orders`.
    """
    time_attr, weight_attr = sorted_by
    csc, names = graph.csc, FileNames()
    hetero = isinstance(data, HeteroData)
    nodes, edges, others = [], [], {}
    for t, node_type in enumerate(graph.node_types):
        store = store_of(data, node_type)
        keys = [key for key in store if key not in NOT_ATTRIBUTES]
        if not hetero:
            keys = [key for key in keys if not data.is_edge_attr(key)]
        label, order = f"node {node_type or 'attribute'}", None if orders is None else orders[t]
        moved = [] if order is None else [k for k in keys if is_moved(store[k], len(order))]
        found, rest = _attributes(store, [k for k in keys if k not in moved], names, folder, label)
        found.update(_attributes(store, moved, names, folder, label, order)[0])
        if rest and hetero:
            raise ValueError(_unsaveable(f"data[{node_type!r}]", rest))
        others.update(rest)
        explicit = "num_nodes" in store or not any(key in N_KEYS for key in found)
        placed = None
        if order is not None and moved:
            placed = RowOrder(_positions(order, names, folder), tuple(moved))
        nodes.append(NodeGroup(node_type, int(csc.num_nodes[t]), explicit, found, placed))
    for r, edge_type in enumerate(graph.edge_types):
        store = store_of(data, edge_type)
        keys = [key for key in store if key not in NOT_ATTRIBUTES]
        if not hetero:
            keys = [key for key in keys if data.is_edge_attr(key)]
        first, last = csc.edge_base[r : r + 2].tolist()
        order = None if csc.perm is None else csc.perm[first:last]
        found, rest = _attributes(
            store, keys, names, folder, f"edge {edge_type or 'attribute'}", order, last - first
        )
        if rest:
            raise ValueError(_unsaveable(f"data[{edge_type}]" if hetero else "data", rest))
        edges.append(EdgeGroup(edge_type, last - first, found))
    if isinstance(data, HeteroData):
        others = graph_fields_of(data)
    wrong = {key: value for key, value in others.items() if not is_json(value)}
    if wrong:
        raise ValueError(_unsaveable("data", wrong))

    def put(name: str, values: Any) -> ArrayFile:
        return write_array(folder / names.new(name), values)

    return Header(
        nodes=nodes,
        edges=edges,
        indptr=put("indptr", csc.indptr),
        indices=put("indices", csc.indices),
        times=None if time_attr is None else _times(csc, time_attr, put),
        weights=None if weight_attr is None else _weights(csc, weight_attr, put),
        attributes=others,
    )


def _positions(order: IntTable, names: FileNames, folder: Path) -> ArrayFile:
    """Write the position of each node's row, if row k is that of node ``order[k]``."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return write_array(folder / names.new("positions"), positions)


def _times(csc: Csc, name: str, put: Callable[[str, Any], ArrayFile]) -> TimesFile:
    assert csc.times is not None
    of_nodes = not (csc.times.base == EDGE_TIME).any()
    return TimesFile(name, bool(of_nodes), put("sorted_times", csc.times.time))


def _weights(csc: Csc, name: str, put: Callable[[str, Any], ArrayFile]) -> WeightsFile:
    weights = csc.weights
    assert weights is not None
    return WeightsFile(
        attribute=name,
        weight=put("weight", weights.weight),
        cumulative=put("cumulative", weights.cumulative),
        alias=None if weights.alias is None else put("alias", weights.alias),
        relations=tuple(weights.relations.tolist()),
        positive=weights.positive,
    )


def _attributes(
    store: Any,
    keys: list[str],
    names: FileNames,
    folder: Path,
    label: str,
    order: Any = None,
    num_edges: int | None = None,
) -> tuple[dict[str, ArrayFile], dict[str, Any]]:
    """Write the arrays among the attributes `keys`; return their entries, and the other values.

    Raises:
        ValueError: a tensor of a layout or dtype that cannot be stored, or of a wrong length.
    """
    found, rest = {}, {}
    for key in keys:
        value = store[key]
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.from_numpy(np.asarray(value))
        if not isinstance(value, Tensor):
            rest[key] = value
            continue
        quantized = isinstance(value, QuantizedTensor)
        if not quantized and (value.layout != torch.strided or value.is_quantized):
            raise ValueError(
                f"The {label} {key!r} cannot be saved: it is {value.layout}, not dense."
            )
        try:
            dtype_name(value.dtype)
        except ValueError as error:
            raise ValueError(f"The {label} {key!r} cannot be saved: {error}") from None
        if num_edges is not None and value.shape[:1] != (num_edges,):
            raise ValueError(
                f"The {label} {key!r} cannot be saved: it has the shape {tuple(value.shape)}, and "
                f"not {num_edges} rows, one for each edge."
            )
        found[key] = _write_table(value, key, names, folder, order)
    return found, rest


def _write_table(value: Tensor, key: str, names: FileNames, folder: Path, order: Any) -> ArrayFile:
    """Write one attribute; a quantized one in its stored form."""
    if isinstance(value, OrderedTensor):
        positions = value.positions.numpy()
        order = positions if order is None else positions[order]
        return _write_table(value.stored, key, names, folder, order)
    if not isinstance(value, QuantizedTensor):
        return _write_rows(folder / names.new(key), value, order)
    rows = _write_rows(folder / names.new(key), value.stored, order)
    scale = value.scale
    if scale is not None:
        by_row = order if scale.dim() == 2 else None
        return replace(
            rows,
            scale=_write_rows(folder / names.new(f"{key}_scale"), scale, by_row),
            quantized=True,
        )
    return replace(rows, quantized=True)


def _write_rows(path: Path, value: Tensor, order: Any) -> ArrayFile:
    """Write ``value[order]``, some rows at a time; all in order if `order` is None."""
    if order is None:
        return write_array(path, value)
    dtype = dtype_name(value.dtype)
    row_bytes = max(1, value[:1].numel()) * ITEM_BYTES[dtype]
    step = max(1, STEP_ROWS_BYTES // row_bytes)
    with ArrayWriter(path, dtype, tuple(value.shape[1:])) as writer:
        for first in range(0, len(order), step):
            ids = torch.from_numpy(order[first : first + step].astype(np.int64))
            writer.write(value.detach()[ids.to(value.device)])
        return writer.close()


def is_json(value: Any) -> bool:
    """Whether JSON gives back an equal value of the same type."""
    if isinstance(value, list):
        return all(map(is_json, value))
    if isinstance(value, Mapping):
        return type(value) is dict and all(
            isinstance(key, str) and is_json(entry) for key, entry in value.items()
        )
    return type(value) in SCALARS


def _unsaveable(name: str, values: Mapping[str, Any]) -> str:
    key, value = next(iter(values.items()))
    return (
        f"{name}.{key} cannot be saved: it is of type {type(value).__name__}. Saved graphs hold "
        f"dense tensors and NumPy arrays, and of the whole graph also numbers, texts, lists and "
        f"dicts of such. Remove it first: del {name}[{key!r}]."
    )


FANOUTS, BATCH_SIZE = (15, 10, 5), 1024  # of the batches of "visits"
NAMES = ("visits", "degree")


def row_orders(graph: Graph, row_order: Any) -> list[IntTable] | None:
    """Return the node of the k-th row of each type, int64 [N_t] by type; None: rows are by id.

    Of equal numbers, the lower id comes first.

    Args:
        graph: the nodes and edges.
        row_order: as `save` takes it.

    Raises:
        ValueError: another name, or numbers that are missing, not one for each node, or NaN.
    """
    if row_order is None:
        return None
    if isinstance(row_order, str) and row_order in NAMES:
        csc = verified(graph.csc)
        if row_order == "degree":
            numbers = out_degrees(csc)
        else:
            counts = csc.num_nodes.tolist()
            share = min(1.0, BATCH_SIZE / max(1, sum(counts)))
            seeds = [SeedVisits(np.full(count, share)) for count in counts]
            fanouts = np.repeat(np.array(FANOUTS)[:, None], csc.num_relations, axis=1)
            numbers = expected_visits(csc, seeds, fanouts)
    else:
        numbers = _given(row_order, graph.node_types, graph.csc.num_nodes.tolist())
    return [np.argsort(-of_type, kind="stable") for of_type in numbers]


def _given(row_order: Any, kinds: Sequence[Any], counts: list[int]) -> list[Doubles]:
    """Return the user's numbers as float64 [N_t] by type.

    Raises:
        ValueError: they are missing, not one for each node, or NaN.
    """
    if isinstance(row_order, Tensor) and list(kinds) == [None]:
        row_order = {None: row_order}
    if not isinstance(row_order, Mapping) or set(row_order) != set(kinds):
        what = "[N]" if list(kinds) == [None] else f"of each of {list(kinds)}, in a dict"
        raise ValueError(
            f"row_order must be 'visits', 'degree', None, or a tensor {what}, got {row_order!r}."
        )
    found = []
    for kind, count in zip(kinds, counts, strict=True):
        numbers = row_order[kind]
        shape = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
        if shape != (count,) or bool(numbers.isnan().any()):
            label = "" if kind is None else f" for {kind!r}"
            raise ValueError(
                f"row_order must hold one number{label} for each of {count} nodes, and no NaN, got "
                f"{shape}."
            )
        found.append(numbers.detach().cpu().double().numpy())
    return found


def is_moved(value: Any, num_nodes: int) -> bool:
    """Whether a node attribute is stored in `row_order`: it has several numbers a node."""
    return isinstance(value, Tensor) and value.dim() > 1 and len(value) == num_nodes
