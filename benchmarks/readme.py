"""The tables of the README and of the documentation, from committed results.

`python -m benchmarks report` writes them. A table stands between `<!-- NAME -->` and
`<!-- end of NAME -->`, where NAME is in `TABLES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.cases import BASELINE, OURS
from benchmarks.cpu.derive import best
from benchmarks.gpu.report import summary
from benchmarks.machine import REPOSITORY
from benchmarks.result import RESULTS, number, table
from benchmarks.training.end_to_end import ACCELERATED, best_rows

README = REPOSITORY / "README.md"
MEASUREMENTS = REPOSITORY / "docs" / "measurements.md"
GPU = REPOSITORY / "docs" / "guides" / "gpu.md"
LABOR = REPOSITORY / "docs" / "guides" / "labor.md"
MALLOC = "default"  # of glibc, as a user has it

# Name in the result -> name in the README; from the first to the last row.
CPU_ROWS = {
    "200k nodes, 5M edges": "200 k nodes, 5 M edges",
    "2.4M nodes, 62M edges": "2.4 M nodes, 62 M edges",
    "2.7k nodes, 10k edges": "2.7 k nodes, 10 k edges (128 seeds, fan-out 10/10)",
}
OTHER_ROWS = {
    "debian_hetero": "heterogeneous, 6 edge types, 0.8 M edges",
    "20 edge types, 50M edges": "heterogeneous, 20 edge types, 50 M edges",
    "links, 200k nodes, 5M edges": "links with negatives, 5 M edges",
}
MODELS = {"to_hetero(SAGE)": "heterogeneous SAGE"}  # others are called as they are


def times(ratio: float) -> str:
    """Return a ratio as text: about two digits."""
    return f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.1f} x"


def speed(folder: Path) -> list[str]:
    """Return the table of whole batches and of sampling alone."""
    graphs = {graph["case"]["name"]: graph["rows"] for graph in _read(folder, "cpu")["graphs"]}
    rows = []
    for name, title in CPU_ROWS.items():
        small = name == list(CPU_ROWS)[-1]
        for metric, what in (("batch_ms", "whole batch"), ("sampling_ms", "sampling alone")):
            theirs, ours = (
                best(graphs[name], metric, loader, MALLOC) for loader in (BASELINE, OURS)
            )
            if theirs is not None and ours is not None:
                medians = [theirs["median"], ours["median"]]
                first = f"{title}: {what}" if metric == "batch_ms" and not small else what
                first = title if small else first
                ratio = times(medians[0] / medians[1])
                rows.append([first, *map(number, medians), ratio])
            if small:
                break
    return table(["", "PyG + torch_sparse", "pyg_direct", ""], rows)


def others(folder: Path) -> list[str]:
    """Return how many times as fast other kinds of loading are than PyG's."""
    rows = []
    graphs = {graph["case"]["name"]: graph for graph in _read(folder, "others")["graphs"]}
    for name, title in OTHER_ROWS.items():
        found = {
            row["metric"]: row["ratio"]
            for row in graphs[name]["ratios"]
            if row["num_workers"] == "best"
        }
        rows.append([title, times(found["batch_ms"]), times(found["sampling_ms"])])
    return table(["than PyG + torch_sparse", "whole batch", "sampling alone"], rows)


def variants(folder: Path) -> list[str]:
    """Return the throughput of other laws, in percent of uniform sampling."""
    shares: dict[str, dict[str, str]] = {}
    for row in _read(folder, "others")["variants"]["rows"]:
        shares.setdefault(row["sampling"], {})[row["what"]] = f"{100 * row['of_uniform']:.0f} %"
    chosen = ["weighted", "temporal, uniform", "temporal, last", "weighted and temporal"]
    return table(
        ["edges per second, in percent of uniform sampling", *chosen],
        [
            [what, *(shares[name][what] for name in chosen)]
            for what in ("sampling alone", "whole batch")
        ],
    )


def training(folder: Path) -> list[str]:
    """Return how many times as fast accelerated steps are, on the large graph."""
    rows = _read(folder, "accelerated_training")["rows"]
    rows = [row for row in rows if row["graph"] == rows[0]["graph"]]

    def cells(way: str) -> Iterable[str]:
        for row in rows:
            if way not in row:
                yield ""
                continue
            ours = row["ours, accelerated"]["wall_ms_samples"]
            each = zip(row[way]["wall_ms_samples"], ours, strict=True)
            yield times(float(np.median([other / own for other, own in each])))

    names = [MODELS.get(row["model"], row["model"]) for row in rows]
    return table(
        ["", *names],
        [
            ["than PyG as users write it", *cells("PyG")],
            ["than PyG with `trim_to_layer`", *cells("PyG trimmed")],
        ],
    )


def epochs(folder: Path) -> list[str]:
    """Return how many times as fast whole epochs are, by loader and by accelerated model."""
    if not (folder / "end_to_end.json").exists():
        return ["Whole epochs: `python -m benchmarks end_to_end`; no result is committed."]
    result = _read(folder, "end_to_end")
    rows = []
    for task in result["tasks"]:
        best = {who: row["wall_s"]["median"] for who, row in best_rows(task).items()}
        if (theirs := best.get(result["baseline"])) is not None:
            ratios = (theirs / best[who] for who in (OURS, ACCELERATED))
            rows.append([task["name"], *map(times, ratios)])
    return table([f"than {result['baseline']}", "the swap", "and `accelerate`"], rows)


def end_to_end(folder: Path) -> list[str]:
    """Return how many times as fast whole epochs are, and with how much less CPU time."""
    if not (folder / "end_to_end.json").exists():
        return ["Whole epochs: `python -m benchmarks end_to_end`; no result is committed."]
    result = _read(folder, "end_to_end")
    baseline, rows = result["baseline"], []
    for task in result["tasks"]:
        best = best_rows(task)
        if baseline in best:
            for who in (OURS, ACCELERATED):
                ratios = (
                    best[baseline][metric]["median"] / best[who][metric]["median"]
                    for metric in ("wall_s", "cpu_s")
                )
                rows.append([f"{task['name']}: {who}", *map(times, ratios)])
    return [
        "Whole epochs on a real graph, with loading, each contestant at its best number of workers",
        "([the run](../benchmarks/results/end_to_end.md)):",
        "",
        *table([f"than {baseline}, how many times", "as fast", "as little CPU time"], rows),
    ]


def first_use(folder: Path) -> list[str]:
    """Return the seconds from importing a loader to its first batch."""
    found = {
        (row["loader"], row["kernel_cache"]): number(row["median"])
        for row in _read(folder, "cpu")["first_batch"]
        if row["metric"] == "own_s"
    }
    return table(
        ["", "fresh installation", "later processes", "PyG + torch_sparse"],
        [
            [
                "seconds from importing the loader to its first batch",
                *(found[key] for key in ((OURS, "cold"), (OURS, "warm"), (BASELINE, "none"))),
            ]
        ],
    )


def labor(folder: Path) -> list[str]:
    """Return the table of what LABOR, dependent batches and proximity give."""
    result = _read(folder, "labor")
    rows = []
    for name, (plain, found, _) in result["batches"].items():
        cells = [f"{found[k]['median'] / plain[k]['median']:.2f}" for k in ("nodes", "edges")]
        cells.append(times(found["milliseconds"]["median"] / plain["milliseconds"]["median"]))
        for sampling, window, order in (
            ("uniform", 1, "shuffle"),
            ("labor", 64, "shuffle"),
            ("uniform", 1, "proximity"),
            ("labor", 64, "proximity"),
        ):
            (missed,) = [
                row["missed"]["lru 0.1"]
                for row in result["caches"][name]
                if (row["sampling"], row["batch_dependency"], row["order"])
                == (sampling, window, order)
            ]
            cells.append(f"{100 * missed:.0f} %")
        rows.append([name, *cells])
    head = ["", "nodes", "edges", "time of sampling"]
    head += ["misses, uniform", "`batch_dependency=64`", '`order="proximity"`', "both"]
    return table(head, rows)


def gpu(folder: Path) -> list[str]:
    """Return what a run on a GPU found, or that there is none."""
    return summary(_read(folder, "gpu") if (folder / "gpu.json").exists() else None)


TABLES: dict[Path, dict[str, Callable[[Path], list[str]]]] = {
    README: {"epochs": epochs, "speed": speed, "gpu": gpu},
    GPU: {"gpu": gpu},
    MEASUREMENTS: {
        "others": others,
        "variants": variants,
        "training": training,
        "end_to_end": end_to_end,
        "first_use": first_use,
    },
    LABOR: {"labor": labor},
}


def filled(page: Path, folder: Path = RESULTS) -> str:
    """Return the text of a page with its tables of these results.

    Raises:
        ValueError: a table has no place in it.
    """
    text = page.read_text()
    for name, make in TABLES[page].items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{page} has no place for a table: {begin.strip()} ... {end}")
        lines = "\n".join(make(folder))
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        new = f"{begin}\n{lines}\n\n{end}"
        text = re.sub(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
    return text


def _read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found
