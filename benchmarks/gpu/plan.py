"""What `benchmarks.gpu` measures: sizes, and the stages with their shares of the time."""

from __future__ import annotations

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
)  # fmt: skip
# Runs in the emulator of the tests, where a batch takes a second.
DRY = Plan(
    num_nodes=60, num_edges=300, num_features=4, num_classes=3,
    fanout=[3, 2, 2], batch_size=4, hidden=8,
    warmup=1, batches=2, rounds=2, growth_batches=10, cached_batches=2,
    bandwidth_bytes=1 << 14, table_bytes=1 << 13, gather_bytes=1 << 11, gather_rows=64,
    row_bytes=[4, 400], bases=[0, 64], launches=1, repeats=2, pyg_batches=2, pyg_rounds=2,
    small_nodes=40, small_edges=160, small_fanout=[3, 2], small_batch_sizes=[2, 4],
    hop_nodes=40, hop_edges=200, hop_seeds=[4, 9], host_blocks=[1, 2], hub_neighbours=50,
)  # fmt: skip


class Stage(NamedTuple):
    """One part of the run, in a process of its own."""

    name: str
    seconds: int  # its share of FULL_SECONDS, to which is added what others left over
    function: str  # module:function, called with a `Context`
    needs_graph: bool = False
    needs_gpu: bool = False  # has nothing to do in a dry run


FULL_SECONDS = 570
# In order of value: a run that is cut off has the first ones.
STAGES = (
    Stage("info", 20, "benchmarks.gpu.checks:describe"),
    Stage("right", 80, "benchmarks.gpu.right:compare", needs_gpu=True),
    Stage("tests", 70, "benchmarks.gpu.checks:run_tests", needs_gpu=True),
    Stage("sanitizer", 50, "benchmarks.gpu.checks:sanitize", needs_gpu=True),
    Stage("gather", 40, "benchmarks.gpu.gather:gather"),
    Stage("graph", 25, "benchmarks.gpu.epochs:make_graph"),
    Stage("sampling", 30, "benchmarks.gpu.gather:sampling", needs_graph=True),
    Stage("small_hops", 15, "benchmarks.gpu.small_hops:small_hops"),
    Stage("quantized", 20, "benchmarks.gpu.gather:quantized"),
    Stage("ours", 55, "benchmarks.gpu.epochs:ours", needs_graph=True),
    Stage("in_memory", 30, "benchmarks.gpu.epochs:in_memory", needs_graph=True),
    Stage("conventional", 35, "benchmarks.gpu.rivals:conventional", needs_graph=True),
    Stage("pyg", 45, "benchmarks.gpu.rivals:pyg", needs_graph=True),
    Stage("launches", 20, "benchmarks.gpu.launches:launches"),
    Stage("growth", 20, "benchmarks.gpu.epochs:growth", needs_graph=True),
    Stage("wholegraph", 15, "benchmarks.gpu.wholegraph:run", needs_graph=True, needs_gpu=True),
)


def stage_seconds(number: int, stages: tuple[Stage, ...], left: float) -> float:
    """Return how long a stage may take when `left` seconds are left for it and those behind it.

    Each gets its share of what is left, so what one does not use, the next ones have.
    """
    shares = sum(stage.seconds for stage in stages[number:])
    return left * stages[number].seconds / shares


def chosen(only: list[str] | None) -> tuple[Stage, ...]:
    """Return the stages to run: all, or those named and the graph if one of them needs it."""
    if not only:
        return STAGES
    wanted = [stage for stage in STAGES if stage.name in only]
    needs_graph = any(stage.needs_graph for stage in wanted)
    return tuple(s for s in STAGES if s in wanted or (needs_graph and s.name == "graph"))
