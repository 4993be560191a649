"""The draws of one hop on a CUDA device: the launches that read the graph, and room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...core.types import BatchKey, Csc, Frontier, IntTable, Picks, Rules, SamplingPlan
from ..backend import ID_LIMIT
from ..metapaths import MetapathBudgets, check_alone
from ..picks import check_frontier
from . import memory as device_memory
from . import tuning
from .arrays import (
    Arrays,
    BatchState,
    Grids,
    graph_fields,
    prefix_sums,
)
from .bounds import Forecast
from .launch import Grid, Launch, Library, PlanKernels
from .table import NodeLists, NodeTable, power_of_two

SMALL_FANOUT = 32  # up to here a sub-warp holds all picks in registers
PICKS_LIMIT_BYTES = 64 << 20  # scratch of larger fan-outs

Steps = list[tuple[Launch, Grid]]


class CudaDrawing:
    """The scratch arrays of a batch, and the steps of a hop that read the graph.

    A launch takes the address of a descriptor (`cuda/batch.cuh`) and the number of a hop: what
    differs between batches lies in device memory, in one piece with the descriptor, which
    `BatchState.begin` uploads at once. Launches are prepared once and used from batch to batch.

    Args:
        csc: the graph, placed on the kernels' device or in host memory that it reads.
        plan: how it is sampled.
        library: kernels of the device.
        enters: whether sources get local ids; else there is no table of them, and nodes come with
            local ids of their own.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan, library: Library, enters: bool = True) -> None:
        device = library.compiler.device
        self._budgets: MetapathBudgets | None = None
        counted = plan
        if plan.adaptive:
            self._budgets = MetapathBudgets(csc, plan.fanouts, device)
            # Lists may be taken whole, so hops are counted before there is room for their edges.
            counted = plan._replace(fanouts=np.where(plan.fanouts > 0, -1, 0))
            plan = plan._replace(fanouts=np.where(plan.fanouts > 0, ID_LIMIT, 0))
        self._csc, self._plan, self._library, self._enters = csc, plan, library, enters
        threads = library.compiler.block_threads
        self._grids = Grids(threads, tuning.MAX_BLOCKS)
        on_host = any(array.device != device for _, array in csc.arrays())
        # Of kernels that read the graph.
        on_link = tuning.host_blocks(library.compiler.link_bytes_under_way)
        self._graph_grids = Grids(threads, on_link if on_host else tuning.MAX_BLOCKS)
        self._kernels = PlanKernels(csc, plan, library)
        self._descriptor = self._kernels.descriptor()
        self._descriptor.set(**graph_fields(csc, plan, device), has_local=int(not enters))
        self._forecast = Forecast(csc, counted)
        self._longest = -1  # not known yet

        self._launches: dict[tuple[str, int, int], Steps] = {}  # prepared, by stage and hops
        self._must_forecast = True
        self._state = BatchState(csc, plan, self._descriptor, device)
        self._arrays = Arrays(self._descriptor, device)
        _add_arrays(self._arrays, csc)
        # Of each node type a list, of each hop a region of the edges' arrays.
        self._lists = NodeLists(csc.num_types, self._arrays, plan.disjoint, not enters)
        in_table = csc.num_nodes if enters else np.zeros_like(csc.num_nodes)
        self._table = NodeTable(in_table, self._arrays, plan.disjoint)
        self._hop_start = [0]

    def draw_for(self, hop: int, items: Frontier, key: BatchKey, rules: Rules) -> Picks:
        """Draw for nodes that lie in these arrays for the one call; see `Workspace.draw`."""
        check_alone(self._plan)
        check_frontier(items, self._csc.num_types, self._csc.indices.dtype, self._plan.disjoint)
        sizes = np.array([len(node) for node in items.node], np.int64)
        self._launches.clear()
        self._hop_start = [0]
        self._forecast.begin_hop(hop, sizes)
        self._make_room(np.zeros_like(sizes))
        given = {"node": items.node, "local": items.local, "seed_of": items.seed_of}
        for name, parts in given.items():
            ends = zip(self._lists.start.tolist(), parts or [], strict=False)
            for first, part in ends:
                device_memory.copy(self._arrays[name][first : first + len(part)], part)
        self._state.begin_hop(hop, sizes, key, rules, items.seed_of)
        self._run(self._count_items, hop)
        self._run(self._scan_items, hop)
        if self._forecast.must_ask(hop):
            self._ask(hop)
        self._run(self._draw, hop)
        edges = int(self._state.read()["edge_ptr"][hop, -1])
        number, first = int(sizes[self._csc.dst_type].sum()), self._hop_start[hop]
        count = self._arrays["item_ptr"][: number + 1].diff().to(torch.int32)
        sources = self._arrays["row"][:edges], self._arrays["position"][first : first + edges]
        return Picks(count, *map(device_memory.copied, sources))

    def _run(self, stage: Callable[[int, int], Steps], hop: int, end: int = -1) -> None:
        """Launch what a stage consists of, which is prepared when it is first needed."""
        key = (stage.__name__, hop, end)
        steps = self._launches.get(key)
        if steps is None:
            steps = self._launches[key] = stage(hop, end)
        self._launch(steps)

    def _launch_once(self, name: str, blocks: int, hop: int, **named: torch.Tensor | int) -> None:
        """Launch a kernel whose arguments are new in each batch."""
        self._launch([self._step(name, blocks, hop, **named)])

    def _launch(self, steps: Steps) -> None:
        for launch, grid in steps:
            launch(grid)

    def _enter_known(self, hop: int, _: int) -> Steps:
        """Enter the nodes before a hop into the table."""
        grid = (self._grids.loop(int(self._forecast.nodes.max(initial=0))), self._csc.num_types)
        return [self._step("enter_nodes", grid, hop)]

    def _count_items(self, hop: int, _: int) -> Steps:
        """Count the edges of each item of the hop."""
        return [self._step("plan_items", self._blocks_of_items(hop), hop)]

    def _scan_items(self, hop: int, _: int) -> Steps:
        """Turn the numbers of edges into first edges."""
        return [self._step("scan_items", self._blocks_of_items(hop), hop)]

    def _blocks_of_items(self, hop: int) -> int:
        return self._graph_grids.scan(self._forecast.items(hop))

    def _ask(self, hop: int) -> None:
        """Read the counts of a hop, and forecast the hops after it anew."""
        self._must_forecast = True
        counts = self._state.read()
        known, edge_ptr = counts["node_ptr"][hop + 1], counts["edge_ptr"]
        self._forecast.learn(hop, known, np.diff(edge_ptr[hop]))
        renew = self._make_room(known, edge_ptr[:hop, -1].tolist())
        if renew:
            self._next_window()
        self._state.upload_tables()
        if renew:
            self._launch(self._enter_known(hop, -1))

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
        if self._plan.labor:
            if (fanouts >= 0).any():
                layer = 0 if self._plan.layer_dependency else hop
                steps.append(self._step("sample_labor", grids.loop(32 * items), hop, layer=layer))
            return steps
        uniform = fanouts[(fanouts >= 0) & ~self._csc.weighted]
        small = uniform if replace else uniform[uniform <= SMALL_FANOUT]
        if len(small) > 0:
            name, lanes = "sample_replace" if replace else "sample_floyd", lanes_of(small)
            steps.append(self._step(name, grids.loop(items * lanes), hop, lanes=lanes))
        if self._has_large_fanouts(hop):
            slots, grid = self._large_fanouts(hop)
            steps.append(self._step("sample_large", grid, hop, slots=slots))
        by_weight = fanouts[(fanouts >= 0) & self._csc.weighted]
        if len(by_weight) > 0 and replace:
            lanes = lanes_of(by_weight)
            steps.append(
                self._step("weighted_replace", grids.loop(items * lanes), hop, lanes=lanes)
            )
        elif len(by_weight) > 0:
            steps.append(self._step("weighted_distinct", grids.loop(items), hop))
        return steps

    def _has_large_fanouts(self, hop: int) -> bool:
        uniform = self._plan.fanouts[hop][~self._csc.weighted]
        drawn = not (self._plan.replace or self._plan.labor)
        return drawn and uniform.max(initial=0) > SMALL_FANOUT

    def _large_fanouts(self, hop: int) -> tuple[int, int]:
        """Return the slots of each warp's hash table in `sample_large`, and its blocks."""
        # A list that is not longer than the fan-out is taken whole, and needs no table.
        uniform = self._plan.fanouts[hop][~self._csc.weighted]
        slots = power_of_two(2 * min(int(uniform.max()), self._max_degree()))
        items = self._forecast.items(hop)
        warps = max(1, min(items, PICKS_LIMIT_BYTES // (4 * slots)))
        return slots, self._graph_grids.loop(32 * warps)

    def _step(
        self, name: str, blocks: int | Grid, hop: int, **named: torch.Tensor | int
    ) -> tuple[Launch, Grid]:
        """Prepare a launch."""
        kernel = self._kernels[name]
        return kernel.bind({"batch": self._descriptor, "hop": hop}, named), kernel.grid(blocks)

    def _max_degree(self) -> int:
        """Return the length of the longest list. Waits for the device, the first time."""
        if self._longest < 0:
            indptr = self._csc.indptr
            self._longest = int((indptr[1:] - indptr[:-1]).max()) if len(indptr) > 1 else 0
        return self._longest

    def _make_room(self, known: IntTable, counted: Sequence[int] | None = None) -> bool:
        """Have room for what is forecast, keeping what the batch has so far.

        Args:
            known: [T]: nodes of each type.
            counted: edges of each hop that is done; None of a batch that begins.

        Returns:
            Whether the known nodes must be entered into the table again.
        """
        need, edges, arrays = self._forecast.nodes, self._forecast.hop_edges, self._arrays
        self._lists.make_room(need, known)
        kept = list(zip(self._hop_start, counted or (), strict=False))
        for size in edges[len(self._hop_start) - 1 :]:
            self._hop_start.append(self._hop_start[-1] + size + 1)
        for name in ("col", "label", "position"):
            arrays.grow(name, self._hop_start[-1], kept)
        largest = max(edges, default=0)
        for name, room in (("row", largest), ("slot", largest), ("rank", largest + 1)):
            arrays.grow(name, room)
        arrays.grow("group", largest if self._plan.disjoint else 0)
        self._make_room_for_items(0 if counted is None else self._forecast.items(len(counted)))
        tables = self._state.tables
        tables["node_start"][:] = self._lists.start
        tables["hop_start"][: len(self._hop_start)] = self._hop_start
        if not self._enters:
            return False
        renewed = self._table.make_room(need)
        return renewed or not self._table.holds(self._lists.longest, largest)

    def _make_room_for_items(self, kept: int) -> None:
        """Have room for the items of the hops that are forecast, keeping the first ones."""
        items = 0
        for hop in range(min(len(self._plan.fanouts), len(self._forecast.hop_edges) + 1)):
            items = max(items, self._forecast.items(hop))
            if self._has_large_fanouts(hop):
                slots, grid = self._large_fanouts(hop)
                warps = grid * (self._grids.block_threads // 32)
                self._arrays.grow("picks", warps * slots)
        if items + 1 > len(self._arrays["item_ptr"]):
            # Of the hop whose edges are being counted; what lies behind was never written.
            for name, size in (("item_start", 0), ("item_degree", 0), ("item_ptr", 1)):
                self._arrays.grow(name, items + 1, [(0, kept + size)] if kept else ())
            weights = 0 if self._csc.weights is None else items
            self._arrays.grow("item_low", weights, [(0, kept)])
            excluded = 2 * items if self._plan.excluding else 0
            self._arrays.grow("item_excluded", excluded, [(0, 2 * kept)])

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
    for name in ("seed_of", "group", "picks", "rank", "label", "col", "local"):
        arrays.add(name, torch.int32)
    arrays.add("item_low", torch.float64)
    arrays.add("node", ids)
    arrays.add("row", ids)
    arrays.add("position", csc.indptr.dtype)
    for name in ("rank_at", "new_ptr", "new_base"):
        arrays.add(name, room=relations + 1)
    arrays.add("run_sum", room=tuning.MAX_SCAN_BLOCKS)


def lanes_of(fanouts: IntTable) -> int:
    """Return how many lanes a sub-warp needs for items of such fan-outs: 8, 16 or 32."""
    return max(8, min(SMALL_FANOUT, power_of_two(int(fanouts.max(initial=0)))))
