"""One batch on a CUDA device: `ops.Workspace` over the kernels of `cuda/*.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...types import BatchKey, Csc, IntTable, SampledGraph, SamplingPlan
from . import memory as device_memory
from .arrays import MAX_SCAN_BLOCKS, Attributes, Counts, Grids, Items, prefix_sums, upload
from .bounds import Forecast
from .emit import EdgeOutputs, Edges
from .launch import Library, type_name
from .memory import grown

SMALL_FANOUT = 32  # up to here a sub-warp holds all picks in registers
PICKS_LIMIT_BYTES = 64 << 20  # scratch of larger fan-outs
DENSE_LIMIT_BYTES = 1 << 30  # a map over all nodes up to here, a hash table above
WINDOW_TOP = 0xFFFFFFFF  # the entry of an empty table: see table.cuh


class CudaWorkspace:
    """The scratch arrays of one batch; see `ops.Workspace` for what the calls mean.

    Counts stay on the device. The host knows upper bounds of them and sizes memory by those, so it
    reads back once a batch, in `emit`; and in `plan`, before a hop that takes all neighbours.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan, library: Library) -> None:
        hops, types, relations = len(plan.fanouts), csc.num_types, csc.num_relations
        self._csc, self._plan, self._library = csc, plan, library
        self._device, self._disjoint = library.compiler.device, int(plan.disjoint)
        self._hashed = plan.disjoint or 4 * int(csc.node_base[-1]) > DENSE_LIMIT_BYTES
        self._grids = Grids(library.compiler.block_threads)
        self._load_kernels()
        self._forecast = Forecast(csc, plan)
        self._key = BatchKey(0, 0)
        self._longest = -1  # not known yet
        self._attributes = Attributes(csc, self._device)

        self._relations = self._upload(np.stack([csc.src_type, csc.dst_type, csc.indptr_base]))
        self._outputs = EdgeOutputs(
            csc, plan, self._device, self._emit, self._grids, self._relations
        )
        self._fanouts = self._upload(np.asarray(plan.fanouts).reshape(hops, relations))
        self._counts = counts = Counts(csc, plan, self._device)
        self._node_ptr, self._item_base = counts.node_ptr, counts.item_base
        self._edge_ptr, self._induced = counts.edge_ptr, counts.induced
        self._rank_at = self._empty(relations + 1)
        self._new_base = self._empty(relations)
        self._run_sum = self._empty(MAX_SCAN_BLOCKS)

        # Of each node type a list, of each hop a region of the edges' arrays.
        self._node_start, self._node_room = np.zeros((2, types), np.int64)
        self._node_start_d = self._upload(self._node_start)
        self._hop_start = [0]
        ids, positions = csc.indices.dtype, csc.indptr.dtype
        self._node = self._empty(0, ids)
        self._seed_of = self._empty(0, torch.int32)
        self._col, self._label = self._empty(0, torch.int32), self._empty(0, torch.int32)
        self._position = self._empty(0, positions)
        # Of the current hop only.
        self._items = Items(self._device, csc.weights is not None)
        self._row, self._slot = self._empty(0, ids), self._empty(0)
        self._group = self._empty(0, torch.int32)
        self._picks = self._empty(0, torch.int32)

        self._slots = np.zeros(types, np.int64) if self._hashed else csc.num_nodes
        self._table = self._slot_base = self._empty(0)
        self._new_table(self._slots)
        self._base = WINDOW_TOP  # the window of the batch: see table.cuh
        self._width = self._locals = 0

    def start(
        self, seeds: Sequence[Tensor | None], key: BatchKey, seed_time: Tensor | None = None
    ) -> None:
        """Begin a batch."""
        self._key = key
        self._attributes.begin(seed_time)
        sizes = np.array([0 if seed is None else len(seed) for seed in seeds], np.int64)
        self._counts.begin(sizes)
        self._hop_start = [0]
        self._forecast.begin(sizes)
        self._make_room(np.zeros_like(sizes))
        group = 0
        for t, seed in enumerate(seeds):
            if seed is not None and len(seed) > 0:
                placed = device_memory.upload(seed.contiguous(), self._device)
                self._relabel["list_seeds"](
                    self._grids.loop(len(seed)), placed, len(seed), int(self._node_start[t]),
                    group, self._disjoint, self._node, self._seed_of,
                )  # fmt: skip
                group += len(seed)
        self._open_window(self._node_ptr[1])

    def sample_hops(self, first: int, last: int) -> None:
        """Sample the hops [first, last) of the plan."""
        for hop in range(first, last):
            self.plan(hop)
            self.sample(hop)
            self.relabel(hop)

    def plan(self, hop: int) -> None:
        """Count the edges of the hop. Waits for the device if the hop takes all neighbours."""
        items, relations = self._forecast.items(hop), self._csc.num_relations
        self._items.make_room(items)
        blocks, base = self._grids.scan(items), self._item_base[hop]
        bound, item = self._attributes, self._items
        self._sample["plan_items"](
            blocks, self._csc.indptr, self._node, self._node_start_d, self._node_ptr[hop],
            self._relations, self._fanouts[hop], base, relations, int(self._plan.replace),
            self._csc.indices, bound.time, bound.time_base, int(self._plan.recent),
            self._seed_of, bound.seed_time, bound.weighted, bound.weight, bound.cumulative,
            item.low, item.start, item.degree, item.ptr, self._run_sum,
        )  # fmt: skip
        self._sample["scan_runs"](
            blocks, base[relations:], self._run_sum, base, relations + 1, item.ptr,
            self._edge_ptr[hop],
        )  # fmt: skip
        if self._forecast.must_ask(hop):
            node_ptr, _, edge_ptr, _ = self._read_counts()
            self._forecast.learn(hop, node_ptr[hop + 1], np.diff(edge_ptr[hop]))
            if self._make_room(node_ptr[hop + 1], edge_ptr[:hop, -1].tolist()):
                self._open_window(self._node_ptr[hop + 1])

    def sample(self, hop: int) -> None:
        """Draw the edges of the hop: one launch for each kind of fan-out that it has."""
        items, edges = self._forecast.items(hop), self._forecast.edges(hop)
        if edges == 0:
            return
        fanouts, replace = self._plan.fanouts[hop], self._plan.replace
        common = (
            self._csc.indices, self._node_start_d, self._node_ptr[hop], self._seed_of,
            self._relations, self._fanouts[hop], self._item_base[hop], self._items.start,
            self._items.degree, self._items.ptr, self._csc.num_relations,
        )  # fmt: skip
        law = (self._attributes.weighted, hop, self._key.low, self._key.high, self._disjoint)
        outputs = (
            self._row,
            self._part(self._col, hop),
            self._part(self._position, hop),
            self._group,
        )
        if (fanouts < 0).any():
            self._sample["sample_all"](
                self._grids.loop(-(-edges // 4)), *common, self._disjoint, *outputs
            )
        uniform = fanouts[(fanouts >= 0) & ~self._csc.weighted]
        small = uniform if replace else uniform[uniform <= SMALL_FANOUT]
        if len(small) > 0:
            lanes = _lanes(small)
            kernel = self._sample["sample_replace" if replace else "sample_floyd"]
            kernel(self._grids.loop(items * lanes), *common, *law, lanes, *outputs)
        if not replace and uniform.max(initial=0) > SMALL_FANOUT:
            # A list that is not longer than the fan-out is taken whole, and needs no table.
            largest = min(int(uniform.max()), self._max_degree())
            slots, block = _power_of_two(2 * largest), self._library.compiler.block_threads
            warps = max(1, min(items, PICKS_LIMIT_BYTES // (4 * slots)))
            grid = self._grids.loop(32 * warps)
            self._picks = grown(self._picks, grid * (block // 32) * slots)
            self._sample["sample_large"](grid, *common, *law, slots, self._picks, *outputs)
        by_weight = fanouts[(fanouts >= 0) & self._csc.weighted]
        if len(by_weight) > 0:
            graph = self._attributes
            weights = (
                graph.time_base, graph.alias, graph.cumulative, self._items.low, graph.weight
            )  # fmt: skip
            if replace:
                lanes, kernel = _lanes(by_weight), self._weighted["weighted_replace"]
                kernel(self._grids.loop(items * lanes), *common, *law, lanes, *weights, *outputs)
            else:
                kernel = self._weighted["weighted_distinct"]
                kernel(self._grids.loop(items), *common, *law, *weights, *outputs)

    def relabel(self, hop: int) -> None:
        """Number the sources of the hop."""
        relations, edges = self._csc.num_relations, self._forecast.edges(hop)
        edge_ptr, known, found = (
            self._edge_ptr[hop],
            self._node_ptr[hop + 1],
            self._node_ptr[hop + 2],
        )
        grid, blocks, base = self._grids.loop(edges), self._grids.scan(edges), self._base
        # The labels' place holds the ranks of the new nodes until they are turned into labels.
        label = self._part(self._label, hop)
        self._relabel["enter_edges"](
            grid, self._row, self._group, edge_ptr, self._relations, relations, self._node,
            self._seed_of, self._node_start_d, self._slot_base, base, self._width, self._locals,
            self._disjoint, self._table, self._slot,
        )  # fmt: skip
        self._relabel["mark_first"](
            blocks, self._table, self._slot, edge_ptr, relations, base, self._locals, label,
            self._run_sum,
        )  # fmt: skip
        self._relabel["scan_runs"](
            blocks, edge_ptr[relations:], self._run_sum, edge_ptr, relations + 1, label,
            self._rank_at,
        )  # fmt: skip
        self._relabel["count_new"](
            1, self._relations, relations, self._csc.num_types, self._rank_at, known,
            self._new_base, found, self._item_base[hop + 1],
        )  # fmt: skip
        self._relabel["append_new"](
            grid, self._row, self._group, self._slot, label, self._rank_at, self._new_base,
            edge_ptr, self._relations, relations, self._node_start_d, base, self._disjoint,
            self._node, self._seed_of, self._table,
        )  # fmt: skip
        self._relabel["label_edges"](
            grid, self._table, self._slot, edge_ptr, relations, base, label
        )

    def emit(self) -> SampledGraph:
        """Copy the edges out, relation by relation. Waits for the device once."""
        node_ptr, _, edge_ptr, _ = self._read_counts()
        counts = np.diff(edge_ptr, axis=1)  # [hops, R]
        edges = self._outputs.by_hop(
            counts, self._edge_ptr, self._hop_start, self._label, self._col, self._position
        )
        return self._sampled(node_ptr, edges, counts.T.tolist())

    def emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes. Waits for the device once."""
        node_ptr: IntTable = np.empty(0, np.int64)

        def read() -> IntTable:
            nonlocal node_ptr
            node_ptr, _, _, edge_start = self._read_counts()
            return edge_start

        edges = self._outputs.induced(
            self._attributes, self._forecast.nodes,
            (self._node, self._seed_of, self._node_start_d, self._node_ptr[-1]),
            (self._slot_base, self._table, self._base, self._width, self._locals), self._run_sum,
            self._induced, read,
        )  # fmt: skip
        return self._sampled(node_ptr, edges, None)

    def _load_kernels(self) -> None:
        csc, library = self._csc, self._library
        names = {
            "P": type_name(csc.indptr.dtype),
            "I": type_name(csc.indices.dtype),
            "M": type_name((csc.indices if csc.perm is None else csc.perm).dtype),
            "O": type_name(self._plan.id_dtype),
            "kHashed": "true" if self._hashed else "false",
        }
        self._sample = library.load("sample.cu", P=names["P"], I=names["I"], T="i64")
        if csc.weighted.any():
            self._weighted = library.load("weighted.cu", P=names["P"], I=names["I"])
        self._relabel = library.load("relabel.cu", I=names["I"], kHashed=names["kHashed"], T="i32")
        self._emit = library.load("emit.cu", **names, T="i64")

    def _max_degree(self) -> int:
        """Return the length of the longest list. Waits for the device, the first time."""
        if self._longest < 0:
            indptr = self._csc.indptr
            self._longest = int((indptr[1:] - indptr[:-1]).max()) if len(indptr) > 1 else 0
        return self._longest

    def _sampled(
        self,
        node_ptr: IntTable,
        edges: Edges,
        num_edges: list[list[int]] | None,
    ) -> SampledGraph:
        def lists(source: Tensor) -> list[Tensor]:
            ranges = zip(self._node_start.tolist(), node_ptr[-1].tolist(), strict=True)
            return [source[a : a + n].to(torch.int64, copy=True) for a, n in ranges]

        return SampledGraph(
            node=lists(self._node),
            seed_of=lists(self._seed_of) if self._disjoint else None,
            edge_index=[edge_index for edge_index, _ in edges],
            edge=[edge for _, edge in edges],
            num_sampled_nodes=np.diff(node_ptr, axis=0).T.tolist(),
            num_sampled_edges=num_edges,
        )

    def _read_counts(self) -> list[IntTable]:
        """Wait for the device, and return its counts."""
        return self._counts.read()

    def _make_room(self, known: IntTable, counted: Sequence[int] = ()) -> bool:
        """Have room for what is forecast, keeping what the batch has so far.

        Args:
            known: [T]: nodes of each type.
            counted: edges of each hop that is done.

        Returns:
            Whether the known nodes must be entered into the table again.
        """
        need, edges = self._forecast.nodes, self._forecast.hop_edges
        if (need > self._node_room).any():
            self._grow_lists(np.maximum(need + need // 2 + 1, self._node_room), known)
        kept = list(zip(self._hop_start, counted, strict=False))
        for size in edges[len(self._hop_start) - 1 :]:
            self._hop_start.append(self._hop_start[-1] + size + 1)
        self._col = grown(self._col, self._hop_start[-1], kept)
        self._label = grown(self._label, self._hop_start[-1], kept)
        self._position = grown(self._position, self._hop_start[-1], kept)
        largest = max(edges, default=0)
        self._row = grown(self._row, largest)
        self._slot = grown(self._slot, largest)
        self._group = grown(self._group, largest if self._disjoint else 0)
        renew = int(self._node_room.max()) > self._locals or largest > self._width - self._locals
        if self._hashed and (2 * need > self._slots).any():
            self._new_table(np.maximum(self._slots, [_power_of_two(3 * int(n)) for n in need]))
            renew = True
        return renew

    def _grow_lists(self, room: IntTable, known: IntTable) -> None:
        ends = prefix_sums(room)
        start, size = ends[:-1], int(ends[-1])
        node, seed_of = self._empty(size, self._node.dtype), self._seed_of
        if self._disjoint:
            seed_of = self._empty(size, torch.int32)
        for old, new, kept in zip(self._node_start.tolist(), start.tolist(), known, strict=True):
            device_memory.copy(node[new : new + kept], self._node[old : old + kept])
            if self._disjoint:
                device_memory.copy(seed_of[new : new + kept], self._seed_of[old : old + kept])
        self._node, self._seed_of = node, seed_of
        self._node_start, self._node_start_d, self._node_room = start, self._upload(start), room

    def _new_table(self, slots: IntTable) -> None:
        """Begin an empty table of `slots` [T] slots for each node type."""
        base = prefix_sums(slots)
        self._slots, self._slot_base = slots, self._upload(base)
        self._table = torch.full((int(base[-1]),), -1, dtype=torch.int32, device=self._device)
        self._base = WINDOW_TOP

    def _open_window(self, node_end: Tensor) -> None:
        """Forget what the table holds, and enter the first `node_end` [T] nodes of each list."""
        self._locals = int(self._node_room.max(initial=0))
        self._width = self._locals + max(self._forecast.hop_edges, default=0)
        if self._width > self._base:
            self._table.fill_(-1)
            self._base = WINDOW_TOP
        self._base -= self._width
        self._relabel["enter_nodes"](
            (self._grids.loop(int(self._forecast.nodes.max(initial=0))), self._csc.num_types),
            self._node, self._seed_of, self._node_start_d, node_end, self._slot_base, self._base,
            self._width, self._locals, self._disjoint, self._table,
        )  # fmt: skip

    def _part(self, edges: Tensor, hop: int) -> Tensor:
        """Return the region of `hop` of one of the edges' arrays."""
        return edges[self._hop_start[hop] : self._hop_start[hop + 1]]

    def _empty(self, size: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return device_memory.empty(size, dtype, self._device)

    def _upload(self, table: IntTable) -> Tensor:
        return upload(table, self._device)


def _lanes(fanouts: IntTable) -> int:
    """Return how many lanes a sub-warp needs for items of such fan-outs: 8, 16 or 32."""
    return max(8, min(SMALL_FANOUT, _power_of_two(int(fanouts.max()))))


def _power_of_two(at_least: int) -> int:
    """Return the smallest power of two that is not below `at_least`."""
    return 1 << max(0, at_least - 1).bit_length()
