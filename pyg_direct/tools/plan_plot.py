"""The picture of a plan: what fits where, and bytes over PCIe against the size of a cache."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

GRAPH, FEATURES, ROOM = "#0969da", "#2da44e", "#d1242f"


def draw(
    path: Path,
    parts: tuple[int, int],
    room_bytes: int,
    cache_bytes: int,
    sizes: Tensor,
    traffic: Tensor,
) -> None:
    """Write the picture of a plan.

    Args:
        path: ends in one of `arguments.PICTURES`.
        parts: bytes of topology and of features.
        room_bytes: GPU memory that a loader takes.
        cache_bytes: what the topology leaves of it.
        sizes: bytes of caches, in ascending order, float64 [caches].
        traffic: bytes over PCIe a batch with each of them, float64 [caches].

    Needs matplotlib.
    """
    from matplotlib import pyplot

    figure, (memory, link) = pyplot.subplots(
        1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(1, 1.2)
    )
    scale, unit = _unit(max(sum(parts), room_bytes))
    memory.bar("graph", parts[0] / scale, color=GRAPH, label="topology")
    memory.bar("graph", parts[1] / scale, bottom=parts[0] / scale, color=FEATURES, label="features")
    memory.axhline(room_bytes / scale, color=ROOM, label="GPU memory for a loader: half of it")
    memory.set_xlim(-1, 1)
    memory.set_ylabel(unit)
    fits = (
        "everything fits GPU memory"
        if sum(parts) <= room_bytes
        else "the topology fits GPU memory, the features do not"
        if parts[0] <= room_bytes
        else "the topology does not fit GPU memory"
    )
    memory.set_title(fits, fontsize="medium", loc="left")
    scale, unit = _unit(float(sizes.max()))
    link_scale, link_unit = _unit(float(traffic.max()))
    link.plot(sizes / scale, traffic / link_scale, color=FEATURES)
    if 0 < cache_bytes < sizes[-1]:
        room = {"color": ROOM, "linestyle": "--", "label": "room that the topology leaves of it"}
        link.axvline(cache_bytes / scale, **room)
    link.set(xlabel=f"cache of features in GPU memory, {unit}", ylim=0, xlim=0)
    link.set_ylabel(f"over PCIe, {link_unit} a batch")
    link.set_title("what a cache would save (computed)", fontsize="medium", loc="left")
    shown = [axes.get_legend_handles_labels() for axes in (memory, link)]
    handles, labels = (first + second for first, second in zip(*shown, strict=True))
    figure.legend(handles, labels, fontsize="small", loc="outside lower center", ncols=4)
    figure.savefig(path)
    pyplot.close(figure)


def _unit(num_bytes: float) -> tuple[float, str]:
    """Return a readable unit for a number of bytes: its size and its name."""
    return (1e9, "GB") if num_bytes >= 1e9 else (1e6, "MB")
