"""What a loader allocates asks for pages of 2 MiB, and the user's tensors are left alone."""

import mmap
import re
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct.core.types import Table
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.sampling.sampler import NeighborSampler, keyed

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists() or sys.platform != "linux",
    reason="the system knows no huge pages",
)

EDGES = 1 << 21  # 8 MiB of 32-bit ids


def asks_for_large_pages(address: int) -> bool:
    """Whether the memory around an address was advised to lie on huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no such address")


@pytest.mark.parametrize("unsorted", [False, True])
def test_graph_and_batches_are_on_large_pages(unsorted: bool) -> None:
    col = torch.arange(EDGES) // 2
    edge_index = torch.stack([col, col.flip(0) if unsorted else col])
    data = Data(edge_index=edge_index, num_nodes=EDGES // 2)
    csc = keyed(NeighborSampler(data, [2])).graph.csc
    middle = csc.indices.ctypes.data + csc.indices.nbytes // 2
    assert asks_for_large_pages(middle)
    # The allocator may hand out what it advised before; this memory is new.
    table = torch.frombuffer(mmap.mmap(-1, 4 << 12), dtype=torch.float32).view(4, 1 << 10)
    index = torch.zeros(1 << 11, dtype=torch.int64)
    rows = CpuBackend().gather([Table(table)], index, 4)[0]
    assert asks_for_large_pages(rows.data_ptr() + rows.nbytes // 2)
    assert not asks_for_large_pages(table.data_ptr())
