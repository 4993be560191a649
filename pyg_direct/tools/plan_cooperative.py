"""The work of ranks in a step with one common batch (`cooperative=True`).

The ranks are threads here, which run what the loaders run, but for loading and sending rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.cooperation import Cooperation
from ..core.types import BatchKey, ExtendedKey
from ..core.units import size_text
from ..exchange.common_hops import CommonBatches
from ..exchange.owners import Ints, check_parts, ranks_of
from ..exchange.rows import Ownership, RowFetcher, RowLayout, RowTraffic
from ..ops.host import keys as rng
from ..ops.host.parts import by_greedy_passes
from ..ranks.channel import Channel
from ..ranks.threads import on_threads
from ..sampling.sampler import NeighborSampler, keyed
from .arguments import HASH, LDG
from .plan_orders import node_counts
from .plan_ranks import RanksAsked, Work, ranks_text, step_of_ranks, work_of

MOST_PARTS = 1 << 10  # as of the loaders' owners=
VALUE_BYTES = 4  # that layers send: float32


class CommonStep(NamedTuple):
    """A step of ranks with one batch; means over some steps, of all ranks together.

    Attributes:
        work: that they do.
        fetched: rows of features that go between ranks.
        loading_bytes: that leave the ranks until each has its part of the batch: ids, keys, bits
            and rows.
        loading_collectives: of each rank, for these.
        layer_bytes: that leave the ranks in the forward of the layers, float32: rows that layers
            after the first read from other ranks, and outputs of seeds. The backward sends as
            much.
        largest: sampled edges of the rank with most, over the mean.
    """

    work: Work
    fetched: float
    loading_bytes: float
    loading_collectives: float
    layer_bytes: float
    largest: float


class Rates(NamedTuple):
    """How fast a machine is.

    Attributes:
        loading_bytes_per_s: of rows, to each rank.
        flop_per_s: of the layers, on each rank.
        link_bytes_per_s: that a rank sends to others; None to ask only for what it must be.
    """

    loading_bytes_per_s: float
    flop_per_s: float
    link_bytes_per_s: float | None = None

    def seconds_saved(self, alone: Work, together: Work, ranks: int) -> tuple[float, float]:
        """Return the seconds of loading and of computing that a rank saves in a step."""
        loading = (alone.row_bytes - together.row_bytes) / ranks / self.loading_bytes_per_s
        return loading, (alone.flop - together.flop) / ranks / self.flop_per_s


def owners_of(name: str, data: Data | HeteroData, asked: RanksAsked) -> list[Ints]:
    """Return the rank that owns each node, int16 [N_t] for each type.

    Args:
        name: "hash"; "ldg" for as many parts as ranks by linear deterministic greedy passes; else a
            file with the part of each node, a tensor or a dict of such (``torch.save``).
        data: the graph.
        asked: about it.

    Raises:
        TypeError, ValueError: the file holds something else.
    """
    counts, parts = node_counts(data), None
    if name == LDG:
        csc = keyed(asked.batching.sampler(data)).graph.csc
        parts = np.split(by_greedy_passes(csc, asked.ranks), csc.node_base[1:-1].tolist())
    elif name != HASH:
        given, sizes = torch.load(Path(name), weights_only=True), [*counts.values()]
        parts = check_parts(given, name, [*counts], sizes, MOST_PARTS, "a tensor")
    return ranks_of(parts, [*counts.values()], asked.ranks)


def common_step(data: Data | HeteroData, asked: RanksAsked, owners: Sequence[Ints]) -> CommonStep:
    """Make the batches of some steps with ranks that are threads, and count their work.

    They are those of loaders with ``seed=0, shuffle=True, cooperative=True`` in epoch 0.

    Args:
        data: the graph; only its edges are looked at.
        asked: about it; fan-outs of 0 or more.
        owners: T x int16 [N_t], the rank that owns each node.
    """
    asked = asked.in_epoch_of(data)
    sampler, ownership = asked.batching.sampler(data), Ownership.by_rank(owners, asked.ranks)
    batches = asked.batching.seeds(data)
    steps = [[next(batches)[0] for _ in range(asked.ranks)] for _ in range(asked.steps)]

    def on_rank(channel: Channel) -> list[float]:
        """Return the work of a rank in all steps, in the order of `CommonStep`."""
        rank = _Rank(channel, sampler, asked, ownership)
        keys = enumerate(rng.keys(0, 0, 0))
        work = [rank.step(*key, seeds) for key, seeds in zip(keys, steps, strict=False)]
        traffic = channel.traffic()
        return [
            *np.sum(work, 0).tolist(),
            rank.fetcher.traffic.fetched_rows,
            sum(traffic.sent_bytes) + rank.answered,
            traffic.collectives + asked.steps,  # and the answers
            rank.layer_bytes,
        ]

    of_ranks = np.array(on_threads(asked.ranks, on_rank)) / asked.steps
    edges = of_ranks[:, Work._fields.index("edges")]
    last = len(Work._fields)
    work, (fetched, loading_bytes, _, layer_bytes) = np.split(of_ranks.sum(0), [last])
    return CommonStep(
        Work(*work.tolist()),
        float(fetched),
        float(loading_bytes),
        float(of_ranks[0, last + 2]),
        float(layer_bytes),
        float(edges.max() / max(1.0, edges.mean())),
    )


class _NoRows:
    """A placeholder for rows that are only counted; see `RowFetcher.count`."""

    def tables(self) -> None:
        """Return None: there are no tables."""

    def answer(self, asked: Any) -> Any:
        """Raise an error: nothing is fetched."""
        raise NotImplementedError

    def reading(self, t: int, owner: Ints, rows: Ints) -> Any:
        """Raise an error: nothing is fetched."""
        raise NotImplementedError


class _Rank:
    """Makes its part of each batch, and counts its work."""

    def __init__(
        self,
        channel: Channel,
        sampler: NeighborSampler,
        asked: RanksAsked,
        owners: Ownership,
    ) -> None:
        widths = [asked.row_bytes[kind] for kind in sampler.node_types]
        formats = [{"": RowLayout(torch.uint8, (width,))} if width else {} for width in widths]
        self.fetcher = RowFetcher(channel, owners, formats, _NoRows(), RowTraffic())
        graph = keyed(sampler)
        self._common = CommonBatches(
            graph.graph.csc, graph.plan, owners.part, channel, graph.backend, self.fetcher.traffic
        )
        self._channel, self._sampler, self._asked = channel, sampler, asked
        self.answered, self.layer_bytes = 0, 0.0

    def step(self, number: int, key: BatchKey, seeds: Sequence[Tensor]) -> Work:
        """Make the batch of a step, as the loaders do."""
        kinds, asked = self._sampler.node_types, self._asked
        self._channel.open([1, 0, number], lambda: None)
        own, seed_type = seeds[self._channel.rank], asked.batching.seed_type
        given = [own if kind == seed_type else None for kind in kinds]
        made, describe = self._common.sample(given, ExtendedKey.of(key, step=number))
        self.answered += self.fetcher.count([[node.numpy() for node in made.node]])
        plan = describe(kinds, self._channel)
        self.layer_bytes += layer_bytes(plan, asked.widths)
        rows, nodes = {}, {}
        for kind, node in zip(kinds, made.node, strict=True):
            first, nodes[kind] = plan.nodes[kind].num_seeds, plan.nodes[kind].own_by_hop
            rows[kind] = len(np.unique(node[first : first + sum(nodes[kind])].numpy()))
        assert made.num_sampled_edges is not None
        edges = dict(zip(self._sampler.edge_types, made.num_sampled_edges, strict=True))
        return work_of(rows, nodes, edges, asked)


def layer_bytes(plan: Cooperation, widths: Sequence[int]) -> float:
    """Return the bytes that a rank sends in the forward of a model.

    Args:
        plan: which rows the ranks of the batch exchange.
        widths: output columns of each layer, one for each hop; () for no model.
    """
    if not widths:
        return 0.0
    columns = widths[-1] * sum(
        len(rows) for p, rows in enumerate(plan.outputs.send) if p != plan.rank
    )
    for layer, width in enumerate(widths[:-1], 1):  # which the next layer reads
        hop = len(widths) - layer
        columns += width * sum(sum(nodes.send.counts_within(hop)) for nodes in plan.nodes.values())
    return float(VALUE_BYTES * columns)


def steps_text(
    data: Data | HeteroData, asked: RanksAsked, loading_bytes_per_s: float, args: Any
) -> str:
    """Return the work of a step: of ranks alone, with shared rows, and with a common batch.

    Args:
        data: the graph.
        asked: about the ranks.
        loading_bytes_per_s: at which each rank loads rows.
        args: of the command.

    Raises:
        ValueError: invalid owners.
    """
    step = step_of_ranks(data, asked)
    lines = [ranks_text(step)]
    if min(asked.batching.fanout) < 0:
        return "\n".join([*lines, "cooperative=True takes no negative fan-outs"])
    link = None if args.link is None else 1e9 * args.link
    rates = Rates(loading_bytes_per_s, 1e12 * args.tflops, link)
    for place, name in enumerate(args.owners):
        try:
            owners = owners_of(name, data, asked)
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"--owners {name}: {error}") from error
        common = common_step(data, asked, owners)
        if place == 0:  # the same with any
            lines += cooperative_lines(asked, step.alone, common.work)
        lines += owners_lines(name, asked.ranks, step.alone, common, rates)
    return "\n".join(lines)


def cooperative_lines(asked: RanksAsked, alone: Work, together: Work) -> list[str]:
    """Return what a common batch saves."""
    widths = "/".join(map(str, asked.widths))
    kinds = [
        ("rows loaded", alone.rows, together.rows),
        ("edges sampled", alone.edges, together.edges),
        ("edges read by layers", alone.read_edges, together.read_edges),
        (f"MFLOP of SAGE layers that write {widths}", alone.flop / 1e6, together.flop / 1e6),
    ]
    num_seeds = asked.ranks * asked.batching.batch_size
    return [
        f"the same with cooperative=True, one batch of {num_seeds:,} seeds:",
        *(
            f"  {after:,.0f} {what} in place of {before:,.0f} ({before / max(1.0, after):.2f} "
            f"times less)"
            for what, before, after in kinds
        ),
    ]


def owners_lines(
    name: str, ranks: int, alone: Work, step: CommonStep, rates: Rates
) -> Iterator[str]:
    """Yield the cost of a common batch with some owners, and when it pays."""
    sent = (step.loading_bytes + 2 * step.layer_bytes) / ranks
    loading, computing = rates.seconds_saved(alone, step.work, ranks)
    saved = loading + computing
    yield (
        f"  owners by {name}: each rank sends {size_text(int(step.loading_bytes / ranks))} to load "
        f"its part, in {step.loading_collectives:.0f} collectives, and "
        f"{size_text(int(step.layer_bytes / ranks))} between layers, forward and again backward; "
        f"the largest samples {step.largest:.2f} times the mean"
    )
    yield (
        f"    saves {1e3 * loading:.2f} ms of loading at {rates.loading_bytes_per_s / 1e9:.1f} "
        f"GB/s and {1e3 * computing:.2f} ms of computing at {rates.flop_per_s / 1e12:g} TFLOP/s, "
        f"so it pays where each rank sends more than {sent / max(saved, 1e-12) / 1e9:,.1f} GB/s "
        f"(waits of collectives are left out)"
    )
    if rates.link_bytes_per_s is not None:
        seconds = sent / rates.link_bytes_per_s
        yield (
            f"    at {rates.link_bytes_per_s / 1e9:g} GB/s sending takes {1e3 * seconds:.2f} ms: "
            f"it {'pays' if seconds < saved else 'does not pay'}"
        )
