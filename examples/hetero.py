"""Tell the section of Debian's packages from packages, sources and maintainers around them.

python examples/hetero.py
python examples/hetero.py --fanout 10,5 --epochs 5
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import HeteroData
from torch_geometric.nn import to_hetero

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import SageEncoder, add_device, parser, with_bar
from examples.support.debian import typed_packages

TRAIN, TEST = 0, 2  # values of `split`


def load() -> HeteroData:
    """Return the graph with features for all types and messages in both directions."""
    data = typed_packages()
    data["package"].x = data["package"].x.log1p()
    for kind in ("source", "maintainer"):  # known by their neighbours alone
        data[kind].x = torch.ones(data[kind].num_nodes, 1)
    for edge_type in data.edge_types:
        data[edge_type].pop("edge_weight", None)
    return T.ToUndirected(merge=False)(data)


def main(argv: list[str] | None = None) -> float:
    """Train and test; return the accuracy."""
    made = parser(__doc__, epochs=2, batch_size=1024)
    made.add_argument("--fanout", default="4,3", help="for each edge type; default: 4,3")
    add_device(made)
    made.add_argument("--num-seeds", type=int, help="train and test on so many at most")
    args = made.parse_args(argv)
    torch.manual_seed(args.seed)
    data = load()
    package = data["package"]

    def loader_of(split: int, shuffle: bool) -> pyg_direct.NeighborLoader:
        return pyg_direct.NeighborLoader(
            data,
            [int(part) for part in args.fanout.split(",")],
            ("package", (package.split == split).nonzero().view(-1)[: args.num_seeds]),
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
            seed=args.seed,
        )

    loader, testing = loader_of(TRAIN, shuffle=True), loader_of(TEST, shuffle=False)
    model = to_hetero(SageEncoder(64, int(package.y.max()) + 1), data.metadata()).to(args.device)
    with torch.no_grad():  # lazy layers learn their sizes
        first = next(iter(loader)).to(args.device)
        model(first.x_dict, first.edge_index_dict)
    model = pyg_direct.accelerate(model, loader, testing)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, args.epochs + 1):
        model.train()
        losses = []
        for batch in with_bar(loader, f"epoch {epoch}"):
            batch = batch.to(args.device)  # does nothing if the loader has put it there
            seeds = batch["package"].batch_size
            optimizer.zero_grad()
            out = model(batch.x_dict, batch.edge_index_dict)["package"][:seeds]
            loss = F.cross_entropy(out, batch["package"].y[:seeds])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
    print(loader.stats().verdict)

    model.eval()
    correct = total = 0
    with torch.no_grad():
        for batch in with_bar(testing, "test"):
            batch = batch.to(args.device)
            seeds = batch["package"].batch_size
            out = model(batch.x_dict, batch.edge_index_dict)["package"][:seeds]
            correct += int((out.argmax(dim=-1) == batch["package"].y[:seeds]).sum())
            total += seeds
    print(f"test accuracy {correct / total:.3f}")
    return correct / total


if __name__ == "__main__":
    main()
