"""A run of destination nodes, and what layers read for it: rows, in-edges, one-hop subgraphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..batch.gather import gather
from ..core.quantized import QuantizedTensor, rows_of
from ..core.types import BatchKey, SamplingPlan
from ..graph.from_pyg import Graph
from ..ops.backend import Backend
from .cutter import Cut
from .spaces import Constant, Edges, Nodes
from .spaces import ends as source_and_target


class InEdges(NamedTuple):
    """The in-edges of a block under one edge type, in the order of the CSC."""

    source: Tensor  # [E], ids of the source type
    target: Tensor  # [E], positions in the block, ascending
    ids: Tensor  # [E], columns of the user's edge_index


class OneHop(NamedTuple):
    """The nodes of a block and the sources of all their in-edges, renumbered by type."""

    node: dict[Any, Tensor]  # node type -> int64, ids; those of the block first
    edge_index: dict[Any, Tensor]  # edge type -> int64 [2, E], positions in `node`
    edge: dict[Any, Tensor]  # edge type -> int64 [E], columns of the user's edge_index


class Degrees(NamedTuple):
    """What the whole graph tells about each node."""

    scale: Tensor  # [N], 1 / sqrt(degree), 0 for a degree of 0
    loop: Tensor | None  # [N], weight of the self loop; None if the layer adds none


@dataclass
class Scope:
    """What all blocks share: the model, the graph, and the values that are complete."""

    cut: Cut
    graph: Graph  # placed by `backend`
    backend: Backend
    indptr: npt.NDArray[Any]  # of the graph, in host memory
    tables: dict[str, Tensor]  # rows of all nodes or edges, by the name of the value
    constants: dict[str, Any] = field(default_factory=dict)
    degrees: dict[Any, Degrees] = field(default_factory=dict)  # by `Normalisation.key`

    def __post_init__(self) -> None:
        self.relations = {key: r for r, key in enumerate(self.graph.edge_types)}
        self.types = {key: t for t, key in enumerate(self.graph.node_types)}
        fanouts = np.full((1, self.graph.csc.num_relations), -1, np.int64)
        self._plan = SamplingPlan(fanouts, False, False, False, torch.int64)
        self._workspaces: list[Any] = []
        self._edge_segments = {
            name: segment
            for segment in self.cut.segments(0)
            if isinstance(segment.space, Edges)
            for name in segment.outputs
        }
        # Whether the backend reads lists, and reduces rows of neighbours, where they lie.
        rows = torch.zeros(max(1, int(self.graph.csc.num_nodes.max())), 1)
        self.reduces = self.backend.reduce(self.graph.csc, 0, rows, "sum", (0, 0)) is not None
        for segment in self.cut.segments(0):
            if isinstance(segment.space, Constant):
                given = {**self.tables, **self.constants}
                self.constants.update(segment.run(given))

    def num_nodes(self, node_type: Any) -> int:
        """Return how many nodes of a type there are."""
        return int(self.graph.csc.num_nodes[self.types[node_type]])

    def list_ends(self, edge_type: Any) -> Any:
        """Return the list bounds of an edge type: NumPy [number of targets + 1], from 0."""
        csc, r = self.graph.csc, self.relations[edge_type]
        begin = int(csc.indptr_base[r])
        ends = self.indptr[begin : begin + int(csc.num_nodes[csc.dst_type[r]]) + 1]
        return ends - int(csc.edge_base[r])

    def rows(self, name: str, index: Tensor | slice) -> Tensor:
        """Return rows of a value on the device of the backend, in the dtype the model computes."""
        table, wanted = self.tables[name], self.cut.values.get(name)
        if isinstance(table, QuantizedTensor) and not isinstance(index, slice):
            found: Tensor = gather(table, index, 0, self.backend, len(table))
        elif isinstance(index, slice):
            found = self.backend.memory.to_batch(rows_of(table, index), table.device)
        else:
            readable = self.backend.memory.readable(table) if table.is_contiguous() else None
            if readable is None:
                picked = table[index.to(table.device)]
                found = self.backend.memory.to_batch(picked, table.device)
            else:
                found = self.backend.gather(readable, index, len(table))
        return found if wanted is None or wanted.dtype is None else found.to(wanted.dtype)

    def edge_rows(self, name: str, ids: Tensor) -> Tensor:
        """Return rows of an edge value; those that the model computes are computed for `ids`."""
        segment = self._edge_segments.get(name)
        if segment is None:
            return self.rows(name, ids)
        given = {
            n: self.constants[n] if n in self.constants else self.edge_rows(n, ids)
            for n in segment.inputs
        }
        return segment.run(given)[name]  # type: ignore[no-any-return]

    def one_hop(self, node_type: Any, first: int, last: int) -> OneHop:
        """Return the one-hop subgraph of a block, made by the backend's sampler."""
        try:
            work = self._workspaces.pop()  # of no other thread now
        except IndexError:
            work = self.backend.workspace(self.graph.csc, self._plan)
        seeds: list[Tensor | None] = [None] * len(self.types)
        seeds[self.types[node_type]] = torch.arange(first, last)
        out = work.sample(seeds, BatchKey(0, 0))
        assert out is not None, f"nodes {first} to {last} are of the graph"
        self._workspaces.append(work)
        return OneHop(
            dict(zip(self.graph.node_types, out.node, strict=True)),
            dict(zip(self.graph.edge_types, out.edge_index, strict=True)),
            dict(zip(self.graph.edge_types, out.edge, strict=True)),
        )


class Block:
    """The nodes [first, last) of a type."""

    def __init__(self, scope: Scope, node_type: Any, first: int, last: int) -> None:
        self.scope, self.node_type = scope, node_type
        self.first, self.last = first, last
        self._in_edges: dict[Any, InEdges] = {}
        self._one_hop: OneHop | None = None

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self.last - self.first

    def own(self, name: str) -> Any:
        """Return the block's rows of a value of its type, or a constant."""
        if name in self.scope.constants:
            return self.scope.constants[name]
        return self.scope.rows(name, slice(self.first, self.last))

    def in_edges(self, edge_type: Any) -> InEdges:
        """Return the in-edges of the block, on the device of the backend."""
        if edge_type not in self._in_edges:
            read = self._read_in_edges if self.scope.reduces else self._sampled_in_edges
            self._in_edges[edge_type] = read(edge_type)
        return self._in_edges[edge_type]

    def _read_in_edges(self, edge_type: Any) -> InEdges:
        """Read the lists of the CSC in host memory."""
        csc, r = self.scope.graph.csc, self.scope.relations[edge_type]
        base = int(csc.indptr_base[r])
        ends = self.scope.indptr[base + self.first : base + self.last + 1].astype(np.int64)
        begin, end = int(ends[0]), int(ends[-1])
        ids = (
            np.arange(begin, end) - int(csc.edge_base[r])
            if csc.perm is None
            else csc.perm[begin:end].astype(np.int64)
        )
        return InEdges(
            torch.from_numpy(csc.indices[begin:end].astype(np.int64)),
            torch.repeat_interleave(torch.from_numpy(np.diff(ends))),
            torch.from_numpy(ids),
        )

    def _sampled_in_edges(self, edge_type: Any) -> InEdges:
        """Take them from the one-hop subgraph."""
        part = self.one_hop()
        source, target = part.edge_index[edge_type]
        nodes = part.node[source_and_target(edge_type)[0]]
        return InEdges(nodes[source], target, part.edge[edge_type])

    def one_hop(self) -> OneHop:
        """Return the one-hop subgraph of the block."""
        if self._one_hop is None:
            self._one_hop = self.scope.one_hop(self.node_type, self.first, self.last)
        return self._one_hop


def is_rows_of(value: Any, node_type: Any) -> bool:
    """Whether a `cutter.Value` holds rows of a node type."""
    return isinstance(value.space, Nodes) and value.space.node_type == node_type


def blocks_of(
    count: int, ends: list[Any], max_rows: int, max_edges: int
) -> Iterator[tuple[int, int, int]]:
    """Divide nodes into runs: yield (first, last, number of in-edges).

    Args:
        count: number of nodes.
        ends: list bounds of each edge type that is read, NumPy [count + 1].
        max_rows: of one run.
        max_edges: of one run; only a run of one node may have more.
    """
    total = np.zeros(count + 1, np.int64)
    for bounds in ends:
        total += bounds
    first = 0
    while first < count:
        last = int(np.searchsorted(total, total[first] + max_edges, side="right")) - 1
        last = min(max(last, first + 1), first + max_rows, count)
        yield first, last, int(total[last] - total[first])
        first = last
