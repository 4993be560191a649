"""Predict which packages of Debian are linked, without leaking the links that are predicted.

python examples/link_prediction.py
python examples/link_prediction.py --keep-seed-edges  # what leaking them does to the test
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import to_undirected

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.common import auc, parser, with_bar
from examples.debian import packages

NUM_TEST = 10_000


def score(model: torch.nn.Module, batch: Any) -> Tensor:
    """Return a number for each seed link and negative: the product of its ends' rows."""
    out = model(batch.x, batch.edge_index)
    source, destination = batch.edge_label_index
    result: Tensor = (out[source] * out[destination]).sum(dim=-1)
    return result


def main(argv: list[str] | None = None) -> float:
    """Train and test; return the area under the ROC curve of the test."""
    made = parser(__doc__, epochs=2, batch_size=2048)
    made.add_argument("--num-links", type=int, default=60_000, help="to train on")
    made.add_argument("--keep-seed-edges", action="store_true", help="leak the predicted links")
    args = made.parse_args(argv)
    torch.manual_seed(args.seed)
    data = packages()
    once = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]  # each link in one direction
    once = once[:, torch.randperm(once.size(1))]
    test, train = once[:, :NUM_TEST], once[:, NUM_TEST:]
    data.edge_index = to_undirected(train, num_nodes=data.num_nodes)  # without the test links

    def loader_of(links: Tensor, shuffle: bool, exclude: str | None) -> Any:
        return pyg_direct.LinkNeighborLoader(
            data,
            [5, 5],
            edge_label_index=links,
            neg_sampling="binary",
            exclude_seed_edges=exclude,
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
            seed=args.seed,
        )

    exclude = None if args.keep_seed_edges else "reverse"
    loader = loader_of(train[:, : args.num_links], True, exclude)
    testing = loader_of(test[:, : args.num_links], False, None)  # they are not in the graph
    model = GraphSAGE(data.num_features, 64, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, args.epochs + 1):
        model.train()
        seen = []
        for batch in with_bar(loader, f"epoch {epoch}"):
            optimizer.zero_grad()
            scores = score(model, batch)
            F.binary_cross_entropy_with_logits(scores, batch.edge_label).backward()
            optimizer.step()
            seen.append((scores.detach(), batch.edge_label))
        print(f"epoch {epoch}: AUC of training {auc(*map(torch.cat, zip(*seen, strict=True))):.3f}")
    print(loader.stats().verdict)

    model.eval()
    with torch.no_grad():
        tested = [(score(model, batch), batch.edge_label) for batch in with_bar(testing, "test")]
    result = auc(*map(torch.cat, zip(*tested, strict=True)))
    print(f"test AUC {result:.3f}")
    return result


if __name__ == "__main__":
    main()
