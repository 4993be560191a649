"""Train on a graph in parts, of which each process reads its own, on one machine or several.

    python examples/partitioned.py --write --folder parts  # once
    torchrun --nproc-per-node 2 examples/partitioned.py --folder parts

On several machines, each needs the folder without the parts of ranks that run elsewhere: rank r of
W reads the parts p with p mod W = r. Without torchrun one process reads all parts.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import parser, with_bar
from examples.support.datasets import load_dataset
from examples.support.synthetic import power_law_graph
from examples.support.training import evaluate, make_sage, train_epoch

CPU = torch.device("cpu")


def write(args: Namespace) -> None:
    """Save the graph in parts."""
    if args.num_nodes:
        data = power_law_graph(args.num_nodes, 10 * args.num_nodes, seed=args.seed)
    else:
        data = load_dataset("debian")
    print(pyg_direct.partition(data, args.folder, args.parts, args.method))


def train(args: Namespace) -> float:
    """Train as one of the processes that torchrun has started, and return the test accuracy."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")  # addresses are in the environment
        torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data: Any = pyg_direct.open(args.folder)

    def loader_of(nodes: torch.Tensor, **options: Any) -> pyg_direct.NeighborLoader:
        return pyg_direct.NeighborLoader(
            data, [10, 10], nodes, batch_size=args.batch_size, num_workers=args.num_workers,
            seed=args.seed, split_by_rank=ranks > 1, **options,
        )  # fmt: skip

    by = {"order": "parts"} if args.order == "parts" else {"shuffle": True}
    loader, testing = loader_of(data.train_mask, **by), loader_of(data.test_mask)
    plain = make_sage(data, int(data.y.max()) + 1, 64, 2)
    model = DistributedDataParallel(plain) if ranks > 1 else plain
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    is_first = ranks == 1 or dist.get_rank() == 0
    for epoch in range(1, args.epochs + 1):
        batches = with_bar(loader, f"epoch {epoch}") if is_first else loader
        result = train_epoch(model, batches, optimizer, CPU)
        if is_first:
            print(f"epoch {epoch}: loss {result.loss:.3f}, accuracy {result.accuracy:.3f}")
    accuracy = torch.tensor(evaluate(plain, testing, CPU))
    if ranks > 1:
        dist.all_reduce(accuracy)
    mean = float(accuracy) / ranks
    if is_first:
        print(f"test accuracy {mean:.3f}\n{loader.stats()}")
    if ranks > 1:
        del model, loader, testing  # they hold the process group
        dist.barrier()
        dist.destroy_process_group()
    return mean


def main(argv: list[str] | None = None) -> float | None:
    """Write the parts, or train."""
    made = parser(__doc__, epochs=3, batch_size=512)
    made.add_argument("--folder", default="parts", help="of the parts")
    made.add_argument("--write", action="store_true", help="write the parts, and no more")
    made.add_argument("--parts", type=int, default=4)
    made.add_argument("--method", default="ldg", choices=["ldg", "metis", "hash"])
    made.add_argument("--num-nodes", type=int, help="generate a graph; else packages of Debian")
    made.add_argument("--order", default="parts", choices=["parts", "global"])
    args = made.parse_args(argv)
    if args.write or not Path(args.folder, "partition.json").exists():
        if "RANK" in os.environ:
            made.error(f"{args.folder} holds no parts: write them first, by --write.")
        write(args)
    return None if args.write else train(args)


if __name__ == "__main__":
    main()
