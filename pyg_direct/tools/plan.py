"""The command `pyg-direct plan`; `arguments.py` says what it is for."""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import coalesce

from ..core.lazy_tensor import OrderedTensor
from ..core.quantized import QuantizedTensor
from ..core.types import SeedVisits
from ..core.units import blocks_of_row, size_text
from ..files.open import open_graph
from ..ops.host.hottest import LINE_BYTES, PRESAMPLED_BATCHES
from ..ops.host_memory import available_bytes
from ..sampling.sampler import keyed
from . import arguments
from .arguments import COLUMNS, DTYPE, MACHINES, WIDTHS, GpuModel
from .command import refuse
from .plan_cooperative import steps_text
from .plan_orders import (
    Batches,
    Batching,
    CachedRows,
    cache_curve,
    cached_rows,
    layer_costs,
    node_counts,
    orders_text,
    policies_text,
    sample,
)
from .plan_plot import draw
from .plan_ranks import RanksAsked


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


class Question(NamedTuple):
    """The inputs of a plan."""

    batching: Batching
    row_bytes: Mapping[Any, int]  # of the features, by node type
    machine: GpuModel
    num_seeds: int | None = None  # of an epoch; None for all nodes (of their type)
    cache_share: float = 1.0  # bytes of a cached row over those of a row in host memory
    cores: int = 1  # that sample, where there is no GPU
    doubt: str = ""  # why batches may differ from the user's; "" if they do not


class Plan(NamedTuple):
    """The results of a plan; bytes and seconds are those of one batch, unless stated."""

    question: Question
    num_nodes: int
    num_edges: int
    topology_bytes: int  # of the graph
    feature_bytes: int  # of the graph
    batches: Batches
    means: Mapping[Any, float]  # nodes of a batch by type
    steps: int  # of an epoch
    gathered_bytes: float
    lines: float  # reads over PCIe without a cache
    visits: Mapping[Any, Tensor]  # how often batches are expected to visit each node, by type
    caches: Mapping[str, CachedRows]  # by policy, the loaders' own first

    @property
    def cache_applies(self) -> bool:
        """Whether the topology leaves room for some rows, but not for all."""
        rows = next(iter(self.caches.values())).rows
        return self.topology_bytes <= self.room_bytes and 0 < rows < self.num_nodes

    @property
    def room_bytes(self) -> int:
        """GPU memory that a loader takes."""
        return self.question.machine.gpu_bytes // 2

    @property
    def cache_bytes(self) -> int:
        """What is left of it for a cache beside the topology."""
        return max(0, self.room_bytes - self.topology_bytes)

    def cached(self, visits: Mapping[Any, Tensor]) -> CachedRows:
        """Return the hits of a cache of `cache_bytes`, filled by a policy's visits."""
        asked = self.question
        return cached_rows(
            self.batches.node_ids, visits, asked.row_bytes, self.cache_bytes, asked.cache_share
        )

    @property
    def link_seconds(self) -> float:
        """Least time of the reads over PCIe, without a cache."""
        return self.lines * LINE_BYTES / self.question.machine.link_bytes_per_s


def plan_of(data: Data | HeteroData, question: Question) -> Plan:
    """Sample batches, and compute the plan."""
    row_bytes, counts, asked = question.row_bytes, node_counts(data), question.batching
    sampler = keyed(asked.sampler(data))
    degrees = sampler.out_degrees()
    num_nodes, num_edges = sum(counts.values()), sum(int(d.sum()) for d in degrees.values())
    batches = sample(data, asked)
    means = {kind: sum(map(len, ids)) / len(ids) for kind, ids in batches.node_ids.items()}
    seeds = counts[asked.seed_type]
    if asked.sampling == "uniform":
        share = np.full(seeds, min(1.0, asked.batch_size / max(1, seeds)))
        visits = sampler.expected_visits({asked.seed_type: SeedVisits(share)})
    else:  # as loaders do
        visits = presampled_visits(data, asked)
    num_seeds = seeds if question.num_seeds is None else question.num_seeds
    plan = Plan(
        question,
        num_nodes,
        num_edges,
        (num_nodes + 1 + num_edges) * (4 if max(num_nodes, num_edges) < 2**31 else 8),
        sum(counts[kind] * row_bytes[kind] for kind in counts),
        batches,
        means,
        math.ceil(num_seeds / asked.batch_size),
        sum(means[kind] * row_bytes[kind] for kind in counts),
        sum(
            means[kind] * blocks_of_row(row_bytes[kind], LINE_BYTES)
            for kind in counts
            if row_bytes[kind]
        ),
        visits,
        {},
    )
    caches = {"visits": plan.cached(visits)}
    plan = plan._replace(caches=caches)
    if plan.cache_applies:
        caches["presample"] = plan.cached(presampled_visits(data, asked))
        caches["degree"] = plan.cached(degrees)
    return plan


def presampled_visits(data: Data | HeteroData, asked: Batching) -> dict[Any, Tensor]:
    """Return how often batches of an epoch visit each node, as the loaders count them."""
    counts = node_counts(data)
    batches = min(PRESAMPLED_BATCHES, max(1, counts[asked.seed_type] // asked.batch_size))
    # Of another epoch than those that a cache is judged by.
    found = [batch.nodes for batch in islice(asked.sampled(data, epoch=1), batches)]
    return {
        kind: torch.bincount(torch.cat([nodes[kind] for nodes in found]), minlength=count).double()
        for kind, count in counts.items()
    }


def summary(plan: Plan, machine: str) -> str:
    """Return the main results in three lines: what fits, the time of a batch, what to pass.

    Args:
        plan: what was found.
        machine: name of the GPU's kind.
    """
    needed, free = plan.topology_bytes + plan.feature_bytes, available_bytes()
    fits, passed, seconds = needed <= free, "nothing; a GPU reads the memory of the host", 0.0
    if plan.topology_bytes > plan.room_bytes:
        where, seconds = "stay in the memory of the host", plan.link_seconds
    elif needed <= plan.room_bytes:
        where, passed = "fit it as well", "nothing; with that GPU all is placed in its memory"
    else:
        where, seconds = "fit it without the features", plan.link_seconds
    if plan.cache_applies:
        passed, seconds = 'cache="auto" on a GPU', seconds * (1 - plan.caches["visits"].hits)
    if not fits:
        passed = "a graph in files (pyg_direct.save, pyg_direct.open)"
    link = f"at least {1e3 * seconds:.2f} ms" if seconds else "none"
    return "\n".join(
        [
            f"{'fits' if fits else 'does NOT fit'}: {size_text(needed)} of graph and features, "
            f"{size_text(free)} of memory free here; with a GPU (--machine {machine}) a loader "
            f"takes half of its memory, {size_text(plan.room_bytes)}: they {where}",
            f"a batch: {1e3 * plan.batches.sampling_seconds:.1f} ms of sampling here with one "
            f"thread (measured); PCIe on that GPU: {link} (computed from its nominal bandwidth)",
            f"what to pass to the loader: {passed}",
            "",
        ]
    )


def report(plan: Plan) -> str:
    """Return the plan as text."""
    question, batches, steps = plan.question, plan.batches, plan.steps
    machine = question.machine
    spread = 100 * batches.nodes_deviation / max(1.0, batches.nodes)
    sampling = steps * batches.sampling_seconds
    wide = ", ".join(
        f"{size} bytes a {kind or 'node'}" for kind, size in question.row_bytes.items()
    )
    by_type = [
        f"    {mean:,.0f} of {kind}" for kind, mean in plan.means.items() if kind is not None
    ]
    lines = [
        f"{plan.num_nodes:,} nodes, {plan.num_edges:,} edges: {size_text(plan.topology_bytes)} of "
        f"topology, {size_text(plan.feature_bytes)} of features ({wide})",
        f"a batch of {question.batching.batch_size:,} seeds, fan-out "
        f"{'/'.join(map(str, question.batching.fanout))} (mean of {batches.num_batches}):",
        f"  {batches.nodes:,.0f} unique nodes (batches differ by {spread:.1f} %), "
        f"{batches.edges:,.0f} edges",
        *by_type,
        f"  {size_text(int(plan.gathered_bytes))} of features, {plan.lines:,.0f} reads of "
        f"{LINE_BYTES} bytes",
        f"  {1e3 * batches.sampling_seconds:.1f} ms to sample here, with one thread (measured)",
        f"an epoch of {steps:,} batches: {size_text(int(steps * plan.gathered_bytes))} of "
        f"features, {sampling:.1f} s of sampling on this machine with one core, at least "
        f"{sampling / question.cores:.1f} s with {question.cores}",
        f"with {size_text(machine.gpu_bytes)} of GPU memory, of which a loader takes half, and "
        f"{machine.link_bytes_per_s / 1e9:.1f} GB/s ({machine.source}; computed, not measured):",
        *_placements(plan),
        *(policies_text(plan.caches, question.doubt) if plan.cache_applies else []),
    ]
    return "\n".join(lines)


def _placements(plan: Plan) -> Iterator[str]:
    """Yield a line for each placement that fits and makes a difference."""
    room, link, cache = plan.room_bytes, plan.link_seconds, plan.caches["visits"]
    topology_fits = plan.topology_bytes <= room
    for name, fits, seconds in (
        ("all in GPU memory", plan.topology_bytes + plan.feature_bytes <= room, 0.0),
        ("topology in GPU memory, features on the host", topology_fits, link),
        (
            f"with cache= for {cache.rows:,} rows ({100 * cache.hits:.0f} % hits)",
            plan.cache_applies,
            link * (1 - cache.hits),
        ),
        ("all on the host", True, link),
    ):
        if fits:
            limit = (
                f"features keep PCIe busy for at least {1e3 * seconds:.2f} ms a batch, "
                f"{plan.steps * seconds:.1f} s an epoch"
            )
            yield f"  {name}: {limit if seconds else 'nothing crosses PCIe'}"


def features_of(
    data: Data | HeteroData, features: int | None, dtype: str | None
) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return the columns of the features by node type, and the bytes of a row.

    Args:
        data: the graph; both are those of its `x` where a type has one.
        features: columns where it has none; None for 100.
        dtype: likewise; None for float32.

    Raises:
        ValueError: `features` or `dtype` are given, and all types have an `x`.
    """
    tables = {k: s.get("x") for k, s in zip(node_counts(data), data.node_stores, strict=True)}
    found = {k: x for k, x in tables.items() if isinstance(x, Tensor)}
    for option, given in (("features", features), ("dtype", dtype)):
        if given is not None and len(found) == len(tables):
            raise ValueError(f"--{option} would have no effect, as the graph has x: leave it out.")
    default = COLUMNS if features is None else features
    columns = {k: math.prod(found[k].shape[1:]) if k in found else default for k in tables}
    width = WIDTHS[dtype or DTYPE]
    return columns, {k: _row_bytes(found.get(k), width * columns[k]) for k in tables}


def _row_bytes(x: Tensor | None, default: int) -> int:
    """Return the bytes that a row of features takes as it is stored."""
    if x is None:
        return default
    x, scale_bytes = x.stored if isinstance(x, OrderedTensor) else x, 0
    if isinstance(x, QuantizedTensor):
        scale_bytes = 4 if x.scale is not None and x.scale.dim() == 2 else 0  # of the row
        x = x.stored
    return x.element_size() * math.prod(x.shape[1:]) + scale_bytes


def _graph_of(args: argparse.Namespace) -> Data | HeteroData:
    """Return the graph that the arguments name.

    Raises:
        ValueError: there is no such graph, or it lacks what the arguments ask for.
    """
    if args.graph is not None:
        data: Data | HeteroData = _loaded(args.graph)
        graph = isinstance(data, (Data, HeteroData))
        stores: Any = data.edge_stores if graph else []
        if not graph or not all(isinstance(s.get("edge_index"), Tensor) for s in stores):
            raise ValueError(f"{args.graph} must hold a Data or HeteroData with edge_index.")
        known = list(node_counts(data))
        if known == [None] and args.seed_type is not None:
            raise ValueError("The graph has no node types: leave --seed-type out.")
        if args.seed_type not in known:
            given = "" if args.seed_type is None else f", got {args.seed_type!r}"
            raise ValueError(f"--seed-type must be one of {', '.join(known)}{given}.")
        return data
    if args.degrees is not None:
        try:
            degrees = torch.from_numpy(np.load(args.degrees)).view(-1)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"--degrees {args.degrees} cannot be read: {error}") from error
        if bool(((degrees < 0) | (degrees != degrees.to(torch.int64))).any()):
            raise ValueError(f"--degrees {args.degrees} must hold whole numbers of 0 or more.")
        edge_index = edges_with_degrees(degrees)
        return Data(edge_index=_drawn(edge_index, args), num_nodes=len(degrees))
    edge_index = power_law_edges(args.nodes, args.edges, args.skew)
    return Data(edge_index=_drawn(edge_index, args), num_nodes=args.nodes)


def _loaded(path: Path) -> Any:
    """Return the graph in a file of torch.save or in a directory of `pyg_direct.save`."""
    try:
        return open_graph(path) if path.is_dir() else torch.load(path, weights_only=False)
    except (UnpicklingError, EOFError, IndexError, KeyError, AttributeError) as error:
        reason = "it was not written by torch.save"
        raise ValueError(f"--graph {path} cannot be read: {reason} ({error}).") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"--graph {path} cannot be read: {error}") from error


def _drawn(edge_index: Tensor, args: argparse.Namespace) -> Tensor:
    """Return random edges, without duplicates where the sampling needs that."""
    return coalesce(edge_index) if args.sampling == "labor" else edge_index


def _doubt(args: argparse.Namespace) -> str:
    """Return why the sampled batches may differ from the user's, or ""."""
    if args.graph is None:
        return "of a random graph"
    return "batches have seeds among all nodes here" if args.seeds is not None else ""


def main(argv: list[str] | None = None) -> None:
    """Print a plan."""
    run(*arguments.plan(argv))


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Print a plan."""
    try:
        _run(args)
    except ValueError as error:  # also of edges that the sampling cannot take
        refuse(parser, error)


def _run(args: argparse.Namespace) -> None:
    if args.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install matplotlib")
    machine = MACHINES[args.machine]
    if args.gpu_bytes:
        machine = machine._replace(gpu_bytes=args.gpu_bytes)
    if args.link_bytes_per_s:
        machine = machine._replace(link_bytes_per_s=args.link_bytes_per_s, source="as given")
    data = _graph_of(args)
    batching = Batching(args.fanout, args.batch_size, args.seed_type, args.sampling)
    columns, row_bytes = features_of(data, args.features, args.dtype)
    share = 1.0
    if args.cache_dtype is not None and sum(row_bytes.values()) > 0:
        share = WIDTHS[args.cache_dtype] * sum(columns.values()) / sum(row_bytes.values())
    question = Question(batching, row_bytes, machine, args.seeds, share, args.cores, _doubt(args))
    plan = plan_of(data, question)
    print(summary(plan, args.machine))
    print(report(plan))
    print(orders_text(layer_costs(data, batching)))
    if args.ranks > 1:
        asked = RanksAsked(args.ranks, batching, question.row_bytes, columns, args.widths)
        print(steps_text(data, asked, machine.link_bytes_per_s, args))
    if args.plot is not None:
        ids, share = plan.batches.node_ids, question.cache_share
        sizes, hits = cache_curve(ids, plan.visits, question.row_bytes, share)
        parts, traffic = (plan.topology_bytes, plan.feature_bytes), plan.lines * LINE_BYTES
        draw(args.plot, parts, plan.room_bytes, plan.cache_bytes, sizes, traffic * (1 - hits))
        print(f"picture: {args.plot}")


if __name__ == "__main__":
    main()
