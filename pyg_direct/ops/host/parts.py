"""Graphs in parts: placing nodes, and what a batch sends to and gets from the parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import Csc, Picks
from ...kernels import parts as kernels
from ..buffers import shared_pool
from ..devices import ends_in_call
from ..staging import to_device

Ints = npt.NDArray[Any]

PASSES = 3  # as good as METIS on graphs with communities; one pass cuts up to three times as much
NODE_ROOM, EDGE_ROOM = 1.03, 1.1  # of the mean, that a part may hold
HASH_FACTOR = 0x9E3779B1


def by_hash(num_nodes: int, parts: int) -> Ints:
    """Return a part for each node of a type, int16 [N], which says nothing about the graph."""
    mixed = np.arange(num_nodes, dtype=np.uint64) * np.uint64(HASH_FACTOR) & np.uint64(0xFFFFFFFF)
    part: Ints = (mixed * np.uint64(parts) >> np.uint64(32)).astype(np.int16)
    return part


def by_greedy_passes(csc: Csc, parts: int) -> Ints:
    """Return a part for each node, int16 [N], all types one after another; see `greedy_pass`.

    Memory: 2 bytes a node. The lists are read `PASSES` times, in order.

    Args:
        csc: a graph on the host, verified.
        parts: how many, at least 1.
    """
    part = np.full(int(csc.node_base[-1]), -1, np.int16)
    nodes, edges = np.zeros((csc.num_types, parts), np.int64), np.zeros(parts, np.int64)
    most_nodes = np.ceil(NODE_ROOM * csc.num_nodes / parts).astype(np.int64)
    most_edges = int(np.ceil(EDGE_ROOM * len(csc.indices) / parts)) + 1
    for _ in range(PASSES):
        kernels.greedy_pass(
            csc.indptr, csc.indptr_base, csc.indices, csc.src_type, csc.dst_type, csc.node_base,
            part, nodes, edges, most_nodes, most_edges, np.empty(parts),
        )  # fmt: skip
    return part


def edges_between(csc: Csc, part: Sequence[Ints], parts: int) -> tuple[Ints, Ints]:
    """Return the in-edges of each part, and those of them that come from another, int64 [K]."""
    edges, cut = np.zeros((2, parts), np.int64)
    for r in range(csc.num_relations):
        src, dst = int(csc.src_type[r]), int(csc.dst_type[r])
        first = int(csc.indptr_base[r])
        last = first + int(csc.num_nodes[dst])
        kernels.remote_edges(csc.indptr, first, last, csc.indices, part[src], part[dst], cut, edges)
    return edges, cut


class NodesByPart(NamedTuple):
    """Some nodes, sorted by the part that owns them."""

    owner: Ints  # [n]: part of each, in their own order
    sizes: Ints  # int64 [K]
    rows: Ints  # [n]: their rows there, part by part
    place: Ints  # int32 [n]: which they are

    def of_parts(self) -> tuple[list[Ints], list[Ints]]:
        """Return the rows and the places in each part."""
        ends = np.cumsum(self.sizes)[:-1]
        return np.split(self.rows, ends), np.split(self.place, ends)


def split_by_part(node: Ints, part: Ints, row: Ints, parts: int) -> NodesByPart:
    """Sort nodes by part.

    Args:
        node: [n], ids in the whole graph.
        part: [N], of each node.
        row: [N], of each node in its part.
        parts: how many there are.
    """
    sizes, n = np.empty(parts, np.int64), len(node)
    found = NodesByPart(np.empty(n, np.int16), sizes, np.empty(n, row.dtype), np.empty(n, np.int32))
    kernels.split_by_part(node, part, row, *found, np.empty_like(sizes))
    return found


class Drawn(NamedTuple):
    """The edges that one part drew for some items, as of `Picks`, with ids of the whole graph."""

    counts: Ints  # int32 [items]
    source: Ints  # [edges]
    edge: Ints  # [edges]: columns of the `edge_index`


def ids_at(ids: Ints, position: Ints, base: int, out: Ints) -> None:
    """Write the ids of edges at some positions of a part.

    Args:
        ids: [E], by position in the relation.
        position: [e], of all relations.
        base: the position of the relation's first edge.
        out: [e].
    """
    kernels.ids_at(ids, position, base, out)


def merged(
    owners: Sequence[Ints], drawn: Sequence[Drawn], edge_count: int
) -> tuple[Picks, Ints, list[int]]:
    """Bring the edges that the parts drew for one batch into the order of its items.

    Args:
        owners: of each relation the part of each frontier node of its destination type.
        drawn: of each part; items are in the order of the frontier.
        edge_count: of all.

    Returns:
        The edges; int64 [edges], which of those of all parts, one after another, each is; and where
        the edges of each relation begin, with the end, R + 1 numbers.
    """
    counts, source, edge = (np.concatenate(lists) for lists in zip(*drawn, strict=True))
    item_at = np.cumsum([0, *(len(part.counts) for part in drawn)])[:-1]
    edge_at = np.cumsum([0, *(len(part.source) for part in drawn)])[:-1]
    items = sum(map(len, owners))
    out_counts, out_source = np.empty(items, np.int32), np.empty(edge_count, source.dtype)
    out_edge, origin = np.empty((2, edge_count), np.int64)
    begin, out, ends = 0, 0, [0]
    for owner in owners:
        here = out_counts[begin : begin + len(owner)]
        out = kernels.merge_picks(
            owner, item_at, edge_at, counts, source, edge, here, out_source, out_edge, origin, out
        )
        begin += len(owner)
        ends.append(out)
    made = [torch.from_numpy(array) for array in (out_counts, out_source, out_edge)]
    return Picks(made[0], made[1], None, made[2]), origin, ends


class RowNumbers:
    """Numbers the rows that the batches of a window need of other parts, each row once.

    Args:
        num_nodes: of the type.
        row: [N], of each node in its part.
        own: bool [K], the parts whose rows are here.
    """

    def __init__(self, num_nodes: int, row: Ints, own: Ints) -> None:
        self._table, self._stamp = np.zeros(num_nodes, np.uint32), 1
        self._row, self._own = row, own

    def of_window(self, batches: Sequence[tuple[Ints, Ints]]) -> tuple[list[Ints], list[Ints], int]:
        """Number the rows of a window.

        Args:
            batches: of each its nodes [n], and the part of each.

        Returns:
            For each batch [n]: the row in an own part, or its number among those wanted of
            its part; for each part the rows that are wanted of it; and how many nodes of the
            batches other parts have.
        """
        total = sum(len(node) for node, _ in batches)
        if self._stamp + total >= 1 << 32:
            self._table[:], self._stamp = 0, 1
        count = np.zeros(len(self._own), np.int64)
        wanted = np.empty((len(count), total), self._row.dtype)
        refs, elsewhere = [], 0
        for node, owner in batches:
            refs.append(np.empty(len(node), self._row.dtype))
            elsewhere += kernels.number_rows(
                owner, node, self._row, self._own, self._table, self._stamp, count, wanted,
                refs[-1],
            )  # fmt: skip
        self._stamp += int(count.max(initial=0))
        found = [rows[:n] for rows, n in zip(wanted, count.tolist(), strict=True)]
        return refs, found, elsewhere


def rows_of_parts(tables: Sequence[Tensor], owner: Ints, rows: Ints) -> Tensor:
    """Return a row of one of several tables for each of some places, in recycled memory.

    Args:
        tables: of each part [N_p, ...], contiguous, of one dtype and device.
        owner: int16 [n], the table of each row.
        rows: [n].

    Raises:
        IndexError: a table has no such row; on the host.
    """
    sizes = np.array([len(table) for table in tables], np.int64)
    if not ends_in_call(tables[0].device):
        first = np.cumsum(sizes) - sizes
        at = torch.from_numpy(first[owner] + rows)
        return torch.cat([*tables]).index_select(0, to_device(at, tables[0].device))
    out = shared_pool().empty((len(rows), *tables[0].shape[1:]), tables[0].dtype)
    if out.numel() == 0:
        return out
    address = np.array([table.data_ptr() for table in tables], np.int64)
    row_bytes = out.nbytes // len(rows)
    bad = kernels.gather_of_parts(address, sizes, row_bytes, owner, rows, out.data_ptr())
    if bad >= 0:
        raise IndexError(f"Row {rows[bad]} is asked for of a part of {sizes[owner[bad]]} rows.")
    return out
