"""Which rows of layer 1 a batch takes from a table of earlier steps, decided when it is sampled.

The nodes that the last hop would expand need rows of layer 1 and nothing else. Those whose rows
were computed by one of the batches before get no neighbours, and are listed after the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.loader import NodeLoader

from ..batch.sampled import Reused
from ..core.types import BatchKey, ExtendedKey, SampledGraph
from ..ops.backend import Backend
from ..sampling.hops import BatchInProgress
from ..sampling.keyed import KeyedSampler
from ..sampling.sampler import NeighborSampler, keyed
from .base import DirectLoader, hand_out_hops
from .cache import given_visits, likely_visits

NEVER = -(1 << 60)  # the batch of a row that was not computed

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Rule(NamedTuple):
    """Which rows are reused.

    Attributes:
        staleness: a row is used by so many batches after the one that computed it. With 0, rows
            are computed by each batch, and have the gradients of reused ones.
        refreshed: share of the rows that could be reused, and are computed.
        is_certified: whether a batch, by its number from 1 on, computes all rows.
    """

    staleness: int
    refreshed: float
    is_certified: Callable[[int], bool]


class _Chosen(NamedTuple):
    """What is done with the rows of nodes that the last hop would expand, [f] each."""

    batch: int
    certified: bool
    slots: Ints  # -1 of nodes that have no row in the table
    computed_by: Ints
    reused: Bools
    refreshed: Bools
    cut: Bools


class Schedule:
    """Decides for batches, one after another, which rows they reuse.

    Args:
        number: that distinguishes it from others.
        nodes: int64 [h], that have rows in the table, in the order of these.
        num_nodes: of the graph.
        rule: which rows are reused.
        computed: returns which batch computed each row that is in the table, int64 [h], and on
            which batch the model was trained last. It is asked when an iteration begins, as batches
            that were made ahead of the one before are lost.
    """

    def __init__(
        self,
        number: int,
        nodes: Tensor,
        num_nodes: int,
        rule: Rule,
        computed: Callable[[], tuple[Tensor, int]],
    ) -> None:
        self.number, self._rule, self._computed = number, rule, computed
        self._slot = np.full(num_nodes, -1, np.int64)
        self._slot[nodes.numpy()] = np.arange(len(nodes))
        self._by = np.full(len(nodes), NEVER, np.int64)
        self._skip = torch.zeros(num_nodes, dtype=torch.bool)
        self._batches = self._iterations = 0
        self._lock = threading.Lock()

    def begin(self, backend: Backend) -> Callable[[BatchKey], BatchKey]:
        """Begin an iteration; return what gives the key of a batch to it.

        Raises:
            RuntimeError: batches are made on a GPU.
        """
        if not backend.streams.in_order:
            raise RuntimeError(
                f"accelerate(reuse=) is for batches on the CPU, and this loader makes them on "
                f"{str(backend.device)!r}. Pass device='cpu' to the loader, or leave reuse= out."
            )
        with self._lock:
            self._iterations += 1
            rows, self._batches = self._computed()
            self._by[:] = rows.numpy()
            iteration = self._iterations
        return lambda key: ExtendedKey.of(key, source=_Turn(self, iteration))

    def hop(self, iteration: int, key: BatchKey, work: Any, hop: int) -> tuple[Ints, _Chosen]:
        """Do the last hop of a batch; return the nodes that it would expand, and what was chosen.

        Raises:
            RuntimeError: another iteration was begun.
        """
        nodes = work.frontier(hop).node[0].long()
        with self._lock:
            if iteration != self._iterations:
                raise RuntimeError(
                    "Another iteration of this loader was begun, and batches of a model that "
                    "reuses rows are made one after another. End one before the next begins."
                )
            self._batches += 1
            chosen = self._choose(nodes.numpy(), key)
            self._skip[nodes] = torch.from_numpy(chosen.reused)
            work.hop(hop, [self._skip])
            kept = chosen.slots[(chosen.slots >= 0) & ~chosen.reused]
            self._by[kept] = chosen.batch
        return nodes.numpy(), chosen

    def _choose(self, nodes: Ints, key: BatchKey) -> _Chosen:
        rule, batch = self._rule, self._batches
        slots = self._slot[nodes]
        in_table, certified = slots >= 0, rule.is_certified(batch)
        by = np.where(in_table, self._by[slots] if len(self._by) else NEVER, NEVER)
        could = in_table & (not certified)
        if rule.staleness > 0:
            could &= batch - by <= rule.staleness
        draws = np.random.default_rng([*key, batch]).random(len(nodes))
        refreshed = could & (draws < rule.refreshed)
        left = could & ~refreshed
        none = np.zeros_like(left)
        reused, cut = (left, none) if rule.staleness > 0 else (none, left)
        return _Chosen(batch, certified, slots, by, reused, refreshed, cut)


class _Turn:
    """The source of hops of one batch."""

    def __init__(self, schedule: Schedule, iteration: int) -> None:
        self._schedule, self._iteration = schedule, iteration
        self._sampler: Any = None
        self._nodes: Any = None
        self._chosen: Any = None

    def of(self, sampler: KeyedSampler) -> _Turn:
        """Say who samples."""
        self._sampler = sampler
        return self

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        """Do a hop; see `HopSource`."""
        last = len(self._sampler.plan.fanouts) - 1
        for work, key, _ in window:
            if hop < last:
                work.hop(hop)
            else:
                self._nodes, self._chosen = self._schedule.hop(self._iteration, key, work, hop)

    def arranged(self, sampled: SampledGraph) -> Reused:
        """List nodes whose rows are reused after the others of their hop, in place."""
        nodes, chosen = self._nodes, self._chosen
        first = sum(sampled.num_sampled_nodes[0][:-2])
        order = np.concatenate([np.flatnonzero(~chosen.reused), np.flatnonzero(chosen.reused)])
        end, read = first + int((~chosen.reused).sum()), first + len(nodes)
        if end < read:
            _move(sampled, first, order)

        def rows(which: Bools) -> Tensor:
            return torch.from_numpy(first + np.flatnonzero(which[order]))

        kept = (chosen.slots >= 0) & ~chosen.reused
        from_table = order[end - first :]
        return Reused(
            self._schedule.number,
            chosen.batch,
            chosen.certified,
            first,
            end,
            read,
            torch.from_numpy(chosen.slots[from_table]),
            torch.from_numpy(chosen.computed_by[from_table]),
            rows(kept),
            torch.from_numpy(chosen.slots[order][kept[order]]),
            rows(chosen.refreshed),
            rows(chosen.cut),
            _edges_of(self._sampler, nodes[chosen.reused]),
        )


def _move(sampled: SampledGraph, first: int, order: Ints) -> None:
    """Put nodes that the last hop expands into another order."""
    node, edges = sampled.node[0], sampled.edge_index[0]
    moved = torch.from_numpy(order)
    place = torch.arange(len(node), dtype=edges.dtype)
    place[first + moved] = torch.arange(first, first + len(moved), dtype=edges.dtype)
    edges[0] = place[edges[0]]
    earlier = sum(cast(Any, sampled.num_sampled_edges)[0][:-1])
    edges[1, earlier:] = place[edges[1, earlier:]]
    node[first : first + len(moved)] = node[first + moved]


def _edges_of(sampler: KeyedSampler, nodes: Ints) -> int:
    """Return how many edges the last hop would draw for nodes, if none was left out of the draw."""
    indptr, fanout = sampler.graph.csc.indptr, int(sampler.plan.fanouts[-1, 0])
    degrees = indptr[nodes + 1].astype(np.int64) - indptr[nodes]
    if sampler.plan.replace and fanout >= 0:
        return fanout * int((degrees > 0).sum())
    return int((degrees if fanout < 0 else np.minimum(degrees, fanout)).sum())


def refusal(loader: DirectLoader) -> str:
    """Return why batches of a loader cannot reuse rows, "" if they can.

    Edges of its batches are `SampledEdges` from now on.
    """
    if loader._split.cooperative:
        return "cooperative=True, as no rank has all rows of a batch"
    reason = hand_out_hops(loader)
    if reason:
        return reason
    collates = getattr(loader.collate_fn, "__func__", None) is not DirectLoader.collate_fn
    of_nodes = isinstance(loader, NodeLoader) and getattr(loader, "_samples_directly", bool)()
    if collates or not of_nodes:
        return f"a {type(loader).__name__} with methods, a graph or a sampler of another kind"
    sampler = keyed(cast(NeighborSampler, loader._sampler))
    given = sampler.settings
    backend = loader._backend
    found = {
        "node types": sampler.is_hetero,
        "a partition": sampler.source is not None or loader._exchange is not None,
        "split_by_rank or world_size": loader._split.is_given,
        "time_attr": sampler.graph.node_times is not None or sampler.graph.csc.times is not None,
        "disjoint=True": sampler.disjoint,
        "sampling='adaptive'": given.sampling == "adaptive",
        "batch_dependency above 1": loader._progress.batch_dependency > 1,
        "num_workers above 1, as one batch is decided after another": loader.num_workers > 1,
        "fan-outs of fewer than two hops": len(sampler.plan.fanouts) < 2,
        f"batches on {str(backend.device)!r}": not backend.streams.in_order,
    }
    return ", ".join(name for name, is_so in found.items() if is_so)


def hottest(loader: DirectLoader, by: Any, share: float) -> tuple[Tensor, int]:
    """Return the nodes that are to have rows in a table, and how many nodes there are.

    Args:
        loader: that `refusal` has nothing against.
        by: 'visits', 'degree', or numbers [N], as `cache_policy` takes them.
        share: of all nodes, in (0, 1].

    Returns:
        int64 [h], ascending, and N.
    """
    sampler = keyed(cast(NeighborSampler, loader._sampler))
    num_nodes: int = sampler.num_nodes
    if not isinstance(by, str):
        visits = given_visits(by, {None: num_nodes}, "hot")[None]
    elif share == 1.0:
        return torch.arange(num_nodes), num_nodes
    else:
        visits = (sampler.out_degrees() if by == "degree" else likely_visits(loader))[None]
    count = max(1, round(share * num_nodes))
    nodes = visits.sort(descending=True, stable=True).indices[:count]
    return nodes[visits[nodes] > 0].sort().values, num_nodes
