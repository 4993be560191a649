"""Subgraphs between drawn nodes, in the order in which PyG's GraphSAINT samplers hold them."""

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
from ...kernels import members
from ..buffers import shared_pool
from .lists import SortedLists

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
