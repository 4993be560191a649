"""What `benchmarks.cpu.loaders` measures: graphs, contestants and how often."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import NamedTuple

# A user can have part of what recycling wins for nothing, by telling glibc to keep freed memory.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 60),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
MALLOC_MODES = {"default": {}, "kept": KEEP_MEMORY}

# Loader -> the module that it needs; of rivals the backend that PyG recommends first.
LOADERS = {
    "pyg_direct": "pyg_direct",
    "pyg+pyg_lib": "pyg_lib",
    "graphbolt": "dgl",
    "pyg+torch_sparse": "torch_sparse",
}
OURS, PYG_LIB, GRAPHBOLT, TORCH_SPARSE = LOADERS
NUM_WORKERS = (0, 2)


class Contestant(NamedTuple):
    """One loader with one setting; runs in a process of its own."""

    loader: str
    num_workers: int
    malloc: str  # one of MALLOC_MODES


class Case(NamedTuple):
    """A generated graph, and how to load it."""

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    fanout: list[int]
    batch_size: int
    batches: int  # timed in one round
    warmup: int  # batches before them: more than any loader prepares ahead
    rounds: int
    constructions: int  # timed for each contestant
    num_classes: int = 8
    quick: bool = False


# Whole epochs of 22 batches: here what an epoch costs to begin is part of the matter.
SMALL_CASE = Case("2.7k nodes, 10k edges", 2_700, 10_000, 100, [10, 10], 128, 220, 44, 7, 5)
CASES = [
    Case("200k nodes, 5M edges", 200_000, 5_000_000, 100, [15, 10, 5], 1024, 15, 6, 7, 5),
    Case("2.4M nodes, 62M edges", 2_400_000, 62_000_000, 100, [15, 10, 5], 1024, 10, 6, 5, 3),
    SMALL_CASE,
]
QUICK_CASES = [
    Case("quick", 2_000, 20_000, 16, [4, 3], 64, 4, 5, 2, 1, quick=True),
]


def available(loader: str) -> bool:
    """Whether what the loader needs is installed."""
    return importlib.util.find_spec(LOADERS[loader]) is not None


def contestants(malloc: str, more: Collection[str] = ()) -> list[Contestant]:
    """Return who runs under one setting of the allocator, turn by turn.

    Args:
        malloc: the setting.
        more: loaders that are not installed here, but in an interpreter of their own.
    """
    return [
        Contestant(loader, num_workers, malloc)
        for num_workers in NUM_WORKERS
        for loader in LOADERS
        if loader in more or available(loader)
    ]
