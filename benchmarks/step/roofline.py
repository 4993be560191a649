"""The least time of a step of GraphSAGE: arithmetic and traffic at measured peaks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

import pyg_direct
from benchmarks.machine import copy_bandwidth
from benchmarks.step.ours import graph_of

SIDE = 2048  # of the matrices whose product gives the peak
COPIED_BYTES = 1 << 28


def of(folder: Path, sizes: dict[str, Any], threads: int) -> dict[str, float]:
    """Return FLOP and bytes of a step, the measured peaks, and the milliseconds that follow."""
    data = graph_of(folder)
    loader = pyg_direct.NeighborLoader(
        data, sizes["fanout"], batch_size=sizes["batch_size"], shuffle=True, seed=0
    )
    batch = next(iter(loader))
    classes, layers = int(data.y.max()) + 1, len(sizes["fanout"])
    widths = [data.num_features, *[sizes["hidden"]] * (layers - 1), classes]
    flops = traffic = 0.0
    for layer in range(layers):
        # The first layer computes all but the last hop, the last one the seeds.
        hops = layers - layer
        rows, edges = sum(batch.num_sampled_nodes[:hops]), sum(batch.num_sampled_edges[:hops])
        inside, outside = widths[layer], widths[layer + 1]
        product = 2.0 * 2 * rows * inside * outside  # of the means, and of the rows themselves
        sparse = 4.0 * (edges + rows) * inside
        backward = layer > 0  # the features have no gradient
        flops += product * (3 if backward else 2)
        traffic += sparse * (2 if backward else 1)
    peak, bandwidth = peak_flops(threads), copy_bandwidth(COPIED_BYTES)[str(threads)]
    seconds = flops / peak + traffic / bandwidth
    return {
        "flop": flops, "bytes": traffic, "flop_per_s": peak, "bytes_per_s": bandwidth,
        "milliseconds": 1e3 * seconds,
    }  # fmt: skip


def peak_flops(threads: int) -> float:
    """Measure a product of matrices in float32; the best of some counts."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.rand(2, SIDE, SIDE)
    times = []
    try:
        for _ in range(6):
            start = time.perf_counter()
            a @ b
            times.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return 2.0 * SIDE**3 / min(times)


def text(bound: dict[str, float], row: dict[str, float]) -> str:
    """Return the bound, and how many times as long the training of a step takes."""
    training = row["cpu_ms"] - row["loading_cpu_ms"]
    return (
        f"The training of a step has {bound['flop'] / 1e9:.1f} GFLOP of matrix products and moves "
        f"{bound['bytes'] / 1e6:,.0f} MB in sparse products. At the measured "
        f"{bound['flop_per_s'] / 1e9:.0f} GFLOP/s and {bound['bytes_per_s'] / 1e9:.1f} GB/s these "
        f"take {bound['milliseconds']:.0f} ms; pyg_direct with memory kept takes "
        f"{training:.0f} ms of CPU time without loading, {training / bound['milliseconds']:.2f} "
        f"times as long."
    )
