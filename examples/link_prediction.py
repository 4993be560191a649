"""Predict links of a graph, without leaking the links that are predicted into their own batches.

One file, to be copied. It makes its graph up: nodes of many small groups, linked within them.

    python examples/link_prediction.py
    python examples/link_prediction.py --keep-seed-edges  # what leaking them does to the test
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct

GROUP_SIZE, LINKS_OF_A_NODE, NUM_FEATURES = 40, 5, 32


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num-nodes", type=int, default=20_000, help="of the generated graph; default: 20000")
    add("--epochs", type=int, default=5, help="default: 5")
    add("--batch-size", type=int, default=2048, help="links of a batch; default: 2048")
    add("--num-workers", type=int, default=0, help="producer threads; default: 0")
    add("--seed", type=int, default=0, help="of the draws and of the model; default: 0")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the model")
    add("--keep-seed-edges", action="store_true", help="leak the links that are predicted")
    return parser.parse_args(argv)


def generated_graph(num_nodes: int, seed: int) -> Data:
    """Return an undirected graph of groups, whose features hint at the group of a node."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.randperm(num_nodes, generator=generator) // GROUP_SIZE
    order, count = group.argsort(), num_nodes * LINKS_OF_A_NODE
    source = torch.randint(num_nodes, (count,), generator=generator)
    begin = source // GROUP_SIZE * GROUP_SIZE
    other = torch.randint(GROUP_SIZE, (count,), generator=generator)
    destination = (begin + other).clamp(max=num_nodes - 1)
    centroids = torch.randn(int(group.max()) + 1, NUM_FEATURES, generator=generator)
    noise = 4 * torch.randn(num_nodes, NUM_FEATURES, generator=generator)
    data = Data(x=centroids[group] + noise, edge_index=order[torch.stack([source, destination])])
    return T.Compose([T.RemoveDuplicatedEdges(), T.ToUndirected()])(data)


def scored(model: torch.nn.Module, batch: Any, device: str) -> tuple[Tensor, Tensor]:
    """Return a score for each seed link and negative, the product of its ends' rows; and labels."""
    batch = batch.to(device)  # does nothing if the loader has put it there
    out = model(batch.x, batch.edge_index)
    source, destination = batch.edge_label_index
    return (out[source] * out[destination]).sum(dim=-1), batch.edge_label


def auc(scores: Tensor, label: Tensor) -> float:
    """Return the chance that a link scores higher than a negative."""
    links, negatives = scores[label > 0], scores[label == 0].sort().values
    return float(torch.searchsorted(negatives, links).double().mean()) / len(negatives)


def main(argv: list[str] | None = None) -> float:
    """Train and test; return the area under the ROC curve of the test."""
    args = parse_args(argv)
    torch.manual_seed(args.seed)
    # Links of the test are in no graph; those of validation are not in the graph of training.
    split = T.RandomLinkSplit(
        num_val=0.05, num_test=0.1, is_undirected=True, add_negative_train_samples=False
    )
    train, val, test = split(generated_graph(args.num_nodes, args.seed))

    def loader_of(data: Data, shuffle: bool, exclude: str | None) -> pyg_direct.LinkNeighborLoader:
        return pyg_direct.LinkNeighborLoader(
            data,
            [10, 5],
            edge_label_index=data.edge_label_index[:, data.edge_label > 0],
            neg_sampling="binary",
            exclude_seed_edges=exclude,
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
            seed=args.seed,
        )

    loader = loader_of(train, True, None if args.keep_seed_edges else "reverse")
    validating, testing = (loader_of(part, False, None) for part in (val, test))
    model = GraphSAGE(train.num_features, 64, num_layers=2).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    @torch.no_grad()
    def evaluated(batches: pyg_direct.LinkNeighborLoader) -> float:
        model.eval()
        tested = [scored(model, batch, args.device) for batch in batches]
        return auc(*map(torch.cat, zip(*tested, strict=True)))

    for epoch in range(1, args.epochs + 1):
        model.train()
        seen = []
        for batch in loader:
            optimizer.zero_grad()
            scores, labels = scored(model, batch, args.device)
            F.binary_cross_entropy_with_logits(scores, labels).backward()
            optimizer.step()
            seen.append((scores.detach(), labels))
        trained = auc(*map(torch.cat, zip(*seen, strict=True)))
        print(f"epoch {epoch}: AUC {trained:.3f}, of validation {evaluated(validating):.3f}")
    print(loader.stats().verdict)
    result = evaluated(testing)
    print(f"test AUC {result:.3f}")
    return result


if __name__ == "__main__":
    main()
