"""Two ranks on two networks, joined by a cable: the same batches, and bytes as counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from graphs import assert_same_batch
from torch_geometric.data import Data

import pyg_direct
from pyg_direct import NeighborLoader

SPACES = [f"pyg_direct_{os.getpid()}_{rank}" for rank in range(2)]
ADDRESSES, PORT = ("10.231.0.1", "10.231.0.2"), "29511"
SECONDS = 240.0


def ip(*words: str) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def joined() -> Iterator[None]:
    """Two network namespaces with an interface `cable` each, which are the ends of one cable."""
    if shutil.which("ip") is None or not all(ip("netns", "add", space) for space in SPACES):
        pytest.skip("no network namespaces can be made here, which takes root on Linux")
    try:
        made = ip("link", "add", "cable", "netns", SPACES[0], "type", "veth",
                  "peer", "name", "cable", "netns", SPACES[1])  # fmt: skip
        if not made:
            pytest.skip("no pair of virtual Ethernet interfaces can be made here")
        for space, address in zip(SPACES, ADDRESSES, strict=True):
            assert ip("-n", space, "addr", "add", f"{address}/24", "dev", "cable")
            assert ip("-n", space, "link", "set", "cable", "up")
            assert ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for space in SPACES:
            ip("netns", "del", space)


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(20_000, 128, generator=generator),
        edge_index=torch.randint(20_000, (2, 200_000), generator=generator),
    )


def be_rank(rank: int, folder: Path) -> None:
    """Compare two epochs with those of a single process, and print the bytes of the second."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    options: dict[str, Any] = {"batch_size": 256, "seed": 1, "shuffle": True}
    whole = NeighborLoader(graph(), [10, 10], rank=rank, world_size=2, **options)
    ours = NeighborLoader(pyg_direct.open(folder), [10, 10], split_by_rank=True, **options)
    counted = Path("/sys/class/net/cable/statistics")

    def told() -> tuple[dict[str, int], Any]:
        dist.barrier()
        on_the_link = {way: int((counted / f"{way}_bytes").read_text()) for way in ("tx", "rx")}
        return on_the_link, ours.stats().exchange

    for one, other in zip(ours, whole, strict=True):
        assert_same_batch(one, other)
    before, earlier = told()
    batches = list(ours)
    after, later = told()
    for one, other in zip(batches, whole, strict=True):
        assert_same_batch(one, other)
    traffic = later.since(earlier)
    found = {way: after[way] - before[way] for way in before}
    print(json.dumps([found, sum(traffic.sent_bytes), sum(traffic.received_bytes), len(batches)]))
    dist.barrier()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces")
def test_batches_and_bytes(joined: None, tmp_path: Path) -> None:
    pyg_direct.partition(graph(), tmp_path / "parts", 2, "hash")
    processes = []
    for rank, space in enumerate(SPACES):
        environment = {
            **os.environ, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT, "RANK": str(rank),
            "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        command = [sys.executable, __file__, str(rank), str(tmp_path / "parts")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        within = ["ip", "netns", "exec", space]
        processes.append(subprocess.Popen([*within, *command], env=environment, text=True, **pipes))
    deadline = time.monotonic() + SECONDS
    try:
        outputs = [p.communicate(timeout=deadline - time.monotonic()) for p in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
        on_the_link, sent, received, batches = json.loads(out.splitlines()[-1])
        assert batches == 40
        assert sent > 20e6
        # Headers: 66 bytes a packet, of 1,448 bytes or, where the kernel joins them, many more.
        assert sent <= on_the_link["tx"] < 1.07 * sent
        assert received <= on_the_link["rx"] < 1.07 * received


if __name__ == "__main__":
    be_rank(int(sys.argv[1]), Path(sys.argv[2]))
