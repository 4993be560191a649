"""What LABOR, dependent batches and orders of seeds are good for, on a CPU.

Nodes, edges and time of batches; misses of simulated caches; accuracy, and CPU-seconds until it is
reached. Writes `results/labor.json`, `results/labor.md` and `results/labor.png`; takes half an hour
on two cores.

    python -m benchmarks labor --root FOLDER  # holds coauthor/
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.labor import learning, sizes
from benchmarks.labor.graphs import graph
from benchmarks.machine import describe, environment
from benchmarks.result import new_result, number, parser, percent, save_plot, table, write

TITLE = "LABOR, dependent batches and orders of seeds"
GRAPHS = ("power law", "community", "debian")
FANOUTS = [10, 10, 10]
CACHED = (256, [10, 10])  # a tenth of a graph's nodes a batch, as of large graphs


def size_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table of batches."""
    rows = []
    for name, kinds in result["batches"].items():
        plain = kinds[0]
        for row in kinds:
            cells = [name, row["kind"]]
            for what in ("nodes", "edges", "milliseconds"):
                ratio = row[what]["median"] / plain[what]["median"]
                cells.append(f"{number(row[what]['median'])} ({ratio:.2f})")
            nanoseconds = 1e6 * row["milliseconds"]["median"] / max(1, row["entries"]["median"])
            rows.append([*cells, "" if row is plain else number(nanoseconds)])
    return rows


def miss_rows(result: dict[str, Any], name: str) -> list[list[str]]:
    """Return the rows of the table of misses on one graph."""
    rows = []
    for row in result["caches"][name]:
        kappa = "" if row["sampling"] == "uniform" else str(row["batch_dependency"])
        missed = [f"{100 * value:.0f}" for value in row["missed"].values()]
        rows.append(
            [row["sampling"], kappa, row["order"], number(row["rows_per_batch"] / 1000), *missed]
        )
    return rows


def learning_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table of accuracies."""
    rows = []
    for case in result["learning"]:
        for kind, found in case["kinds"].items():
            test = found["difference"]
            until = ["never", "", ""]
            if found["seconds"] is not None:
                p = f"{found['p_value']:.2f}"
                until = [number(found["seconds"]), f"{found['ratio']:.2f}", p]
            fanouts = "/".join(map(str, case["fanouts"]))
            rows.append(
                [
                    f"{case['name']}, {fanouts}", kind,
                    percent(test, kind), f"{test['p_value']:.2f}",
                    f"{found['mix']['mean']:.2f}, {found['mix']['max']:.2f}",
                    number(found["epoch"]), f"{found['reached']} of {case['seeds']}", *until,
                ]
            )  # fmt: skip
    return rows


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    lines = [
        "",
        f"Batches of {result['batch_size']} seeds, fan-outs {result['fanouts']}, sampled in turns",
        "on one thread, medians; in brackets against uniform draws. The last column is the time of",
        "a batch over the entries of lists that it read.",
        "",
        *table(
            ["graph", "sampling", "nodes", "edges", "ms a batch", "ns an entry"],
            size_rows(result),
        ),
        "",
        "Rows of features that a cache misses, in percent of those that a batch asks for. LRU:",
        "the rows used last; static: those that uniform batches use most. Kappa is",
        "`batch_dependency`. Seeds of a batch and fan-outs: "
        + ", ".join(map(str, result["cached"]))
        + ".",
    ]
    head = ["sampling", "kappa", "order", "1000 rows a batch"]
    head += [f"{kind} {share:.0%}" for kind in ("LRU", "static") for share in sizes.SHARES]
    for name in result["caches"]:
        lines += ["", f"## {name}", "", *table(head, miss_rows(result, name))]
    lines += [
        "",
        "## Accuracy",
        "",
        "GraphSAGE of 64 hidden channels, on one thread (features of more than 256 columns are",
        "projected to so many at random); test accuracy in percent, and CPU-seconds of training",
        f"until the validation accuracy is {learning.BELOW:.0%} below what uniform draws reach in",
        "their last epoch. p is of permutation tests against uniform draws. Labels: half the sum",
        "of the differences between the shares of labels in a batch and in all, mean and largest.",
        "",
        *table(
            [
                "graph, fan-outs",
                "kind",
                "test",
                "p",
                "labels",
                "s an epoch",
                "reached",
                "s until",
                "ratio",
                "p",
            ],
            learning_rows(result),
        ),
    ]
    for case in result["learning"]:
        if "machine" in case:
            lines += ["", f"Fan-outs {case['fanouts']} were measured later: {case['machine']}"]
    return lines


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the misses of the LRU cache against kappa."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(result["caches"]), figsize=(13, 3.6), sharey=True)
    for axis, (name, rows) in zip(axes, result["caches"].items(), strict=True):
        for order, dash in (("shuffle", "-"), ("proximity", "--")):
            own = [row for row in rows if row["order"] == order]
            labor = [row for row in own if row["sampling"] == "labor"]
            for share, colour in zip(sizes.SHARES, ("C0", "C1", "C2"), strict=True):
                key = f"lru {share}"
                label = f"{share:.0%} cached, {order}"
                kappa = [row["batch_dependency"] for row in labor]
                missed = [100 * row["missed"][key] for row in labor]
                axis.plot(kappa, missed, dash, color=colour, marker="o", ms=3, label=label)
                axis.axhline(100 * own[0]["missed"][key], color=colour, ls=dash, lw=0.5)
        axis.set(title=name, xscale="log", xlabel="batch_dependency")
    axes[0].set_ylabel("rows missed by an LRU cache, %\n(thin: uniform draws)")
    axes[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1))
    save_plot(figure, path)


def add_case(case: learning.Case, args: Any) -> None:
    """Measure one case of learning, and add it to the result that is there."""
    result = json.loads((args.out / "labor.json").read_text())
    machine = describe(environment())
    torch.set_num_threads(1)
    row = learning.run_case(case, args.root, args.seeds or 5, quick=False)
    result["learning"].append({**row, "machine": machine})
    write(result, args.out)


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the results."""
    arguments = parser(__doc__)
    arguments.add_argument("--root", type=Path, help="of coauthor/")
    arguments.add_argument("--seeds", type=int, help="5; 2 in a quick run")
    arguments.add_argument(
        "--case", type=int, help="add this case of learning.CASES to the result that is there"
    )
    args = arguments.parse_args(argv)
    quick = args.quick
    if args.case is not None:
        add_case(learning.CASES[args.case], args)
        return
    names = ("power law", "community") if quick else GRAPHS
    size, fanouts = (64, [3, 3]) if quick else (1024, FANOUTS)
    cached, number_of = ((32, [3, 3]), 8) if quick else (CACHED, 200)
    result = new_result("labor", quick, batch_size=size, fanouts=fanouts, cached=cached)
    result |= {"batches": {}, "caches": {}, "learning": []}
    for name in names:
        data = graph(name, args.root, quick)
        result["batches"][name] = sizes.batches(data, size, fanouts, 3 if quick else 40)
        windows = (1, 8) if quick else sizes.WINDOWS
        result["caches"][name] = sizes.cache_misses(data, *cached, number_of, windows)
        write(result, args.out)
    torch.set_num_threads(1)  # threads that wait for each other count as CPU-seconds
    for case in [learning.QUICK] if quick else learning.CASES:
        row = learning.run_case(case, args.root, args.seeds or (2 if quick else 5), quick)
        result["learning"].append(row)
        write(result, args.out)
    path = write(result, args.out)
    plot(result, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
