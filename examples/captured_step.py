"""Train a GraphSAGE whose batches and steps are CUDA graphs, beside the ordinary loop.

One file, to be copied. On a GPU both are captured once and replayed for each batch; without one the
second loop is the first. Both have the same batches, and losses that differ by rounding at most.

    python examples/captured_step.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct

NUM_CLASSES, NUM_FEATURES, FANOUT = 8, 64, [10, 5]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num-nodes", type=int, default=20_000, help="default: 20000")
    add("--num-edges", type=int, default=200_000, help="default: 200000")
    add("--batch-size", type=int, default=256, help="default: 256")
    add("--epochs", type=int, default=3, help="default: 3")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(argv)


def generated_graph(num_nodes: int, num_edges: int) -> Data:
    """Return a random graph whose features tell the class of a node."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(num_nodes) % NUM_CLASSES
    noise = torch.randn(num_nodes, NUM_FEATURES, generator=generator)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(x=F.one_hot(y, NUM_FEATURES) + noise, y=y, edge_index=edge_index)


def new_step(device: str) -> Callable[[Any], Tensor]:
    """Return a training step of a new model: a function of a batch that returns the loss.

    It reads nothing back, and its parameters, gradients and optimizer stay where they are.
    """
    torch.manual_seed(0)
    model = GraphSAGE(NUM_FEATURES, 64, len(FANOUT), NUM_CLASSES).to(device)
    # `capturable`: the number of steps is counted on the GPU.
    optimizer = torch.optim.Adam(model.parameters(), capturable=device.startswith("cuda"))

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        return loss

    return step


def main(argv: list[str] | None = None) -> None:
    """Train by both loops, and print the loss of each epoch and its seconds."""
    args = parse_args(argv)
    data = generated_graph(args.num_nodes, args.num_edges)
    options: dict[str, Any] = {"batch_size": args.batch_size, "shuffle": True, "drop_last": True}
    for name in ("ordinary", "replayed"):
        loader = pyg_direct.NeighborLoader(
            data, FANOUT, **options, seed=0, static_shapes=True, ids="device", device=args.device
        )
        step = new_step(args.device)
        for epoch in range(args.epochs):
            begin = perf_counter()
            results = map(step, loader) if name == "ordinary" else loader.replay(step)
            losses = torch.stack([result.detach() for result in results])
            loss = float(losses.mean())  # waits for the GPU
            print(f"{name:9s} epoch {epoch}: loss {loss:.4f}, {perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
