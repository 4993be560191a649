"""Hops and rows of batches from parts that several ranks hold: what each asks and answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.lazy_tensor import keep_rows
from ..core.types import BatchKey, SampledGraph, SamplingPlan
from ..files.parts import PartedGraph, RowFormat
from ..graph.coo_to_csc import narrow
from ..ops.backend import Backend
from ..ops.buffers import shared_pool
from ..ops.host.parts import Drawn, merged, split_by_part
from ..ranks.channel import Channel
from ..sampling.hops import BatchInProgress
from .part import Answer, Bytes, Ints, Part, as_bytes, edge_ends
from .rows import AskedRows, Blocks, Ownership, RowFetcher, RowLayout, RowTraffic


class RequestedLists(NamedTuple):
    """What one rank asks of the parts of another in a hop, for some batches."""

    keys: list[BatchKey]
    items: list[list[list[tuple[Ints, Ints]]]]  # by batch, part of the other rank, node type


class PartSource:
    """A source of hops, and of rows: exchanges them with the ranks that hold the other parts.

    Every call of `hop` and `fetch` is collective. Lists are drawn by the rank that owns them, in
    their order in the whole graph, and put back into the order of the frontier here, so a batch has
    the bits that it has in a single process.

    Args:
        graph: the partition.
        channel: to the other ranks; rank r holds the parts p with p mod W = r.
        backend: samples.
        plan: of the whole graph.
    """

    def __init__(
        self, graph: PartedGraph, channel: Channel, backend: Backend, plan: SamplingPlan
    ) -> None:
        self._graph, self._channel = graph, channel
        self._parts_of = [
            list(range(r, graph.num_parts, channel.size)) for r in range(channel.size)
        ]
        self._own = {p: Part(graph, p, backend, plan) for p in self._parts_of[channel.rank]}
        self._types, self._dst = len(graph.node_types), graph.csc.dst_type.tolist()
        self._expanded = sorted(set(self._dst))  # types whose nodes have lists
        self._row_dtype = np.result_type(*(row.dtype for row in graph.row))
        most_edges = max((edges.num_edges for edges in graph.manifest.edges), default=0)
        self._edge_dtype = narrow(most_edges)
        self._widths = [  # of the attributes of edges, relation by relation
            (r, rows.num_bytes)
            for r, edges in enumerate(graph.manifest.edges)
            for rows in edges.parted.values()
        ]
        self._columns: list[list[list[Bytes]]] = []  # by batch and attribute of edges, by hop
        self.traffic = RowTraffic()
        formats = [
            {name: layout_of(rows) for name, rows in nodes.parted.items()}
            for nodes in graph.manifest.nodes
        ]
        owners = Ownership(self._parts_of, graph.part, graph.row)
        self._rows = RowFetcher(channel, owners, formats, self, self.traffic)

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        """Do one hop of each batch; see `HopSource`."""
        if hop == 0:
            self._columns = [[[] for _ in self._widths] for _ in window]
        owners, asked = self._split(window, hop)
        came = self._channel.exchange([*map(self._request, asked)])
        answers: list[list[list[Answer]]] = []  # by rank, batch, part
        for request in (self._read_request(*message) for message in came):
            answers.append(
                [
                    [
                        part.draw(hop, items, key)
                        for part, items in zip(self._own.values(), by_part, strict=True)
                    ]
                    for key, by_part in zip(request.keys, request.items, strict=True)
                ]
            )
        came = self._channel.exchange([*map(self._reply, answers)])
        answers = [self._read_reply(*reply) for reply in zip(asked, came, strict=True)]
        for b, batch in enumerate(window):
            self._enter(batch, hop, owners[b], [answer[b] for answer in answers], b)

    def _split(self, window: Any, hop: int) -> tuple[list[list[Ints]], list[RequestedLists]]:
        """Split the frontiers by part.

        Returns:
            By batch and node type the part of each node; and what is asked of each rank.
        """
        graph, keys = self._graph, [batch.key for batch in window]
        asked = [
            RequestedLists(keys, [[[] for _ in parts] for _ in window]) for parts in self._parts_of
        ]
        owners: list[list[Ints]] = []
        none = np.empty(0, self._row_dtype), np.empty(0, np.int32)
        for b, batch in enumerate(window):
            frontier, of_batch = batch.work.frontier(hop), list[Ints]()
            for t in range(self._types):
                rows, local = [none[0]] * graph.num_parts, [none[1]] * graph.num_parts
                owner = np.empty(0, np.int16)
                if t in self._expanded:
                    node, names = frontier.node[t].numpy(), frontier.local[t].numpy()
                    found = split_by_part(node, graph.part[t], graph.row[t], graph.num_parts)
                    rows, place = found.of_parts()
                    owner, local = found.owner, [names[at] for at in place]
                    self.traffic.requests += len(node)
                of_batch.append(owner)
                for rank, parts in enumerate(self._parts_of):
                    for i, p in enumerate(parts):
                        asked[rank].items[b][i].append((rows[p], local[p]))
                        remote = len(rows[p]) if rank != self._channel.rank else 0
                        self.traffic.remote_requests += remote
            owners.append(of_batch)
        return owners, asked

    def _request(self, asked: RequestedLists) -> list[Tensor]:
        """Return the message with what is asked of a rank.

        int64: batches, two words of the key of each, numbers of items by batch, part and type; then
        rows and local ids in that order.
        """
        keys, items = asked
        flat = [of_type for by_part in items for by_type in by_part for of_type in by_type]
        words = [len(keys), *(word for key in keys for word in (key.low, key.high))]
        return [
            torch.tensor([*words, *(len(rows) for rows, _ in flat)]),
            joined(self._row_dtype, [rows for rows, _ in flat]),
            joined(np.int32, [local for _, local in flat]),
        ]

    def _read_request(self, words: Tensor, rows: Tensor, local: Tensor) -> RequestedLists:
        number, *rest = words.tolist()
        keys = [BatchKey(*rest[2 * i : 2 * i + 2]) for i in range(number)]
        sizes = rest[2 * number :]
        pairs = zip(_split(rows, sizes), _split(local, sizes), strict=True)
        parts, types = range(len(self._own)), range(self._types)
        items = [[[next(pairs) for _ in types] for _ in parts] for _ in keys]
        return RequestedLists(keys, items)

    def _reply(self, answers: Sequence[Sequence[Answer]]) -> list[Tensor]:
        """Return the message with the edges that were drawn, by batch and part.

        Numbers of items and of edges; then counts, sources, ids, and the attributes one by one.
        """
        flat = [answer for by_part in answers for answer in by_part]
        drawn = [answer.drawn for answer in flat]
        return [
            torch.tensor([(len(d.counts), len(d.source)) for d in drawn]).long().view(-1, 2),
            joined(np.int32, [d.counts for d in drawn]),
            joined(self._graph.csc.indices.dtype, [d.source for d in drawn]),
            joined(self._edge_dtype, [d.edge for d in drawn]),
            *(
                joined(np.uint8, [a.columns[i].reshape(-1) for a in flat])
                for i in range(len(self._widths))
            ),
        ]

    def _read_reply(self, asked: RequestedLists, message: Sequence[Tensor]) -> list[list[Answer]]:
        """Return the edges in a message: by batch and part, as they were asked for."""
        sizes, counts, source, edge, *tables = message
        parts = [by_type for by_part in asked.items for by_type in by_part]
        items = [[len(by_type[t][0]) for t in self._dst] for by_type in parts]
        each_items, each_edges = sizes.T.tolist()
        if [sum(of_part) for of_part in items] != each_items:
            raise ValueError("Another rank answers for other nodes than it was asked for.")
        lists = _split(counts, each_items), _split(source, each_edges), _split(edge, each_edges)
        drawn = [Drawn(*of_part) for of_part in zip(*lists, strict=True)]
        bounds = [edge_ends(d.counts, n) for d, n in zip(drawn, items, strict=True)]
        columns: list[list[Bytes]] = [[] for _ in parts]
        for (r, width), table in zip(self._widths, tables, strict=True):
            each = [width * (ends[r + 1] - ends[r]) for ends in bounds]
            for found, rows in zip(columns, _split(table, each), strict=True):
                found.append(rows.reshape(-1, width))
        answers = iter(map(Answer, drawn, columns))
        return [[next(answers) for _ in by_part] for by_part in asked.items]

    def _enter(
        self, batch: BatchInProgress, hop: int, owners: list[Ints], by_rank: Any, number: int
    ) -> None:
        """Let a batch take the edges of a hop, in the order of its frontier."""
        parts, ranks = self._graph.num_parts, self._channel.size
        answers: list[Answer] = [by_rank[p % ranks][p // ranks] for p in range(parts)]
        drawn = [answer.drawn for answer in answers]
        items = [owners[t] for t in self._dst]
        total = sum(len(d.source) for d in drawn)
        picks, origin, ends = merged(items, drawn, total)
        batch.work.enter(hop, picks)
        if not self._widths:
            return
        first = np.cumsum([0, *(len(d.source) for d in drawn)])
        of_part = np.stack([np.bincount(owner, minlength=parts) for owner in items])
        bounds = [edge_ends(d.counts, of_part[:, p].tolist()) for p, d in enumerate(drawn)]
        for i, (r, _) in enumerate(self._widths):
            begin = np.array([ends_of[r] for ends_of in bounds])
            each = np.array([ends_of[r + 1] for ends_of in bounds]) - begin
            at = origin[ends[r] : ends[r + 1]]
            p = np.searchsorted(first, at, "right") - 1
            at = at - first[p] - begin[p] + (np.cumsum(each) - each)[p]
            self._columns[number][i].append(np.concatenate([a.columns[i] for a in answers])[at])

    def fetch(self, graphs: Sequence[SampledGraph]) -> None:
        """Fetch the rows of the nodes of a window, each that is elsewhere once, and keep them.

        Rows of edges came with their hops.

        Raises:
            ExchangeError: another rank has failed, for example to read what it was asked for.
        """
        of_edges = self._columns or [[[] for _ in self._widths] for _ in graphs]
        self._columns = []
        for graph, columns in zip(graphs, of_edges, strict=True):
            self._keep_edges(graph, columns)
        nodes = [[node.numpy() for node in graph.node] for graph in graphs]
        for graph, found in zip(graphs, self._rows.fetch(nodes), strict=True):
            for node, rows in zip(graph.node, found, strict=True):
                if rows:
                    keep_rows(node, rows)

    def tables(self) -> Blocks:
        """Return the tables of each own part; see `RowHolder`."""
        return [part.rows for part in self._own.values()]

    def answer(self, asked: Sequence[AskedRows]) -> list[Blocks]:
        """Return the rows that each rank asks for; see `RowHolder`."""
        return [
            [
                [part.gather(t, rows) for t, rows in enumerate(by_type)]
                for part, by_type in zip(self._own.values(), by_part, strict=True)
            ]
            for by_part in asked
        ]

    @contextlib.contextmanager
    def reading(self, t: int, owner: Ints, rows: Ints) -> Iterator[None]:
        """Ask for the pages of rows of own parts in files; see `RowHolder`."""
        with contextlib.ExitStack() as pages:
            for part in self._own.values():
                pages.enter_context(part.reading(t, owner, rows))
            yield

    def _keep_edges(self, graph: SampledGraph, columns: list[list[Bytes]]) -> None:
        """Keep the attributes of the edges of a batch with their ids."""
        found = iter(columns)
        for r, edges in enumerate(self._graph.manifest.edges):
            made = {}
            for name, rows in edges.parted.items():
                dtype, shape = layout_of(rows).kind(len(graph.edge[r]))
                made[name] = shared_pool().empty(shape, dtype)
                if by_hop := next(found):
                    as_bytes(made[name])[...] = np.concatenate(by_hop)
            if made:
                keep_rows(graph.edge[r], made)


def joined(dtype: Any, lists: Sequence[Ints]) -> Tensor:
    """Return lists one after another, of a dtype that holds theirs."""
    whole = np.concatenate([np.empty(0, dtype), *lists], dtype=dtype, casting="same_kind")
    return torch.from_numpy(whole)


def _split(lists: Tensor, sizes: list[int]) -> list[Ints]:
    return [part.numpy() for part in torch.split(lists, sizes)] if sizes else []


def layout_of(rows: RowFormat) -> RowLayout:
    """Return what the rows of an attribute are, as a manifest says it."""
    return RowLayout(getattr(torch, rows.dtype), tuple(rows.shape))
