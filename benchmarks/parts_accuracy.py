"""Test accuracy of a model whose batches have seeds of one part, against shuffled seeds.

The graph is that of Debian's packages, which lies in the repository. Parts by METIS need pymetis.

    python -m benchmarks parts_accuracy
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch

import pyg_direct
from benchmarks import result
from benchmarks.labor.graphs import graph
from benchmarks.labor.learning import CASES, DEVICE, QUICK, Case
from benchmarks.statistics import compare
from examples.support.training import evaluate, make_sage, train_epoch

TITLE = "Accuracy by the order of seeds over parts"
PARTS, SEEDS = 4, 5
METHODS = ("ldg", "metis")
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True},
    "by part": {"order": "parts"},
}
CASE = next(case for case in CASES if case.name == "debian")


def test_accuracy(parts: Any, case: Case, order: str, seed: int) -> float:
    """Train once, and return the test accuracy."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {"batch_size": case.batch_size, "seed": seed, "device": "cpu"}
    loader = pyg_direct.NeighborLoader(
        parts, case.fanouts, parts.train_mask, **options, **ORDERS[order]
    )
    model = make_sage(parts, int(parts.y.max()) + 1, 64, len(case.fanouts))
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr, weight_decay=case.weight_decay)
    for _ in range(case.epochs):
        train_epoch(model, loader, optimizer, DEVICE)
    testing = pyg_direct.NeighborLoader(parts, case.fanouts, parts.test_mask, **options)
    return evaluate(model, testing, DEVICE)


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows = [
        [
            method,
            f"{row['remote_rows_of_shuffled']:.0%}",
            f"{row['remote_rows']:.0%}",
            result.percent(row["test"], "shuffled"),
            result.percent(row["test"], "by part"),
            f"{100 * row['test']['difference']:+.2f}",
            f"{row['test']['p_value']:.2f}",
        ]
        for method, row in found["methods"].items()
    ]
    head = ["parts by", "remote rows, shuffled", "by part", "accuracy, shuffled, %", "by part, %",
            "difference", "p"]  # fmt: skip
    return [
        "",
        f"`{found['graph']}` in {found['parts']} parts, a GraphSAGE of two layers, fan-out "
        f"{found['fanouts']},",
        f"batches of {found['batch_size']}, {found['epochs']} epochs in one process; mean and "
        f"standard deviation of",
        f"{found['seeds']} seeds; p of a permutation test. Remote rows with a rank for each part.",
        "",
        *result.table(head, rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    args = result.parser(__doc__).parse_args(argv)
    case = QUICK if args.quick else CASE
    seeds = 2 if args.quick else SEEDS
    found = result.new_result(
        "parts_accuracy", args.quick, graph=case.name, parts=PARTS, fanouts=case.fanouts,
        batch_size=case.batch_size, epochs=case.epochs, seeds=seeds, methods={},
    )  # fmt: skip
    data = graph(case.name, None, args.quick)
    for method in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            report = pyg_direct.partition(data, f"{folder}/parts", PARTS, method)
            parts = pyg_direct.open(f"{folder}/parts")
            test: dict[str, list[float]] = {name: [] for name in ORDERS}
            for seed in range(seeds):
                for name in ORDERS:
                    test[name].append(test_accuracy(parts, case, name, seed))
                    print(method, seed, name, test[name][-1], flush=True)
            row = {"test": compare(test, "by part", "shuffled"), "runs": test}
            found["methods"][method] = {**report.as_dict(), **row}
        print(result.write(found, args.out))


if __name__ == "__main__":
    main()
