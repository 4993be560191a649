"""Batches that a plan samples: cache hits, other orders of the fan-outs, and fewer hops."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice, permutations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.typing import NodeType

from ..core.types import BatchKey
from ..core.units import blocks_of_row, size_text
from ..ops.host import keys as rng
from ..ops.host.hottest import LINE_BYTES, SLOT_BYTES, Candidate, hottest_rows
from ..sampling.sampler import NeighborSampler

BATCHES = 4  # of each list of fan-outs
MOST_HOPS = 3  # whose orders are all tried: 6 of them


class Batching(NamedTuple):
    """Which batches to sample.

    Attributes:
        fanout: of each hop, and each edge type.
        batch_size: seeds of a batch.
        seed_type: node type of the seeds; None in a homogeneous graph.
        sampling: as of the loaders.
    """

    fanout: Sequence[int]
    batch_size: int
    seed_type: NodeType | None = None
    sampling: str = "uniform"

    def sampler(self, data: Data | HeteroData) -> NeighborSampler:
        """Return the sampler of the batches, which reads the edges of the graph only."""
        return NeighborSampler(data, list(self.fanout), sampling=self.sampling)

    def seeds(self, data: Data | HeteroData, epoch: int = 0) -> Iterator[tuple[Tensor, BatchKey]]:
        """Yield seeds and key of each full batch of one shuffled epoch after another.

        They are those of a loader over all nodes with ``seed=0, shuffle=True``.
        """
        num_nodes = node_counts(data)[self.seed_type]
        size = min(self.batch_size, num_nodes)
        for number in count(epoch):
            generator = torch.Generator().manual_seed(rng.shuffle_seed(0, number))
            order = torch.randperm(num_nodes, generator=generator)
            full = torch.split(order[: num_nodes // size * size], size)
            yield from zip(full, rng.keys(0, number, 0), strict=False)

    def sampled(self, data: Data | HeteroData, epoch: int = 0) -> Iterator[Counted]:
        """Yield batches from an epoch on, without end."""
        return sampled(self.sampler(data), self.seeds(data, epoch), self.seed_type)


class Counted(NamedTuple):
    """What a batch holds, by node or edge type; a homogeneous graph has the one type None."""

    nodes: dict[Any, Tensor]  # ids
    num_nodes: dict[Any, list[int]]  # that each hop found, [hops + 1] with the seeds
    num_edges: dict[Any, list[int]]  # of each hop, [hops]


def sampled(
    sampler: NeighborSampler, batches: Iterable[tuple[Tensor, BatchKey]], node_type: Any
) -> Iterator[Counted]:
    """Sample batches around seeds of one type, given with their keys."""
    for seeds, key in batches:
        inputs = NodeSamplerInput(None, seeds, input_type=node_type)
        out: Any = sampler.sample_from_nodes(inputs, key=key)
        fields = (out.node, out.num_sampled_nodes, out.num_sampled_edges)
        yield Counted(*(each if isinstance(each, dict) else {None: each} for each in fields))


class LayerCosts(NamedTuple):
    """The work of a model whose layers compute the rows that the seeds depend on.

    Attributes:
        fanout: of each hop, from the seeds.
        rows: rows that each layer writes, from the first layer, which reads the features.
        edges: edges that each layer reads.
        read_rows: rows of features of a batch.
    """

    fanout: tuple[int, ...]
    rows: tuple[float, ...]
    edges: tuple[float, ...]
    read_rows: float


def fanouts_to_try(fanout: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a list of fan-outs, its other orders, and the lists of its first hops.

    Of more than `MOST_HOPS` hops only the ascending and the descending order are returned.

    Example: [15, 5] gives (15, 5), (5, 15) and (15,).
    """
    given = tuple(fanout)
    if len(given) <= MOST_HOPS:
        orders = sorted(set(permutations(given)), reverse=True)
    else:
        orders = [tuple(sorted(given, reverse=True)), tuple(sorted(given))]
    fewer = [given[:hops] for hops in range(len(given) - 1, 0, -1)]
    return list(dict.fromkeys([given, *orders, *fewer]))


def layer_costs(data: Data | HeteroData, asked: Batching) -> list[LayerCosts]:
    """Sample batches with each of the fan-outs to try; return means over the batches."""
    costs, kept = [], []  # samplers share one copy of the graph as long as one of them lives
    for tried in fanouts_to_try(asked.fanout):
        kept.append(source := asked._replace(fanout=tried).sampled(data))
        found = list(islice(source, BATCHES))
        nodes_of_hop = np.mean([_up_to_each_hop(batch.num_nodes) for batch in found], axis=0)
        edges_of_hop = np.mean([_up_to_each_hop(batch.num_edges) for batch in found], axis=0)
        # The first layer writes the rows of all but the last hop, the last layer the seeds'.
        costs.append(
            LayerCosts(
                tried,
                tuple(nodes_of_hop[:-1][::-1].tolist()),
                tuple(edges_of_hop[::-1].tolist()),
                float(nodes_of_hop[-1]),
            )
        )
    return costs


def _up_to_each_hop(counts: Mapping[Any, list[int]]) -> Any:
    """Return running sums over the hops of the counts of all types."""
    return np.array([*counts.values()]).sum(0).cumsum()


def orders_text(costs: Sequence[LayerCosts]) -> str:
    """Return a line for each list of fan-outs, the given one first."""
    given = sum(costs[0].rows)
    lines = [
        "a training step, where a layer computes the rows that the seeds depend on (accelerate, "
        "trim_to_layer), by layer from the first:"
    ]
    for cost in costs:
        rows, edges = (" + ".join(f"{n:,.0f}" for n in each) for each in (cost.rows, cost.edges))
        lines.append(
            f"  fan-out {'/'.join(map(str, cost.fanout))}: {rows} rows "
            f"({sum(cost.rows) / given:.2f} of the rows of the first line), {edges} edges; "
            f"{cost.read_rows:,.0f} rows of features"
        )
    lines.append(
        "  other orders and fewer hops are other samples: compare their accuracy before you choose"
    )
    return "\n".join(lines)


class Batches(NamedTuple):
    """Statistics of sampled batches: means, unless stated."""

    num_batches: int
    nodes: float  # of all types
    nodes_deviation: float  # between batches
    edges: float
    sampling_seconds: float  # on this machine, median, one thread
    node_ids: dict[Any, list[Tensor]]  # by node type, of each batch


def sample(data: Data | HeteroData, asked: Batching, batches: int = 16) -> Batches:
    """Sample some batches of shuffled epochs, and return their statistics."""
    source = asked.sampled(data)
    found, seconds = [], []
    for _ in range(batches + 1):  # the first one compiles
        start = time.perf_counter()
        found.append(next(source))
        seconds.append(time.perf_counter() - start)
    found = found[1:]
    nodes = np.array([sum(map(len, batch.nodes.values())) for batch in found], float)
    edges = float(np.mean([sum(map(sum, batch.num_edges.values())) for batch in found]))
    ids = {kind: [batch.nodes[kind] for batch in found] for kind in found[0].nodes}
    middle = float(np.median(seconds[1:]))
    return Batches(batches, float(nodes.mean()), float(nodes.std()), edges, middle, ids)


def node_counts(data: Data | HeteroData) -> dict[Any, int]:
    """Return the number of nodes by type; by None in a homogeneous graph."""
    if isinstance(data, HeteroData):
        return {kind: int(data[kind].num_nodes or 0) for kind in data.node_types}
    return {None: int(data.num_nodes or 0)}


POINTS = 20  # of a curve, beside that of no cache
CERTAIN = 0.01  # largest standard error of hits that are called predicted

NodeIds = Mapping[Any, Sequence[Tensor]]
"""The ids of batches by node type, a tensor for each batch; those of a batch are distinct."""


class CachedRows(NamedTuple):
    """The size and hits of a cache.

    Attributes:
        rows: in the cache.
        found: float64 [batches, 3], hits of each batch: rows, bytes, and requests of 128 bytes.
        asked: float64 [batches, 3], the same of all rows of each batch.
    """

    rows: int
    found: Tensor
    asked: Tensor

    @property
    def hits(self) -> float:
        """The share of the requests that it saves."""
        return float(self.found[:, 2].sum() / self.asked[:, 2].sum().clamp(min=1))

    @property
    def error(self) -> float:
        """The standard error of `hits`, from how batches differ."""
        shares = self.found[:, 2] / self.asked[:, 2].clamp(min=1)
        return float(shares.std()) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0


def cached_rows(
    node_ids: NodeIds,
    visits: Mapping[Any, Tensor],
    row_bytes: Mapping[Any, int],
    room_bytes: int,
    share: float = 1.0,
) -> CachedRows:
    """Return the hits of a cache that selects rows as the loaders do.

    Args:
        node_ids: of batches other than those that the policy counted.
        visits: how often the policy expects each node, float64 [N_t] by type.
        row_bytes: of the features, by type; 0 for none.
        room_bytes: GPU memory of the cache.
        share: bytes of a cached row over those of the row.
    """
    kinds = [kind for kind, values in visits.items() if row_bytes[kind] and len(values)]
    tables = [
        Candidate(str(kind), _table(visits[kind], row_bytes[kind] * share), visits[kind])
        for kind in kinds
    ]
    batches = len(next(iter(node_ids.values())))
    found, asked = torch.zeros(2, batches, 3, dtype=torch.float64)
    held = 0
    for kind, rows in zip(kinds, hottest_rows(tables, room_bytes), strict=True):
        width, held = row_bytes[kind], held + len(rows)
        costs = torch.tensor([1, width, blocks_of_row(width, LINE_BYTES)], dtype=torch.float64)
        cached = torch.zeros(len(visits[kind]), dtype=torch.bool)
        cached[rows] = True
        for i, ids in enumerate(node_ids[kind]):
            found[i] += int(cached[ids].sum()) * costs
            asked[i] += len(ids) * costs
    return CachedRows(held, found, asked)


def _table(visits: Tensor, row_bytes: float) -> Tensor:
    """Return a tensor of the size of a table, without memory."""
    shape = (len(visits), max(1, int(row_bytes)))
    return torch.empty(shape, dtype=torch.uint8, device="meta")


def cache_curve(
    node_ids: NodeIds, visits: Mapping[Any, Tensor], row_bytes: Mapping[Any, int], share: float
) -> tuple[Tensor, Tensor]:
    """Return sizes of caches in bytes, up to all rows, and the hits of each, [points]."""
    whole = sum(
        len(values) * (int(row_bytes[kind] * share) + SLOT_BYTES) for kind, values in visits.items()
    )
    sizes = torch.linspace(0, whole, POINTS + 1, dtype=torch.float64).ceil()
    hits = [cached_rows(node_ids, visits, row_bytes, int(n), share).hits for n in sizes.tolist()]
    return sizes, torch.tensor(hits, dtype=torch.float64)


def policies_text(policies: Mapping[str, CachedRows], doubt: str) -> list[str]:
    """Return a header, and a line for each policy.

    Args:
        policies: hits by `cache_policy`.
        doubt: why these may not hold for the user's batches; "" if they do.
    """
    batches = len(next(iter(policies.values())).found)
    error = max(cached.error for cached in policies.values())
    if not doubt and error > CERTAIN:
        doubt = "batches differ much"
    what = f"an estimate: {doubt}" if doubt else "predicted for seeds among all nodes"
    lines = [
        f"rows of a batch by cache_policy=, of {batches} batches that none was made of ({what}):"
    ]
    for policy, cached in policies.items():
        rows, nbytes, _ = cached.found.mean(0).tolist()
        all_rows, all_bytes, _ = cached.asked.mean(0).tolist()
        reads = float((cached.asked - cached.found).mean(0)[2])
        lines.append(
            f"  {policy}: {100 * cached.hits:.1f} % hits (+- {200 * cached.error:.1f}), "
            f"{rows:,.0f} rows and {size_text(int(nbytes))} from GPU memory, "
            f"{all_rows - rows:,.0f} rows and {size_text(int(all_bytes - nbytes))} "
            f"in {reads:,.0f} reads over PCIe"
        )
    return lines
