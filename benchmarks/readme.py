"""The tables of the README and of the documentation, from committed results.

`python -m benchmarks report` writes them. A table stands between `<!-- NAME -->` and
`<!-- end of NAME -->`, where NAME is in `TABLES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.cases import OURS, PYG_LIB, TORCH_SPARSE
from benchmarks.cpu.derive import best
from benchmarks.gpu.report import summary
from benchmarks.machine import REPOSITORY
from benchmarks.result import RESULTS, number, table
from benchmarks.training.end_to_end import ACCELERATED, best_rows

README = REPOSITORY / "README.md"
MEASUREMENTS = REPOSITORY / "docs" / "measurements.md"
GPU = REPOSITORY / "docs" / "guides" / "gpu.md"
LABOR = REPOSITORY / "docs" / "guides" / "labor.md"
NO_EPOCHS = "Whole epochs: `python -m benchmarks end_to_end`; no result is committed."
MALLOC = "default"  # of glibc, as a user has it

RIVALS = {PYG_LIB: "pyg-lib", TORCH_SPARSE: "torch_sparse"}
METRICS = {"batch_ms": "whole batch", "sampling_ms": "sampling alone"}

# Name in the result -> name on a page, and the result that has it.
CPU_ROWS = {
    "200k nodes, 5M edges": ("200 k nodes, 5 M edges", "cpu_with_pyg_lib"),
    "2.4M nodes, 62M edges": ("2.4 M nodes, 62 M edges", "cpu"),
    "2.7k nodes, 10k edges": ("2.7 k nodes, 10 k edges, fan-out 10/10", "cpu_with_pyg_lib"),
}
OTHER_ROWS = {
    "debian_hetero": "heterogeneous, 6 edge types, 0.8 M edges",
    "20 edge types, 20M edges": "heterogeneous, 20 edge types, 20 M edges",
    "20 edge types, 50M edges": "heterogeneous, 20 edge types, 50 M edges",
    "links, 200k nodes, 5M edges": "links with negatives, 5 M edges",
}
MODELS = {"to_hetero(SAGE)": "heterogeneous SAGE"}  # others are called as they are


def times(ratio: float) -> str:
    """Return a ratio as text: about two digits."""
    return f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.1f} x"


def speed(folder: Path) -> list[str]:
    """Return the table of whole batches and of sampling alone."""
    rows = []
    for name, (title, source) in CPU_ROWS.items():
        result = _read(folder, source)
        (measured,) = [g["rows"] for g in result["graphs"] if g["case"]["name"] == name]
        for metric, what in METRICS.items():
            found = {who: best(measured, metric, who, MALLOC) for who in (*RIVALS, OURS)}
            ours = found[OURS]
            if ours is None:
                continue
            medians = [number(row["median"]) if row else "" for row in found.values()]
            ratios = [
                times(row["median"] / ours["median"]) if row else ""
                for who, row in found.items()
                if who != OURS
            ]
            version = result["versions"]["pyg_direct"]
            rows.append([f"{title}: {what}", *medians, *ratios, version])
    rivals = [f"than {name}" for name in RIVALS.values()]
    head = ["milliseconds a batch", *(f"PyG + {name}" for name in RIVALS.values()), "pyg_direct"]
    return table([*head, *rivals, "version"], rows)


def others(folder: Path) -> list[str]:
    """Return how many times as fast other kinds of loading are than PyG's."""
    rows = []
    for source in ("others_with_pyg_lib", "others"):
        result = _read(folder, source)
        for graph in result["graphs"]:
            found = {row["metric"]: row for row in graph["ratios"] if row["num_workers"] == "best"}
            name = graph["case"]["name"]
            ratios = [times(found[metric]["ratio"]) for metric in METRICS]
            rival = RIVALS[found["batch_ms"]["rival"]]
            load = f"{result['machine']['load_average_1min']:.1f}"
            version = result["versions"]["pyg_direct"]
            rows.append([OTHER_ROWS.get(name, name), rival, *ratios, load, version])
    head = ["", "than PyG +", "whole batch", "sampling alone", "load before the run", "version"]
    return table(head, rows)


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


def _step_ratio(row: dict[str, Any], way: str) -> float:
    """Return how many times as fast an accelerated step is: the median over the rounds."""
    samples = (row[who]["wall_ms_samples"] for who in (way, "ours, accelerated"))
    return float(np.median([other / own for other, own in zip(*samples, strict=True)]))


def training(folder: Path) -> list[str]:
    """Return how many times as fast accelerated steps are, on each graph."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in _read(folder, "accelerated_training")["rows"]:
        found.setdefault(row["graph"], {})[row["model"]] = row
    models = list(dict.fromkeys(model for rows in found.values() for model in rows))
    lines = []
    for graph, rows in found.items():
        for way, what in (("PyG", "as users write it"), ("PyG trimmed", "with `trim_to_layer`")):
            cells = [
                times(_step_ratio(rows[model], way)) if way in rows.get(model, ()) else ""
                for model in models
            ]
            lines.append([f"{graph}: than PyG {what}", *cells])
    return table(["", *(MODELS.get(model, model) for model in models)], lines)


def whole_epochs(folder: Path) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yield each task and rival once, with the best row of all contestants and the version.

    Of results with the same, that with pyg-lib comes first.
    """
    seen = set()
    for source in ("end_to_end_with_pyg_lib", "end_to_end"):
        if not (folder / f"{source}.json").exists():
            continue
        result = _read(folder, source)
        for task in result["tasks"]:
            best = best_rows(task)
            for rival in (who for who in best if who not in (OURS, ACCELERATED)):
                if (task["name"], rival) not in seen:
                    seen.add((task["name"], rival))
                    yield task["name"], rival, best, result["versions"]["pyg_direct"]


def _ratios(best: dict[str, Any], rival: str, metric: str) -> list[str]:
    """Return how many times as little the import and `accelerate` take as a rival."""
    medians = {who: row[metric]["median"] for who, row in best.items()}
    return [times(medians[rival] / medians[who]) for who in (OURS, ACCELERATED)]


def epochs(folder: Path) -> list[str]:
    """Return how many times as fast whole epochs are, and the best and the worst case of steps."""
    rows = [
        [task, rival, *_ratios(best, rival, "wall_s"), version]
        for task, rival, best, version in whole_epochs(folder)
    ]
    if not rows:
        return [NO_EPOCHS]
    lines = table(["", "than", "the import", "and `accelerate`", "version"], rows)
    if (folder / "accelerated_training.json").exists():
        steps = {
            _step_ratio(row, "PyG"): f"{row['model']}, {row['graph']}"
            for row in _read(folder, "accelerated_training")["rows"]
        }
        worst, most = min(steps), max(steps)
        lines += [
            "",
            f"Accelerated steps alone, against PyG + torch_sparse: from {times(worst)} "
            f"({steps[worst]}) to {times(most)} ({steps[most]}).",
        ]
    return lines


def end_to_end(folder: Path) -> list[str]:
    """Return how many times as fast whole epochs are, and with how much less CPU time."""
    rows = [
        [task, rival, *_ratios(best, rival, "wall_s"), *_ratios(best, rival, "cpu_s"), version]
        for task, rival, best, version in whole_epochs(folder)
    ]
    if not rows:
        return [NO_EPOCHS]
    ways = ("the import", "and `accelerate`")
    head = ["", "than", *ways, *(f"{way}, CPU time" for way in ways), "version"]
    return [
        "Whole epochs on a real graph, with loading, each contestant at its best number of",
        "workers: how many times as fast, and as little CPU time (runs",
        "[with pyg-lib](../benchmarks/results/end_to_end_with_pyg_lib.md) and",
        "[without](../benchmarks/results/end_to_end.md)):",
        "",
        *table(head, rows),
    ]


def first_use(folder: Path) -> list[str]:
    """Return the seconds from importing a loader to its first batch."""
    found = {
        (row["loader"], row["kernel_cache"]): number(row["median"])
        for row in _read(folder, "cpu_with_pyg_lib")["first_batch"]
        if row["metric"] == "own_s"
    }
    return table(
        ["", "fresh installation", "later processes", "PyG + torch_sparse"],
        [
            [
                "seconds from importing the loader to its first batch",
                *(found[key] for key in ((OURS, "cold"), (OURS, "warm"), (TORCH_SPARSE, "none"))),
            ]
        ],
    )


def steps(folder: Path) -> list[str]:
    """Return CPU milliseconds of a step of training, against DGL's and PyG's on torch_sparse."""
    names = [f"{name}{kept}" for kept in ("", ", kept") for name in ("pyg_direct", "DGL", "PyG")]
    rows = [
        [case["case"], *(number(case["rows"][name]["cpu_ms"]) for name in names)]
        for case in _read(folder, "step")["cases"]
        if all(name in case["rows"] for name in names) and "inference" not in case["case"]
    ]
    return table(["", *names], rows)


def releases() -> list[str]:
    """Return the versions that were released, by the change log, the newest first."""
    return re.findall(
        r"^## \[(\d[^\]]*)\] - ", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE
    )


def age(version: str, released: list[str]) -> str:
    """Return how many releases there have been since the sources of a version; "" if unknown."""
    base = version.partition(".dev")[0]
    if not version:
        return ""
    return str(released.index(base) + 1 if base in released else 0)


def pages_of_results() -> dict[str, list[str]]:
    """Return the pages on which the figures of each result stand: those with a link to it."""
    docs, found = MEASUREMENTS.parent, dict[str, list[str]]()
    for page in [README, *sorted(docs.rglob("*.md"))]:
        names = {README: "README", MEASUREMENTS: "this page"}
        here = names.get(page) or f"[{page.stem}]({page.relative_to(docs)})"
        for result in sorted(
            set(re.findall(r"benchmarks/results/(\w+)\.(?:md|json)", page.read_text()))
        ):
            found.setdefault(result, []).append(here)
    return found


def sources(folder: Path) -> list[str]:
    """Return where the figures of each result stand, its version, age and commit, and the load."""
    rows, pages, released = [], pages_of_results(), releases()
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        version, commit = result["versions"].get("pyg_direct") or "", result["commit"]
        load = f"{result['machine']['load_average_1min']:.1f}"
        changed = "yes" if commit.endswith("+") else ""
        rows.append(
            [
                f"`{path.stem}`", ", ".join(pages.get(path.stem, [])), version,
                age(version, released), f"`{commit[:10]}`", changed, load,
            ]
        )  # fmt: skip
    head = ["result", "figures on", "version", "releases since", "commit"]
    return table([*head, "with uncommitted changes", "load before the run"], rows)


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
    README: {"epochs": epochs, "gpu": gpu},
    GPU: {"gpu": gpu},
    MEASUREMENTS: {
        "others": others,
        "variants": variants,
        "speed": speed,
        "training": training,
        "steps": steps,
        "end_to_end": end_to_end,
        "first_use": first_use,
        "sources": sources,
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
