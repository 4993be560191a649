"""The one schema of results, and the one renderer.

A result is a JSON object with `benchmark` (its name in `COMMANDS`), `quick`, `versions`, `commit`,
`sources` (a digest), `machine`, what the benchmark adds, and `minutes` once `all` has run it to its
end. Its module has a `TITLE` and `sections(result)`, the lines of Markdown between the head and the
foot that every report shares.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.load import Watch
from benchmarks.machine import describe, environment, sources_digest

RESULTS = Path(__file__).parent / "results"
RUNNING: dict[str, Watch] = {}  # by benchmark
QUICK_NOTE = "**A quick run on toy sizes: no result.**"


class Command(NamedTuple):
    """A subcommand of `python -m benchmarks`."""

    name: str
    module: str  # has main(argv), and TITLE and sections(result) where it has a report
    what: str

    def load(self) -> Any:
        """Import the module."""
        return importlib.import_module(self.module)


COMMANDS = {
    command.name: command
    for command in (
        Command("cpu", "benchmarks.cpu.loaders", "loaders on the CPU against each other"),
        Command(
            "others",
            "benchmarks.cpu.other_loaders",
            "heterogeneous, link, weighted and temporal loading on the CPU",
        ),
        Command("family", "benchmarks.cpu.family", "ShaDow, GraphSAINT, HGT and walks on the CPU"),
        Command("cluster", "benchmarks.cluster", "partitioning by METIS: time and memory"),
        Command("family_accuracy", "benchmarks.training.family", "models trained with those"),
        Command("accuracy", "benchmarks.training.accuracy", "accuracy of trained models"),
        Command(
            "narrow_accuracy",
            "benchmarks.training.narrow",
            "accuracy with float16 and int8 features",
        ),
        Command("tasks", "benchmarks.training.tasks", "links, edge types and times"),
        Command("end_to_end", "benchmarks.training.end_to_end", "epochs of training, CPU time too"),
        Command("inference", "benchmarks.inference", "outputs of a model for all nodes"),
        Command(
            "accelerated_training", "benchmarks.accelerated_training", "steps of accelerated models"
        ),
        Command(
            "step", "benchmarks.step.run", "steps and inference against DGL, memory kept or not"
        ),
        Command("reuse", "benchmarks.reuse.run", "rows of the first layer from earlier steps"),
        Command("orders", "benchmarks.training.orders", "accuracy by order of the fan-outs"),
        Command(
            "static_shapes", "benchmarks.static_shapes", "batches of one shape, compiled models"
        ),
        Command("stats_cost", "benchmarks.stats_cost", "what the statistics of a loader cost"),
        Command("plan_accuracy", "benchmarks.plan_accuracy", "how far plans are off"),
        Command("before_after", "benchmarks.before_after", "loading before and after a change"),
        Command("construction", "benchmarks.construction", "building a loader"),
        Command("launch_overhead", "benchmarks.launch_overhead", "interpreter time of launches"),
        Command("scaling", "benchmarks.scaling", "how costs grow with nodes and degrees"),
        Command("large_graphs", "benchmarks.large_graphs", "graphs in files of growing size"),
        Command("beyond_memory", "benchmarks.beyond_memory", "features of four times the memory"),
        Command("partitions", "benchmarks.partitions", "loading over parts that ranks exchange"),
        Command("shared_rows", "benchmarks.shared_rows", "rows that ranks load in common"),
        Command("cooperative", "benchmarks.cooperative", "batches that ranks make together"),
        Command("row_order", "benchmarks.row_order", "rows in files by expected visits"),
        Command("look_ahead", "benchmarks.look_ahead", "pages of files asked for ahead"),
        Command(
            "parts_accuracy", "benchmarks.parts_accuracy", "accuracy with seeds of one part a batch"
        ),
        Command(
            "parts_memory", "benchmarks.parts_memory", "a graph in parts in less memory than it has"
        ),
        Command("ranks_memory", "benchmarks.ranks_memory", "memory of several ranks"),
        Command(
            "cache_policies", "benchmarks.cache_policies", "rows that caches leave to host memory"
        ),
        Command("adaptive", "benchmarks.adaptive", "fan-outs that adapt by metapath"),
        Command("labor", "benchmarks.labor.run", "LABOR, dependent batches and orders of seeds"),
        Command("requests", "benchmarks.gather_requests", "PCIe read requests of a gather"),
        Command("gpu", "benchmarks.gpu.run", "all measurements and checks on a GPU"),
    )
}


class _Quick(argparse.Action):
    """Sets `quick`, and keeps what toy sizes give apart from the committed results."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=False, help=help)

    def __call__(self, parser: Any, namespace: Any, *values: Any) -> None:
        namespace.quick = True
        if namespace.out == RESULTS:
            namespace.out = Path(tempfile.gettempdir()) / "pyg_direct-quick"


def parser(module_doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all benchmarks take."""
    made = argparse.ArgumentParser(description=(module_doc or "").splitlines()[0])
    made.add_argument("--quick", action=_Quick, help="toy sizes, to see that it runs")
    made.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return made


def check_some(
    parser: argparse.ArgumentParser, option: str, chosen: Sequence[Any], known: Iterable[str]
) -> None:
    """End with an error where nothing is chosen to be measured.

    Args:
        parser: of the benchmark.
        option: that chooses.
        chosen: what it has left.
        known: what it could have named.
    """
    if not chosen:
        parser.error(f"{option} leaves nothing to measure: there are {', '.join(known)}")


def new_result(benchmark: str, quick: bool, **fields: Any) -> dict[str, Any]:
    """Return a result to be filled; made first, as the checkout may change during a run."""
    RUNNING[benchmark] = Watch()
    return {"benchmark": benchmark, "quick": quick, **environment(), **fields}


def write(result: dict[str, Any], folder: Path) -> Path:
    """Write a result as JSON and its report, if it has one, beside it; return the path of the JSON.

    Also after a part of a run, so that one that is stopped has not been for nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['benchmark']}.json"
    if result["benchmark"] in RUNNING:
        result["others_cores"] = RUNNING[result["benchmark"]].taken()
    path.write_text(json.dumps(result, indent=1) + "\n")
    if hasattr(COMMANDS[result["benchmark"]].load(), "sections"):
        path.with_suffix(".md").write_text(markdown(result, path.stem))
    return path


def complete(name: str, folder: Path, minutes: float) -> None:
    """Note in the result of a benchmark, if it wrote one, that the run came to its end."""
    path = folder / f"{name}.json"
    if path.exists():
        result = json.loads(path.read_text())
        path.write_text(json.dumps({**result, "minutes": round(minutes, 1)}, indent=1) + "\n")


def is_complete(name: str, folder: Path) -> bool:
    """Whether the sources of this checkout have measured a benchmark to its end."""
    path = folder / f"{name}.json"
    if not path.exists():
        return False
    result = json.loads(path.read_text())
    return "minutes" in result and result.get("sources") == sources_digest()


def markdown(result: dict[str, Any], name: str) -> str:
    """Return the report of a result that is stored as NAME.json."""
    command = COMMANDS[result["benchmark"]]
    module = command.load()
    lines = [f"# {module.TITLE}", ""]
    if result["quick"]:
        lines += [QUICK_NOTE, ""]
    lines += [describe(result), *module.sections(result), ""]
    lines.append(f"Written by `python -m benchmarks {command.name}` from `{name}.json`.")
    return "\n".join(lines) + "\n"


def save_plot(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib, and let go of it."""
    import matplotlib.pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def number(value: float) -> str:
    """Return about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def quartiles(row: Mapping[str, Any], factor: float = 1.0) -> str:
    """Return a median and its quartiles, from `statistics.spread`; "" where there is no row."""
    median, low, high = (number(factor * row[key]) for key in ("median", "p25", "p75"))
    return f"{median} ({low} to {high})" if row["n"] > 1 else median


def percent(row: Mapping[str, Any], name: str) -> str:
    """Return a mean and its standard deviation in percent, from `statistics.compare`."""
    return f"{100 * row['mean'][name]:.2f} ± {100 * row['std'][name]:.2f}"
