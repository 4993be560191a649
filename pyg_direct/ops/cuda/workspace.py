"""One batch on a CUDA device: `ops.Workspace` over the kernels of `cuda/*.cu`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ...types import BatchKey, Csc, IntTable, SampledGraph, SamplingPlan
from . import memory as device_memory
from .arrays import (
    HOST_BLOCKS,
    MAX_BLOCKS,
    MAX_SCAN_BLOCKS,
    BatchState,
    Grids,
    Growing,
    graph_arguments,
    prefix_sums,
    upload,
)
from .bounds import Forecast
from .emit import Edges, Outputs
from .launch import Arguments, Grid, Kernel, Launch, Library, type_name

SMALL_FANOUT = 32  # up to here a sub-warp holds all picks in registers
PICKS_LIMIT_BYTES = 64 << 20  # scratch of larger fan-outs
DENSE_LIMIT_BYTES = 1 << 30  # a map over all nodes up to here, a hash table above
WINDOW_TOP = 0xFFFFFFFF  # the entry of an empty table: see table.cuh

Steps = list[tuple[Launch, Grid]]


class CudaWorkspace:
    """The scratch arrays of one batch; see `ops.Workspace` for what the calls mean.

    Counts stay on the device. The host knows upper bounds of them and sizes memory by those, so it
    reads back once a batch, in `emit`; and before the draws of a hop that takes all neighbours.

    Launches are prepared once and used from batch to batch: a batch with as many seeds as the one
    before has the same grids and the same arguments, as all that differs between batches lies in
    device memory (`BatchState`). So from `start` to `emit` nothing but one upload and the prepared
    launches is done, no memory is allocated and nothing is waited for, unless a hop takes all
    neighbours: the sequence could be captured as a CUDA graph and replayed.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan, library: Library) -> None:
        types, relations = csc.num_types, csc.num_relations
        self._csc, self._plan, self._library = csc, plan, library
        self._device = library.compiler.device
        self._hashed = plan.disjoint or 4 * int(csc.node_base[-1]) > DENSE_LIMIT_BYTES
        threads = library.compiler.block_threads
        self._grids = Grids(threads)
        on_host = any(array.device != self._device for _, array in csc.arrays())
        # Of kernels that read the graph.
        self._graph_grids = Grids(threads, HOST_BLOCKS if on_host else MAX_BLOCKS)
        self._kernels, emit = self._load_kernels()
        self._forecast = Forecast(csc, plan)
        self._longest = -1  # not known yet
        self._outputs = Outputs(csc, plan, self._device, emit, self._graph_grids)

        self._launches: dict[tuple[str, int], Steps] = {}  # prepared, by stage and hop
        self._sizes: IntTable = np.full(types, -1)  # [T]: seeds of the batch
        self._must_forecast = True
        self._constants = graph_arguments(csc, plan, self._device)
        self._fanouts = upload(
            np.asarray(plan.fanouts).reshape(len(plan.fanouts), relations), self._device
        )
        self._state = BatchState(csc, plan, self._device)
        self._arrays = Growing(self._device, self._launches.clear)
        self._add_arrays()
        # Of each node type a list, of each hop a region of the edges' arrays.
        self._node_room: IntTable = np.zeros(types, np.int64)
        self._node_start = self._node_room
        self._arrays.replace("node_start", upload(self._node_start, self._device))
        self._hop_start = [0]
        self._slots = np.zeros(types, np.int64) if self._hashed else csc.num_nodes
        self._new_table(self._slots)
        self._base = WINDOW_TOP  # the window of the batch: see table.cuh
        self._width = self._locals = 0

    def start(
        self, seeds: Sequence[Tensor | None], key: BatchKey, seed_time: Tensor | None = None
    ) -> None:
        """Begin a batch."""
        given = [torch.empty(0, dtype=torch.int64) if seed is None else seed for seed in seeds]
        sizes = np.array([len(seed) for seed in given], np.int64)
        if self._must_forecast or not np.array_equal(sizes, self._sizes):
            self._sizes, self._must_forecast, self._hop_start = sizes, False, [0]
            self._launches.clear()
            self._forecast.begin(sizes)
            self._make_room(np.zeros_like(sizes))
        if self._state.begin(given, self._next_window(), key, seed_time):
            self._launches.clear()
        self._run(self._enter_seeds, 0)

    def sample_hops(self, first: int, last: int) -> None:
        """Sample the hops [first, last) of the plan. Waits where a hop takes all neighbours."""
        for hop in range(first, last):
            self._run(self._plan_items, hop)
            if self._forecast.must_ask(hop):
                self._ask(hop)
            self._run(self._draw, hop)
            self._run(self._relabel, hop)

    def emit(self) -> SampledGraph:
        """Copy the edges out, relation by relation. Waits for the device once."""
        counts = self._state.read()
        edges = np.diff(counts["edge_ptr"], axis=1)  # [hops, R]
        outputs = self._outputs.by_hop(edges, self._arguments())
        return self._sampled(counts["node_ptr"], outputs, edges.T.tolist())

    def emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes. Waits for the device once."""
        counts: dict[str, IntTable] = {}

        def read() -> IntTable:
            counts.update(self._state.read())
            return counts["induced"]

        induced = self._state.arguments["induced"]
        edges = self._outputs.induced(self._forecast.nodes, self._arguments(), induced, read)
        return self._sampled(counts["node_ptr"], edges, None)

    def _run(self, stage: Callable[[int], Steps], hop: int) -> None:
        """Launch what a stage consists of, which is prepared when it is first needed."""
        steps = self._launches.get((stage.__name__, hop))
        if steps is None:
            steps = stage(hop)
            self._launches[stage.__name__, hop] = steps
        for launch, grid in steps:
            launch(grid)

    def _enter_seeds(self, hop: int) -> Steps:
        """Write the seeds to the lists, and enter them into the table."""
        types, most = self._csc.num_types, int(self._sizes.max(initial=0))
        listed = self._step("list_seeds", (self._grids.loop(most), types), hop)
        return [listed, *self._enter_known(hop)] if most > 0 else self._enter_known(hop)

    def _enter_known(self, hop: int) -> Steps:
        """Enter the nodes before a hop into the table."""
        grid = (self._grids.loop(int(self._forecast.nodes.max(initial=0))), self._csc.num_types)
        end = self._state.arguments["node_ptr"][hop + 1]
        return [self._step("enter_nodes", grid, hop, node_end=end)]

    def _plan_items(self, hop: int) -> Steps:
        """Count the edges of each item of the hop."""
        items, relations = self._forecast.items(hop), self._csc.num_relations
        for name in ("item_start", "item_degree", "item_ptr"):
            self._arrays.grow(name, items + 1)
        self._arrays.grow("item_low", 0 if self._csc.weights is None else items)
        blocks, base = self._graph_grids.scan(items), self._state.arguments["item_base"][hop]
        return [
            self._step("plan_items", blocks, hop),
            self._step(
                "scan_runs", blocks, hop, n_on_device=base[relations:], at=base,
                places=relations + 1, value=self._arrays["item_ptr"],
                found=self._state.arguments["edge_ptr"][hop],
            ),
        ]  # fmt: skip

    def _ask(self, hop: int) -> None:
        """Read the counts of a hop, and forecast the hops behind it anew."""
        self._must_forecast = True
        counts = self._state.read()
        known, edge_ptr = counts["node_ptr"][hop + 1], counts["edge_ptr"]
        self._forecast.learn(hop, known, np.diff(edge_ptr[hop]))
        if self._make_room(known, edge_ptr[:hop, -1].tolist()):
            self._state.move_window(self._next_window())
            for launch, grid in self._enter_known(hop):
                launch(grid)

    def _draw(self, hop: int) -> Steps:
        """Draw the edges of the hop: one launch for each kind of fan-out that it has."""
        items, edges = self._forecast.items(hop), self._forecast.edges(hop)
        steps: Steps = []
        if edges == 0:
            return steps
        grids = self._graph_grids
        fanouts, replace = self._plan.fanouts[hop], self._plan.replace
        if (fanouts < 0).any():
            steps.append(self._step("sample_all", grids.loop(-(-edges // 4)), hop))
        uniform = fanouts[(fanouts >= 0) & ~self._csc.weighted]
        small = uniform if replace else uniform[uniform <= SMALL_FANOUT]
        if len(small) > 0:
            name, lanes = "sample_replace" if replace else "sample_floyd", _lanes(small)
            steps.append(self._step(name, grids.loop(items * lanes), hop, lanes=lanes))
        if not replace and uniform.max(initial=0) > SMALL_FANOUT:
            # A list that is not longer than the fan-out is taken whole, and needs no table.
            largest = min(int(uniform.max()), self._max_degree())
            slots = _power_of_two(2 * largest)
            warps = max(1, min(items, PICKS_LIMIT_BYTES // (4 * slots)))
            grid = grids.loop(32 * warps)
            self._arrays.grow("picks", grid * (grids.block_threads // 32) * slots)
            steps.append(self._step("sample_large", grid, hop, slots=slots))
        by_weight = fanouts[(fanouts >= 0) & self._csc.weighted]
        if len(by_weight) > 0 and replace:
            lanes = _lanes(by_weight)
            steps.append(
                self._step("weighted_replace", grids.loop(items * lanes), hop, lanes=lanes)
            )
        elif len(by_weight) > 0:
            steps.append(self._step("weighted_distinct", grids.loop(items), hop))
        return steps

    def _relabel(self, hop: int) -> Steps:
        """Number the sources of the hop."""
        relations, edges = self._csc.num_relations, self._forecast.edges(hop)
        grid, blocks = self._grids.loop(edges), self._grids.scan(edges)
        edge_ptr = self._state.arguments["edge_ptr"][hop]
        ranked = self._step(
            "scan_ranks", blocks, hop, n_on_device=edge_ptr[relations:], at=edge_ptr,
            places=relations + 1, value=self._arrays["rank"], found=self._arrays["rank_at"],
        )  # fmt: skip
        return [
            self._step("enter_edges", grid, hop),
            self._step("mark_first", blocks, hop),
            ranked,
            self._step("count_new", 1, hop),
            self._step("label_edges", grid, hop),
        ]

    def _step(
        self, name: str, blocks: int | Grid, hop: int, **named: Tensor | int
    ) -> tuple[Launch, Grid]:
        """Prepare a launch, with arguments that go by other names elsewhere."""
        kernel = self._kernels[name]
        return kernel.bind(*self._arguments(), self._of_hop(hop), **named), kernel.grid(blocks)

    def _arguments(self) -> list[Arguments]:
        """Return what kernels take of the graph, the workspace and the batch."""
        node_end = {"node_end": self._state.arguments["node_ptr"][-1]}
        return [self._constants, self._arrays, self._state.arguments, node_end]

    def _of_hop(self, hop: int) -> dict[str, Tensor | int]:
        """Return what kernels take of a hop."""
        if hop >= len(self._plan.fanouts):
            return {}
        state = self._state.arguments
        counts = {
            "node_ptr": state["node_ptr"][hop],
            "known": state["node_ptr"][hop + 1],
            "after": state["node_ptr"][hop + 2],
            "item_base": state["item_base"][hop],
            "next_base": state["item_base"][hop + 1],
            "edge_ptr": state["edge_ptr"][hop],
        }
        edges = {}
        if hop + 1 < len(self._hop_start):
            first, last = self._hop_start[hop : hop + 2]
            edges = {name: self._arrays[name][first:last] for name in ("label", "col", "position")}
        return {**counts, **edges, "hop": hop, "fanout": self._fanouts[hop]}

    def _load_kernels(self) -> tuple[dict[str, Kernel], Mapping[str, Kernel]]:
        """Return the kernels of sampling and relabelling, and those of emit.cu."""
        csc, library = self._csc, self._library
        names = {
            "P": type_name(csc.indptr.dtype),
            "I": type_name(csc.indices.dtype),
            "M": type_name((csc.indices if csc.perm is None else csc.perm).dtype),
            "O": type_name(self._plan.id_dtype),
            "kHashed": "true" if self._hashed else "false",
        }
        sample = library.load("sample.cu", P=names["P"], I=names["I"], T="i64")
        relabel = library.load("relabel.cu", I=names["I"], kHashed=names["kHashed"], T="i32")
        # Both files sum, but numbers of different types.
        kernels = {**relabel, **sample, "scan_ranks": relabel["scan_runs"]}
        if csc.weighted.any():
            kernels.update(library.load("weighted.cu", P=names["P"], I=names["I"]))
        return kernels, library.load("emit.cu", **names, T="i64")

    def _add_arrays(self) -> None:
        ids, relations = self._csc.indices.dtype, self._csc.num_relations
        arrays = self._arrays
        for name in ("item_start", "item_degree", "item_ptr", "node_start", "slot_base"):
            arrays.add(name)
        for name in ("hop_start", "slot"):
            arrays.add(name)
        for name in ("seed_of", "group", "picks", "rank", "label", "col", "table"):
            arrays.add(name, torch.int32)
        arrays.add("item_low", torch.float64)
        arrays.add("node", ids)
        arrays.add("row", ids)
        arrays.add("position", self._csc.indptr.dtype)
        arrays.add("rank_at", room=relations + 1)
        arrays.add("new_base", room=relations)
        arrays.add("run_sum", room=MAX_SCAN_BLOCKS)

    def _max_degree(self) -> int:
        """Return the length of the longest list. Waits for the device, the first time."""
        if self._longest < 0:
            indptr = self._csc.indptr
            self._longest = int((indptr[1:] - indptr[:-1]).max()) if len(indptr) > 1 else 0
        return self._longest

    def _sampled(
        self, node_ptr: IntTable, edges: Edges, num_edges: list[list[int]] | None
    ) -> SampledGraph:
        node, seed_of = self._outputs.nodes(node_ptr[-1], self._arguments())
        return SampledGraph(
            node=node,
            seed_of=seed_of,
            edge_index=[edge_index for edge_index, _ in edges],
            edge=[edge for _, edge in edges],
            num_sampled_nodes=np.diff(node_ptr, axis=0).T.tolist(),
            num_sampled_edges=num_edges,
        )

    def _make_room(self, known: IntTable, counted: Sequence[int] = ()) -> bool:
        """Have room for what is forecast, keeping what the batch has so far.

        Args:
            known: [T]: nodes of each type.
            counted: edges of each hop that is done.

        Returns:
            Whether the known nodes must be entered into the table again.
        """
        need, edges, arrays = self._forecast.nodes, self._forecast.hop_edges, self._arrays
        if (need > self._node_room).any():
            self._grow_lists(np.maximum(need + need // 2 + 1, self._node_room), known)
        kept = list(zip(self._hop_start, counted, strict=False))
        for size in edges[len(self._hop_start) - 1 :]:
            self._hop_start.append(self._hop_start[-1] + size + 1)
        for name in ("col", "label", "position"):
            arrays.grow(name, self._hop_start[-1], kept)
        arrays.replace("hop_start", upload(np.array(self._hop_start), self._device))
        largest = max(edges, default=0)
        arrays.grow("row", largest)
        arrays.grow("slot", largest)
        arrays.grow("rank", largest + 1)
        arrays.grow("group", largest if self._plan.disjoint else 0)
        renew = int(self._node_room.max()) > self._locals or largest > self._width - self._locals
        if self._hashed and (2 * need > self._slots).any():
            self._new_table(np.maximum(self._slots, [_power_of_two(3 * int(n)) for n in need]))
            renew = True
        return renew

    def _grow_lists(self, room: IntTable, known: IntTable) -> None:
        ends = prefix_sums(room)
        start, size = ends[:-1], int(ends[-1])
        for name in ("node", "seed_of") if self._plan.disjoint else ("node",):
            old, longer = self._arrays[name], self._empty(size, self._arrays[name].dtype)
            for before, after, kept in zip(
                self._node_start.tolist(), start.tolist(), known.tolist(), strict=True
            ):
                device_memory.copy(longer[after : after + kept], old[before : before + kept])
            self._arrays.replace(name, longer)
        self._node_start, self._node_room = start, room
        self._arrays.replace("node_start", upload(start, self._device))

    def _new_table(self, slots: IntTable) -> None:
        """Begin an empty table of `slots` [T] slots for each node type."""
        base = prefix_sums(slots)
        self._slots, self._base = slots, WINDOW_TOP
        self._arrays.replace("slot_base", upload(base, self._device))
        table = torch.full((int(base[-1]),), -1, dtype=torch.int32, device=self._device)
        self._arrays.replace("table", table)

    def _next_window(self) -> tuple[int, int, int]:
        """Forget what the table holds, and return base, width and locals of the next window."""
        self._locals = int(self._node_room.max(initial=0))
        self._width = self._locals + max(self._forecast.hop_edges, default=0)
        if self._width > self._base:
            self._arrays["table"].fill_(-1)
            self._base = WINDOW_TOP
        self._base -= self._width
        return self._base, self._width, self._locals

    def _empty(self, size: int, dtype: torch.dtype) -> Tensor:
        return device_memory.empty(size, dtype, self._device)


def _lanes(fanouts: IntTable) -> int:
    """Return how many lanes a sub-warp needs for items of such fan-outs: 8, 16 or 32."""
    return max(8, min(SMALL_FANOUT, _power_of_two(int(fanouts.max()))))


def _power_of_two(at_least: int) -> int:
    """Return the smallest power of two that is not below `at_least`."""
    return 1 << max(0, at_least - 1).bit_length()
