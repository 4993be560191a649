"""The hops of a batch that several ranks sample in common, as one of them makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.cooperation import Cooperation, NodesInCommon, RowsBetween, SeedOutputs
from ..core.types import Csc, ExtendedKey, Frontier, Rules, SampledGraph, SamplingPlan
from ..ops.backend import Backend
from ..ops.host.in_common import RankNodes, field_of_bits
from ..ops.host.parts import ids_at
from ..ranks.channel import Channel
from .rows import RowTraffic

Ints = npt.NDArray[Any]


class _HopEdges(NamedTuple):
    """The edges of one relation in one hop."""

    source: Ints  # ids
    destination: Ints  # int64, numbers among the own nodes
    position: Ints  # in the CSC


class CommonBatches:
    """Samples the batches that all ranks make together. Every call of `sample` is collective.

    A batch has the seeds of all ranks' loops, in the order of the ranks, and the nodes and edges
    that one process would draw around them with the same key. The rank that owns a node draws its
    in-edges, in the hop that found it. Draws depend on a node's local id in the whole batch, and
    that on the first edge that finds it; so with each id that a rank asks its owner for goes the
    key of that edge, which orders the edges of a hop over all ranks. Owners keep the least key of
    each node, and set its bit in a field of bits that all ranks then have; a node's local id is the
    number of bits before its own (Balin, LaSalle and Catalyurek, "Cooperative Minibatching in
    Graph Neural Networks", TMLR 2025, have no such order). LABOR's draws do not depend on it.

    Args:
        csc: the whole graph, on the host.
        plan: without subgraphs, with fan-outs of 0 or more.
        owners: T x int16 [N_t], the rank that owns each node.
        channel: to the other ranks.
        backend: draws.
        traffic: counts.
    """

    def __init__(
        self,
        csc: Csc,
        plan: SamplingPlan,
        owners: Sequence[Ints],
        channel: Channel,
        backend: Backend,
        traffic: RowTraffic,
    ) -> None:
        self.plan, self._csc, self._channel, self._traffic = plan, csc, channel, traffic
        self._backend, self._work = backend, backend.workspace(csc, plan)
        self._nodes = [RankNodes(owner, channel.rank) for owner in owners]
        self._src, self._dst = csc.src_type.tolist(), csc.dst_type.tolist()
        self._types, self._hops = range(csc.num_types), len(plan.fanouts)

    def sizes_alone(self, seeds: Sequence[Tensor | None], key: ExtendedKey) -> list[int]:
        """Return how many nodes of each type a batch of this rank's own would have. Not collective.

        Its workspace does not stay, as it takes memory for each node of the graph.

        Args:
            seeds, key: as of `sample`.
        """
        work = self._backend.workspace(self._csc, self.plan)
        sampled = work.sample(list(seeds), key, self.rules(key))
        return [0 if sampled is None else len(sampled.node[t]) for t in self._types]

    def rules(self, key: ExtendedKey) -> Rules:
        """Return what the draws of a batch follow beside its key."""
        return Rules(variates=key.variates) if self.plan.labor else Rules()

    def sample(
        self, seeds: Sequence[Tensor | None], key: ExtendedKey
    ) -> tuple[SampledGraph, Callable[..., Cooperation]]:
        """Return what this rank has of a batch, and what makes the record of its ranks.

        Args:
            seeds: T x int64 [n_t] or None: of this rank's loop, of one type.
            key: of the batch.
        """
        batch = _Batch(self, seeds, key)
        batch.exchange_seeds()
        for hop in range(self._hops):
            batch.hop(hop)
        return batch.finish()


class _Batch:
    """One batch between its hops."""

    def __init__(self, of: CommonBatches, seeds: Sequence[Tensor | None], key: ExtendedKey) -> None:
        self._of, self._key, self._channel, self._nodes = of, key, of._channel, of._nodes
        self._type = next(t for t in of._types if seeds[t] is not None)
        given = seeds[self._type]
        assert given is not None
        self._seeds: Ints = given.numpy()
        ranks = range(of._channel.size)
        self._local: list[Ints] = []  # T x local ids of the own nodes that the last hop found
        self._known = np.zeros(len(of._types), np.int64)  # nodes of the whole batch, of each type
        self._frontier = self._known.copy()  # of these, those that the next hop expands
        self._edges: list[list[_HopEdges]] = [[] for _ in of._src]
        # By type and rank: numbers of rows, hop by hop.
        self._send: list[list[list[Ints]]] = [[[] for _ in ranks] for _ in of._types]
        self._receive: list[list[list[Ints]]] = [[[] for _ in ranks] for _ in of._types]
        self._outputs: tuple[list[Ints], list[Ints]] = [], []

    def exchange_seeds(self) -> None:
        """Send each seed of the loop to the rank that owns it; own ones begin the batch."""
        channel, nodes = self._channel, self._nodes[self._type]
        owner, seeds = nodes.owner[self._seeds], self._seeds
        places = [np.flatnonzero(owner == p) for p in range(channel.size)]
        total = np.array([len(seeds)])
        came = channel.exchange([tensors_of(total, seeds[at], at) for at in places])
        first, ids, local, counts = 0, list[Ints](), list[Ints](), list[int]()
        for (there,), of_rank, at in map(arrays_of, came):
            ids.append(of_rank)
            local.append(first + at)
            counts.append(len(at))
            first += int(there)
        for t, of_type in enumerate(self._nodes):
            of_type.begin(np.concatenate(ids) if t == self._type else np.empty(0, np.int64))
        none = np.empty(0, np.int64)
        self._local = [np.concatenate(local) if t == self._type else none for t in self._of._types]
        self._known[self._type] = self._frontier[self._type] = first
        numbers = np.arange(sum(counts))
        self._outputs = np.split(numbers, np.cumsum(counts)[:-1]), places

    def hop(self, hop: int) -> None:
        """Draw the in-edges of the own nodes that the last hop found, and find their sources."""
        of, channel = self._of, self._channel
        # Nothing is drawn after the last hop, and what LABOR draws depends on no local id.
        in_order = hop < of._hops - 1 and not of.plan.labor
        bases = self._draw(hop)
        asked = [nodes.asked_of(channel.size) for nodes in self._nodes]
        key_dtype = np.int32 if bases[-1] < 1 << 31 else np.int64
        came = channel.exchange(
            [
                self._request([of_type[p][:2] for of_type in asked], key_dtype, in_order)
                for p in range(channel.size)
            ]
        )
        ids = [
            self._merge(*arrays_of(message)) if p != channel.rank else []
            for p, message in enumerate(came)
        ]
        keys = [nodes.number(in_order) for nodes in self._nodes]
        if in_order:
            field = field_of_bits(keys, int(bases[-1]))
            bits = channel.union(torch.from_numpy(field)).numpy()
            self._number(keys, bases, np.unpackbits(bits))
        if not in_order:
            self._local = [np.zeros(len(found), np.int64) for found in keys]
            self._frontier[:] = self._known[:] = 0
        for t, nodes in enumerate(self._nodes):
            for p, of_rank in enumerate(ids):
                self._send[t][p].append(nodes.numbers_of(of_rank[t]) if of_rank else keys[t][:0])
                self._receive[t][p].append(asked[t][p][2])

    def _draw(self, hop: int) -> Ints:
        """Draw, and note all sources; return where the keys of each relation begin, with the end.

        Returns:
            int64 [R + 1].
        """
        of, nodes = self._of, self._nodes
        dtype = of._csc.indices.dtype
        own = [torch.from_numpy(n.own[hop].astype(dtype)) for n in nodes]
        local = [torch.from_numpy(at.astype(np.int32)) for at in self._local]
        picks = of._work.draw(hop, Frontier(own, local, None), self._key, of.rules(self._key))
        assert picks.position is not None  # `draw` gives positions
        counts, source, position = (a.numpy() for a in (picks.counts, picks.source, picks.position))
        items = np.cumsum([0, *(len(own[t]) for t in of._dst)])
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])[items]
        fanouts = of.plan.fanouts[hop]
        keys = self._frontier[of._dst] * fanouts
        bases = np.concatenate([np.zeros(1, np.int64), np.cumsum(keys)])
        for t, of_type in enumerate(nodes):
            of_type.begin_hop(
                sum(int(ends[r + 1] - ends[r]) for r, src in enumerate(of._src) if src == t)
            )
        first_item = self._known - self._frontier
        for r, (src, dst) in enumerate(zip(of._src, of._dst, strict=True)):
            mine, edges = counts[items[r] : items[r + 1]], slice(*ends[r : r + 2])
            item = self._local[dst] - first_item[dst]
            nodes[src].find(source[edges], mine, item, int(fanouts[r]), int(bases[r]))
            first = sum(map(len, nodes[dst].own[:hop]))
            destination = np.repeat(np.arange(first, first + len(mine)), mine)
            self._edges[r].append(_HopEdges(source[edges], destination, position[edges]))
        return bases

    def _request(
        self, asked: Sequence[tuple[Ints, Ints]], key_dtype: Any, in_order: bool
    ) -> list[Tensor]:
        """Return the message that asks a rank for nodes: numbers by type, ids, and keys."""
        self._of._traffic.remote_requests += sum(len(ids) for ids, _ in asked)
        sizes = np.array([len(ids) for ids, _ in asked], np.int64)
        ids, keys = (np.concatenate(columns) for columns in zip(*asked, strict=True))
        sent = [sizes, ids.astype(self._of._csc.indices.dtype)]
        return tensors_of(*sent, *([keys.astype(key_dtype)] if in_order else []))

    def _merge(self, sizes: Ints, every: Ints, keys: Ints | None = None) -> list[Ints]:
        """Note what another rank asks for; return its ids by type."""
        ends = np.cumsum(sizes)[:-1]
        ids = np.split(every, ends)
        keys = np.zeros(len(every), np.int64) if keys is None else keys.astype(np.int64)
        for nodes, of_type, of_ids in zip(self._nodes, ids, np.split(keys, ends), strict=True):
            nodes.merge(of_type, of_ids)
        return ids

    def _number(self, keys: Sequence[Ints], bases: Ints, bits: Ints) -> None:
        """Set the local ids in the whole batch of the own nodes that a hop found.

        Args:
            keys: T x [n_t], ascending.
            bases: int64 [R + 1].
            bits: uint8, 0 or 1, of all keys.
        """
        found = np.flatnonzero(bits[: bases[-1]])
        relation = np.searchsorted(bases, found, "right") - 1
        kind = self._of._csc.src_type[relation]
        for t, own in enumerate(keys):
            of_type = found[kind == t]
            self._local[t] = self._known[t] + np.searchsorted(of_type, own)
            self._frontier[t] = len(of_type)
            self._known[t] += len(of_type)

    def finish(self) -> tuple[SampledGraph, Callable[..., Cooperation]]:
        """Hand out the nodes and edges, as rows of this rank, and the record of its ranks."""
        of, node, described = self._of, list[Tensor](), list[NodesInCommon]()
        for t, nodes in enumerate(self._nodes):
            seeds = self._seeds if t == self._type else self._seeds[:0]
            ids = np.concatenate([seeds, *nodes.own, *nodes.others], dtype=np.int64)
            node.append(torch.from_numpy(ids))
            own, others = [len(a) for a in nodes.own], [0, *(len(a) for a in nodes.others)]
            send, receive = rows_between(self._send[t]), rows_between(self._receive[t])
            described.append(NodesInCommon(len(seeds), own, others, send, receive))
            self._of._traffic.requests += sum(own) + sum(others)
        edge_index, edge = [], []
        for r, (src, dst) in enumerate(zip(of._src, of._dst, strict=True)):
            index, column = self._edges_of(r, described[src], described[dst].num_seeds)
            edge_index.append(index)
            edge.append(column)
        counts = [[len(edges.source) for edges in hops] for hops in self._edges]
        no_counts: Any = [None] * len(node)  # no first nodes are those of some hops
        graph = SampledGraph(node, None, edge_index, edge, no_counts, counts)
        outputs = SeedOutputs(*([torch.from_numpy(a) for a in lists] for lists in self._outputs))
        rank, size, step = self._channel.rank, self._channel.size, self._key.step

        def describe(kinds: Sequence[Any], loop: Channel) -> Cooperation:
            nodes = dict(zip(kinds, described, strict=True))
            return Cooperation(
                rank, size, step, loop.group, loop.timeout_seconds, nodes, kinds[self._type],
                outputs, loop,
            )  # fmt: skip

        return graph, describe

    def _edges_of(self, r: int, sources: NodesInCommon, first: int) -> tuple[Tensor, Tensor]:
        """Return the edges of a relation, [2, e], and their columns in the user's `edge_index`."""
        csc, hops = self._of._csc, self._edges[r]
        index = np.empty((2, sum(len(edges.source) for edges in hops)), np.int64)
        edge = np.empty(index.shape[1], np.int64)
        first_other = sources.num_seeds + sum(sources.own_by_hop)
        ends = np.cumsum([0, *(len(edges.source) for edges in hops)])
        for edges, (begin, end) in zip(hops, pairwise(ends.tolist()), strict=True):
            nodes, out = self._nodes[self._of._src[r]], index[0, begin:end]
            nodes.write_rows(edges.source, sources.num_seeds, first_other, out)
            index[1, begin:end] = first + edges.destination
            if csc.perm is None:
                edge[begin:end] = edges.position - csc.edge_base[r]
            else:
                ids_at(csc.perm, edges.position, 0, edge[begin:end])
        return torch.from_numpy(index).to(self._of.plan.id_dtype), torch.from_numpy(edge)


def of_one_rank(
    graph: SampledGraph, seeds: Sequence[Tensor | None], csc: Csc, step: int
) -> tuple[SampledGraph, Callable[..., Cooperation]]:
    """Return what `CommonBatches.sample` does for the only rank, of a batch that is sampled.

    Args:
        graph: the batch, with the hops of its nodes and edges; it is written to.
        seeds: T x int64 [n_t] or None; of one type.
        csc: the graph.
        step: of the batch in its epoch.
    """
    counts = [0 if of_type is None else len(of_type) for of_type in seeds]
    node, described = list[Tensor](), list[NodesInCommon]()
    for count, of_type, ids, own in zip(
        counts, seeds, graph.node, graph.num_sampled_nodes, strict=True
    ):
        nobody = rows_between([[ids.numpy()[:0]] * (len(own) - 1)])
        node.append(ids if of_type is None else torch.cat([of_type, ids]))
        described.append(NodesInCommon(count, own, [0] * len(own), nobody, nobody))
    for index, src, dst in zip(graph.edge_index, csc.src_type, csc.dst_type, strict=True):
        for rows, count in zip(index, (counts[src], counts[dst]), strict=True):
            rows += count
    no_counts: Any = [None] * len(node)
    made = graph._replace(node=node, num_sampled_nodes=no_counts)
    t = next(t for t, of_type in enumerate(seeds) if of_type is not None)
    places = [torch.arange(counts[t])]

    def describe(kinds: Sequence[Any], loop: Channel) -> Cooperation:
        nodes = dict(zip(kinds, described, strict=True))
        outputs = SeedOutputs(places, places)
        return Cooperation(0, 1, step, None, loop.timeout_seconds, nodes, kinds[t], outputs, loop)

    return made, describe


def tensors_of(*arrays: Ints) -> list[Tensor]:
    """Return arrays as tensors in their memory."""
    return [torch.from_numpy(array) for array in arrays]


def arrays_of(tensors: Sequence[Tensor]) -> list[Ints]:
    """Return tensors of the host as arrays in their memory."""
    return [tensor.numpy() for tensor in tensors]


def rows_between(lists: Sequence[Sequence[Ints]]) -> RowsBetween:
    """Return rows of each rank, hop by hop, as one list with the counts, which begin with a 0."""
    rows = [torch.from_numpy(np.concatenate([np.empty(0, np.int64), *hops])) for hops in lists]
    return RowsBetween(rows, [[0, *map(len, hops)] for hops in lists])
