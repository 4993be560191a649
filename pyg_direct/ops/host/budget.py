"""HGT's draws: nodes of every type, by their ties to what was drawn before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.types import BatchKey, Csc
from ...kernels import alias, budget
from ...kernels.philox import stream_of_ints

STAMP_LIMIT = 1 << 31  # half of the stamps, so that a batch that begins below it never wraps


class Budgets:
    """The candidates of one batch at a time, and the memory for them.

    Hu et al., "Heterogeneous Graph Transformer" (WWW 2020), section 4.2.

    Args:
        csc: the graph, with NumPy arrays, verified.
    """

    def __init__(self, csc: Csc) -> None:
        self._csc = csc
        self._table = np.zeros(int(csc.node_base[-1]), np.uint32)  # 0 is below every stamp
        self._stamp = 1
        self._node = [np.empty(0, np.int64) for _ in csc.num_nodes]
        self._value = [np.empty(0) for _ in csc.num_nodes]
        self._count = [0] * csc.num_types

    def draw(self, seeds: Sequence[Tensor | None], counts: Any, key: BatchKey) -> list[Tensor]:
        """Return the nodes of each type, int64: the seeds as they are, then hop by hop.

        Args:
            seeds: T x int64 [n_t] or None, in [0, num_nodes[t]).
            counts: int64 [hops, T], how many nodes to draw.
            key: of the draws.
        """
        self._stamp += max(self._count)
        if self._stamp >= STAMP_LIMIT:
            self._table[:] = 0
            self._stamp = 1
        words = np.uint64(key.low), np.uint64(key.high)
        none = alias.parts(np.empty(0, np.int64))
        drawn = [self._enter(t, seed) for t, seed in enumerate(seeds)]
        lists = [[] if seed is None else [seed.numpy()] for seed in seeds]
        for hop, wanted in enumerate(counts.tolist()):
            self._add(drawn)
            for t, k in enumerate(wanted):
                drawn[t] = budget.draw_candidates(
                    self._node[t], self._value[t], self._count[t], k,
                    stream_of_ints(hop, t), *words,
                    *none,
                )  # fmt: skip
                lists[t].append(drawn[t])
        none_found = np.empty(0, np.int64)
        return [torch.from_numpy(np.concatenate([none_found, *parts])) for parts in lists]

    def _enter(self, t: int, seed: Tensor | None) -> Any:
        """Enter the seeds of one type, and return each of them once."""
        self._count[t] = 0
        if seed is None:
            return np.empty(0, np.int64)
        self._make_room(t, len(seed))
        self._count[t] = budget.take_seeds(
            seed.numpy(), int(self._csc.node_base[t]), self._table, np.uint32(self._stamp),
            self._node[t], self._value[t],
        )  # fmt: skip
        return self._node[t][: self._count[t]].copy()

    def _add(self, drawn: Sequence[Any]) -> None:
        """Add what the nodes drawn last give to their neighbours' budgets."""
        csc = self._csc
        for r in range(csc.num_relations):
            source, nodes, base = csc.src_type[r], drawn[csc.dst_type[r]], csc.indptr_base[r]
            if len(nodes) == 0:
                continue
            self._make_room(source, budget.count_neighbours(csc.indptr, base, nodes))
            self._count[source] = budget.add_neighbours(
                csc.indptr, csc.indices, base, nodes, int(csc.node_base[source]),
                self._table, np.uint32(self._stamp), self._node[source], self._value[source],
                self._count[source],
            )  # fmt: skip

    def _make_room(self, t: int, more: int) -> None:
        """Have room for `more` candidates of one type, of which there are no more than nodes."""
        known = self._count[t]
        needed = min(known + more, int(self._csc.num_nodes[t]))
        if needed > len(self._node[t]):
            node, value = np.empty(2 * needed, np.int64), np.empty(2 * needed)
            node[:known], value[:known] = self._node[t][:known], self._value[t][:known]
            self._node[t], self._value[t] = node, value
