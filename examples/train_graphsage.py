"""Train a GraphSAGE with pyg_direct's NeighborLoader, and see where the time goes.

Without arguments: a generated graph, no download, about a minute on two cores.

    python examples/train_graphsage.py
    python examples/train_graphsage.py --dataset cora --root data
    python examples/train_graphsage.py --loader pyg  # PyG's own loader, to compare
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch_geometric.loader
from torch_geometric import typing
from torch_geometric.data import Data
from tqdm import tqdm

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.datasets import NAMES, load_dataset
from examples.synthetic import power_law_graph
from examples.training import EpochResult, evaluate, make_sage, train_epoch, train_mlp

# The swap. Everything below is the same for both.
LOADERS = {
    "pyg_direct": pyg_direct.NeighborLoader,
    "pyg": torch_geometric.loader.NeighborLoader,
}
GENERATED = "generated"
MLP_EPOCHS = 20
MANY_SEEDS = 10_000  # from here on an epoch has enough steps for a few epochs to do
COLUMNS = "epoch    loss  train acc   seeds/s  waiting s  training s"


def fanouts(text: str) -> list[int]:
    """Parse ``15,10`` or ``all,all``."""
    return [-1 if part == "all" else int(part) for part in text.split(",")]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a GraphSAGE on sampled neighbourhoods.")
    add = parser.add_argument
    add("--dataset", choices=[GENERATED, *NAMES], default=GENERATED)
    add("--root", help="folder that holds the data set, or that it is downloaded to")
    add("--num-nodes", type=int, default=40_000, help="size of the generated graph")
    add("--num-edges", type=int, default=400_000, help="size of the generated graph")
    add("--loader", choices=sorted(LOADERS), default="pyg_direct")
    add("--num-workers", type=int, default=0, help="threads (pyg_direct) or processes (pyg)")
    add("--batch-size", type=int, default=1024)
    add("--epochs", type=int, help="default: 5, or 30 where there are few training nodes")
    add("--fanout", type=fanouts, default=[15, 10], help="per layer, as 15,10 or all,all")
    add("--eval-fanout", type=fanouts, help="of the test; default: as --fanout")
    add("--hidden", type=int, default=64, help="width of the hidden layers")
    add("--lr", type=float, default=0.01)
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the model")
    args = parser.parse_args(argv)
    if args.eval_fanout is not None and len(args.eval_fanout) != len(args.fanout):
        parser.error("--eval-fanout must have as many entries as --fanout, one for each layer")
    if args.loader == "pyg" and not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        parser.error("--loader pyg needs pyg-lib or torch-sparse; neither is installed")
    return args


def load_graph(args: argparse.Namespace) -> Data:
    """Return the graph that the arguments name."""
    if args.dataset == GENERATED:
        return power_law_graph(args.num_nodes, args.num_edges, seed=args.seed)
    return load_dataset(args.dataset, args.root, args.seed)


def run_epoch(number: int, *training: Any) -> EpochResult:
    """Train one epoch behind a progress bar, and print its row of the table.

    The bar is shown on a terminal alone, as in a file it would stand among the rows.
    """
    loader = training[1]
    with tqdm(
        total=len(loader), desc=f"epoch {number}", unit="batch", leave=False, disable=None
    ) as bar:
        result = train_epoch(*training, progress=bar)
    print(
        f"{number:5d} {result.loss:7.4f} {result.accuracy:10.4f} {result.seeds_per_second:9.0f} "
        f"{result.waiting_seconds:10.2f} {result.training_seconds:11.2f}",
        flush=True,
    )
    return result


def main(argv: list[str] | None = None) -> None:
    """Train, test, and print the table."""
    args = parse_args(argv)
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    data = load_graph(args)
    num_classes = int(data.y.max()) + 1
    num_train = int(data.train_mask.sum())
    print(
        f"graph: {args.dataset}, {data.num_nodes} nodes, {data.num_edges} edges, "
        f"{data.num_features} features, {num_classes} classes, {num_train} training nodes"
    )
    print(
        f"loader: {LOADERS[args.loader].__module__}, fan-out {args.fanout}, batch size "
        f"{args.batch_size}, {args.num_workers} workers; model on {device}"
    )

    def make_loader(mask: torch.Tensor, fanout: list[int], shuffle: bool) -> Any:
        return LOADERS[args.loader](
            data,
            num_neighbors=fanout,
            input_nodes=mask,
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
        )

    train_loader = make_loader(data.train_mask, args.fanout, shuffle=True)
    model = make_sage(data, num_classes, args.hidden, len(args.fanout)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    num_epochs = args.epochs or (5 if num_train >= MANY_SEEDS else 30)
    begin = perf_counter()
    next(iter(train_loader))
    print(
        f"first batch after {perf_counter() - begin:.1f} s (a fresh install compiles kernels now)"
    )
    print(COLUMNS)
    results = [
        run_epoch(number, model, train_loader, optimizer, device)
        for number in range(1, num_epochs + 1)
    ]
    waiting = sum(result.waiting_seconds for result in results)
    total = waiting + sum(result.training_seconds for result in results)
    print(f"the loader was waited for {waiting:.1f} s of {total:.1f} s ({waiting / total:.0%})")

    test_loader = make_loader(data.test_mask, args.eval_fanout or args.fanout, shuffle=False)
    print(f"test accuracy, GraphSAGE:                {evaluate(model, test_loader, device):.4f}")
    mlp_accuracy = train_mlp(data, num_classes, args.hidden, args.lr, MLP_EPOCHS)
    print(f"test accuracy, MLP on the features alone: {mlp_accuracy:.4f}")


if __name__ == "__main__":
    main()
