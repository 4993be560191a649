"""Predict what users buy next: no neighbour is later than the purchase that is predicted.

python examples/temporal.py
python examples/temporal.py --strategy uniform --window 60
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import to_hetero

if not __package__:  # run as a script: find the modules beside it as `python -m` would
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyg_direct
from examples.support.common import SageEncoder, add_device, auc, parser, purchases, with_bar

BUYS = ("user", "buys", "item")
FIRST_TEST_DAY = 300


def main(argv: list[str] | None = None) -> float:
    """Train on early purchases, test on late ones; return the area under the ROC curve."""
    made = parser(__doc__, epochs=3, batch_size=1024)
    add_device(made)
    made.add_argument("--num-purchases", type=int, default=40_000, help="to make up")
    made.add_argument("--strategy", choices=["last", "uniform"], default="last")
    made.add_argument("--window", type=int, help="days back; default: any")
    args = made.parse_args(argv)
    torch.manual_seed(args.seed)
    data = purchases(args.num_purchases // 20, 500, args.num_purchases, args.seed)
    day = data[BUYS].day

    def loader_of(chosen: Tensor, shuffle: bool) -> pyg_direct.LinkNeighborLoader:
        return pyg_direct.LinkNeighborLoader(
            data,
            [4, 4],
            edge_label_index=(BUYS, data[BUYS].edge_index[:, chosen]),
            edge_label_time=day[chosen] - 1,  # what was known the day before
            time_attr="day",
            time_window=args.window,
            temporal_strategy=args.strategy,
            neg_sampling="binary",
            batch_size=args.batch_size,
            shuffle=shuffle,
            num_workers=args.num_workers,
            seed=args.seed,
        )

    loader, testing = loader_of(day < FIRST_TEST_DAY, True), loader_of(day >= FIRST_TEST_DAY, False)
    model = to_hetero(SageEncoder(32, 32), data.metadata()).to(args.device)

    def scored(batch: Any) -> tuple[Tensor, Tensor]:
        batch = batch.to(args.device)  # does nothing if the loader has put it there
        out = model(batch.x_dict, batch.edge_index_dict)
        source, destination = batch[BUYS].edge_label_index
        score = (out["user"][source] * out["item"][destination]).sum(dim=-1)
        return score, batch[BUYS].edge_label

    with torch.no_grad():  # lazy layers learn their sizes
        scored(next(iter(loader)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    result = 0.0
    for epoch in range(1, args.epochs + 1):
        for batch in with_bar(loader, f"epoch {epoch}"):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(*scored(batch)).backward()
            optimizer.step()
        with torch.no_grad():
            tested = [scored(batch) for batch in with_bar(testing, "test")]
        result = auc(*map(torch.cat, zip(*tested, strict=True)))
        print(f"epoch {epoch}: AUC on purchases from day {FIRST_TEST_DAY} on {result:.3f}")
    print(loader.stats().verdict)
    return result


if __name__ == "__main__":
    main()
