"""From the workspace of a batch on a CUDA device to the edges that the user keeps.

All relations are written by the same launches, into one piece of memory that they share: many small
edge types must not cost more than a few large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ...types import Csc, IntTable, SamplingPlan
from . import memory as device_memory
from .arrays import Attributes, Grids, prefix_sums, upload
from .launch import Kernel

Edges = list[tuple[Tensor, Tensor]]  # of each relation: edge_index [2, e_r], edge int64 [e_r]


class EdgeOutputs:
    """Writes the edges of a batch, relation by relation.

    Args:
        csc: the graph, placed on `device`.
        plan: how it is sampled.
        device: of the kernels.
        kernels: of emit.cu.
        grids: sizes of launches.
        relations: int64 [3, R]: source type, destination type, indptr base.
    """

    def __init__(
        self,
        csc: Csc,
        plan: SamplingPlan,
        device: torch.device,
        kernels: Mapping[str, Kernel],
        grids: Grids,
        relations: Tensor,
    ) -> None:
        self._csc, self._device, self._kernels, self._grids = csc, device, kernels, grids
        self._id_dtype, self._disjoint = plan.id_dtype, int(plan.disjoint)
        self._relations = relations
        # What positions are turned into edge ids with.
        perm: Tensor = csc.indices[:0] if csc.perm is None else csc.perm
        has_perm = int(csc.perm is not None)
        self._edge_ids = (perm, has_perm, upload(csc.edge_base[:-1], device))

    def by_hop(
        self, counts: IntTable, edge_ptr: Tensor, hop_start: list[int], *arrays: Tensor
    ) -> Edges:
        """Collect the edges of each relation from all hops, in one launch.

        Args:
            counts: [hops, R]: edges of each relation in each hop.
            edge_ptr: int64 [hops, R + 1]: their prefix sums in each hop.
            hop_start: [hops + 1]: first edge of each hop in `arrays`.
            arrays: label, col and position of the edges.
        """
        start = prefix_sums(counts.sum(0))
        edge_index, edge = self._room(int(start[-1]))
        if start[-1] > 0:
            place = np.concatenate([counts, np.zeros((len(counts), 1), np.int64)], 1)
            place = start + np.cumsum(place, 0) - place  # behind the same relation's earlier hops
            self._kernels["emit_edges"](
                (self._grids.loop(int(counts.sum(1).max())), len(counts)), edge_ptr,
                upload(place, self._device), self._csc.num_relations,
                upload(np.array(hop_start), self._device), *arrays, *self._edge_ids, edge_index,
                edge,
            )  # fmt: skip
        return self._split(start, edge_index, edge)

    def induced(
        self,
        attributes: Attributes,
        bounds: IntTable,
        nodes: tuple[Tensor, Tensor, Tensor, Tensor],
        table: tuple[Tensor, Tensor, int, int, int],
        run_sum: Tensor,
        edge_start: Tensor,
        read: Callable[[], IntTable],
    ) -> Edges:
        """Find all edges between the sampled nodes, in four launches.

        Args:
            attributes: the times.
            bounds: [T]: no type has more nodes.
            nodes: node, seed_of, node_start and node_end: see induced_edges in emit.cu.
            table: slot_base, table, base, width and locals: likewise.
            run_sum: scratch, int64 [blocks of a scan].
            edge_start: int64 [R + 1] out: prefix sums of the relations' edges.
            read: waits for the device and returns `edge_start`.
        """
        csc = self._csc
        bound = bounds[csc.dst_type]
        item_start, places = upload(prefix_sums(bound), self._device), int(bound.sum())
        item_ptr = device_memory.empty(places + 1, torch.int64, self._device)

        def launch(fill: int, outputs: tuple[Tensor, Tensor]) -> None:
            self._kernels["induced_edges"](
                (self._grids.loop(32 * int(bound.max())), len(bound)), csc.indptr, csc.indices,
                *self._edge_ids, self._relations, len(bound), *nodes, *table, self._disjoint,
                attributes.time, attributes.time_base, attributes.seed_time, fill, item_start,
                edge_start, item_ptr, *outputs,
            )  # fmt: skip

        if places > 0:
            launch(0, self._room(0))
            blocks, total = self._grids.scan(places), item_start[-1:]
            self._kernels["sum_runs"](blocks, total, item_ptr, run_sum)
            self._kernels["scan_runs"](
                blocks, total, run_sum, item_start, len(item_start), item_ptr, edge_start
            )
        start = read()
        outputs = self._room(int(start[-1]))
        if start[-1] > 0:
            launch(1, outputs)
        return self._split(start, *outputs)

    def _room(self, size: int) -> tuple[Tensor, Tensor]:
        edge_index = device_memory.empty(2 * size, self._id_dtype, self._device)
        return edge_index, device_memory.empty(size, torch.int64, self._device)

    def _split(self, start: IntTable, edge_index: Tensor, edge: Tensor) -> Edges:
        return [
            (edge_index[2 * a : 2 * b].view(2, b - a), edge[a:b])
            for a, b in pairwise(start.tolist())
        ]
