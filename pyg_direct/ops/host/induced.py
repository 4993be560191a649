"""Subgraphs between drawn nodes, in the order in which PyG's GraphSAINT samplers hold them.

And the sorted lists that they, and other samplers on the host, look edges up in.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import run_all
from ...core.types import Csc
from ...kernels import counting_sort, members
from ...kernels import groups as kernels
from ..buffers import BufferPool, shared_pool

Ints = npt.NDArray[Any]

MIN_ENTRIES_PER_THREAD = 1 << 16  # of the nodes' lists; below, waking a thread takes as long


class _ChosenNodes(NamedTuple):
    """See `kernels.members`; empty between batches."""

    words: Ints
    nonzero: Ints
    before: Ints

    @classmethod
    def over(cls, num_nodes: int) -> _ChosenNodes:
        words = -(-num_nodes // 64)
        return cls(
            np.zeros(words, np.uint64), np.zeros(-(-words // 64), np.uint64), np.empty(words, int)
        )


class InducedSubgraphs:
    """All edges between nodes that were drawn, nodes and edges in the order of the ids.

    Thread-safe; a batch takes 1/4 byte of scratch memory for each node of the graph, which the next
    one uses again.

    Args:
        lists: the graph, grouped by source.
        id_dtype: of edges in the output.
    """

    def __init__(self, lists: SortedLists, id_dtype: torch.dtype) -> None:
        self._lists, self._id_dtype = lists, id_dtype
        self._pool = shared_pool()
        self._idle: deque[_ChosenNodes] = deque()

    def __reduce__(self) -> Any:
        """Scratch memory stays in its process."""
        return type(self), (self._lists, self._id_dtype)

    def between(
        self, drawn: Tensor, threads: int, with_ids: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the nodes that were drawn, each once, and the edges between them.

        Args:
            drawn: int64 [any number], ids, each as often as drawn.
            threads: how many may share the work.
            with_ids: whether to look up the ids of the edges, which takes a cache miss for many.

        Returns:
            The nodes, int64 [n]; `edge_index` [2, e], places in the nodes, sorted by source, then
            by destination; and the ids of the edges, int64 [e], or None.

        Raises:
            IndexError: an id out of range.

        Example: the nodes 7, 4 and 7 of a graph with the edges 4->7 and 7->9 give the nodes 4 and
        7, and an edge from 0 to 1.
        """
        num_nodes = len(self._lists.indptr) - 1
        try:
            chosen = self._idle.pop()
        except IndexError:
            chosen = _ChosenNodes.over(num_nodes)
        words, nonzero, before = chosen
        bad = members.enter_members(drawn.numpy(), num_nodes, words, nonzero)
        if bad >= 0:
            raise IndexError(
                f"Drawn nodes must be node ids in [0, {num_nodes}), got {int(drawn[bad])}."
            )
        out = np.empty(min(len(drawn), num_nodes), np.int64)
        count = members.list_members(words, nonzero, before, out)
        node = self._pool.empty((count,), torch.int64)
        node.numpy()[:] = out[:count]
        edge_index, edge = self._edges(node.numpy(), chosen, threads, with_ids)
        members.remove_members(words, nonzero)
        self._idle.append(chosen)  # not after an exception: it may hold anything then
        return node, edge_index, edge

    def _edges(
        self, node: Ints, chosen: _ChosenNodes, threads: int, with_ids: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return `edge_index` and the ids of the edges between the nodes of a set."""
        indptr, indices, perm = self._lists
        entries = np.empty(len(node) + 1, np.int64)
        members.add_degrees(node, indptr, entries)
        pieces = max(1, min(threads, int(entries[-1]) // MIN_ENTRIES_PER_THREAD))
        shares = [int(entries[-1]) * i // pieces for i in range(1, pieces)]
        cuts = [0, *np.searchsorted(entries, shares).tolist(), len(node)]
        # Room for all entries of the lists, of which what is not used is never touched.
        dtype = torch.int64 if indptr.dtype == np.int64 else torch.int32
        position = self._pool.empty((int(entries[-1]),), dtype).numpy()
        place = self._pool.empty((int(entries[-1]),), dtype).numpy()
        ends = np.empty(len(node), np.int64)
        ranges = [(a, b, int(entries[a])) for a, b in pairwise(cuts)]
        stops = run_all([
            partial(members.list_inside, node, a, b, indptr, indices, chosen.words, chosen.before,
                    at, ends, position, place)
            for a, b, at in ranges
        ])  # fmt: skip
        sizes = [stop - at for stop, (_, _, at) in zip(stops, ranges, strict=True)]
        edge_index = self._pool.empty((2, sum(sizes)), self._id_dtype)
        edge = self._pool.empty((sum(sizes),), torch.int64) if with_ids else None
        ids = (None, None) if edge is None else (perm, edge.numpy())
        tasks, out_at = [], 0
        for piece, size in zip(ranges, sizes, strict=True):
            arguments: tuple[Any, ...] = (
                *piece, ends, position, place, ids[0], out_at, edge_index.numpy(), ids[1],
            )  # fmt: skip
            tasks.append(partial(members.place_inside, *arguments))
            out_at += size
        run_all(tasks)
        return edge_index, edge


DIGIT_BITS = 11  # of a pass over node ids: the counters of a pass fit a core's first cache
EXPECTED_EDGES = 64  # of each node; the lists grow where there are more
MIN_NODES_PER_THREAD = 1024


class EgoGraphs(NamedTuple):
    """Disjoint subgraphs, one after another, each with its nodes in the order of their ids."""

    node: Tensor  # int64 [n], global ids
    seed_of: Tensor  # int64 [n], the number of the subgraph, ascending
    ptr: Tensor  # int64 [subgraphs + 1], where each begins
    root: Tensor  # int64 [subgraphs], the place of each seed in `node`
    edge_index: Tensor  # int64 [2, e], places in `node`, sorted by source, then by destination
    edge: Tensor  # int64 [e], columns of the user's `edge_index`


class SortedLists(NamedTuple):
    """A homogeneous graph's neighbours, each list in the order of the ids."""

    indptr: Ints  # [N + 1]
    indices: Ints  # [E]
    perm: Ints | None  # [E]: position -> column of the user's `edge_index`; None: the same


def sorted_lists(csc: Csc) -> SortedLists:
    """Return the lists of a homogeneous graph sorted by id, stably: `csc` itself if they are."""
    indptr, indices = csc.indptr, csc.indices
    end = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if bool(((end[1:] > end[:-1]) | (indices[1:] >= indices[:-1])).all()):
        return SortedLists(indptr, indices, csc.perm)
    num_nodes = len(indptr) - 1
    order = _pass(indices, np.arange(len(indices)), num_nodes)
    order = _pass(end, order, num_nodes)
    perm = order if csc.perm is None else csc.perm[order]
    return SortedLists(indptr, indices[order], perm.astype(indptr.dtype))


def ego_graphs(
    node: Tensor, seed_of: Tensor, num_seeds: int, lists: SortedLists, threads: int = 1
) -> EgoGraphs:
    """Return all edges within groups of nodes, in the order of PyG's `ShaDowKHopSampler`.

    Args:
        node: int64 [n], ids, the seeds first; a group has none of them twice.
        seed_of: integers [n], the group of each node.
        num_seeds: number of groups.
        lists: the graph.
        threads: how many may share the work.

    Example: seeds 7 and 4, each with the node 5 (node = 7, 4, 5, 5 and seed_of = 0, 1, 0, 1), give
    node = 5, 7, 4, 5, ptr = 0, 2, 4 and root = 1, 2.
    """
    ids, group, num_nodes = node.numpy(), seed_of.numpy(), len(lists.indptr) - 1
    order = np.arange(len(ids))
    for shift in range(0, max(num_nodes - 1, 1).bit_length(), DIGIT_BITS):
        order = _pass(ids, order, 1 << DIGIT_BITS, shift)
    order = _pass(group, order, num_seeds)
    place, sorted_ids, groups = np.empty_like(order), np.empty_like(order), np.empty_like(order)
    counting_sort.place_nodes(order, ids, place, sorted_ids)
    groups[:] = group[order]
    ptr = np.zeros(num_seeds + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=num_seeds), out=ptr[1:])
    edge_index, edge = _edges_within(ptr, sorted_ids, lists, threads)
    return EgoGraphs(
        node=torch.from_numpy(sorted_ids),
        seed_of=torch.from_numpy(groups),
        ptr=torch.from_numpy(ptr),
        root=torch.from_numpy(place[:num_seeds].copy()),
        edge_index=edge_index,
        edge=edge,
    )


def _edges_within(ptr: Ints, node: Ints, lists: SortedLists, threads: int) -> tuple[Tensor, Tensor]:
    """Return `edge_index` [2, e] and the ids of the edges within groups, sorted by source."""
    num_groups, pool = len(ptr) - 1, shared_pool()
    pieces = max(1, min(threads, num_groups, len(node) // MIN_NODES_PER_THREAD))
    ranges = list(pairwise(num_groups * i // pieces for i in range(pieces + 1)))
    ends, largest = np.empty(len(node), np.int64), int(np.diff(ptr).max(initial=0))
    found = run_all(
        [partial(_listed, ptr, node, lists, ends, largest, pool, *piece) for piece in ranges]
    )
    total = sum(count for _, _, count in found)
    edge_index, edge = pool.empty((2, total), torch.int64), pool.empty((total,), torch.int64)
    at, tasks = 0, []
    for piece, (row, position, count) in zip(ranges, found, strict=True):
        arguments: tuple[Any, ...] = (
            ptr, *piece, ends, row.numpy(), position.numpy(), lists.perm,
            np.empty(largest + 1, np.int64), at, edge_index.numpy(), edge.numpy(),
        )  # fmt: skip
        tasks.append(partial(kernels.place_edges, *arguments))
        at += count
    run_all(tasks)
    return edge_index, edge


def _listed(
    ptr: Ints, node: Ints, lists: SortedLists, ends: Ints, largest: int, pool: BufferPool,
    group: int, last_group: int,
) -> tuple[Tensor, Tensor, int]:  # fmt: skip
    """Return (row, position, number) of the edges of some groups; see `kernels.groups`."""
    slots = kernels.slots_for(largest)
    scratch = (
        np.empty(slots, np.int64), np.empty(slots, np.int32),
        np.empty(kernels.words_for(slots), np.uint64), np.empty(largest, np.int64),
    )  # fmt: skip
    position_dtype = torch.int64 if lists.indptr.dtype == np.int64 else torch.int32

    def lists_of(room: int) -> tuple[Tensor, Tensor]:
        return pool.empty((room,), torch.int32), pool.empty((room,), position_dtype)

    row, position = lists_of(EXPECTED_EDGES * int(ptr[last_group] - ptr[group]))
    count = 0
    while True:
        group, count, needed = kernels.edges_within(
            ptr, node, lists.indptr, lists.indices, group, last_group, *scratch,
            count, ends, row.numpy(), position.numpy(),
        )  # fmt: skip
        if group == last_group:
            return row, position, count
        longer = lists_of(2 * needed)
        for new, old in zip(longer, (row, position), strict=True):
            new.numpy()[:count] = old.numpy()[:count]
        row, position = longer


def _pass(key: Ints, order: Ints, digits: int, shift: int | None = None) -> Ints:
    """Sort `order` stably by one digit of `key`; without `shift`, by the whole key."""
    out, counts = np.empty_like(order), np.empty(digits + 1, np.int64)
    mask = -1 if shift is None else digits - 1
    counting_sort.counting_pass(key, shift or 0, mask, counts, order, out)
    return out
