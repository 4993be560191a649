"""Train a GraphSAGE, plain and accelerated, and print the seconds that an epoch of each takes.

One file, to be copied. Without arguments: a generated graph, no download, a minute on two cores.

    python examples/train_graphsage.py
    python examples/train_graphsage.py --dataset cora --root data
    python examples/train_graphsage.py --loader pyg  # PyG's own loader, to compare
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.loader
from torch import Tensor
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GraphSAGE

import pyg_direct

# The swap. Everything below is the same for both.
LOADERS = {
    "pyg_direct": pyg_direct.NeighborLoader,
    "pyg": torch_geometric.loader.NeighborLoader,
}
GENERATED, NUM_CLASSES, NUM_FEATURES = "generated", 8, 100
HOMOPHILY = 0.7  # share of the generated edges that join nodes of one class
COLUMNS = "model        epoch    loss  train acc  seconds"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dataset", choices=[GENERATED, "cora", "citeseer", "pubmed"], default=GENERATED)
    add("--root", default="data", help="folder that the data set is downloaded to; default: data")
    add("--num-nodes", type=int, default=40_000, help="of the generated graph; default: 40000")
    add("--num-edges", type=int, default=400_000, help="of the generated graph; default: 400000")
    add("--loader", choices=sorted(LOADERS), default="pyg_direct")
    add("--num-workers", type=int, default=0, help="threads (pyg_direct) or processes (pyg)")
    add("--batch-size", type=int, default=1024, help="default: 1024")
    add("--epochs", type=int, default=5, help="default: 5")
    add("--fanout", default="15,10", help="neighbours for each layer, -1 for all; default: 15,10")
    add("--hidden", type=int, default=64, help="width of the hidden layer; default: 64")
    add("--lr", type=float, default=0.01, help="default: 0.01")
    add("--seed", type=int, default=0, help="of the draws and of the model; default: 0")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the model")
    args = parser.parse_args(argv)
    args.fanout = [int(part) for part in args.fanout.split(",")]
    if args.loader == "pyg" and not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        parser.error("--loader pyg needs pyg-lib or torch-sparse; neither is installed")
    return args


def generated_graph(num_nodes: int, num_edges: int, seed: int) -> Data:
    """Return a graph with hubs, in which most neighbours of a node are of its class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_nodes) % NUM_CLASSES
    # Squared: nodes with small ids have most of the edges.
    ends = (num_nodes * torch.rand(2, num_edges, generator=generator) ** 2).long()
    same_class = ends[0] - y[ends[0]] + y[ends[1]]
    alike = torch.rand(num_edges, generator=generator) < HOMOPHILY
    ends[0] = torch.where(alike, same_class, ends[0]).clamp(max=num_nodes - 1)
    centroids = 0.15 * torch.randn(NUM_CLASSES, NUM_FEATURES, generator=generator)
    x = centroids[y] + torch.randn(num_nodes, NUM_FEATURES, generator=generator)
    data = Data(x=x, y=y, edge_index=ends)
    part = torch.randperm(num_nodes, generator=generator) % 4
    data.train_mask, data.val_mask, data.test_mask = part < 2, part == 2, part == 3
    return data


def train_epoch(
    model: torch.nn.Module, loader: Any, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[float, float]:
    """Train on every batch once; return the loss and the accuracy of the seeds."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    count = 0
    for batch in loader:
        batch = batch.to(device)  # does nothing if the loader has put it there
        y = batch.y[: batch.batch_size]  # the seeds are a batch's first nodes
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * len(y)
        correct += (out.argmax(dim=1) == y).sum()
        count += len(y)
    return float(loss_sum) / count, int(correct) / count


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: Any, device: torch.device) -> float:
    """Return the accuracy on the seeds of a loader."""
    model.eval()
    correct = count = 0
    for batch in loader:
        batch = batch.to(device)
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        correct += int((out.argmax(dim=1) == batch.y[: batch.batch_size]).sum())
        count += batch.batch_size
    return correct / count


def train(name: str, data: Data, args: argparse.Namespace) -> tuple[float, float]:
    """Train a new model, a row for each epoch; return seconds an epoch, and accuracy of the test.

    Seconds are a median without the first epoch, in which code is compiled or read.
    """
    device = torch.device(args.device)
    torch.manual_seed(args.seed)

    def loader_of(nodes: Tensor, shuffle: bool) -> Any:
        return LOADERS[args.loader](
            data,
            num_neighbors=args.fanout,
            input_nodes=nodes,
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
        )

    loader = loader_of(data.train_mask, shuffle=True)
    num_classes = int(data.y.max()) + 1
    layers = len(args.fanout)
    model: Any = GraphSAGE(data.num_features, args.hidden, layers, num_classes, dropout=0.3)
    model = model.to(device)
    if name == "accelerated":
        model = pyg_direct.accelerate(model, loader)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    seconds = []
    for epoch in range(1, args.epochs + 1):
        begin = perf_counter()
        loss, accuracy = train_epoch(model, loader, optimizer, device)
        seconds.append(perf_counter() - begin)
        print(f"{name:11s} {epoch:6d} {loss:7.4f} {accuracy:10.4f} {seconds[-1]:8.2f}", flush=True)
    tested = evaluate(model, loader_of(data.test_mask, shuffle=False), device)
    return median(seconds[1:] or seconds), tested


def main(argv: list[str] | None = None) -> None:
    """Train both models, and print what an epoch of each takes."""
    args = parse_args(argv)
    if args.dataset == GENERATED:
        data = generated_graph(args.num_nodes, args.num_edges, args.seed)
    else:
        data = Planetoid(args.root, args.dataset)[0]
    print(
        f"graph: {args.dataset}, {data.num_nodes:,} nodes, {data.num_edges:,} edges, "
        f"{int(data.train_mask.sum()):,} training nodes; loader: {args.loader}, fan-out "
        f"{args.fanout}, batch size {args.batch_size}, {args.num_workers} workers"
    )
    print(COLUMNS)
    names = ["plain", "accelerated"] if args.loader == "pyg_direct" else ["plain"]
    found = {name: train(name, data, args) for name in names}
    for name, (_, tested) in found.items():
        print(f"test accuracy, {name}: {tested:.4f}")
    seconds = {name: each for name, (each, _) in found.items()}
    last = ", ".join(f"{name} {each:.3f}" for name, each in seconds.items())
    if len(seconds) == 2:
        last += f" ({seconds['plain'] / seconds['accelerated']:.1f} times as fast)"
    print(f"seconds an epoch: {last}")


if __name__ == "__main__":
    main()
