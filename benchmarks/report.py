"""Render `results/cpu_loaders.json` as a table and a plot.

python -m benchmarks.report [JSON]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import LOADERS, MALLOC_MODES, NUM_WORKERS, OURS
from benchmarks.derive import METRICS, find

RESULT = Path(__file__).parent / "results" / "cpu_loaders.json"

# Metric -> (title, factor to the unit of the title).
TABLES = {
    "batch_ms": ("Whole batch, ms", 1.0),
    "sampling_ms": ("Sampling alone, ms", 1.0),
    "batch_cpu_ms": ("CPU time of a whole batch, ms", 1.0),
    "construct_seconds": ("Construction, s", 1.0),
    "construct_peak_extra_bytes": ("Peak memory beyond the tensors, constructing, MB", 1e-6),
    "iterating_extra_bytes": ("Peak memory beyond the tensors, iterating, MB", 1e-6),
}


def number(value: float) -> str:
    """Return about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def text_row(row: dict[str, Any]) -> str:
    """Return one line about one row."""
    who = f"{row['loader']:17s} {row['num_workers']} workers, malloc {row['malloc']:7s}"
    quartiles = f"[{number(row['p25'])}, {number(row['p75'])}]"
    return f"  {who} {row['metric']:28s} {number(row['median']):>14s} {quartiles} n={row['n']}"


def markdown(result: dict[str, Any]) -> str:
    """Return the whole report."""
    lines = ["# CPU loaders", ""]
    if result["smoke"]:
        lines += ["**A smoke run on toy sizes: no result.**", ""]
    lines += _environment(result)
    for graph in result["graphs"]:
        lines += ["", f"## {graph['case']['name']}", "", *_graph(graph)]
    lines += ["", "## First import to first batch", "", *_first_batch(result["first_batch"])]
    lines += ["", "Written by `python -m benchmarks.report` from `cpu_loaders.json`."]
    return "\n".join(lines) + "\n"


def _environment(result: dict[str, Any]) -> list[str]:
    machine = result["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items() if value)
    speeds = ", ".join(
        f"{value / 1e9:.1f} GB/s with {threads} thread{'s' if threads != '1' else ''}"
        for threads, value in result["copy_bytes_per_s"].items()
    )
    lines = [
        f"{machine['cpu_model']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 1e9:.0f} GB, kernel {machine['kernel']}, "
        f"transparent huge pages: {machine['transparent_huge_pages']}. "
        f"{versions}. Commit {result['commit']}.",
        f"Copy bandwidth, read plus written: {speeds}.",
        "",
        "Median over the rounds of one interleaved run, and the quartiles. Each loader runs in a",
        "process of its own; `malloc kept` means that glibc was told not to give memory back.",
        "`sampling alone` is the sampler without workers, and a loader over the bare graph with.",
    ]
    if result["not_installed"]:
        lines.append(f"Not installed, so not measured: {', '.join(result['not_installed'])}.")
    return lines


def _graph(graph: dict[str, Any]) -> list[str]:
    case = graph["case"]
    columns = [(malloc, workers) for malloc in MALLOC_MODES for workers in NUM_WORKERS]
    lines = [
        f"Fan-out {'/'.join(map(str, case['fanout']))}, batch size {case['batch_size']}, "
        f"{case['num_features']} float32 features; {case['rounds']} rounds of {case['batches']} "
        f"batches. The user's tensors take {number(graph['tensor_bytes'] / 1e6)} MB.",
    ]
    heads = [f"malloc {malloc}, {workers} workers" for malloc, workers in columns]
    for metric, (title, factor) in TABLES.items():
        lines += ["", f"| {title} | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
        for loader in LOADERS:
            found = {
                (malloc, row["num_workers"]): row
                for malloc in MALLOC_MODES
                for row in find(graph["rows"], metric, loader, malloc)
            }
            if found:
                cells = [_cell(found.get(column), factor) for column in columns]
                lines.append(f"| {loader} | {' | '.join(cells)} |")
    return lines + _ratios(graph) + _limit(graph) + _failures(graph)


def _cell(row: dict[str, Any] | None, factor: float) -> str:
    if row is None:
        return ""
    median, low, high = (number(factor * row[key]) for key in ("median", "p25", "p75"))
    return f"{median} ({low} to {high})" if row["n"] > 1 else median


def _ratios(graph: dict[str, Any]) -> list[str]:
    kinds = ["best", *map(str, NUM_WORKERS)]
    lines = ["", f"| times less than the rival | malloc | {OURS}: best against best | "]
    lines[-1] += " | ".join(f"{workers} workers both" for workers in NUM_WORKERS) + " |"
    lines.append("|---" * 5 + "|")
    groups: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in graph["ratios"]:
        key = (row["rival"], row["metric"], row["malloc"])
        groups.setdefault(key, {})[row["num_workers"]] = row["ratio"]
    for (rival, metric, malloc), found in groups.items():
        cells = [f"{found[kind]:.1f}" if found.get(kind) else "" for kind in kinds]
        lines.append(f"| {rival}, {METRICS[metric]} | {malloc} | {' | '.join(cells)} |")
    return lines


def _limit(graph: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "| at its best | malloc | nodes, edges a batch | MB touched | ms | GB/s | times the copy |",
        "|---" * 7 + "|",
    ]
    for row in graph["limit"]:
        times = ", ".join(
            f"{value:.1f} ({threads} thread{'s' if threads != '1' else ''}: "
            f"{row['limit_ms'][threads]:.2g} ms)"
            for threads, value in row["times_limit"].items()
        )
        lines.append(
            f"| {row['loader']}, {row['num_workers']} workers | {row['malloc']} | "
            f"{row['nodes']:,.0f}, {row['edges']:,.0f} | {number(row['bytes'] / 1e6)} | "
            f"{number(row['batch_ms'])} | {number(row['bytes_per_s'] / 1e9)} | {times} |"
        )
    return lines


def _failures(graph: dict[str, Any]) -> list[str]:
    return [
        f"\n{who} failed: `{text.strip().splitlines()[-1]}`"
        for who, text in graph["failures"].items()
    ]


def _first_batch(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "Seconds in a fresh process, on the small graph: `own` is the loader's import,",
        "construction and first batch, after torch and PyG were imported (`host`).",
        "",
        "| loader | kernel cache | own | host |",
        "|---|---|---|---|",
    ]
    states = dict.fromkeys((row["loader"], row["kernel_cache"]) for row in rows)
    for loader, state in states:
        cells = [
            _cell(row, 1.0)
            for metric in ("own_s", "host_import_s")
            for row in rows
            if (row["loader"], row["kernel_cache"], row["metric"]) == (loader, state, metric)
        ]
        lines.append(f"| {loader} | {state} | {' | '.join(cells)} |")
    return lines


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the medians and quartiles of whole batches and of sampling alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    metrics = ("batch_ms", "sampling_ms")
    graphs = result["graphs"]
    figure, axes = plt.subplots(
        len(metrics), len(graphs), figsize=(4.2 * len(graphs), 6.4), squeeze=False
    )
    for across, graph in enumerate(graphs):
        for down, metric in enumerate(metrics):
            axis = axes[down][across]
            rows = [row for row in graph["rows"] if row["metric"] == metric]
            names = [f"{r['loader']}, {r['num_workers']} w, {r['malloc']}" for r in rows]
            median = [row["median"] for row in rows]
            below = [row["median"] - row["p25"] for row in rows]
            above = [row["p75"] - row["median"] for row in rows]
            colours = ["tab:green" if row["loader"] == OURS else "tab:gray" for row in rows]
            axis.barh(names, median, xerr=[below, above], color=colours)
            axis.invert_yaxis()
            axis.set_title(f"{METRICS[metric]}, {graph['case']['name']}", fontsize=9)
            axis.set_xlabel("ms a batch", fontsize=8)
            axis.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Write the table and the plot beside the JSON."""
    arguments = sys.argv[1:] if argv is None else argv
    path = Path(arguments[0]) if arguments else RESULT
    result = json.loads(path.read_text())
    path.with_suffix(".md").write_text(markdown(result))
    plot(result, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
