"""Ranks that exchange hops or rows, of which one fails, stops or pauses at random moments.

PYG_DIRECT_FAILURES=20 tries each event 20 times in place of 2, which takes some minutes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch_geometric.data import Data

import pyg_direct
from pyg_direct import NeighborLoader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and sends signals"),
]

TIMES = int(os.environ.get("PYG_DIRECT_FAILURES", "2"))
TIMEOUT_SECONDS = 5.0
SHORT_SECONDS = 3.0  # where both ranks live
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 4, "shuffle": True, "split_by_rank": True}
BATCHES = 13  # of a rank in an epoch


@pytest.fixture(scope="module", params=["parts", "share_rows", "cooperative"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a graph is saved: in parts, or whole, for ranks that share rows or batches."""
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(400, 12, generator=generator),
        edge_index=torch.randint(400, (2, 4000), generator=generator),
    )
    folder = tmp_path_factory.mktemp("graph") / request.param
    if request.param == "parts":
        pyg_direct.partition(data, folder, 2, "ldg")
    else:
        pyg_direct.save(data, folder)
    return folder


def loader_of(path: Path, seconds: float, **options: Any) -> Any:
    way = {} if path.name == "parts" else {path.name: True}
    data, options = pyg_direct.open(path), {**OPTIONS, **way, **options}
    return NeighborLoader(data, [4, 3], timeout=seconds, **options)


def endless(loader: Any, seconds: float = 60.0) -> Iterator[Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield from loader


def die_in_a_loop(rank: int, path: Path, meeting: Path, number: int, after: float) -> None:
    """Be a rank of which the second gets a signal; write how long it took, and what was raised."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}/meet", rank=rank, world_size=2)
    next(iter(loader_of(path, 60.0)))  # compiles
    loader = loader_of(path, TIMEOUT_SECONDS)
    next(iter(loader))
    begun = time.monotonic()
    try:
        for _ in endless(loader):
            if rank == 1 and time.monotonic() > begun + after:
                os.kill(os.getpid(), number)
                time.sleep(60.0)  # this thread may go on until another one takes the signal
    except RuntimeError as error:
        (meeting / "text").write_text(f"{time.monotonic() - begun} {error}")
    os._exit(0)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (signal.SIGKILL, "connection to another rank is lost"),
        (signal.SIGSTOP, f"did not answer within {TIMEOUT_SECONDS:g} s"),
    ],
    ids=["kill", "stop"],
)
def test_a_rank_that_is_gone_is_noticed(
    number: int, expected: str, path: Path, tmp_path: Path
) -> None:
    moments = random.Random(int(number))
    for i in range(TIMES):
        folder, after = tmp_path / str(i), moments.random()
        folder.mkdir()
        pids = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                die_in_a_loop(rank, path, folder, number, after)
            pids.append(pid)
        deadline = time.monotonic() + 40
        done = 0
        while not done and time.monotonic() < deadline:
            done = os.waitpid(pids[0], os.WNOHANG)[0]
            time.sleep(0.02)
        for pid in pids[1:] if done else pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert done, "rank 0 hangs"
        seconds, text = (folder / "text").read_text().split(" ", 1)
        assert float(seconds) < after + TIMEOUT_SECONDS + 5.0
        assert expected in text


def test_an_exception_reaches_all_ranks(path: Path, tmp_path: Path) -> None:
    def loop(rank: int) -> list[tuple[str, float]]:
        moments, found = random.Random(5), []
        next(iter(loader_of(path, 60.0)))  # compiles
        for _ in range(TIMES):
            culprit, begun, after = moments.randrange(2), time.monotonic(), moments.random()

            def fail(batch: Any, culprit: int = culprit, due: float = begun + after) -> Any:
                if rank == culprit and time.monotonic() > due:
                    raise ZeroDivisionError(f"planted on rank {culprit}")
                return batch

            last = begun
            try:
                for _ in endless(loader_of(path, SHORT_SECONDS, transform=fail)):
                    last = time.monotonic()
            except (RuntimeError, ZeroDivisionError) as error:
                found.append((f"{type(error).__name__}: {error}", time.monotonic() - last))
        return found

    told = run_ranks(2, loop, tmp_path)
    moments = random.Random(5)
    assert [len(of_rank) for of_rank in told] == [TIMES, TIMES]
    for of_ranks in zip(*told, strict=True):
        culprit, _ = moments.randrange(2), moments.random()
        for rank, (text, seconds) in enumerate(of_ranks):
            assert text.startswith("ZeroDivisionError" if rank == culprit else "ExchangeError")
            assert f"planted on rank {culprit}" in text
            assert seconds < 5.0


@pytest.mark.parametrize("event", ["break", "pause", "end"])
def test_ranks_that_make_batches_together_are_told_of_one_that_does_not(
    event: str, path: Path, tmp_path: Path
) -> None:
    def loop(rank: int) -> list[tuple[int, str, float]]:
        moments, found = random.Random(event), []
        next(iter(loader_of(path, 60.0)))  # compiles
        for _ in range(TIMES):
            culprit, at = moments.randrange(2), moments.randrange(1, BATCHES)
            loader, made, last = loader_of(path, SHORT_SECONDS), 0, time.monotonic()
            if event == "end" and rank == culprit:
                for _ in zip(range(at), loader, strict=False):
                    made += 1
                found.append((made, "", 0.0))
                dist.barrier()
                continue
            text = ""
            try:
                for epoch in range(2):
                    for _ in loader:
                        made, last = made + 1, time.monotonic()
                        if (rank, epoch, made) == (culprit, 0, at):
                            if event == "break":
                                break
                            time.sleep(4 * SHORT_SECONDS)
                            last = time.monotonic()
            except RuntimeError as error:
                text = str(error)
            found.append((made, text, time.monotonic() - last))
            dist.barrier()  # both have their errors
        return found

    told = run_ranks(2, loop, tmp_path)
    moments = random.Random(event)
    for of_ranks in zip(*told, strict=True):
        culprit, at = moments.randrange(2), moments.randrange(1, BATCHES)
        for rank, (made, text, seconds) in enumerate(of_ranks):
            assert made >= at or rank != culprit
            if event == "end" and rank == culprit:
                continue
            early = event == "break" and rank != culprit
            reason = "has left its loop" if early else f"within {SHORT_SECONDS:g} s"
            assert reason in text
            assert seconds < SHORT_SECONDS + 5.0
