"""One rank of several that share a graph; they are started as by a launcher.

Arguments: the rank, the number of ranks, a file for them to meet, and what to do. "batches" prints
a checksum of an epoch; "wait" prints the numbers of the shared memory and waits to be killed;
"fail" shares what only fails on the first rank, and prints the error; "mixed" gives graphs that
only the last rank has shared already.
"""

import os
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch_geometric.data import Data

import pyg_direct

NODES = 200


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.rand(NODES, 4, generator=generator),
        edge_index=torch.randint(NODES, (2, 2000), generator=generator),
    )


def checksum(data: Data) -> int:
    """Return a checksum of the batches of an epoch."""
    found = 0
    for batch in pyg_direct.NeighborLoader(data, [5, 5], batch_size=50, seed=1):
        for part in (batch.x, batch.edge_index, batch.n_id, batch.e_id):
            found = zlib.crc32(part.contiguous().numpy().data, found)
    return found


def memory() -> set[int]:
    """Return the inodes of the shared memory that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "memfd:pyg_direct" in line}


def main(rank: int, ranks: int, file: str, action: str) -> None:
    torch.set_num_threads(1)
    given = graph()
    if action == "mixed" and rank == ranks - 1:
        del os.environ["LOCAL_WORLD_SIZE"]  # for a graph of its own
        given = pyg_direct.share(given)
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=ranks)
    called = []

    def load() -> Data:
        called.append(rank)
        return graph()

    if action in ("fail", "mixed"):
        try:
            pyg_direct.share(given if action == "mixed" else lambda: 1 // rank)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    else:
        data = pyg_direct.share(load)
        again = pyg_direct.share(load)
        assert called == ([0, 0] if rank == 0 else [])
        assert checksum(again) == checksum(data)
        dist.barrier()
        if rank == 0:
            data.x[0] = 9
        dist.barrier()
        assert data.x[0, 0] == 9
        assert again.x[0, 0] != 9
        dist.barrier()
        if action == "wait":
            print(*memory(), flush=True)
            time.sleep(600)
        print(checksum(again), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    os._exit(0)
