"""Is a model trained with pyg_direct's loader as good as one trained with PyG's?

Trains the same GraphSAGE with either loader on real graphs, 5 seeds each, and writes
`results/accuracy.json` and `results/accuracy.md`. Takes some ten minutes on two cores.

    python -m benchmarks accuracy --root FOLDER  # holds planetoid/, coauthor/, amazon/
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch_geometric.loader
from torch_geometric.data import Data

import pyg_direct
from benchmarks.result import check_some, new_result, parser, percent, table, write
from benchmarks.statistics import compare
from examples.support.datasets import load_dataset
from examples.support.synthetic import power_law_graph, random_split
from examples.support.training import evaluate, make_sage, train_epoch

TITLE = "Test accuracy with either loader"
LOADERS = {
    "pyg_direct": pyg_direct.NeighborLoader,
    "pyg": torch_geometric.loader.NeighborLoader,
}
DEVICE = torch.device("cpu")
SPLIT_SEED = 0


class Case(NamedTuple):
    """A data set and how to train on it; the same for both loaders."""

    dataset: str
    epochs: int
    batch_size: int
    fanout: list[int]
    hidden: int = 64
    lr: float = 0.01
    weight_decay: float = 5e-4
    # Shares of the nodes to train on and to leave aside. None: the data set has a split.
    split: tuple[float, float] | None = None


CASES = [
    Case("cora", 30, 32, [10, 10]),
    # Small, since every sampled edge carries 6,805 features.
    Case("coauthor_cs", 5, 128, [5, 5], split=(0.05, 0.65)),
    # Slow steps: with lr=0.01 the noise between seeds is 2 %, too much to see a difference.
    Case("amazon_photo", 30, 128, [10, 10], lr=0.003, weight_decay=0.0, split=(0.1, 0.1)),
    Case("debian", 6, 512, [10, 10], weight_decay=1e-5),
]
QUICK_CASE = Case("generated", 1, 64, [3, 3], hidden=8)


def load(case: Case, root: Path | None) -> Data:
    """Return the graph of a case, with masks."""
    if case.dataset == QUICK_CASE.dataset:
        return power_law_graph(500, 4000)
    data = load_dataset(case.dataset, root)
    return data if case.split is None else random_split(data, *case.split, SPLIT_SEED)


def train_once(data: Data, case: Case, loader_name: str, seed: int) -> float:
    """Train a fresh model, and return its test accuracy.

    The test samples, too, with the same loader: with a fan-out of -1 it would ask less of it.
    """
    torch.manual_seed(seed)

    def make_loader(mask: torch.Tensor, shuffle: bool) -> Any:
        return LOADERS[loader_name](
            data, case.fanout, mask, batch_size=case.batch_size, shuffle=shuffle
        )

    model = make_sage(data, int(data.y.max()) + 1, case.hidden, len(case.fanout))
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr, weight_decay=case.weight_decay)
    loader = make_loader(data.train_mask, shuffle=True)
    for _ in range(case.epochs):
        train_epoch(model, loader, optimizer, DEVICE)
    return evaluate(model, make_loader(data.test_mask, shuffle=False), DEVICE)


def run_case(case: Case, root: Path | None, num_seeds: int) -> dict[str, Any]:
    """Train with both loaders in turn, and return the row of the table."""
    start = time.perf_counter()
    data = load(case, root)
    accuracy: dict[str, list[float]] = {name: [] for name in LOADERS}
    for seed in range(num_seeds):
        for name in LOADERS:
            accuracy[name].append(train_once(data, case, name, seed))
    row = {
        **case._asdict(),
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "num_test_nodes": int(data.test_mask.sum()),
        "num_seeds": num_seeds,
        "accuracy": accuracy,
        **compare(accuracy, "pyg_direct", "pyg"),
        "seconds": time.perf_counter() - start,
    }
    print(*cells(row), f"{row['seconds']:.0f} s", flush=True)
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    scores = [percent(row, name) for name in LOADERS]
    difference, p_value = f"{100 * row['difference']:+.2f}", f"{row['p_value']:.2f}"
    return [row["dataset"], *scores, difference, p_value, str(row["num_seeds"])]


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    return [
        "",
        "A 2-layer GraphSAGE, trained and tested on sampled neighbourhoods. Percent, mean ±",
        "standard deviation over the seeds; p is that of a two-sided exact permutation test on the",
        "means. The JSON has the accuracy of each run, and all hyper-parameters.",
        "",
        *table(
            ["data set", "pyg_direct", "PyG", "difference", "p", "seeds"],
            map(cells, result["rows"]),
        ),
    ]


def asked_for(
    description: str | None, argv: list[str] | None
) -> tuple[argparse.Namespace, list[Case], int]:
    """Return the arguments of a command, its cases, and the number of seeds."""
    arguments = parser(description)
    arguments.add_argument("--root", type=Path, help="of planetoid/, coauthor/, amazon/")
    arguments.add_argument("--seeds", type=int, help="5; 2 in a quick run")
    arguments.add_argument("--datasets", nargs="*", help="only these")
    args = arguments.parse_args(argv)
    cases = [QUICK_CASE] if args.quick else CASES
    chosen = [case for case in cases if not args.datasets or case.dataset in args.datasets]
    check_some(arguments, "--datasets", chosen, [case.dataset for case in cases])
    return args, chosen, args.seeds or (2 if args.quick else 5)


def main(argv: list[str] | None = None) -> None:
    """Run all cases and write the results."""
    args, cases, seeds = asked_for(__doc__, argv)
    result = new_result("accuracy", args.quick)
    result["rows"] = [run_case(case, args.root, seeds) for case in cases]
    write(result, args.out)
