"""From the workspace of a batch on a CUDA device to the edges and nodes that the user keeps.

All relations are written by the same launches, into one piece of memory that they share: many small
edge types must not cost more than a few large ones. So are all node types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ...core.types import Csc, IntTable, Padded, SampledGraph, SamplingPlan, Sizes
from . import memory as device_memory
from .arrays import Grids, prefix_sums, upload
from .descriptor import Descriptor
from .launch import Arguments, Kernel

Edges = list[tuple[Tensor, Tensor]]  # of each relation: edge_index [2, e_r], edge int64 [e_r]


def hop_counts(counts: Mapping[str, IntTable]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the nodes of each type and the edges of each relation, hop by hop."""
    by_kind = np.diff(counts["node_ptr"], axis=0).T, np.diff(counts["edge_ptr"], axis=1).T
    return by_kind[0].tolist(), by_kind[1].tolist()


class Outputs:
    """Writes the edges of a batch relation by relation, and its nodes type by type.

    Args:
        csc: the graph, placed on the kernels' device or in host memory that it reads.
        plan: how it is sampled.
        kernels: of emit.cu.
        descriptor: of the batch.
        grids: sizes of launches.
    """

    def __init__(
        self,
        csc: Csc,
        plan: SamplingPlan,
        kernels: Mapping[str, Kernel],
        descriptor: Descriptor,
        grids: Grids,
    ) -> None:
        self._csc, self._kernels, self._grids = csc, kernels, grids
        self._device = descriptor.device
        self._id_dtype, self._disjoint = plan.id_dtype, plan.disjoint
        self._hops = len(plan.fanouts)
        none = torch.empty(0, dtype=torch.int64, device=self._device)
        self._arguments: Arguments = {
            "batch": descriptor,
            "hops": self._hops,
            "perm": csc.indices[:0] if csc.perm is None else csc.perm,
            # Where there are no edges, the ids of those that were entered are given.
            "has_perm": int(csc.perm is not None and len(csc.perm) > 0),
            **dict.fromkeys(("node_room", "edge_room", "row", "real"), none),
            "padded": 0,
        }
        self._sizes: Sizes | None = None  # of the last batch with padding
        self._starts: dict[str, Tensor | int] = {}  # where its types and relations begin
        self._edge_start: IntTable = np.zeros(1, np.int64)

    def nodes(self, counts: IntTable) -> tuple[list[Tensor], list[Tensor] | None]:
        """Copy out the nodes of each type, and their subgraphs if they are disjoint.

        Args:
            counts: [T]: nodes of each type.
        """
        total = int(counts.sum())
        node = device_memory.empty(total, torch.int64, self._device)
        subgraph = device_memory.empty(total if self._disjoint else 0, torch.int64, self._device)
        if total > 0:
            grid = (self._grids.loop(int(counts.max())), len(counts))
            self._launch("emit_nodes", grid, node_id=node, subgraph=subgraph)
        sizes = counts.tolist()
        subgraphs = list(torch.split(subgraph, sizes)) if self._disjoint else None
        return list(torch.split(node, sizes)), subgraphs

    def by_hop(self, counts: IntTable) -> Edges:
        """Collect the edges of each relation from all hops, in one launch.

        Args:
            counts: [hops, R]: edges of each relation in each hop.
        """
        start = prefix_sums(counts.sum(0))
        edge_index, edge = self._room(int(start[-1]))
        if start[-1] > 0:
            grid = (self._grids.loop(int(counts.sum(1).max())), len(counts))
            self._launch("emit_edges", grid, edge_index=edge_index, edge=edge)
        return self._split(start, edge_index, edge)

    def padded(self, sizes: Sizes, read: Callable[[], dict[str, IntTable]]) -> SampledGraph:
        """Copy out nodes and edges with padding, by counts that stay on the device.

        Args:
            sizes: of nodes and edges with padding.
            read: waits for the counts and returns them.
        """
        if sizes != self._sizes:
            starts = [prefix_sums(np.array(of_kind, np.int64)) for of_kind in sizes]
            node_room, edge_room = (upload(start, self._device) for start in starts)
            self._starts = {"padded": 1, "node_room": node_room, "edge_room": edge_room}
            self._sizes, self._edge_start = sizes, starts[1]
        types, (nodes, edges) = len(sizes.nodes), map(sum, sizes)
        disjoint = self._disjoint
        lengths = (nodes, nodes, nodes * disjoint, edges, types + len(sizes.edges))
        node_id, node, subgraph, edge_row, real = (
            device_memory.empty(length, torch.int64, self._device) for length in lengths
        )
        edge_index, edge_id = self._room(edges)
        grid = (self._grids.loop(max(sizes.nodes, default=0)), types)
        self._launch(
            "emit_nodes", grid, **self._starts, node_id=node_id, row=node, subgraph=subgraph,
            real=real[:types],
        )  # fmt: skip
        self._launch(
            "emit_edges", (self._grids.loop(edges), self._hops + 1), **self._starts,
            edge_index=edge_index, edge=edge_id, row=edge_row, real=real[types:],
        )  # fmt: skip
        edges_of = self._split(self._edge_start, edge_index, edge_id)
        return SampledGraph(
            node=torch.split(node, sizes.nodes),
            seed_of=torch.split(subgraph, sizes.nodes) if disjoint else None,
            edge_index=[index for index, _ in edges_of],
            edge=torch.split(edge_row, sizes.edges),
            num_sampled_nodes=[[] for _ in sizes.nodes],
            num_sampled_edges=[[] for _ in sizes.edges],
            padded=Padded(
                torch.split(node_id, sizes.nodes),
                [ids for _, ids in edges_of],
                real[:types].unbind(),
                real[types:].unbind(),
                lambda: hop_counts(read()),
            ),
        )

    def induced(self, bounds: IntTable, edge_start: Tensor, read: Callable[[], IntTable]) -> Edges:
        """Find all edges between the sampled nodes, in four launches.

        Args:
            bounds: [T]: no type has more nodes.
            edge_start: int64 [R + 1] out: prefix sums of the relations' edges.
            read: waits for the device and returns `edge_start`.
        """
        bound = bounds[self._csc.dst_type]
        item_start, places = upload(prefix_sums(bound), self._device), int(bound.sum())
        item_ptr = device_memory.empty(places + 1, torch.int64, self._device)

        def launch(fill: int, outputs: tuple[Tensor, Tensor]) -> None:
            self._launch(
                "induced_edges", (self._grids.loop(32 * int(bound.max())), len(bound)),
                fill=fill, item_start=item_start, edge_start=edge_start, item_ptr=item_ptr,
                edge_index=outputs[0], edge=outputs[1],
            )  # fmt: skip

        if places > 0:
            launch(0, self._room(0))
            blocks = self._grids.scan(places)
            run_sum = device_memory.empty(blocks, torch.int64, self._device)
            self._launch(
                "sum_runs", blocks, n_on_device=item_start[-1:], value=item_ptr, run_sum=run_sum
            )
            self._launch(
                "scan_places", blocks, run_sum=run_sum, item_start=item_start,
                places=len(item_start), value=item_ptr, edge_start=edge_start,
            )  # fmt: skip
        start = read()
        outputs = self._room(int(start[-1]))
        if start[-1] > 0:
            launch(1, outputs)
        return self._split(start, *outputs)

    def _launch(self, name: str, grid: int | tuple[int, ...], **named: Tensor | int) -> None:
        kernel = self._kernels[name]
        kernel.bind(self._arguments, **named)(kernel.grid(grid))

    def _room(self, size: int) -> tuple[Tensor, Tensor]:
        edge_index = device_memory.empty(2 * size, self._id_dtype, self._device)
        return edge_index, device_memory.empty(size, torch.int64, self._device)

    def _split(self, start: IntTable, edge_index: Tensor, edge: Tensor) -> Edges:
        return [
            (edge_index[2 * a : 2 * b].view(2, b - a), edge[a:b])
            for a, b in pairwise(start.tolist())
        ]
