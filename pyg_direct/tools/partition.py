"""`pyg_direct.partition`: a graph to a directory of parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.arguments import check_choice, check_count
from ..core.lazy_tensor import MOST_PARTS
from ..core.mapped_files import fingerprint_of
from ..core.pyg import N_KEYS, NOT_ATTRIBUTES, graph_fields_of, store_of
from ..core.quantized import QuantizedTensor
from ..exchange.owners import check_parts
from ..files.arrays import dtype_name, map_array, write_array
from ..files.directory import check_replaceable
from ..files.header import ArrayFile
from ..files.open import open_graph
from ..files.parts import Manifest, PartedEdges, PartedNodes, parted_graph, write_manifest
from ..files.save import is_json
from ..files.write_parts import (
    EdgeWriter,
    PartitionFolder,
    described,
    rows_in_parts,
    write_headers,
    write_rows,
    write_whole,
)
from ..graph.coo_to_csc import undirected
from ..graph.from_pyg import Graph, graph_of
from ..graph.verify import verified
from ..ops.host import keys as rng
from ..ops.host.parts import by_greedy_passes, by_hash, edges_between
from ..sampling.sampler import NeighborSampler
from .plan_orders import sampled

LOOKED_AT = 4096  # elements of an array, to check that a resumed run has the same graph


def partition(
    data: Data | HeteroData | str | os.PathLike[str],
    path: str | os.PathLike[str],
    parts: int,
    method: str | Tensor | dict[str, Tensor] = "metis",
) -> PartitionReport:
    """Save a graph in parts; each rank of a process group reads its own.

    ``pyg_direct.open(path)`` gives data for `NeighborLoader` and `LinkNeighborLoader` with
    ``split_by_rank=True``: batches are those of a single process over the whole graph, bit for bit,
    and no rank holds more than its parts. A part has the in-edges of its nodes, and their rows of
    attributes. What has one number a node (labels, masks) is not split: it stays in one file that
    all ranks of a machine share, as does the place of each node (5 to 6 bytes).

    The graph is read in order and in bounded memory, but for 'metis'. An interrupted call resumes
    after the arrays that it had written when it is called again with the same arguments; until
    then, ``.NAME.unfinished`` beside `path` holds them.

    Args:
        data: the graph, or the directory of one that was saved.
        path: the new directory. It appears when all is written.
        parts: how many, in [1, 1024]. With as many parts as ranks, or a multiple: rank r of W holds
            the parts p with p mod W = r.
        method: 'metis' (from the extra `cluster`; in memory, some 100 bytes an edge), 'ldg' (three
            passes of linear deterministic greedy, Stanton and Kliot, KDD 2012), 'hash' (by id, for
            graphs without communities), or the part of each node, integers [num_nodes]; a dict of
            such by node type. 'metis' and 'ldg' balance in-edges as well as nodes.

    Returns:
        How even the parts are, and the share of rows that batches get from other parts.

    Raises:
        FileExistsError: `path` exists, or the unfinished directory holds files that no
            partition wrote.
        BlockingIOError: another process is making this partition.
        ValueError, TypeError: wrong arguments, or attributes that cannot be saved, named; an
            unfinished partition of something else.
        ImportError: 'metis' without `pymetis`.
        OSError: it cannot be written, such as on a full disk.

    Example:
        >>> report = pyg_direct.partition(data, "two_parts", 2, method="ldg")
        >>> loader = pyg_direct.NeighborLoader(pyg_direct.open("two_parts"), [5], batch_size=10)
        >>> next(iter(loader)).x.shape[1]  # this process reads both parts
        16
    """
    check_count("parts", parts, least=1)
    if parts > MOST_PARTS:
        raise ValueError(f"parts must be in [1, {MOST_PARTS}], got {parts}.")
    if isinstance(data, (str, os.PathLike)):
        data = open_graph(data)
    if not isinstance(data, (Data, HeteroData)):
        raise TypeError(
            f"data must be a Data, a HeteroData or the path of a saved graph, got "
            f"{type(data).__name__}."
        )
    if parted_graph(data) is not None:
        raise ValueError("data is a partition already. Give the graph that it was made of.")
    target = Path(os.path.abspath(path))
    check_replaceable(target, overwrite=False)
    graph = graph_of(data)
    graph = replace(graph, csc=verified(graph.csc))
    tables = _Tables(data, graph)
    asked = {
        "parts": parts,
        "method": method if isinstance(method, str) else _digest_of_parts(method),
        "graph": fingerprint_of((array for _, array in graph.csc.arrays()), LOOKED_AT),
        "attributes": tables.described(),
    }
    with PartitionFolder(target, asked, parts) as folder:
        report = _write(data, graph, tables, folder, parts, method)
        folder.publish()
    return report


class _Tables:
    """The attributes of a graph, by how they are stored.

    Raises:
        ValueError: one that cannot be saved.
    """

    def __init__(self, data: Any, graph: Graph) -> None:
        self.whole: list[dict[str, Tensor]] = []
        self.parted: list[dict[str, Tensor]] = []
        self.edges: list[dict[str, Tensor]] = []
        hetero = isinstance(data, HeteroData)
        self.graph: dict[str, Any] = graph_fields_of(data) if hetero else {}
        for kind, count in zip(graph.node_types, graph.csc.num_nodes.tolist(), strict=True):
            store, found = store_of(data, kind), dict[str, Tensor]()
            for name, value in store.items():
                if name in NOT_ATTRIBUTES or (not hetero and data.is_edge_attr(name)):
                    continue
                if hetero or data.is_node_attr(name):
                    found[name] = _table(value, name, kind, count)
                else:
                    self.graph[name] = value
            self.whole.append({n: v for n, v in found.items() if v.dim() == 1})
            self.parted.append({n: v for n, v in found.items() if v.dim() > 1})
        sizes = np.diff(graph.csc.edge_base).tolist()
        edge_types: Sequence[Any] = graph.edge_types
        for kind, count in zip(edge_types, sizes, strict=True):
            self.edges.append(
                {
                    name: _table(value, name, kind, count)
                    for name, value in store_of(data, kind).items()
                    if name not in NOT_ATTRIBUTES and (hetero or data.is_edge_attr(name))
                }
            )
        for name, value in self.graph.items():
            if not is_json(value):
                raise ValueError(
                    f"data.{name} cannot be saved: it is of type {type(value).__name__}, and not "
                    f"one row for each node or edge. Remove it first: del data[{name!r}]."
                )

    def described(self) -> Any:
        """Return fingerprints of these attributes, for JSON."""
        groups = [*self.whole, *self.parted, *self.edges]
        return [{n: fingerprint_of([v], LOOKED_AT) for n, v in group.items()} for group in groups]


def _table(value: Any, name: str, kind: Any, count: int) -> Tensor:
    """Return an attribute as a dense tensor of `count` rows."""
    label = f"data.{name}" if kind is None else f"data[{kind!r}].{name}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.asarray(value))
    problem = None
    if isinstance(value, QuantizedTensor):
        problem = "it is quantized. Store it as float16 or bfloat16, or as integers, instead"
    elif not isinstance(value, Tensor) or value.layout != torch.strided:
        problem = f"it is {getattr(value, 'layout', type(value).__name__)}, and not a dense tensor"
    elif value.dim() == 0 or len(value) != count:
        problem = f"it has the shape {tuple(value.shape)}, and not {count} rows"
    else:
        try:
            dtype_name(value.dtype)
        except ValueError as error:
            problem = str(error).rstrip(".")
    if problem is not None:
        raise ValueError(f"{label} cannot be saved in parts: {problem}.")
    return value  # type: ignore[no-any-return]


def _write(
    data: Any, graph: Graph, tables: _Tables, journal: PartitionFolder, parts: int, method: Any
) -> PartitionReport:
    """Write all arrays that an earlier run did not, and the manifest last."""
    csc, kinds = graph.csc, graph.node_types
    part, owners = _assigned(journal, graph, parts, method)
    name = method if isinstance(method, str) else GIVEN
    made = journal.value("report", lambda: report_of(data, graph, part, parts, name).as_dict())
    nodes, parted = [], []
    for t, kind in enumerate(kinds):
        row = write_whole(journal, f"row {t}", rows_in_parts(part[t], parts))
        whole = {
            name: write_whole(journal, f"whole {t} {name}", value)
            for name, value in tables.whole[t].items()
        }
        files = {
            name: write_rows(journal, f"node {t} {name}", value, part[t])
            for name, value in tables.parted[t].items()
        }
        store = store_of(data, kind)
        explicit = "num_nodes" in store or not any(key in N_KEYS for key in [*whole, *files])
        parted.append(files)
        nodes.append(
            PartedNodes(kind, len(part[t]), explicit, owners[t], row, whole, described(files))
        )
    edges = EdgeWriter(csc, part, tables.edges).write(journal)
    checksums = write_headers(journal, (kinds, graph.edge_types), part, parted, edges)
    sizes = np.diff(csc.edge_base).tolist()
    groups = [
        PartedEdges(kind, count, described({n: [file] for n, file in edges[0][2][r].items()}))
        for r, (kind, count) in enumerate(zip(graph.edge_types, sizes, strict=True))
    ]
    id_dtype = str(graph.id_dtype).removeprefix("torch.")
    manifest = Manifest(parts, nodes, groups, checksums, id_dtype, tables.graph, made)
    write_manifest(manifest, journal.folder)
    return PartitionReport(**made)


def _assigned(
    journal: PartitionFolder, graph: Graph, parts: int, method: Any
) -> tuple[list[Ints], list[ArrayFile]]:
    """Return the part of each node, T x int16 [N_t], and their files, perhaps of an earlier run."""
    found: list[Ints] = []

    def write(t: int, name: str) -> list[ArrayFile]:
        if not found:
            found.extend(parts_of(graph, parts, method))
        return [write_array(journal.folder / name, found[t])]

    files = [journal.files(f"part {t}", partial(write, t))[0] for t in range(len(graph.node_types))]
    return [map_array(journal.folder, file).numpy() for file in files], files


def _digest_of_parts(method: Any) -> str:
    by_type = method if isinstance(method, dict) else {"": method}
    return fingerprint_of((v for v in by_type.values() if isinstance(v, Tensor)), LOOKED_AT)


METHODS = ("metis", "ldg", "hash")
GIVEN = "given"  # the method of a report on parts of the user's

Ints = npt.NDArray[Any]


def parts_of(graph: Graph, parts: int, method: Any) -> list[Ints]:
    """Return the part of each node, int16 [N_t] for each type.

    Args:
        graph: verified, on the host.
        parts: how many.
        method: as of `pyg_direct.partition`.

    Raises:
        ValueError, TypeError: no such method, or parts that are not in [0, parts) for each node.
        ImportError: 'metis' without `pymetis`.
    """
    csc = graph.csc
    if not isinstance(method, str):
        names = ", ".join(map(repr, METHODS))
        counts = graph.csc.num_nodes.tolist()
        return check_parts(method, "method", graph.node_types, counts, parts, f"one of {names}")
    check_choice("method", method, METHODS)
    if method == "hash":
        return [by_hash(int(count), parts) for count in csc.num_nodes]
    part = by_greedy_passes(csc, parts) if method == "ldg" else _by_metis(graph, parts)
    return [np.ascontiguousarray(p) for p in np.split(part, csc.node_base[1:-1])]


def _by_metis(graph: Graph, parts: int) -> Ints:
    """Return METIS's parts of all nodes, which are weighted by their lists.

    Weights of one node and of the mean list count alike: with nodes alone, one part of a power-law
    graph had 2.4 times the mean of in-edges.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            "method='metis' needs pymetis: pip install pymetis. "
            "method='ldg' needs nothing, and reads the graph in order, in bounded memory."
        ) from error
    csc = graph.csc
    if parts == 1:
        return np.zeros(int(csc.node_base[-1]), np.int16)
    ends, degrees = [], np.zeros(int(csc.node_base[-1]), np.int64)
    for r, (src, dst) in enumerate(zip(csc.src_type, csc.dst_type, strict=True)):
        first, count = int(csc.indptr_base[r]), int(csc.num_nodes[dst])
        degree = np.diff(csc.indptr[first : first + count + 1])
        base = int(csc.node_base[dst])
        degrees[base : base + count] += degree
        destination = np.repeat(np.arange(base, base + count), degree)
        source = csc.indices[slice(*csc.edge_base[r : r + 2])] + csc.node_base[src]
        ends.append(np.stack([source.astype(np.int64), destination]))
    pointers, neighbours = undirected(
        np.concatenate([np.empty((2, 0), np.int64), *ends], 1), len(degrees)
    )
    mean = max(1, int(degrees.mean())) if len(degrees) else 1
    adjacency = pymetis.CSRAdjacency(pointers, neighbours)
    _, part = pymetis.part_graph(parts, adjacency, vweights=(degrees + mean).tolist())
    return np.array(part, np.int16)


TRIED_FANOUTS, TRIED_SEEDS, TRIED_PARTS = [10, 10], 512, 8


@dataclass(frozen=True)
class PartitionReport:
    """Statistics of the parts that `pyg_direct.partition` made.

    Example:
        >>> report = pyg_direct.partition(data, "parts", 2, method="hash")
        >>> report.parts, sum(report.nodes), sum(report.in_edges) == data.num_edges
        (2, 300, True)
    """

    parts: int
    method: str
    nodes: Sequence[int]  # of each part
    in_edges: Sequence[int]  # of each part
    cut: float  # share of the edges whose ends are in two parts
    remote_rows: float
    """Share of the nodes of a batch whose rows other parts have, where its seeds are of one part,
    each part with a rank of its own: measured on batches of 512 seeds and fan-outs of 10 and 10."""
    remote_rows_of_shuffled: float  # the same of seeds from all parts: (parts - 1) / parts

    @property
    def node_balance(self) -> float:
        """Nodes of the largest part, over the mean."""
        return _balance(self.nodes)

    @property
    def edge_balance(self) -> float:
        """In-edges of the part with most of them, over the mean."""
        return _balance(self.in_edges)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers, texts and lists, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return (
            f"{self.parts} parts by {self.method}: the largest has {self.node_balance:.2f} times "
            f"the mean of nodes and {self.edge_balance:.2f} of in-edges; {self.cut:.0%} of the "
            f"edges go between parts. Of the rows of a batch {self.remote_rows:.0%} are remote "
            f"with seeds of one part, {self.remote_rows_of_shuffled:.0%} with shuffled ones"
        )


def _balance(counts: Sequence[int]) -> float:
    mean = sum(counts) / max(1, len(counts))
    return max(counts, default=0) / mean if mean else 1.0


def report_of(data: Any, graph: Graph, part: Sequence[Ints], parts: int, method: str) -> Any:
    """Return the report of parts.

    Args:
        data: the whole graph.
        graph: the same, verified.
        part: T x int16 [N_t].
        parts: how many.
        method: what chose them.
    """
    edges, cut = edges_between(graph.csc, part, parts)
    nodes = sum(np.bincount(p, minlength=parts) for p in part)
    return PartitionReport(
        parts, method, np.asarray(nodes).tolist(), edges.tolist(),
        float(cut.sum() / max(1, edges.sum())), _remote_rows(data, graph, part, parts),
        1.0 - 1.0 / parts,
    )  # fmt: skip


def _remote_rows(data: Any, graph: Graph, part: Sequence[Ints], parts: int) -> float:
    """Sample batches with seeds of one part, of the node type with the most in-edges."""
    csc = graph.csc
    if parts == 1 or csc.num_relations == 0:
        return 0.0
    t = int(csc.dst_type[np.diff(csc.edge_base).argmax()])
    sampler = NeighborSampler(data, TRIED_FANOUTS)
    rows = remote = 0
    random = np.random.default_rng(0)
    tried = np.linspace(0, parts - 1, min(parts, TRIED_PARTS)).astype(int).tolist()
    of_parts = [random.permutation(np.flatnonzero(part[t] == p))[:TRIED_SEEDS] for p in tried]
    batches = zip(map(torch.from_numpy, of_parts), rng.keys(0, 0, 0), strict=False)
    for p, batch in zip(tried, sampled(sampler, batches, graph.node_types[t]), strict=True):
        for kind, owners in zip(graph.node_types, part, strict=True):
            there = owners[batch.nodes[kind].numpy()]
            rows, remote = rows + len(there), remote + int((there != p).sum())
    return remote / max(1, rows)
