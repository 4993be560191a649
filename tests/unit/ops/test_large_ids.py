"""Numbers that need more than 32 bits, in memory that is mostly never touched."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import pytest
import torch
from children import in_child
from emulator import emulated, pin

from pyg_direct.core.types import Table
from pyg_direct.graph.coo_to_csc import Compressed
from pyg_direct.graph.from_pyg import _fuse
from pyg_direct.ops.buffers import BufferPool
from pyg_direct.ops.cpu.backend import CpuBackend

GIB = 1 << 30


def test_fused_ids_beyond_32_bits_stay_whole() -> None:
    large = 2**31 + 5
    relations = [
        Compressed(np.array([0, 1, 1, 2]), np.array([large - 1, 7]), None),
        Compressed(np.array([0, 1, 1, 1]), np.array([2], np.int32), None),
    ]
    csc = _fuse(relations, [0, 1], [1, 1], [large, 3])
    assert csc.indices.dtype == np.int64
    assert csc.indices.tolist() == [large - 1, 7, 2]


def sparse(nbytes: int) -> torch.Tensor:
    """Return zeros of which only what is written to takes memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_rows_of_a_table_above_4_gib(kind: str) -> None:
    table = sparse(5 * GIB).view(-1, 4096)
    ids = torch.tensor([0, 1, (4 * GIB) // 4096, (4 * GIB) // 4096 + 1, len(table) - 1])
    for number, row in enumerate(ids.tolist()):
        table[row] = number + 1
    expected = torch.arange(1, 6, dtype=torch.uint8).view(-1, 1).expand(-1, 4096)
    if kind == "cpu":
        assert torch.equal(CpuBackend().gather([Table(table)], ids)[0], expected)
        return
    with emulated() as backend:
        backend.memory.place_tables([("x", table)], "host")
        readable = backend.memory.readable(table)
        assert readable is not None
        out = backend.gather([Table(readable)], ids.to(backend.device), len(table))[0]
        assert torch.equal(out.cpu(), expected)


def test_rows_from_a_cache_of_more_than_2_gib_are_right() -> None:
    row_bytes = 4096
    held, table = sparse(3 * GIB).view(-1, row_bytes), torch.ones(2, row_bytes, dtype=torch.uint8)
    held[-1] = 7
    with emulated() as backend:
        device = backend.device
        out = torch.zeros_like(table).to(device)
        backend.gather_bytes(
            pin(backend, table).view(-1), torch.tensor([1, 0]).to(device), out.view(-1), 2,
            slots=torch.tensor([-1, len(held) - 1], dtype=torch.int32).to(device),
            held=pin(backend, held).view(-1), found=torch.zeros(1, dtype=torch.int64).to(device),
        )  # fmt: skip
    assert out.cpu().unique(dim=1).tolist() == [[7], [1]]


def test_the_lock_of_the_pool_held_while_the_process_forks() -> None:
    pool = BufferPool()
    pool.empty((1 << 20,), torch.float32)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)

    def case() -> Any:
        tensor = pool.empty((1 << 20,), torch.float32)
        tensor.fill_(1)
        del tensor
        assert pool.idle_bytes > 0

    try:
        in_child(case)
    finally:
        done.set()
        thread.join()
