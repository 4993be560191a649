"""What the example scripts share: arguments, progress bars, data with times, and scores."""

# Annotations are not postponed here: torch 2.4's fx cannot write those of a model that
# `to_hetero` gets.

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv
from tqdm import tqdm

DAYS, SEASONS, STYLE_COLUMNS = 365, 5, 8


def parser(doc: str | None, epochs: int, batch_size: int) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all scripts take."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--epochs", type=int, default=epochs, help=f"default: {epochs}")
    made.add_argument("--batch-size", type=int, default=batch_size, help=f"default: {batch_size}")
    made.add_argument("--num-workers", type=int, default=0, help="producer threads; default: 0")
    made.add_argument("--seed", type=int, default=0, help="of the draws and of the model")
    return made


def add_device(made: argparse.ArgumentParser) -> None:
    """Add `--device`, where the model is, which the loaders follow."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    made.add_argument("--device", default=found, help=f"of the model; here: {found}")


def with_bar(loader: Any, text: str) -> Iterator[Any]:
    """Yield the batches of a loader of ours behind a progress bar with its rate."""
    # On a terminal alone: in a file a bar would be hundreds of lines.
    with tqdm(total=len(loader), desc=text, unit="batch", leave=False, disable=None) as bar:
        for batch in loader:
            yield batch
            bar.set_postfix(loader.stats().postfix(), refresh=False)
            bar.update()


class SageEncoder(torch.nn.Module):
    """Two SAGE layers; `to_hetero` makes them heterogeneous."""

    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv((-1, -1), hidden)
        self.conv2 = SAGEConv((-1, -1), out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return one row for each node."""
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def auc(score: Tensor, label: Tensor) -> float:
    """Return the chance that a positive scores higher than a negative (Mann-Whitney)."""
    order = score.argsort()
    rank = torch.empty(len(score), dtype=torch.float64, device=score.device)
    rank[order] = torch.arange(1, len(score) + 1, dtype=torch.float64, device=score.device)
    positive = label > 0
    count = int(positive.sum())
    below = float(rank[positive].sum()) - count * (count + 1) / 2
    return below / (count * (len(label) - count))


def purchases(num_users: int, num_items: int, num_purchases: int, seed: int = 0) -> HeteroData:
    """Make up users of five groups who buy, in each fifth of a year, items of one fashion.

    Returns:
        Nodes `user` (x: ones) and `item` (x shows its fashion, with noise), and edges in both
        directions with `day`, int64 in [0, 365).
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, size: int) -> Tensor:
        return torch.randint(high, (size,), generator=generator)

    user, day = draw(num_users, num_purchases), draw(DAYS, num_purchases)
    season = day * SEASONS // DAYS
    fashion = (draw(SEASONS, num_users)[user] + season) % SEASONS
    in_a_fashion = num_items // SEASONS
    item = fashion * in_a_fashion + draw(in_a_fashion, num_purchases)
    style = 2 * F.one_hot(torch.arange(num_items) // in_a_fashion, STYLE_COLUMNS)
    data = HeteroData()
    data["user"].x = torch.ones(num_users, 1)
    data["item"].x = style + torch.randn(num_items, STYLE_COLUMNS, generator=generator)
    for edge_type, ends in (
        (("user", "buys", "item"), (user, item)),
        (("item", "bought_by", "user"), (item, user)),
    ):
        data[edge_type].edge_index, data[edge_type].day = torch.stack(ends), day
    return data
