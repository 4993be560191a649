"""A graph saved in parts, one for each rank: the manifest, and how it is opened.

A partition is a directory of a manifest, of the arrays that every rank reads, and of one saved
graph for each part, ``part_000`` and so on. A part owns some nodes of each type t: as a saved graph
it has the node type ``own t`` (``own`` of a homogeneous graph), with the rows of attributes, and
``all t``, for all nodes of the whole graph. Its edges are the in-edges of its own
nodes, list by list as in the whole graph: from ``all`` sources, by their ids in the whole graph, to
``own`` destinations, by their rows in the part. Their attribute `EDGE_IDS` holds their columns in
the `edge_index` of the whole graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.lazy_tensor import MOST_PARTS, PartedTensor
from ..core.types import Csc
from ..graph.compressed import CompressedGraph, CscEdgeIndex
from ..graph.coo_to_csc import narrow
from .arrays import map_array, verify_arrays
from .header import (
    ITEM_BYTES,
    ArrayFile,
    Header,
    InvalidGraphFileError,
    array_of,
    arrays_of,
    checksum_of,
    count_of,
    header_checksum,
    read_header,
    write_with_checksum,
)

MANIFEST = "partition.json"
FORMAT, VERSION = "pyg_direct partition", 1
EDGE_IDS = "pyg_direct:edge"
REFUSAL = (
    "is a partition, of which NeighborLoader and LinkNeighborLoader make batches, and nothing else "
    "here: no process holds the whole graph."
)


@dataclass(frozen=True)
class RowFormat:
    """The format of the rows of a parted attribute; a row is in the part that owns its node."""

    dtype: str
    shape: tuple[int, ...]  # of one row

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class PartedNodes:
    """The nodes of one type."""

    type: str | None
    num_nodes: int
    explicit: bool  # as of `NodeGroup`
    part: ArrayFile  # uint8 or int16 [num_nodes]: which part owns each
    row: ArrayFile  # int32 or int64 [num_nodes]: which of its nodes of this type it is there
    whole: Mapping[str, ArrayFile]  # attributes of one number a node, which all ranks have
    parted: Mapping[str, RowFormat]


@dataclass(frozen=True)
class PartedEdges:
    """The edges of one type."""

    type: tuple[str, str, str] | None
    num_edges: int
    parted: Mapping[str, RowFormat]


@dataclass(frozen=True)
class Manifest:
    """The description of a partition."""

    parts: int
    nodes: Sequence[PartedNodes]
    edges: Sequence[PartedEdges]
    checksums: Sequence[int]  # of the header of each part
    id_dtype: str  # of `edge_index`
    attributes: Mapping[str, Any]  # of the graph
    report: Mapping[str, Any]

    @property
    def is_hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return self.nodes[0].type is not None


@dataclass(frozen=True, kw_only=True)
class PartedGraph(CompressedGraph):
    """The whole graph as every rank knows it: without edges, with the owner of each node."""

    folder: Path
    manifest: Manifest
    part: Sequence[npt.NDArray[Any]]  # T x [N_t]: which part owns each node
    row: Sequence[npt.NDArray[Any]]  # T x [N_t]: its row there

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.manifest.parts


class PartedEdgeIndex(CscEdgeIndex):
    """The `edge_index` [2, E] of one relation, which no process holds."""

    def dense(self) -> Tensor:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"{self.graph.name}: the {self.shape[1]} edges are stored in parts, each of which one "
            f"rank holds, so there is no edge_index to compute with. NeighborLoader and "
            f"LinkNeighborLoader sample from the parts."
        )


def own_type(kind: str | None) -> str:
    """Return the node type, in a part, of the nodes that it owns."""
    return "own" if kind is None else f"own {kind}"


def all_type(kind: str | None) -> str:
    """Return the node type, in a part, of all nodes of the whole graph."""
    return "all" if kind is None else f"all {kind}"


def part_folder(folder: Path, part: int) -> Path:
    """Return where a part is saved."""
    return folder / f"part_{part:03d}"


def parted_graph(data: Any) -> PartedGraph | None:
    """Return the partitioned graph that data was opened from; None for other data."""
    if not isinstance(data, (Data, HeteroData)) or not data.edge_stores:
        return None
    index = data.edge_stores[0].get("edge_index")
    graph = index.graph if isinstance(index, PartedEdgeIndex) else None
    return graph if isinstance(graph, PartedGraph) else None


def is_partition(folder: Path) -> bool:
    """Whether a directory holds a partition, perhaps a damaged one."""
    return (folder / MANIFEST).is_file()


def open_parts(folder: Path, verify: bool) -> Data | HeteroData:
    """Open a partition as PyG data; no part is read, and none must exist.

    Args:
        folder: of the partition.
        verify: read the arrays that all ranks have, and the parts that are there.

    Raises:
        InvalidGraphFileError: files that are missing, cut off or, with `verify`, damaged.
    """
    manifest = read_manifest(folder)
    if verify:
        verify_arrays(
            folder, [a for n in manifest.nodes for a in (n.part, n.row, *n.whole.values())]
        )
        for p in range(manifest.parts):
            part = part_folder(folder, p)
            if part.exists():
                verify_arrays(part, read_part(part, p, manifest).arrays())
    data: Any = HeteroData() if manifest.is_hetero else Data()
    attributes: dict[tuple[Any, str], Tensor] = {}
    for nodes in manifest.nodes:
        store = data[nodes.type] if manifest.is_hetero else data
        for name, array in nodes.whole.items():
            attributes[nodes.type, name] = store[name] = map_array(folder, array)
        _add_parted(store, nodes.parted, nodes.num_nodes)
        if nodes.explicit:
            store.num_nodes = nodes.num_nodes
    graph = PartedGraph(
        name=str(folder),
        csc=_csc(manifest),
        node_types=[nodes.type for nodes in manifest.nodes],
        edge_types=[edges.type for edges in manifest.edges],
        time_attr=None,
        weight_attr=None,
        attributes=attributes,
        id_dtype=getattr(torch, manifest.id_dtype),
        refusal=REFUSAL,
        folder=folder,
        manifest=manifest,
        part=[map_array(folder, nodes.part).numpy() for nodes in manifest.nodes],
        row=[map_array(folder, nodes.row).numpy() for nodes in manifest.nodes],
    )
    for r, edges in enumerate(manifest.edges):
        store = data[edges.type] if manifest.is_hetero else data
        store.edge_index = PartedEdgeIndex(graph, r)
        _add_parted(store, edges.parted, edges.num_edges)
    for name, value in manifest.attributes.items():
        data[name] = value
    return data  # type: ignore[no-any-return]


def _add_parted(store: Any, parted: Mapping[str, RowFormat], count: int) -> None:
    for name, rows in parted.items():
        store[name] = PartedTensor(name, (count, *rows.shape), getattr(torch, rows.dtype))


def _csc(manifest: Manifest) -> Csc:
    """Return the whole graph without its edges."""
    kinds = [nodes.type for nodes in manifest.nodes]
    ends = [(e.type[0], e.type[-1]) if e.type else (None, None) for e in manifest.edges]
    num_nodes = np.array([nodes.num_nodes for nodes in manifest.nodes], np.int64)
    return Csc(
        indptr=np.empty(0, np.int64),
        indices=np.empty(0, narrow(int(num_nodes.max(initial=0)))),
        perm=None,
        src_type=np.array([kinds.index(source) for source, _ in ends], np.int64),
        dst_type=np.array([kinds.index(destination) for _, destination in ends], np.int64),
        indptr_base=np.zeros(len(ends), np.int64),
        edge_base=np.cumsum([0, *(edges.num_edges for edges in manifest.edges)], dtype=np.int64),
        num_nodes=num_nodes,
    )


def read_part(folder: Path, number: int, manifest: Manifest) -> Header:
    """Read the header of a part of a partition.

    Raises:
        InvalidGraphFileError: it is damaged, or of another partition.
    """
    header = read_header(folder)
    if header_checksum(header) != manifest.checksums[number]:
        raise InvalidGraphFileError(
            f"{folder} is not part {number} of this partition, but perhaps of another one. Copy "
            f"the whole directory that pyg_direct.partition wrote."
        )
    return header


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest of a partition, and sync it."""
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    write_with_checksum(content, folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a partition.

    Raises:
        InvalidGraphFileError: it is not one, of another version, or was changed.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"it has version {content['version']!r} of {content['format']!r}")
        if content.pop("crc32", None) != checksum_of(content):
            raise ValueError("its checksum is wrong")
        return _parse(content)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise InvalidGraphFileError(
            f"{path} is not the manifest of a partition that this pyg_direct reads: {error}. Make "
            f"it again by pyg_direct.partition."
        ) from None


def _parse(content: Mapping[str, Any]) -> Manifest:
    nodes = [
        PartedNodes(
            group["type"],
            count_of(group["num_nodes"]),
            group["explicit"] is True,
            array_of(group["part"]),
            array_of(group["row"]),
            arrays_of(group["whole"]),
            _rows(group["parted"]),
        )
        for group in content["nodes"]
    ]
    edges = [
        PartedEdges(
            None if group["type"] is None else tuple(group["type"]),
            count_of(group["num_edges"]),
            _rows(group["parted"]),
        )
        for group in content["edges"]
    ]
    checksums = [count_of(number) for number in content["checksums"]]
    if not 1 <= content["parts"] == len(checksums) <= MOST_PARTS:
        raise ValueError(f"parts={content['parts']} with {len(checksums)} checksums")
    if content["id_dtype"] not in ("int32", "int64"):
        raise ValueError(f"id_dtype={content['id_dtype']}")
    return Manifest(
        content["parts"], nodes, edges, checksums, content["id_dtype"], content["attributes"],
        content["report"],
    )  # fmt: skip


def _rows(entries: Mapping[str, Any]) -> dict[str, RowFormat]:
    found = {
        name: RowFormat(r["dtype"], tuple(map(count_of, r["shape"]))) for name, r in entries.items()
    }
    if unknown := [rows.dtype for rows in found.values() if rows.dtype not in ITEM_BYTES]:
        raise ValueError(f"the dtype {unknown[0]!r} is unknown")
    return found
