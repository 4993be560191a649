"""A few small batches on the GPU through every kernel, compared with the CPU; for sanitizers.

Compared on the host, so that what a sanitizer slows down is our kernels and little else:

    compute-sanitizer --tool memcheck python -m benchmarks.gpu_small_run
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from pyg_direct.ops import Backend, backend_for, cuda_workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from conformance import check_case, homogeneous

LAWS = ({}, {"replace": True}, {"disjoint": True})
ROW_BYTES = (1, 6, 12, 64, 100, 128, 132, 400, 512, 2408)


def sample(backend: Backend) -> int:
    """Check batches of every kind of fan-out and table, and return how many."""
    count = 0
    for induced in (False, True):
        for law in LAWS:
            for fanouts in ([5, 3], [20, 100], [-1, 3]):
                check_case(backend, homogeneous(fanouts, plan=law, induced=induced))
                count += 1
    dense_limit = cuda_workspace.DENSE_LIMIT_BYTES
    cuda_workspace.DENSE_LIMIT_BYTES = 0
    try:
        check_case(backend, homogeneous([10, 10], num_nodes=3000, num_edges=30_000, seeds=64))
    finally:
        cuda_workspace.DENSE_LIMIT_BYTES = dense_limit
    return count + 1


def gather(backend: Backend) -> int:
    """Check rows of many lengths, from device and from pinned memory, and return how many."""
    index = torch.randint(0, 50, (200,))
    for row_bytes in ROW_BYTES:
        memory = torch.randint(0, 256, (50 * row_bytes + 64,), dtype=torch.uint8)
        for base in (0, 64):
            table = memory[base : base + 50 * row_bytes].view(50, row_bytes)
            pinned = memory.pin_memory()[base : base + 50 * row_bytes].view(50, row_bytes)
            for source in (table.to(backend.device), pinned):
                got = backend.gather(source, index.to(backend.device))
                assert torch.equal(got.cpu(), table[index]), row_bytes
    return 4 * len(ROW_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every kernel once or twice on the GPU.")
    parser.add_argument("--device", default="cuda")
    backend = backend_for(torch.device(parser.parse_args().device))
    print(f"{sample(backend)} batches and {gather(backend)} gathers agree with the CPU")


if __name__ == "__main__":
    main()
