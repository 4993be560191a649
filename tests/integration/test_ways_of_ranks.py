"""What all ways in which ranks make batches together have in common: pauses, ends and states."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from graphs import assert_same_batch
from rank_processes import check_left_apart, left_apart, left_together, run_ranks
from torch_geometric.data import Data

import pyg_direct
from pyg_direct import NeighborLoader

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")

WAYS: dict[str, dict[str, Any]] = {
    "rows": {"share_rows": True},
    "cooperative": {"cooperative": True},
    "parts": {},
}
GENERATOR = torch.Generator().manual_seed(0)
DATA = Data(
    x=torch.randn(400, 12, generator=GENERATOR),
    y=torch.randint(3, (400,), generator=GENERATOR),
    edge_index=torch.randint(400, (2, 4000), generator=GENERATOR),
)
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 4, "shuffle": True}
NUM_BATCHES = 25
TIMEOUT_SECONDS = 3.0


def partitioned(folder: Path) -> Path:
    """Return the graph in four parts."""
    pyg_direct.partition(DATA, folder / "parts", 4, "ldg")
    return folder / "parts"


def loader_of(way: str, parts: Path, **options: Any) -> NeighborLoader:
    """Return a loader of ranks that make batches together in some way."""
    data = pyg_direct.open(parts) if way == "parts" else DATA
    return NeighborLoader(data, [4, 3], split_by_rank=True, **OPTIONS, **WAYS[way], **options)


@pytest.mark.parametrize("way", WAYS)
def test_ranks_whose_loops_pause_make_no_collectives(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, begun = partitioned(tmp_path), list[str]()

    def count(name: str, collective: Any) -> None:
        def counted(*arguments: Any, **named: Any) -> Any:
            begun.append(name)
            return collective(*arguments, **named)

        monkeypatch.setattr(dist, name, counted)

    for name in ("all_to_all_single", "all_reduce", "all_gather", "broadcast", "barrier"):
        count(name, getattr(dist, name))

    def on_rank(rank: int) -> tuple[int, int, int]:
        iterator = iter(loader_of(way, parts, num_workers=2))
        next(iterator)
        before = -1
        while before != len(begun):  # producers are ahead of the loop by as much as they may be
            before = len(begun)
            time.sleep(0.5)
        time.sleep(1.0)
        idle = len(begun) - before
        return before, idle, 1 + sum(1 for _ in iterator)

    for before, idle, steps in run_ranks(2, on_rank, tmp_path):
        assert before > 0
        assert idle == 0
        assert steps == -(-NUM_BATCHES // 2)


def of_a_loop(way: str, parts: Path, timeout: float) -> NeighborLoader:
    """Return a loader of which another one with the usual timeout has compiled the kernels."""
    next(iter(loader_of(way, parts)))
    return loader_of(way, parts, timeout=timeout)


@pytest.mark.parametrize("way", ["rows", "parts"])
def test_a_loop_that_one_rank_leaves_earlier_ends_with_an_error(way: str, tmp_path: Path) -> None:
    parts = partitioned(tmp_path)
    found = run_ranks(
        2, lambda rank: left_apart(of_a_loop(way, parts, TIMEOUT_SECONDS), rank), tmp_path
    )
    check_left_apart(found, TIMEOUT_SECONDS)


@pytest.mark.parametrize("way", ["rows", "parts"])
def test_loops_that_ranks_leave_at_the_same_step_may_pause(way: str, tmp_path: Path) -> None:
    """Longer than a loop waits for another rank."""
    parts = partitioned(tmp_path)
    found = run_ranks(2, lambda _: left_together(of_a_loop(way, parts, 1.0), 1.2), tmp_path)
    assert found == [[1, 6, 4, 13]] * 2


@pytest.mark.parametrize("way", ["rows", "parts"])
def test_a_state_goes_on_on_4_2_1_and_3_ranks(way: str, tmp_path: Path) -> None:
    parts, whole = partitioned(tmp_path), list(NeighborLoader(DATA, [4, 3], **OPTIONS))
    assert len(whole) == NUM_BATCHES
    done, state = 0, None
    for size, most in ((4, 2), (2, 3), (1, 2), (3, NUM_BATCHES)):
        folder = tmp_path / str(size)
        folder.mkdir()
        left = whole[done:]
        told = run_ranks(size, partial(some_steps, way, parts, left, size, most, state), folder)
        done, state = done + sum(steps for steps, _ in told), told[0][1]
    assert done == NUM_BATCHES


def some_steps(
    way: str, parts: Path, left: list[Any], size: int, most: int, state: Any, rank: int
) -> tuple[int, dict[str, Any]]:
    """Check up to `most` batches of a rank; return how many they were, and a state after them."""
    loader, steps = loader_of(way, parts, tail="uneven"), 0
    if state is not None:
        loader.load_state_dict(state)
    for step, batch in enumerate(loader):
        assert_same_batch(batch, left[step * size + rank])
        steps += 1
        if steps == most:
            break
    return steps, loader.state_dict()
