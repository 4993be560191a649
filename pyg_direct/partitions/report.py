"""How even the parts of a graph are, and how many rows batches take from other parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import NodeSamplerInput

from ..graph.from_pyg import Graph
from ..ops.host.parts import edges_between
from ..sampling.sampler import NeighborSampler

TRIED_FANOUTS, TRIED_SEEDS, TRIED_PARTS = [10, 10], 512, 8

Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class PartitionReport:
    """What `pyg_direct.partition` made.

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
    """Try batches with the seeds of one part, of the node type with the most in-edges."""
    csc = graph.csc
    if parts == 1 or csc.num_relations == 0:
        return 0.0
    t = int(csc.dst_type[np.diff(csc.edge_base).argmax()])
    sampler = NeighborSampler(data, TRIED_FANOUTS, seed=0)
    rows = remote = 0
    random = np.random.default_rng(0)
    for p in np.linspace(0, parts - 1, min(parts, TRIED_PARTS)).astype(int).tolist():
        seeds = np.flatnonzero(part[t] == p)
        chosen = torch.from_numpy(random.permutation(seeds)[:TRIED_SEEDS])
        inputs = NodeSamplerInput(None, chosen, None, graph.node_types[t])
        found: Any = sampler.sample_from_nodes(inputs).node
        by_type: Mapping[Any, Any] = found if isinstance(found, dict) else {None: found}
        for kind, owners in zip(graph.node_types, part, strict=True):
            there = owners[by_type[kind].numpy()]
            rows, remote = rows + len(there), remote + int((there != p).sum())
    return remote / max(1, rows)
