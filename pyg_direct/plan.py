"""What batches will hold and where things fit, before there is a GPU.

    python -m pyg_direct.plan --nodes 2400000 --edges 62000000 --fanout 15,10,5 --features 100
    python -m pyg_direct.plan --graph data.pt --fanout 15,10,5 --machine pcie4-24gb
    python -m pyg_direct.plan --degrees in_degrees.npy --fanout 10,10 --features 768 --dtype float16

Some batches are sampled on the CPU: of the graph, if it is given (``torch.save(data, ...)``), else
of a random graph with its degrees, or with degrees by a power law. So counts are those of the graph
within the spread between batches; of a random graph they are off where the graph has communities.
Times of a link are lower limits, computed from its nominal bandwidth: no GPU has been measured.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from .sampling.sampler import NeighborSampler
from .units import blocks_of_row, size_text

LINE_BYTES = 128  # of a read over the link
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
MAX_EDGES = 200_000_000  # of a random graph; larger ones need more memory than a plan is worth


class Machine(NamedTuple):
    """What a GPU has; nominal figures."""

    gpu_bytes: int
    link_bytes_per_s: float
    source: str


# Bandwidth of 16 lanes in one direction: 8, 16 and 32 GT/s with 128b/130b encoding.
_PCIE = "PCI Express Base Specification, revision {}.0, 16 lanes in one direction"
MACHINES = {
    "pcie3-16gb": Machine(16 << 30, 15.75e9, _PCIE.format(3)),
    "pcie4-24gb": Machine(24 << 30, 31.5e9, _PCIE.format(4)),
    "pcie4-80gb": Machine(80 << 30, 31.5e9, _PCIE.format(4)),
    "pcie5-80gb": Machine(80 << 30, 63.0e9, _PCIE.format(5)),
}


class Batches(NamedTuple):
    """What sampled batches hold, on average."""

    num_batches: int
    nodes: float
    nodes_deviation: float  # between batches
    edges: float
    sampling_seconds: float  # on this machine, median, one thread
    node_ids: Tensor  # of all of them, one after the other


def power_law_edges(num_nodes: int, num_edges: int, skew: float = 3.0, seed: int = 0) -> Tensor:
    """Return random edges int64 [2, num_edges], where node i is an end with density i^(1/skew - 1).

    The degrees follow a power law with exponent 1 + skew / (skew - 1); skew 1 makes all nodes
    equally popular.
    """
    random = np.random.default_rng(seed)
    ends = (random.random((2, num_edges)) ** skew * num_nodes).astype(np.int64)
    return torch.from_numpy(np.minimum(ends, num_nodes - 1))


def edges_with_degrees(in_degrees: Tensor, seed: int = 0) -> Tensor:
    """Return random edges int64 [2, E] with these in-degrees; sources are drawn by degree, too."""
    counts = in_degrees.to(torch.int64)
    col = torch.repeat_interleave(torch.arange(len(counts)), counts)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(col)))
    return torch.stack([col[order], col])


def sample(data: Data, fanout: Sequence[int], batch_size: int, batches: int = 8) -> Batches:
    """Sample some batches of random seeds, and return what they hold."""
    num_nodes = int(data.num_nodes or 0)
    sampler = NeighborSampler(data, list(fanout), seed=0)
    random, found, seconds = np.random.default_rng(1), [], []
    for _ in range(batches + 1):  # the first one compiles
        seeds = random.choice(num_nodes, min(batch_size, num_nodes), replace=False)
        start = time.perf_counter()
        out: Any = sampler.sample_from_nodes(NodeSamplerInput(None, torch.from_numpy(seeds)))
        seconds.append(time.perf_counter() - start)
        found.append(out)
    found = found[1:]
    nodes = np.array([out.node.numel() for out in found], float)
    edges = float(np.mean([out.row.numel() for out in found]))
    ids = torch.cat([out.node for out in found])
    middle = float(np.median(seconds[1:]))
    return Batches(batches, float(nodes.mean()), float(nodes.std()), edges, middle, ids)


def hit_share(node_ids: Tensor, out_degrees: Tensor, rows: int) -> float:
    """Return which part of the gathered rows belongs to the `rows` nodes with most out-edges."""
    cached = torch.zeros(len(out_degrees), dtype=torch.bool)
    cached[out_degrees.argsort(descending=True)[:rows]] = True
    return float(cached[node_ids].float().mean())


def report(
    data: Data,
    fanout: Sequence[int],
    batch_size: int,
    row_bytes: int,
    machine: Machine,
    num_seeds: int | None = None,
) -> str:
    """Return the plan as text.

    Args:
        data: the graph; only its edges are looked at.
        fanout: of each hop.
        batch_size: seeds of a batch.
        row_bytes: of the features of a node.
        machine: with which GPU.
        num_seeds: of an epoch; None for all nodes.
    """
    edge_index: Any = data.edge_index
    num_nodes, num_edges = int(data.num_nodes or 0), edge_index.size(1)
    batches = sample(data, fanout, batch_size)
    steps = math.ceil((num_nodes if num_seeds is None else num_seeds) / batch_size)
    topology = (num_nodes + 1 + num_edges) * (4 if max(num_nodes, num_edges) < 2**31 else 8)
    features = num_nodes * row_bytes
    gathered = batches.nodes * row_bytes
    lines = batches.nodes * blocks_of_row(row_bytes, LINE_BYTES)
    link_ms = 1e3 * lines * LINE_BYTES / machine.link_bytes_per_s
    room = machine.gpu_bytes // 2
    cache_rows = min(num_nodes, max(0, room - topology) // max(1, row_bytes))
    degrees = torch.bincount(edge_index[0], minlength=num_nodes)
    hits = hit_share(batches.node_ids, degrees, cache_rows)
    spread = 100 * batches.nodes_deviation / max(1.0, batches.nodes)
    lines_text = [
        f"{num_nodes:,} nodes, {num_edges:,} edges: {size_text(topology)} of topology, "
        f"{size_text(features)} of features ({row_bytes} bytes a node)",
        f"a batch of {batch_size:,} seeds, fan-out {'/'.join(map(str, fanout))} "
        f"(mean of {batches.num_batches}):",
        f"  {batches.nodes:,.0f} unique nodes (batches differ by {spread:.1f} %), "
        f"{batches.edges:,.0f} edges",
        f"  {size_text(int(gathered))} of features, {lines:,.0f} reads of {LINE_BYTES} bytes",
        f"  {1e3 * batches.sampling_seconds:.1f} ms to sample here, with one thread (measured)",
        f"an epoch of {steps:,} batches: {size_text(int(steps * gathered))} of features, "
        f"{steps * batches.sampling_seconds:.1f} s of sampling on this machine",
        f"with {size_text(machine.gpu_bytes)} of GPU memory, of which a loader takes half, and "
        f"{machine.link_bytes_per_s / 1e9:.1f} GB/s ({machine.source}; computed, not measured):",
    ]
    whole = topology + features <= room
    placements = [
        ("all in GPU memory", whole, 0.0),
        ("topology in GPU memory, features on the host", topology <= room, link_ms),
        (
            f"the same with {cache_rows:,} rows of features cached ({100 * hits:.0f} % hits)",
            topology <= room and 0 < cache_rows < num_nodes,
            link_ms * (1 - hits),
        ),
        ("all on the host", True, link_ms),
    ]
    for name, fits, milliseconds in placements:
        limit = f"features take the link at least {milliseconds:.2f} ms a batch"
        lines_text.append(f"  {name}: {limit if fits else 'does not apply or does not fit'}")
    return "\n".join(lines_text)


def _graph_of(args: argparse.Namespace) -> Data:
    if args.graph is not None:
        data = torch.load(args.graph, weights_only=False)
        if not isinstance(data, Data) or data.edge_index is None:
            raise SystemExit(f"{args.graph} must hold a torch_geometric Data with edge_index.")
        return data
    if args.degrees is not None:
        degrees = torch.from_numpy(np.load(args.degrees)).view(-1)
        return Data(edge_index=edges_with_degrees(degrees), num_nodes=len(degrees))
    if not (args.nodes and args.edges):
        raise SystemExit("Give --graph, --degrees, or --nodes and --edges.")
    if args.edges > MAX_EDGES:
        raise SystemExit(f"A random graph may have {MAX_EDGES:,} edges at most here.")
    edge_index = power_law_edges(args.nodes, args.edges, args.skew)
    return Data(edge_index=edge_index, num_nodes=args.nodes)


def main(argv: list[str] | None = None) -> None:
    """Print a plan."""
    parser = argparse.ArgumentParser(prog="python -m pyg_direct.plan", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--graph", type=Path, help="file with a Data, by torch.save")
    parser.add_argument("--degrees", type=Path, help=".npy with the in-degree of each node")
    parser.add_argument("--nodes", type=int, help="of a random graph")
    parser.add_argument("--edges", type=int, help="of a random graph")
    parser.add_argument("--skew", type=float, default=3.0, help="3: degrees with exponent 2.5")
    parser.add_argument("--fanout", default="15,10,5", help="of each hop")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--features", type=int, default=100, help="columns")
    parser.add_argument("--dtype", choices=WIDTHS, default="float32")
    parser.add_argument("--seeds", type=int, help="of an epoch; all nodes if left out")
    parser.add_argument("--machine", choices=MACHINES, default="pcie4-24gb")
    parser.add_argument("--gpu-bytes", type=int, help="instead of the machine's")
    parser.add_argument("--link-bytes-per-s", type=float, help="instead of the machine's")
    args = parser.parse_args(argv)
    machine = MACHINES[args.machine]
    if args.gpu_bytes:
        machine = machine._replace(gpu_bytes=args.gpu_bytes)
    if args.link_bytes_per_s:
        machine = machine._replace(link_bytes_per_s=args.link_bytes_per_s, source="as given")
    fanout = [int(part) for part in args.fanout.split(",")]
    row_bytes = args.features * WIDTHS[args.dtype]
    print(report(_graph_of(args), fanout, args.batch_size, row_bytes, machine, args.seeds))


if __name__ == "__main__":
    main()
