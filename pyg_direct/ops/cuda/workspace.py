"""One batch on a CUDA device: `ops.Workspace` over the kernels of `cuda/*.cu`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.types import BatchKey, Csc, ExcludedEdges, IntTable, SampledGraph, SamplingPlan
from ..backend import in_range
from .arrays import (
    HOST_BLOCKS,
    MAX_BLOCKS,
    MAX_SCAN_BLOCKS,
    Arrays,
    BatchState,
    Grids,
    graph_fields,
    prefix_sums,
)
from .bounds import Forecast
from .emit import Edges, Outputs
from .launch import Grid, Launch, Library, threads_of
from .plan_kernels import PlanKernels
from .source import ONE_BLOCK_FILE
from .table import NodeLists, NodeTable, power_of_two

SMALL_FANOUT = 32  # up to here a sub-warp holds all picks in registers
PICKS_LIMIT_BYTES = 64 << 20  # scratch of larger fan-outs
# A hop is done by one block if no step of it takes the block's threads more rounds. A round waits
# for memory, about a microsecond; a launch that is saved is some microseconds of the host. An
# estimate, which no GPU has measured.
ONE_BLOCK_ROUNDS = 48

Steps = list[tuple[Launch, Grid]]


class CudaWorkspace:
    """The scratch arrays of one batch; see `ops.Workspace` for what the calls mean.

    Counts stay on the device. The host knows upper bounds of them and sizes memory by those, so it
    reads back once a batch, in `emit`; and before the draws of a hop that takes all neighbours.

    A launch takes the address of a descriptor (`cuda/batch.cuh`) and the number of a hop: what
    differs between batches lies in device memory, in one piece with the descriptor, which `start`
    uploads at once. Launches are prepared once and used from batch to batch. From `start` to `emit`
    nothing but that upload and the prepared launches is done, no memory is allocated and nothing
    is waited for, unless a hop takes all neighbours: the sequence could be captured as a CUDA graph
    and replayed. The seeds and the first hops, while they are small, are one launch of one block.
    """

    def __init__(
        self, csc: Csc, plan: SamplingPlan, library: Library, one_block: bool = True
    ) -> None:
        self._csc, self._plan = csc, plan
        device = library.compiler.device
        threads = library.compiler.block_threads
        self._grids = Grids(threads)
        on_host = any(array.device != device for _, array in csc.arrays())
        # Of kernels that read the graph.
        rounds = ONE_BLOCK_ROUNDS if one_block else 0
        self._one_block_limit = rounds * threads_of(ONE_BLOCK_FILE, threads)
        self._graph_grids = Grids(threads, HOST_BLOCKS if on_host else MAX_BLOCKS)
        self._kernels = PlanKernels(csc, plan, library)
        self._descriptor = self._kernels.descriptor()
        self._descriptor.set(**graph_fields(csc, plan, device))
        self._forecast = Forecast(csc, plan)
        self._longest = -1  # not known yet
        self._outputs = Outputs(csc, plan, self._kernels, self._descriptor, self._graph_grids)

        self._launches: dict[tuple[str, int, int], Steps] = {}  # prepared, by stage and hops
        self._sizes: IntTable = np.full(csc.num_types, -1)  # [T]: seeds of the batch
        self._must_forecast = True
        self._seeds_entered = True
        self._state = BatchState(csc, plan, self._descriptor, device)
        self._arrays = Arrays(self._descriptor, device)
        _add_arrays(self._arrays, csc)
        # Of each node type a list, of each hop a region of the edges' arrays.
        self._lists = NodeLists(csc.num_types, self._arrays, plan.disjoint)
        self._table = NodeTable(csc.num_nodes, self._arrays, plan.disjoint)
        self._hop_start = [0]

    def sample(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        seed_time: Tensor | None = None,
        excluded: ExcludedEdges | None = None,
        induced: bool = False,
    ) -> SampledGraph | None:
        """Sample one batch."""
        if not self.start(seeds, key, seed_time, excluded):
            return None
        self.sample_hops(0, len(self._plan.fanouts))
        return self.emit_induced() if induced else self.emit()

    def start(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        seed_time: Tensor | None = None,
        excluded: ExcludedEdges | None = None,
    ) -> bool:
        """Begin a batch; its seeds are entered with the first hop."""
        given = [torch.empty(0, dtype=torch.int64) if seed is None else seed for seed in seeds]
        ids = [seed.numpy() for seed in given]
        if not all(map(in_range, ids, self._csc.num_nodes.tolist())):
            return False
        sizes = np.array([len(seed) for seed in given], np.int64)
        if self._must_forecast or not np.array_equal(sizes, self._sizes):
            self._sizes, self._must_forecast, self._hop_start = sizes, False, [0]
            self._launches.clear()
            self._forecast.begin(sizes)
            self._make_room(np.zeros_like(sizes))
        self._next_window()
        if self._state.begin(given, key, seed_time, excluded):
            self._launches.clear()
        self._seeds_entered = False
        return True

    def sample_hops(self, first: int, last: int) -> None:
        """Sample the hops [first, last) of the plan. Waits where a hop takes all neighbours."""
        hop = first
        while hop < last:
            end = hop
            while end < last and self._is_small(end):
                end += 1
            if end > hop and (self._seeds_entered or self._has_few_seeds()):
                self._run(self._sample_small, hop, end)
                self._seeds_entered = True
                hop = end
                continue
            self._enter_seeds()
            self._run(self._plan_items, hop)
            if self._forecast.must_ask(hop):
                self._ask(hop)
            self._run(self._draw, hop)
            self._run(self._relabel, hop)
            hop += 1

    def emit(self) -> SampledGraph:
        """Copy the edges out, relation by relation. Waits for the device once."""
        self._enter_seeds()
        counts = self._state.read()
        edges = np.diff(counts["edge_ptr"], axis=1)  # [hops, R]
        return self._sampled(counts["node_ptr"], self._outputs.by_hop(edges), edges.T.tolist())

    def emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes. Waits for the device once."""
        self._enter_seeds()
        counts: dict[str, IntTable] = {}

        def read() -> IntTable:
            counts.update(self._state.read())
            return counts["induced"]

        edges = self._outputs.induced(self._forecast.nodes, self._state.induced, read)
        return self._sampled(counts["node_ptr"], edges, None)

    def _run(self, stage: Callable[[int, int], Steps], hop: int, end: int = -1) -> None:
        """Launch what a stage consists of, which is prepared when it is first needed."""
        key = (stage.__name__, hop, end)
        steps = self._launches.get(key)
        if steps is None:
            steps = self._launches[key] = stage(hop, end)
        for launch, grid in steps:
            launch(grid)

    def _enter_seeds(self) -> None:
        """Write the seeds to the lists and enter them into the table, unless that is done."""
        if not self._seeds_entered:
            self._run(self._list_seeds, 0)
            self._run(self._enter_known, 0)
            self._seeds_entered = True

    def _list_seeds(self, hop: int, _: int) -> Steps:
        most = int(self._sizes.max(initial=0))
        grid = (self._grids.loop(most), self._csc.num_types)
        return [self._step("list_seeds", grid, hop)] if most > 0 else []

    def _enter_known(self, hop: int, _: int) -> Steps:
        """Enter the nodes before a hop into the table."""
        grid = (self._grids.loop(int(self._forecast.nodes.max(initial=0))), self._csc.num_types)
        return [self._step("enter_nodes", grid, hop)]

    def _has_few_seeds(self) -> bool:
        return int(self._sizes.sum()) <= self._one_block_limit

    def _is_small(self, hop: int) -> bool:
        """Whether one block does a hop."""
        fanouts = self._plan.fanouts[hop]
        if self._forecast.must_ask(hop) or self._csc.weighted.any() or (fanouts < 0).any():
            return False
        if not self._plan.replace and fanouts.max(initial=0) > SMALL_FANOUT:
            return False
        threads = self._forecast.items(hop) * _lanes(fanouts)
        return max(threads, self._forecast.edges(hop)) <= self._one_block_limit

    def _sample_small(self, hop: int, end: int) -> Steps:
        """Enter the seeds, if that is not done, and do the hops [hop, end), by one block."""
        return [
            self._step(
                "sample_small", 1, hop, enter_seeds=int(not self._seeds_entered), first=hop,
                last=end, lanes=_lanes(self._plan.fanouts[hop:end]),
            )
        ]  # fmt: skip

    def _plan_items(self, hop: int, _: int) -> Steps:
        """Count the edges of each item of the hop."""
        blocks = self._graph_grids.scan(self._forecast.items(hop))
        return [self._step("plan_items", blocks, hop), self._step("scan_items", blocks, hop)]

    def _ask(self, hop: int) -> None:
        """Read the counts of a hop, and forecast the hops behind it anew."""
        self._must_forecast = True
        counts = self._state.read()
        known, edge_ptr = counts["node_ptr"][hop + 1], counts["edge_ptr"]
        self._forecast.learn(hop, known, np.diff(edge_ptr[hop]))
        renew = self._make_room(known, edge_ptr[:hop, -1].tolist())
        if renew:
            self._next_window()
        self._state.upload_tables()
        if renew:
            for launch, grid in self._enter_known(hop, -1):
                launch(grid)

    def _draw(self, hop: int, _: int) -> Steps:
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
        if self._has_large_fanouts(hop):
            slots, grid = self._large_fanouts(hop)
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

    def _has_large_fanouts(self, hop: int) -> bool:
        uniform = self._plan.fanouts[hop][~self._csc.weighted]
        return not self._plan.replace and uniform.max(initial=0) > SMALL_FANOUT

    def _large_fanouts(self, hop: int) -> tuple[int, int]:
        """Return the slots of each warp's hash table in `sample_large`, and its blocks."""
        # A list that is not longer than the fan-out is taken whole, and needs no table.
        uniform = self._plan.fanouts[hop][~self._csc.weighted]
        slots = power_of_two(2 * min(int(uniform.max()), self._max_degree()))
        items = self._forecast.items(hop)
        warps = max(1, min(items, PICKS_LIMIT_BYTES // (4 * slots)))
        return slots, self._graph_grids.loop(32 * warps)

    def _relabel(self, hop: int, _: int) -> Steps:
        """Number the sources of the hop."""
        edges = self._forecast.edges(hop)
        grid, blocks = self._grids.loop(edges), self._grids.scan(edges)
        return [
            self._step("enter_edges", grid, hop),
            self._step("mark_first", blocks, hop),
            self._step("scan_ranks", blocks, hop),
            self._step("count_new", 1, hop),
            self._step("label_edges", grid, hop),
        ]

    def _step(self, name: str, blocks: int | Grid, hop: int, **named: int) -> tuple[Launch, Grid]:
        """Prepare a launch."""
        kernel = self._kernels[name]
        return kernel.bind({"batch": self._descriptor, "hop": hop}, named), kernel.grid(blocks)

    def _max_degree(self) -> int:
        """Return the length of the longest list. Waits for the device, the first time."""
        if self._longest < 0:
            indptr = self._csc.indptr
            self._longest = int((indptr[1:] - indptr[:-1]).max()) if len(indptr) > 1 else 0
        return self._longest

    def _sampled(
        self, node_ptr: IntTable, edges: Edges, num_edges: list[list[int]] | None
    ) -> SampledGraph:
        node, seed_of = self._outputs.nodes(node_ptr[-1])
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
        self._lists.make_room(need, known)
        kept = list(zip(self._hop_start, counted, strict=False))
        for size in edges[len(self._hop_start) - 1 :]:
            self._hop_start.append(self._hop_start[-1] + size + 1)
        for name in ("col", "label", "position"):
            arrays.grow(name, self._hop_start[-1], kept)
        largest = max(edges, default=0)
        for name, room in (("row", largest), ("slot", largest), ("rank", largest + 1)):
            arrays.grow(name, room)
        arrays.grow("group", largest if self._plan.disjoint else 0)
        self._make_room_for_items()
        tables = self._state.tables
        tables["node_start"][:] = self._lists.start
        tables["hop_start"][: len(self._hop_start)] = self._hop_start
        renewed = self._table.make_room(need)
        return renewed or not self._table.holds(self._lists.longest, largest)

    def _make_room_for_items(self) -> None:
        """Have room for the items of the hops that are forecast, and of the next one."""
        items = 0
        for hop in range(min(len(self._plan.fanouts), len(self._forecast.hop_edges) + 1)):
            items = max(items, self._forecast.items(hop))
            if self._has_large_fanouts(hop):
                slots, grid = self._large_fanouts(hop)
                warps = grid * (self._grids.block_threads // 32)
                self._arrays.grow("picks", warps * slots)
        if items + 1 > len(self._arrays["item_ptr"]):
            # What lies there is of the hop whose edges are being counted.
            before = len(self._arrays["item_ptr"])
            for name in ("item_start", "item_degree", "item_ptr"):
                self._arrays.grow(name, items + 1, [(0, before)])
            weights = 0 if self._csc.weights is None else items
            self._arrays.grow("item_low", weights, [(0, len(self._arrays["item_low"]))])
            excluded = 2 * items if self._plan.excluding else 0
            self._arrays.grow("item_excluded", excluded, [(0, len(self._arrays["item_excluded"]))])

    def _next_window(self) -> None:
        """Forget what the table holds."""
        edges = max(self._forecast.hop_edges, default=0)
        self._table.next_window(self._lists.longest, edges)
        tables = self._state.tables
        tables["window"][:] = self._table.base, self._table.width, self._table.locals
        tables["slot_base"][:] = prefix_sums(self._table.slots)


def _add_arrays(arrays: Arrays, csc: Csc) -> None:
    ids, relations = csc.indices.dtype, csc.num_relations
    for name in ("item_start", "item_degree", "item_ptr", "item_excluded", "slot"):
        arrays.add(name)
    for name in ("seed_of", "group", "picks", "rank", "label", "col"):
        arrays.add(name, torch.int32)
    arrays.add("item_low", torch.float64)
    arrays.add("node", ids)
    arrays.add("row", ids)
    arrays.add("position", csc.indptr.dtype)
    for name in ("rank_at", "new_ptr", "new_base"):
        arrays.add(name, room=relations + 1)
    arrays.add("run_sum", room=MAX_SCAN_BLOCKS)


def _lanes(fanouts: IntTable) -> int:
    """Return how many lanes a sub-warp needs for items of such fan-outs: 8, 16 or 32."""
    return max(8, min(SMALL_FANOUT, power_of_two(int(fanouts.max(initial=0)))))
