"""The plot of `benchmarks.gpu`, from its JSON alone.

python -m benchmarks.gpu.plot [JSON]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.result import save_plot

RESULT = Path(__file__).resolve().parents[1] / "results" / "gpu.json"

Stages = dict[str, dict[str, Any]]


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw what was measured; a panel without its numbers says so."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    stages = {name: record["results"] for name, record in result["stages"].items()}
    figure, axes = plt.subplots(1, len(PANELS), figsize=(4.6 * len(PANELS), 4.2))
    for axis, (title, draw) in zip(axes, PANELS, strict=True):
        axis.set_title(title, fontsize=9)
        try:
            draw(axis, stages)
        except (KeyError, ValueError):
            axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
    if result["dry"]:
        figure.suptitle(result["note"], color="red")
    save_plot(figure, path)


def draw_gather(axis: Any, stages: Stages) -> None:
    """Gather by row length, and the link's limits."""
    rows, link = stages["gather"]["by_row"], stages["gather"]["link"]
    for base in sorted({row["base"] for row in rows}):
        chosen = [row for row in rows if row["base"] == base]
        draw_line(axis, chosen, "row_bytes", f"gather, base {base}")
    stream = max(rate["bytes_per_second"]["median"] for rate in link["stream_kernel"])
    copy = link["copy_engine"]["bytes_per_second"]["median"]
    axis.axhline(stream / 1e9, color="black", linewidth=0.8, label="streaming kernel")
    axis.axhline(copy / 1e9, color="black", linewidth=0.8, linestyle=":", label="copy engine")
    axis.set_xlabel("bytes of a row")
    axis.set_ylabel("GB/s")
    axis.legend(fontsize=7, frameon=False)


def draw_threads(axis: Any, stages: Stages) -> None:
    """Streaming and gathering by number of threads."""
    draw_line(axis, stages["gather"]["link"]["stream_kernel"], "threads", "streaming kernel")
    draw_line(axis, stages["gather"]["by_blocks"], "threads", "gather, 400 B at base 64")
    axis.set_xlabel("threads")
    axis.set_ylabel("GB/s")
    axis.legend(fontsize=7, frameon=False)


def draw_line(axis: Any, rows: list[dict[str, Any]], key: str, label: str) -> None:
    """Draw medians and quartiles of rates over `key`."""
    rates = [row["bytes_per_second"] for row in rows]
    below = [(rate["median"] - rate["p25"]) / 1e9 for rate in rates]
    above = [(rate["p75"] - rate["median"]) / 1e9 for rate in rates]
    at, height = [row[key] for row in rows], [rate["median"] / 1e9 for rate in rates]
    axis.errorbar(at, height, yerr=[below, above], label=label, marker=".", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)


def draw_trained(axis: Any, stages: Stages) -> None:
    """Milliseconds a batch with training."""
    bars = {f"ours, {name}": row["trained"]["ms"] for name, row in stages["ours"].items()}
    memory = stages.get("in_memory", {})
    if "loader" in memory:
        bars["ours, all on the GPU"] = memory["loader"]["trained"]["ms"]
    if "cached batches" in memory:
        bars["cached batches"] = memory["cached batches"]["ms"]
    for name in ("PrefetchLoader", "NeighborLoader"):
        if name in stages.get("pyg", {}):
            bars[f"PyG {name}"] = stages["pyg"][name]["ms"]
    draw_bars(axis, bars)


def draw_alone(axis: Any, stages: Stages) -> None:
    """Milliseconds a batch of loading alone."""
    bars = {f"ours, {name}": row["alone"]["ms"] for name, row in stages["ours"].items()}
    for row in stages.get("pyg", {}).get("alone", []):
        bars[f"PyG, {row['workers']} workers"] = row["ms"]
    draw_bars(axis, bars)


def draw_bars(axis: Any, bars: dict[str, dict[str, float]]) -> None:
    """Draw medians and quartiles."""
    values = list(bars.values())
    below = [value["median"] - value["p25"] for value in values]
    above = [value["p75"] - value["median"] for value in values]
    axis.barh(list(bars), [value["median"] for value in values], xerr=[below, above])
    axis.invert_yaxis()
    axis.set_xlabel("ms a batch")
    axis.tick_params(labelsize=7)


PANELS: tuple[tuple[str, Callable[[Any, Stages], None]], ...] = (
    ("Gather from host memory", draw_gather),
    ("Threads that fill the link", draw_threads),
    ("Training end to end", draw_trained),
    ("Loading alone", draw_alone),
)


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    plot(json.loads(file.read_text()), file.with_suffix(".png"))
