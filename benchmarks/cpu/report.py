"""The report of `benchmarks.cpu.loaders`: its tables and its plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.cpu.cases import LOADERS, MALLOC_MODES, NUM_WORKERS, OURS
from benchmarks.cpu.derive import METRICS, find
from benchmarks.load import taken_by_others
from benchmarks.result import number, quartiles, save_plot, table

TITLE = "CPU loaders"

# Metric -> (title, factor to the unit of the title).
TABLES = {
    "batch_ms": ("Whole batch, ms", 1.0),
    "sampling_ms": ("Sampling alone, ms", 1.0),
    "batch_cpu_ms": ("CPU time of a whole batch, ms", 1.0),
    "construct_seconds": ("Construction, s", 1.0),
    "construct_peak_extra_bytes": ("Peak memory beyond the tensors, constructing, MB", 1e-6),
    "iterating_extra_bytes": ("Peak memory beyond the tensors, iterating, MB", 1e-6),
}


def text_row(row: dict[str, Any]) -> str:
    """Return one line about one row."""
    who = f"{row['loader']:17s} {row['num_workers']} workers, malloc {row['malloc']:7s}"
    quartiles = f"[{number(row['p25'])}, {number(row['p75'])}]"
    return f"  {who} {row['metric']:28s} {number(row['median']):>14s} {quartiles} n={row['n']}"


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    speeds = ", ".join(
        f"{value / 1e9:.1f} GB/s with {threads} thread{'s' if threads != '1' else ''}"
        for threads, value in result["copy_bytes_per_s"].items()
    )
    lines = [
        f"Copy bandwidth, read plus written: {speeds}.",
        "",
        "Median over the rounds of one interleaved run, and the quartiles. Each loader runs in a",
        "process of its own; `malloc kept` means that glibc was told not to give memory back.",
        "`sampling alone` is the sampler without workers, and a loader over the bare graph with.",
    ]
    if result["not_installed"]:
        lines.append(f"Not installed, so not measured: {', '.join(result['not_installed'])}.")
    for graph in result["graphs"]:
        lines += ["", f"## {graph['case']['name']}", "", *_graph(graph)]
    return [*lines, "", "## First import to first batch", "", *_first_batch(result["first_batch"])]


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
        rows = []
        for loader in LOADERS:
            found = {
                (malloc, row["num_workers"]): row
                for malloc in MALLOC_MODES
                for row in find(graph["rows"], metric, loader, malloc)
            }
            if found:
                rows.append([loader, *(_cell(found.get(column), factor) for column in columns)])
        lines += ["", *table([title, *heads], rows)]
    lines += _ratios(graph) + _limit(graph) + _failures(graph)
    return lines + taken_by_others(graph.get("others_cores"))


def _cell(row: dict[str, Any] | None, factor: float) -> str:
    return "" if row is None else quartiles(row, factor)


def _ratios(graph: dict[str, Any]) -> list[str]:
    kinds = ["best", *map(str, NUM_WORKERS)]
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in graph["ratios"]:
        key = (row["rival"], row["metric"], row["malloc"])
        found.setdefault(key, {})[row["num_workers"]] = row["ratio"]
    rows = [
        [f"{rival}, {METRICS[metric]}", malloc]
        + [f"{ratio[kind]:.1f}" if ratio.get(kind) else "" for kind in kinds]
        for (rival, metric, malloc), ratio in found.items()
    ]
    both = [f"{workers} workers both" for workers in NUM_WORKERS]
    best = f"{OURS}: best against best"
    return ["", *table(["times less than the baseline", "malloc", best, *both], rows)]


def _limit(graph: dict[str, Any]) -> list[str]:
    head = ["at its best", "malloc", "nodes, edges a batch", "MB touched", "ms", "GB/s"]
    rows = []
    for row in graph["limit"]:
        times = ", ".join(
            f"{value:.1f} ({threads} thread{'s' if threads != '1' else ''}: "
            f"{row['limit_ms'][threads]:.2g} ms)"
            for threads, value in row["times_limit"].items()
        )
        amounts = (row["bytes"] / 1e6, row["batch_ms"], row["bytes_per_s"] / 1e9)
        who = f"{row['loader']}, {row['num_workers']} workers"
        sizes = f"{row['nodes']:,.0f}, {row['edges']:,.0f}"
        rows.append([who, row["malloc"], sizes, *map(number, amounts), times])
    return ["", *table([*head, "times the copy"], rows)]


def _failures(graph: dict[str, Any]) -> list[str]:
    return [
        f"\n{who} failed: `{text.strip().splitlines()[-1]}`"
        for who, text in graph["failures"].items()
    ]


def _first_batch(rows: list[dict[str, Any]]) -> list[str]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells = found.setdefault((row["loader"], row["kernel_cache"]), {})
        cells[row["metric"]] = quartiles(row)
    return [
        "Seconds in a fresh process, on the small graph: `own` is the loader's import,",
        "construction and first batch, after torch and PyG were imported (`host`).",
        "",
        *table(
            ["loader", "kernel cache", "own", "host"],
            [[*who, cells["own_s"], cells["host_import_s"]] for who, cells in found.items()],
        ),
    ]


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
    save_plot(figure, path)
