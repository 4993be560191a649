"""`share` among ranks that a launcher has started: one copy, and nothing left of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sharing_ranks
import torch
import torch.multiprocessing as mp

import pyg_direct

pytestmark = pytest.mark.slow

PROGRAM = Path(sharing_ranks.__file__)
ROOT = Path(__file__).parents[2]


def start(ranks: int, folder: Path, action: str) -> list[subprocess.Popen]:
    """Start ranks that know no more of each other than a launcher says."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYG_DIRECT_DEVICE": "cpu"}
    return [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(ranks), str(folder / "meet"), action],
            env={**environment, "LOCAL_WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def outputs(processes: list[subprocess.Popen]) -> list[str]:
    found = [process.communicate(timeout=240)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return found


def mapped() -> Iterator[int]:
    """Yield the inodes of shared memory of this package that any process has mapped or open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines = (process / "maps").read_text().splitlines()
        except OSError:
            continue
        yield from (int(line.split()[4]) for line in lines if "memfd:pyg_direct" in line)


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_make_the_batches_of_the_data(ranks: int, tmp_path: Path) -> None:
    expected = sharing_ranks.checksum(sharing_ranks.graph())
    assert outputs(start(ranks, tmp_path, "batches")) == [str(expected)] * ranks


def test_a_failure_on_the_first_rank_is_raised_on_all(tmp_path: Path) -> None:
    first, *others = outputs(start(3, tmp_path, "fail"))
    assert first.startswith("ZeroDivisionError")
    for text in others:
        assert text.startswith("RuntimeError Rank 0 failed: ZeroDivisionError")


def test_ranks_that_give_other_things_are_refused(tmp_path: Path) -> None:
    for text in outputs(start(3, tmp_path, "mixed")):
        assert text.startswith("ValueError Ranks [2] give share a graph that is shared")


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_killed_ranks_leave_no_memory(order: list[int], tmp_path: Path) -> None:
    """The others go on with it; with the last one it is gone, and ``/dev/shm`` never had it."""
    before = set(os.listdir("/dev/shm"))
    processes = start(3, tmp_path, "wait")
    try:
        found = [set(map(int, process.stdout.readline().split())) for process in processes]
        assert found[0] == found[1] == found[2] != set()
        assert set(os.listdir("/dev/shm")) <= before
        for rank in order:
            assert found[0] <= set(mapped())
            processes[rank].send_signal(signal.SIGKILL)
            processes[rank].wait()
        assert not found[0] & set(mapped())
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def spawned(rank: int, data, expected: int) -> None:
    assert sharing_ranks.memory() != set()
    assert data.x.is_shared()
    assert sharing_ranks.checksum(data) == expected
    data.x[rank] = -1.0


def test_spawned_processes_share_it() -> None:
    data = pyg_direct.share(sharing_ranks.graph())
    expected = sharing_ranks.checksum(data)
    context = mp.get_context("spawn")
    for rank in range(2):  # one after the other, as each writes
        data.x[rank], kept = data.x[rank].clone(), data.x[rank].clone()
        process = context.Process(target=spawned, args=(rank, data, expected))
        process.start()
        process.join(240)
        assert process.exitcode == 0
        assert torch.equal(data.x[rank], torch.full((4,), -1.0))
        data.x[rank] = kept
