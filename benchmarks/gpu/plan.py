"""What `benchmarks.gpu` measures: sizes, and the stages with their shares of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Plan(NamedTuple):
    """Sizes of everything."""

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    fanout: list[int]
    batch_size: int
    hidden: int
    warmup: int  # batches before a measurement
    batches: int  # in one round
    rounds: int
    growth_batches: int  # over which memory must not grow
    cached_batches: int  # made beforehand, for the upper bound
    bandwidth_bytes: int
    table_bytes: int  # of the table that is gathered from
    gather_bytes: int  # gathered at once, at most
    gather_rows: int  # at most
    row_bytes: list[int]
    bases: list[int]  # address of the table modulo 128
    launches: int  # timed together
    repeats: int
    pyg_batches: int  # in one round of a loader of the CPU
    pyg_rounds: int
    small_nodes: int  # of the graph for `small_hops`
    small_edges: int
    small_fanout: list[int]
    small_batch_sizes: list[int]
    hop_nodes: int  # of the graph of which one hop is sampled
    hop_edges: int
    hop_seeds: list[int]
    host_blocks: list[int]  # that sample from host memory
    hub_neighbours: int
    large_table_bytes: list[int]  # of tables in host memory, by random and by ascending ids
    large_row_bytes: list[int]
    large_rows: int  # gathered at once
    opened_rows: int  # of the graph that is opened from files
    compared: int  # batches of each place that are compared with the CPU's


# The graph has the size of ogbn-products, the small one that of Cora.
FULL = Plan(
    num_nodes=2_400_000, num_edges=62_000_000, num_features=100, num_classes=47,
    fanout=[15, 10, 5], batch_size=1024, hidden=256,
    warmup=20, batches=40, rounds=7, growth_batches=1000, cached_batches=16,
    bandwidth_bytes=256 << 20, table_bytes=512 << 20, gather_bytes=64 << 20, gather_rows=1 << 20,
    row_bytes=[4, 16, 64, 100, 128, 200, 256, 400, 512, 1024, 1536, 2408, 4096],
    bases=[0, 16, 64], launches=4, repeats=7, pyg_batches=8, pyg_rounds=3,
    small_nodes=2_708, small_edges=10_556, small_fanout=[10, 10], small_batch_sizes=[8, 32, 128],
    hop_nodes=200_000, hop_edges=5_000_000, hop_seeds=[256, 512, 1024, 2048],
    host_blocks=[8, 16, 32, 64, 128], hub_neighbours=1_000_000,
    large_table_bytes=[500_000_000, 4_000_000_000, 16_000_000_000, 32_000_000_000],
    large_row_bytes=[512, 400, 32], large_rows=650_000, opened_rows=4_000_000, compared=2,
)  # fmt: skip
# Runs in the emulator of the tests, where a batch takes a second.
DRY = Plan(
    num_nodes=60, num_edges=300, num_features=8, num_classes=3,
    fanout=[3, 2, 2], batch_size=4, hidden=8,
    warmup=1, batches=2, rounds=2, growth_batches=10, cached_batches=2,
    bandwidth_bytes=1 << 14, table_bytes=1 << 13, gather_bytes=1 << 11, gather_rows=64,
    row_bytes=[4, 400], bases=[0, 64], launches=1, repeats=2, pyg_batches=2, pyg_rounds=2,
    small_nodes=40, small_edges=160, small_fanout=[3, 2], small_batch_sizes=[2, 4],
    hop_nodes=40, hop_edges=200, hop_seeds=[4, 9], host_blocks=[1, 2], hub_neighbours=50,
    large_table_bytes=[1 << 13, 1 << 16], large_row_bytes=[400, 32], large_rows=16,
    opened_rows=200, compared=1,
)  # fmt: skip


class Stage(NamedTuple):
    """One part of the run, in a process of its own."""

    name: str
    seconds: int  # its share of the seconds of its call, to which is added what others left over
    function: str  # module:function, called with a `Context`
    needs_graph: bool = False
    needs_gpu: bool = False  # has nothing to do in a dry run
    beside: bool = False  # needs no quiet machine, and runs beside the stage before it


# In order of value: a call that is cut off has the first ones. What is right comes first, with what
# shapes the others: the link, large tables. Its result is read before the second call.
RIGHT = (
    Stage("info", 60, "benchmarks.gpu.checks:describe"),  # a cold start of torch, CuPy and numba
    Stage("right", 170, "benchmarks.gpu.right:compare", needs_gpu=True),
    Stage("tests", 170, "benchmarks.gpu.checks:run_tests", needs_gpu=True, beside=True),
    Stage("sanitizer", 170, "benchmarks.gpu.checks:sanitize", needs_gpu=True, beside=True),
    Stage("gather", 40, "benchmarks.gpu.gather:gather"),
    Stage("large_tables", 80, "benchmarks.gpu.large_tables:large_tables"),
    Stage("opened", 20, "benchmarks.gpu.large_tables:opened_graph"),
)
SPEED = (
    Stage("graph", 60, "benchmarks.gpu.epochs:make_graph"),
    Stage("build", 45, "benchmarks.gpu.rivals:build", needs_gpu=True, beside=True),
    Stage("sampling", 30, "benchmarks.gpu.gather:sampling", needs_graph=True),
    Stage("small_hops", 20, "benchmarks.gpu.small_hops:small_hops"),
    Stage("quantized", 20, "benchmarks.gpu.gather:quantized"),
    Stage("ours", 85, "benchmarks.gpu.epochs:ours", needs_graph=True),
    Stage("in_memory", 33, "benchmarks.gpu.epochs:in_memory", needs_graph=True),
    Stage("conventional", 35, "benchmarks.gpu.rivals:conventional", needs_graph=True),
    Stage("pyg", 45, "benchmarks.gpu.rivals:pyg", needs_graph=True),
    Stage("launches", 20, "benchmarks.gpu.launches:launches"),
    Stage("growth", 20, "benchmarks.gpu.epochs:growth", needs_graph=True),
    Stage("wholegraph", 25, "benchmarks.gpu.wholegraph:run", needs_graph=True, needs_gpu=True),
)
CALLS = {"right": RIGHT, "speed": SPEED}
STAGES = RIGHT + SPEED


def groups_of(stages: Sequence[Stage], side_by_side: bool = True) -> list[list[Stage]]:
    """Return stages by what runs at the same time."""
    groups: list[list[Stage]] = []
    for stage in stages:
        if side_by_side and stage.beside and groups:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def seconds_of(stages: Sequence[Stage]) -> int:
    """Return how long some stages may take in all."""
    return sum(map(_share, groups_of(stages)))


def _share(group: Sequence[Stage]) -> int:
    return max(stage.seconds for stage in group)


def group_seconds(number: int, groups: Sequence[Sequence[Stage]], left: float) -> float:
    """Return how long a group may take when `left` seconds are left for it and those after it.

    Each gets its share of what is left, so what one does not use, the next ones have.
    """
    return left * _share(groups[number]) / sum(map(_share, groups[number:]))


def chosen(only: Sequence[str] | None, call: str | None = None) -> tuple[Stage, ...]:
    """Return the stages to run: all, those of a call, or those named with the graph they need."""
    if not only:
        return STAGES if call is None else CALLS[call]
    wanted = [stage for stage in STAGES if stage.name in only]
    needs_graph = any(stage.needs_graph for stage in wanted)
    return tuple(s for s in STAGES if s in wanted or (needs_graph and s.name == "graph"))
