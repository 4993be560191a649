"""Train on ogbn-products (2.4 M nodes, 62 M edges, 47 classes), from its files to the accuracy.

The package `ogb` is not needed. The archive has about 1.4 GB.

    wget http://snap.stanford.edu/ogb/data/nodeproppred/products.zip && unzip products.zip
    pyg-direct convert products-graph --ogb products --symmetrise
    python examples/ogbn_products.py products-graph
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import pyg_direct


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", help="the folder that `pyg-direct convert` wrote")
    parser.add_argument("--epochs", type=int, default=10, help="default: 10")
    parser.add_argument("--batch-size", type=int, default=1024, help="default: 1024")
    parser.add_argument("--hidden", type=int, default=256, help="default: 256")
    parser.add_argument("--num-workers", type=int, default=0, help="producer threads; default: 0")
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=found, help=f"of the model; here: {found}")
    return parser.parse_args(argv)


def accuracy(out: torch.Tensor, data: Any, mask: torch.Tensor) -> float:
    """Return the share of nodes of a mask whose largest output is that of their label."""
    return float((out[mask].argmax(dim=1) == data.y[mask]).float().mean())


def main(argv: list[str] | None = None) -> float:
    """Train, and return the accuracy on the test nodes."""
    args = parse_args(argv)
    data: Any = pyg_direct.open(args.graph)
    num_classes = int(data.y.max()) + 1
    loader = pyg_direct.NeighborLoader(
        data,
        [15, 10, 5],
        input_nodes=data.train_mask,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
    )
    model: Any = GraphSAGE(data.num_features, args.hidden, 3, num_classes, dropout=0.5)
    model = model.to(args.device)
    model = pyg_direct.accelerate(model, loader)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    best = tested = 0.0
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch in loader:
            batch = batch.to(args.device)  # does nothing if the loader has put it there
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
        model.eval()  # all neighbours, for all nodes, layer by layer
        out = pyg_direct.inference(model, data, inputs=("x", "edge_index"))
        validated = accuracy(out, data, data.val_mask)
        if validated > best:  # the epoch is chosen by validation, never by the test
            best, tested = validated, accuracy(out, data, data.test_mask)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy of validation {validated:.4f}")
    print(loader.stats().verdict)
    print(f"test accuracy {tested:.4f}")
    return tested


if __name__ == "__main__":
    main()
