"""Is a model as good when its features are stored as float16 or int8?

Trains the GraphSAGE of `python -m benchmarks accuracy` with our loader on real graphs, with
features as they are and as `pyg_direct.quantize` stores them, 5 seeds each.

    python -m benchmarks narrow_accuracy --root FOLDER  # holds planetoid/, coauthor/, amazon/
"""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize

from benchmarks.result import new_result, percent, table, write
from benchmarks.statistics import compare
from benchmarks.training.accuracy import Case, asked_for, load, train_once
from pyg_direct import quantize

TITLE = "Test accuracy with narrow features"
AS_IS = "float32"
STORED: dict[str, torch.dtype] = {"float16": torch.float16, "int8": torch.int8}


def run_case(case: Case, root: Path | None, num_seeds: int) -> dict[str, Any]:
    """Train with all kinds of storage in turn, and return the row of the table."""
    start = time.perf_counter()
    data = load(case, root)
    data.x = normalize(data.x)  # every format would store words' counts exactly, or nearly so
    graphs = {AS_IS: data}
    for name, dtype in STORED.items():
        graphs[name] = copy.copy(data)
        graphs[name].x = quantize(data.x, dtype)
    accuracy: dict[str, list[float]] = {name: [] for name in graphs}
    for seed in range(num_seeds):
        for name, graph in graphs.items():
            accuracy[name].append(train_once(graph, case, "pyg_direct", seed))
    row = {
        **case._asdict(),
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "num_features": data.num_features,
        "num_seeds": num_seeds,
        "accuracy": accuracy,
        "compared": {name: compare(accuracy, name, AS_IS) for name in STORED},
        "seconds": time.perf_counter() - start,
    }
    print(*cells(row), f"{row['seconds']:.0f} s", flush=True)
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    compared = row["compared"]
    found = [row["dataset"], percent(compared["int8"], AS_IS)]
    for name, against in compared.items():
        found.append(percent(against, name))
        found.append(f"{100 * against['difference']:+.2f}")
        found.append(f"{against['p_value']:.2f}")
    return [*found, str(row["num_seeds"])]


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    head = ["data set", AS_IS]
    for name in STORED:
        head += [name, "difference", "p"]
    return [
        "",
        "A 2-layer GraphSAGE as in `accuracy.md`, trained and tested with our loader; int8 with a",
        "factor for each column. Percent, mean ± standard deviation over the seeds; p is that of a",
        "two-sided exact permutation test against float32. The rows of the features are scaled to",
        "the length 1: they are counts of words, of which narrow formats store most exactly. The",
        "JSON has each run.",
        "",
        *table([*head, "seeds"], map(cells, result["rows"])),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the cases; those that were measured before and are not asked for are kept."""
    args, cases, seeds = asked_for(__doc__, argv)
    result = new_result("narrow_accuracy", args.quick, rows=[])
    stored = args.out / "narrow_accuracy.json"
    if stored.exists() and not args.quick:
        result["rows"] = json.loads(stored.read_text())["rows"]
    for case in cases:
        others = [row for row in result["rows"] if row["dataset"] != case.dataset]
        result["rows"] = [*others, run_case(case, args.root, seeds)]
        write(result, args.out)


if __name__ == "__main__":
    main()
