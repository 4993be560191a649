"""One batch on a CUDA device: `ops.Workspace` over the kernels of `cuda/*.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.types import (
    NO_RULES,
    BatchKey,
    Csc,
    Frontier,
    IntTable,
    Picks,
    Rules,
    SampledGraph,
    SamplingPlan,
    Sizes,
)
from ..backend import in_range
from ..metapaths import MetapathBudgets
from ..picks import LISTS_ELSEWHERE, check_picks, put_edge_ids
from . import memory as device_memory
from . import tuning
from .drawing import SMALL_FANOUT, CudaDrawing, Steps, lanes_of
from .emit import Edges, Outputs, hop_counts
from .launch import Library, threads_of
from .source import ONE_BLOCK_FILE


class CudaWorkspace(CudaDrawing):
    """The scratch arrays of one batch; see `ops.Workspace` for what the calls mean.

    Counts stay on the device. The host knows upper bounds of them and sizes memory by those, so it
    reads back once a batch, in `finish`; and before the draws of a hop that takes all neighbours.
    With sizes that were given, in `sample_padded`, it waits only for such hops.

    In `sample`, nothing but the upload of `begin` and the prepared launches is done before
    `finish`, no memory is allocated and nothing is waited for, unless a hop takes all neighbours:
    the sequence could be captured as a CUDA graph and replayed. The seeds and the first hops, while
    they are small, are one launch of one block.
    """

    def __init__(
        self, csc: Csc, plan: SamplingPlan, library: Library, one_block: bool = True
    ) -> None:
        super().__init__(csc, plan, library)
        rounds = tuning.ONE_BLOCK_ROUNDS if one_block else 0
        threads = threads_of(ONE_BLOCK_FILE, library.compiler.block_threads)
        self._one_block_limit = rounds * threads
        self._outputs = Outputs(csc, plan, self._kernels, self._descriptor, self._graph_grids)
        self._sizes: IntTable = np.full(csc.num_types, -1)  # [T]: seeds of the batch
        self._seeds_entered = True
        self._edge_ids: dict[int, Tensor] = {}  # `Picks.edge` of hops that were entered
        self._drawing: CudaDrawing | None = None  # what `draw` draws in

    def sample(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        rules: Rules = NO_RULES,
        induced: bool = False,
    ) -> SampledGraph | None:
        """Sample one batch."""
        if not self.begin(seeds, key, rules):
            return None
        self._sample_hops(0, len(self._plan.fanouts))
        return self.finish(induced)

    def sample_padded(
        self, seeds: Sequence[Tensor | None], key: BatchKey, rules: Rules, sizes: Sizes
    ) -> SampledGraph | None:
        """Sample one batch; its counts are copied to the host after it."""
        return self.counted(self.launch(sizes)) if self.begin(seeds, key, rules) else None

    def launch(self, sizes: Sizes) -> SampledGraph:
        """Return the batch that was begun, at sizes; asking for its counts waits for the device.

        Nothing but launches, so that a CUDA graph of them can be replayed after the `begin` of
        another batch of as many seeds, once a batch of the sizes was made.
        """
        self._sample_hops(0, len(self._plan.fanouts))
        self._enter_seeds()
        return self._outputs.padded(sizes, self._state.read)

    def counted(self, sampled: SampledGraph) -> SampledGraph:
        """Return what `launch` did; its counts begin to be copied to the host."""
        read, padded = self._state.begin_read(self._library.compiler.streams), sampled.padded
        assert padded is not None, "as `launch` returned it"
        return sampled._replace(padded=padded._replace(read=lambda: hop_counts(read())))

    def begin(self, seeds: Sequence[Tensor | None], key: BatchKey, rules: Rules = NO_RULES) -> bool:
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
        if self._state.begin(given, key, rules):
            self._launches.clear()
        self._seeds_entered, self._edge_ids = False, {}
        if self._budgets is not None:
            self._budgets.begin(sizes.tolist(), self._plan.disjoint)
        return True

    def hop(self, hop: int, skip: Sequence[Tensor | None] | None = None) -> None:
        """Sample one hop."""
        if skip is None:
            self._sample_hops(hop, hop + 1)
        else:
            self._enter_seeds()
            self._sample_many(hop, skip)

    def _sample_hops(self, first: int, last: int) -> None:
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
            self._sample_many(hop)
            hop += 1

    def _sample_many(self, hop: int, skip: Sequence[Tensor | None] = ()) -> None:
        """Sample a hop by many blocks."""
        self._run(self._count_items, hop)
        for t, chosen in enumerate(skip):
            if chosen is not None:
                self._launch_once(
                    "skip_items", self._blocks_of_items(hop), hop, type=t,
                    skip=chosen.view(torch.uint8),
                )  # fmt: skip
        if self._budgets is not None:
            self._limit_items(hop, self._budgets)
        self._run(self._scan_items, hop)
        if self._forecast.must_ask(hop):
            self._ask(hop)
        self._run(self._draw, hop)
        self._run(self._relabel, hop)
        if self._budgets is not None:
            self._follow(hop, self._budgets)

    def _limit_items(self, hop: int, budgets: MetapathBudgets) -> None:
        """Limit the items of a hop to their shares of the budgets. Waits for the device."""
        known, found = self._frontier_ends(hop)
        items = sum(found[t] - known[t] for t in self._csc.dst_type.tolist())
        counts = budgets.counts(hop, self._arrays["item_degree"][:items])
        self._launch_once("limit_items", self._blocks_of_items(hop), hop, count=counts)

    def _follow(self, hop: int, budgets: MetapathBudgets) -> None:
        """Note by which metapaths a hop found its nodes. Waits for the device."""
        counts, first = self._state.read(), self._hop_start[hop]
        label = self._arrays["label"][first : first + int(counts["edge_ptr"][hop, -1])]
        ends = counts["node_ptr"]
        budgets.follow(hop, label, ends[hop + 1].tolist(), ends[hop + 2].tolist())

    def frontier(self, hop: int) -> Frontier:
        """Return copies of the nodes that a hop expands."""
        self._enter_seeds()
        known, found = self._frontier_ends(hop)
        ends = list(zip(self._lists.start.tolist(), known, found, strict=True))
        names = ["node", "seed_of"] if self._plan.disjoint else ["node"]
        parts = [
            [device_memory.copied(self._arrays[name][s + a : s + b]) for s, a, b in ends]
            for name in names
        ]
        device = self._descriptor.device
        local = [torch.arange(a, b, dtype=torch.int32, device=device) for _, a, b in ends]
        return Frontier(parts[0], local, parts[1] if self._plan.disjoint else None)

    def _frontier_ends(self, hop: int) -> tuple[list[int], list[int]]:
        """Return how many nodes of each type are known before the last hop, and before this one."""
        if hop == 0:
            return [0] * self._csc.num_types, self._sizes.tolist()
        ends = self._state.read()["node_ptr"]
        return ends[hop].tolist(), ends[hop + 1].tolist()

    def draw(self, hop: int, items: Frontier, key: BatchKey, rules: Rules = NO_RULES) -> Picks:
        """Draw for any nodes, in other arrays, which are taken at the first call."""
        if self._drawing is None:
            self._drawing = CudaDrawing(self._csc, self._plan, self._library, enters=False)
        return self._drawing.draw_for(hop, items, key, rules)

    def enter(self, hop: int, picks: Picks) -> None:
        """Take the edges of a hop, and number their sources."""
        self._enter_seeds()
        known, found = self._frontier_ends(hop)
        items = sum(found[t] - known[t] for t in self._csc.dst_type.tolist())
        check_picks(picks, items, self._csc.indices.dtype, self._csc.indptr.dtype)
        self._launch_once("enter_counts", self._blocks_of_items(hop), hop, count=picks.counts)
        self._run(self._scan_items, hop)
        if self._forecast.must_ask(hop):
            self._ask(hop)
        edges, most = len(picks.source), self._forecast.edges(hop)
        if edges > most:
            raise ValueError(f"Hop {hop} has room for {most} edges at most, got {edges} picks.")
        position = picks.position
        if picks.edge is not None:
            self._edge_ids[hop] = picks.edge
            position = torch.zeros_like(picks.source, dtype=self._csc.indptr.dtype)
        assert position is not None, "as `check_picks` found"
        self._launch_once(
            "enter_picks", self._grids.loop(edges), hop, edges=edges, source=picks.source,
            position=position,
        )  # fmt: skip
        self._run(self._relabel, hop)

    def finish(self, induced: bool = False) -> SampledGraph:
        """Hand out the batch. Waits for the device once."""
        self._enter_seeds()
        if induced:
            if self._edge_ids:
                raise ValueError(LISTS_ELSEWHERE)
            return self._emit_induced()
        counts = self._state.read()
        edges = self._outputs.by_hop(np.diff(counts["edge_ptr"], axis=1))
        num_nodes, num_edges = hop_counts(counts)
        sampled = self._sampled(counts["node_ptr"], edges, num_nodes, num_edges)
        put_edge_ids(sampled.edge, num_edges, self._edge_ids)
        return sampled

    def _emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes."""
        counts: dict[str, IntTable] = {}

        def read() -> IntTable:
            counts.update(self._state.read())
            return counts["induced"]

        edges = self._outputs.induced(self._forecast.nodes, self._state.induced, read)
        return self._sampled(counts["node_ptr"], edges, hop_counts(counts)[0], None)

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

    def _has_few_seeds(self) -> bool:
        return int(self._sizes.sum()) <= self._one_block_limit

    def _is_small(self, hop: int) -> bool:
        """Whether one block does a hop."""
        fanouts = self._plan.fanouts[hop]
        if self._plan.labor or self._plan.adaptive:
            return False
        if self._forecast.must_ask(hop) or self._csc.weighted.any() or (fanouts < 0).any():
            return False
        if not self._plan.replace and fanouts.max(initial=0) > SMALL_FANOUT:
            return False
        threads = self._forecast.items(hop) * lanes_of(fanouts)
        return max(threads, self._forecast.edges(hop)) <= self._one_block_limit

    def _sample_small(self, hop: int, end: int) -> Steps:
        """Enter the seeds, if that is not done, and do the hops [hop, end), by one block."""
        return [
            self._step(
                "sample_small", 1, hop, enter_seeds=int(not self._seeds_entered), first=hop,
                last=end, lanes=lanes_of(self._plan.fanouts[hop:end]),
            )
        ]  # fmt: skip

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

    def _sampled(
        self,
        node_ptr: IntTable,
        edges: Edges,
        num_nodes: list[list[int]],
        num_edges: list[list[int]] | None,
    ) -> SampledGraph:
        node, seed_of = self._outputs.nodes(node_ptr[-1])
        return SampledGraph(
            node=node,
            seed_of=seed_of,
            edge_index=[edge_index for edge_index, _ in edges],
            edge=[edge for _, edge in edges],
            num_sampled_nodes=num_nodes,
            num_sampled_edges=num_edges,
        )
