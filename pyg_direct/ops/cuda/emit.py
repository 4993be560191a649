"""From the workspace of a batch on a CUDA device to the edges and nodes that the user keeps.

All relations are written by the same launches, into one piece of memory that they share: many small
edge types must not cost more than a few large ones. So are all node types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ...types import Csc, IntTable, SamplingPlan
from . import memory as device_memory
from .arrays import Grids, prefix_sums, upload
from .launch import Arguments, Kernel

Edges = list[tuple[Tensor, Tensor]]  # of each relation: edge_index [2, e_r], edge int64 [e_r]


class Outputs:
    """Writes the edges of a batch relation by relation, and its nodes type by type.

    Args:
        csc: the graph, placed on `device`.
        plan: how it is sampled.
        device: of the kernels.
        kernels: of emit.cu.
        grids: sizes of launches.
    """

    def __init__(
        self,
        csc: Csc,
        plan: SamplingPlan,
        device: torch.device,
        kernels: Mapping[str, Kernel],
        grids: Grids,
    ) -> None:
        self._csc, self._device, self._kernels, self._grids = csc, device, kernels, grids
        self._id_dtype, self._disjoint = plan.id_dtype, plan.disjoint

    def nodes(
        self, counts: IntTable, arguments: Sequence[Arguments]
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Copy out the nodes of each type, and their subgraphs if they are disjoint.

        Args:
            counts: [T]: nodes of each type.
            arguments: of `emit_nodes`.
        """
        total = int(counts.sum())
        node = device_memory.empty(total, torch.int64, self._device)
        group = device_memory.empty(total if self._disjoint else 0, torch.int64, self._device)
        if total > 0:
            grid = (self._grids.loop(int(counts.max())), len(counts))
            self._launch("emit_nodes", grid, arguments, node_id=node, group=group)
        sizes = counts.tolist()
        groups = list(torch.split(group, sizes)) if self._disjoint else None
        return list(torch.split(node, sizes)), groups

    def by_hop(self, counts: IntTable, arguments: Sequence[Arguments]) -> Edges:
        """Collect the edges of each relation from all hops, in one launch.

        Args:
            counts: [hops, R]: edges of each relation in each hop.
            arguments: of `emit_edges`.
        """
        start = prefix_sums(counts.sum(0))
        edge_index, edge = self._room(int(start[-1]))
        if start[-1] > 0:
            grid = (self._grids.loop(int(counts.sum(1).max())), len(counts))
            self._launch("emit_edges", grid, arguments, edge_index=edge_index, edge=edge)
        return self._split(start, edge_index, edge)

    def induced(
        self,
        bounds: IntTable,
        arguments: Sequence[Arguments],
        edge_start: Tensor,
        read: Callable[[], IntTable],
    ) -> Edges:
        """Find all edges between the sampled nodes, in four launches.

        Args:
            bounds: [T]: no type has more nodes.
            arguments: of `induced_edges` and of `scan_runs`.
            edge_start: int64 [R + 1] out: prefix sums of the relations' edges.
            read: waits for the device and returns `edge_start`.
        """
        bound = bounds[self._csc.dst_type]
        item_start, places = upload(prefix_sums(bound), self._device), int(bound.sum())
        item_ptr = device_memory.empty(places + 1, torch.int64, self._device)

        def launch(fill: int, outputs: tuple[Tensor, Tensor]) -> None:
            self._launch(
                "induced_edges", (self._grids.loop(32 * int(bound.max())), len(bound)), arguments,
                fill=fill, item_start=item_start, edge_start=edge_start, item_ptr=item_ptr,
                edge_index=outputs[0], edge=outputs[1],
            )  # fmt: skip

        if places > 0:
            launch(0, self._room(0))
            blocks, total = self._grids.scan(places), item_start[-1:]
            self._launch("sum_runs", blocks, arguments, n_on_device=total, value=item_ptr)
            self._launch(
                "scan_runs", blocks, arguments, n_on_device=total, at=item_start,
                places=len(item_start), value=item_ptr, found=edge_start,
            )  # fmt: skip
        start = read()
        outputs = self._room(int(start[-1]))
        if start[-1] > 0:
            launch(1, outputs)
        return self._split(start, *outputs)

    def _launch(
        self, name: str, grid: int | tuple[int, ...], arguments: Sequence[Arguments],
        **named: Tensor | int,
    ) -> None:  # fmt: skip
        kernel = self._kernels[name]
        kernel.bind(*arguments, **named)(kernel.grid(grid))

    def _room(self, size: int) -> tuple[Tensor, Tensor]:
        edge_index = device_memory.empty(2 * size, self._id_dtype, self._device)
        return edge_index, device_memory.empty(size, torch.int64, self._device)

    def _split(self, start: IntTable, edge_index: Tensor, edge: Tensor) -> Edges:
        return [
            (edge_index[2 * a : 2 * b].view(2, b - a), edge[a:b])
            for a, b in pairwise(start.tolist())
        ]
