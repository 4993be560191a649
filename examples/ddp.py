"""Train with DistributedDataParallel on several processes of one machine, which share one graph.

    python examples/ddp.py  # two processes on the CPU, over gloo
    python examples/ddp.py --cooperative  # which make one batch together in each step

Each process opens the saved graph, whose pages the system shares. In each step the processes train
on the next batches of one list, each on one: `split_by_rank=True`. With `cooperative=True` they
sample, load and compute the nodes of all these batches once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from tqdm import tqdm

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import parser
from examples.support.synthetic import power_law_graph
from examples.support.training import evaluate, make_sage, train_epoch

CPU = torch.device("cpu")


def train(rank: int, args: Namespace, folder: str) -> None:
    """Train as one process of several."""
    dist.init_process_group(
        "gloo", f"file://{folder}/rendezvous", rank=rank, world_size=args.processes
    )
    torch.manual_seed(args.seed)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.processes))
    data: Data = pyg_direct.open(f"{folder}/graph")

    def loader_of(nodes: torch.Tensor, **options: Any) -> pyg_direct.NeighborLoader:
        return pyg_direct.NeighborLoader(
            data,
            [15, 10],
            nodes,
            batch_size=args.batch_size,
            num_workers=args.num_workers,
            seed=args.seed,
            **options,
        )

    loader = loader_of(
        data.train_mask, shuffle=True, split_by_rank=True, cooperative=args.cooperative
    )
    plain = make_sage(data, int(data.y.max()) + 1, 64, 2)
    model = DistributedDataParallel(pyg_direct.accelerate(plain, loader))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, args.epochs + 1):
        hidden = True if rank > 0 else None  # None: shown on a terminal alone
        with tqdm(total=len(loader), desc=f"epoch {epoch}", leave=False, disable=hidden) as bar:
            result = train_epoch(model, loader, optimizer, CPU, bar)
        if rank == 0:
            print(f"epoch {epoch}: loss {result.loss:.3f}, accuracy {result.accuracy:.3f}")
    stats = loader.stats(all_ranks=True)
    # DDP holds the process group: both go while all processes are at the same place.
    del model
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        testing = loader_of(data.test_mask)
        print(f"{stats.batches} batches on {args.processes} ranks; {stats.verdict}")
        print(f"test accuracy {evaluate(plain, testing, CPU):.3f}")


def main(argv: list[str] | None = None) -> None:
    """Save a generated graph, and train on it in several processes."""
    made = parser(__doc__, epochs=3, batch_size=1024)
    made.add_argument("--processes", type=int, default=2)
    made.add_argument("--num-nodes", type=int, default=40_000, help="size of the generated graph")
    made.add_argument(
        "--cooperative", action="store_true", help="make one batch of all processes in each step"
    )
    args = made.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        data = power_law_graph(args.num_nodes, 10 * args.num_nodes, seed=args.seed)
        pyg_direct.save(data, Path(folder, "graph"))
        mp.spawn(train, args=(args, folder), nprocs=args.processes)


if __name__ == "__main__":
    main()
