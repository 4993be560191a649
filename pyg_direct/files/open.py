"""`pyg_direct.open`: a saved graph as PyG data whose arrays are memory maps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.lazy_tensor import OrderedTensor
from ..core.mapped_files import files_at
from ..core.quantized import QuantizedTensor
from ..core.types import EDGE_TIME, NO_TIME, Csc, TimeTable, WeightTable
from ..graph.compressed import CompressedGraph, CscEdgeIndex
from ..graph.verify import first_unsorted_relation, problem_of
from .arrays import map_array, verify_arrays
from .header import (
    HEADER,
    ArrayFile,
    Header,
    InvalidGraphFileError,
    TimesFile,
    WeightsFile,
    read_header,
)
from .parts import is_partition, open_parts


def open_graph(path: str | os.PathLike[str], *, verify: bool = False) -> Data | HeteroData:
    """Open a saved graph; nothing is read but its header.

    Attributes are tensors that are mapped to their files: pages are read when they are used, and
    shared by all processes that use them. Writing to one changes it in this process only. Loaders
    of this package sample from the files, without sorting or copying; `data.edge_index` is an
    ordinary tensor for all else, which is made when something computes with it (16 bytes an edge).

    Args:
        path: a directory that `save` or ``python -m pyg_direct.convert`` wrote; or `partition`, of
            which only loaders read the parts, see there.
        verify: read all files and compare their checksums, which takes about a second a gigabyte,
            and check that neighbour lists, times and tables fit each other. Without it, a damaged
            file may give wrong batches or an error, but never a crash. (A file that is cut off
            *while* it is open ends the process: no program survives that.)

    Returns:
        `Data`, or `HeteroData` if the graph has types.

    Raises:
        InvalidGraphFileError: no saved graph, one of another version, or files that are missing,
            cut off or, with `verify`, damaged. A ValueError.

    Example:
        >>> pyg_direct.save(data, "graph")
        >>> opened = pyg_direct.open("graph")
        >>> batch = next(iter(pyg_direct.NeighborLoader(opened, [5], batch_size=10)))
        >>> batch.x.shape[1]
        16
    """
    folder = Path(path)
    if is_partition(folder):
        return open_parts(folder, verify)
    header = read_header(folder)
    if verify:
        verify_arrays(folder, header.arrays())
    data: Any = HeteroData() if header.is_hetero else Data()
    attributes: dict[tuple[Any, str], Tensor] = {}
    for nodes in header.nodes:
        store = data[nodes.type] if header.is_hetero else data
        positions = None if nodes.order is None else map_array(folder, nodes.order.positions)
        if verify and positions is not None:
            _verify_positions(folder, positions)
        for name, array in nodes.attributes.items():
            value = _attribute(folder, array)
            if positions is not None and nodes.order and name in nodes.order.attributes:
                value = OrderedTensor(value, positions)
            attributes[nodes.type, name] = store[name] = value
        if nodes.explicit:
            store.num_nodes = nodes.num_nodes
        elif store.num_nodes != nodes.num_nodes:
            raise InvalidGraphFileError(f"{folder}: the attributes have another number of nodes.")
    graph = graph_in(folder, header, attributes)
    for r, edges in enumerate(header.edges):
        store = data[edges.type] if header.is_hetero else data
        store.edge_index = CscEdgeIndex(graph, r)
        for name, array in edges.attributes.items():
            attributes[edges.type, name] = store[name] = _attribute(folder, array)
    for name, value in header.attributes.items():
        data[name] = value
    if verify:
        _verify(folder, graph)
    return data  # type: ignore[no-any-return]


def _verify(folder: Path, graph: CompressedGraph) -> None:
    """Raise an InvalidGraphFileError unless the graph's arrays fit each other."""
    problem, csc = problem_of(graph.csc), graph.csc
    if problem is None and (r := first_unsorted_relation(csc)) >= 0:
        kind = "" if graph.edge_types[r] is None else f" by {graph.edge_types[r]}"
        problem = f"the neighbours{kind} of a node are not sorted by {graph.time_attr!r}"
    if problem is not None:
        raise InvalidGraphFileError(
            f"{folder} is as it was written, but was not written right: {problem}. Save or convert "
            f"the graph again."
        )


def _verify_positions(folder: Path, positions: Tensor) -> None:
    """Raise an InvalidGraphFileError unless each row is that of one node."""
    count = len(positions)
    if not torch.equal(positions.sort().values, torch.arange(count)):
        raise InvalidGraphFileError(f"{folder}: the positions of rows are not a permutation.")


def _attribute(folder: Path, array: ArrayFile) -> Tensor:
    """Return an attribute that is mapped to its file."""
    tensor = map_array(folder, array)
    if not array.quantized:
        return tensor
    try:
        return QuantizedTensor(
            tensor, None if array.scale is None else map_array(folder, array.scale)
        )
    except InvalidGraphFileError:
        raise
    except ValueError as error:
        raise InvalidGraphFileError(f"{folder / array.file} is not valid: {error}") from None


def graph_in(
    folder: Path, header: Header, attributes: dict[tuple[Any, str], Tensor]
) -> CompressedGraph:
    """Return the graph in maps of its own; `attributes` may be completed later."""
    node_types = [group.type for group in header.nodes]
    ends = [(edge.type[0], edge.type[-1]) if edge.type else (None, None) for edge in header.edges]
    num_nodes = np.array([group.num_nodes for group in header.nodes], np.int64)
    dst_type = np.array([node_types.index(dst) for _, dst in ends], np.int64)
    csc = Csc(
        indptr=map_array(folder, header.indptr).numpy(),
        indices=map_array(folder, header.indices).numpy(),
        perm=None,
        src_type=np.array([node_types.index(src) for src, _ in ends], np.int64),
        dst_type=dst_type,
        indptr_base=np.cumsum([0, *(num_nodes[dst_type] + 1)], dtype=np.int64)[:-1],
        edge_base=np.cumsum([0, *(edge.num_edges for edge in header.edges)], dtype=np.int64),
        num_nodes=num_nodes,
        verified=False,
        file_bytes=sum(array.num_bytes for array in header.arrays()),
        files=files_at(folder / array.file for array in header.arrays()),
        saved=(header.indptr.crc32, header.indices.crc32),
    )
    for r in range(csc.num_relations):
        first, end = int(csc.indptr_base[r]), int(num_nodes[dst_type[r]])
        found = csc.indptr[[first, first + end]].tolist()
        if found != csc.edge_base[r : r + 2].tolist():
            raise InvalidGraphFileError(
                f"{folder / header.indptr.file} is damaged: the lists of edge type "
                f"{header.edges[r].type} go from {found[0]} to {found[1]}."
            )
    times = None if header.times is None else _times(folder, header, header.times, csc)
    weights = None if header.weights is None else _weights(folder, header.weights)
    try:
        csc = replace(csc, times=times, weights=weights)
    except ValueError as error:
        raise InvalidGraphFileError(f"{folder / HEADER} is not valid: {error}") from None
    return CompressedGraph(
        name=str(folder),
        csc=csc,
        node_types=node_types,
        edge_types=[group.type for group in header.edges],
        time_attr=None if header.times is None else header.times.attribute,
        weight_attr=None if header.weights is None else header.weights.attribute,
        attributes=attributes,
    )


def _times(folder: Path, header: Header, times: TimesFile, csc: Csc) -> TimeTable:
    """Return the times of a graph, of the relations whose nodes or edges have some."""
    base = np.full(csc.num_relations, NO_TIME, np.int64)
    for r, edge in enumerate(header.edges):
        source = int(csc.src_type[r])
        if times.of_nodes and times.attribute in header.nodes[source].attributes:
            base[r] = csc.node_base[source]
        elif not times.of_nodes and times.attribute in edge.attributes:
            base[r] = EDGE_TIME
    return TimeTable(map_array(folder, times.table).numpy(), base)


def _weights(folder: Path, weights: WeightsFile) -> WeightTable:
    alias = weights.alias
    return WeightTable(
        weight=map_array(folder, weights.weight).numpy(),
        cumulative=map_array(folder, weights.cumulative).numpy(),
        alias=None if alias is None else map_array(folder, alias).numpy(),
        relations=np.array(weights.relations, np.bool_),
        positive=weights.positive,
    )
