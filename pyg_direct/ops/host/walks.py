"""Random walks over a graph in host memory, and where they settle: personalised PageRank."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import run_all, split
from ...core.types import BatchKey, Csc
from ...kernels import alias, push, walk, weighted
from ...kernels.gaps import Span
from .induced import SortedLists, sorted_lists
from .keys import uniforms

Ints = npt.NDArray[Any]

MIN_STEPS_PER_THREAD = 1 << 15  # below, waking a thread costs more than it saves


class Walks:
    """Walks over one graph. They do not depend on the number of threads.

    Args:
        csc: the graph, with NumPy arrays, grouped by source: the list of a node holds where its
            edges lead.
    """

    def __init__(self, csc: Csc) -> None:
        self._csc = csc

    @cached_property
    def _sorted_indices(self) -> Ints:
        """The neighbours with each list sorted by id, for searching it."""
        indices: Ints = sorted_lists(self._csc).indices
        return indices

    def uniform(self, start: Ints, base: Ints, stay: bool, key: BatchKey, threads: int) -> Tensor:
        """Take an edge with equal chances at each step.

        Args:
            start: int64 [n], nodes.
            base: int64 [steps], first entry in `indptr` of the relation of each step.
            stay: whether a walk stays where no edge leads on; else the rest of it is -1.
            key: of the draws.
            threads: that may share the walks.

        Returns:
            int64 [n, steps + 1]; column 0 is `start`.
        """
        csc, words = self._csc, _words(key)

        def task(first: int, last: int, out: Ints) -> None:
            walk.walk_uniformly(
                csc.indptr, csc.indices, base, start, first, last, stay, *words, out
            )

        return _in_threads(start, len(base), threads, task)

    def biased(
        self, start: Ints, steps: int, p: float, q: float, key: BatchKey, threads: int
    ) -> Tensor:
        """Walk by node2vec's law over the one relation; see `random_walk` for it.

        Args:
            start: int64 [n], nodes.
            steps: of each walk.
            p: return parameter, above 0.
            q: in-out parameter, above 0.
            key: of the draws.
            threads: that may share the walks.

        Returns:
            int64 [n, steps + 1]; column 0 is `start`.
        """
        indptr, indices, words = self._csc.indptr, self._sorted_indices, _words(key)

        def task(first: int, last: int, out: Ints) -> None:
            walk.walk_biased(indptr, indices, start, first, last, p, q, *words, out)

        return _in_threads(start, steps, threads, task)


def _words(key: BatchKey) -> tuple[np.uint64, np.uint64]:
    return np.uint64(key.low), np.uint64(key.high)


def _in_threads(
    start: Ints, steps: int, threads: int, task: Callable[[int, int, Ints], None]
) -> Tensor:
    out = np.empty((len(start), steps + 1), np.int64)
    shares = min(threads, len(start) * steps // MIN_STEPS_PER_THREAD)
    split(len(start), shares, lambda first, last: task(first, last, out))
    return torch.from_numpy(out)


NO_DOUBLES = np.empty(0, np.float64)


def by_weight(table: npt.NDArray[Any], size: int, key: BatchKey) -> Tensor:
    """Return places that are drawn independently, each in proportion to its weight.

    Args:
        table: int64 [n], the alias table of the weights (Walker 1977; see `kernels/alias.py`).
        size: how many to draw.
        key: of the draws.

    Returns:
        int64 [size], each in [0, n).
    """
    place = np.empty(size, np.int64)
    weighted.pick_with_replacement(
        place, weighted.ItemPicks(0, size, 0, np.uint64(0)), Span(0, len(table), 0.0),
        uniforms(key, 0, size).numpy(), True, *alias.parts(table), NO_DOUBLES, NO_DOUBLES,
    )  # fmt: skip
    return torch.from_numpy(place)


class Contexts(NamedTuple):
    """The context of each seed, its nodes one after another, the seed first."""

    node: Tensor  # int64 [nodes], global ids
    seed_of: Tensor  # int64 [nodes], the number of the seed, ascending
    score: Tensor  # float32 [nodes], of each seed falling, but for the seed itself
    mask: Tensor  # bool [seeds, k], which places of a context of k nodes are taken


def contexts_of(
    lists: SortedLists, seeds: Tensor, k: int, alpha: float, tolerance: float, threads: int = 1
) -> Contexts:
    """Find the contexts of seeds by forward push.

    A walk goes from a node to one of its in-neighbours, each edge equally likely, and with the
    chance `alpha`, or where there is none, back to the seed. Mass that has settled, and what is on
    its way (the residual), start at the seed. While a residual is above `tolerance` times the
    in-degree (at least 1) of its node, a share `alpha` of it settles and the rest moves on
    (Andersen, Chung and Lang, "Local Graph Partitioning using PageRank Vectors", FOCS 2006). Edges
    read for a seed are at most its in-degree + 1 / (alpha * tolerance), whatever the graph.

    Args:
        lists: the graph.
        seeds: int64 [n], each in [0, N).
        k: nodes of a context at most, 1 or more.
        alpha: in (0, 1).
        tolerance: in (0, 1].
        threads: how many may share the work.
    """
    count = len(seeds)
    context, score = np.empty((count, k), np.int64), np.empty((count, k))
    number, ids = np.empty(count, np.int64), seeds.numpy()
    room = _most_reached(lists, alpha, tolerance)
    ranges = list(pairwise(count * i // threads for i in range(threads + 1)))
    out = (number, context, score)
    run_all([partial(_push, lists, ids, alpha, tolerance, room, *part, *out) for part in ranges])
    mask = np.arange(k) < number[:, None]
    return Contexts(
        node=torch.from_numpy(context[mask]),
        seed_of=torch.from_numpy(np.repeat(np.arange(count), number)),
        score=torch.from_numpy(score[mask].astype(np.float32)),
        mask=torch.from_numpy(mask),
    )


def _most_reached(lists: SortedLists, alpha: float, tolerance: float) -> int:
    """Return how many nodes a seed can reach at most."""
    num_nodes = len(lists.indptr) - 1
    largest = int(np.diff(lists.indptr).max(initial=0))
    return max(1, min(num_nodes, largest + int(1 / (alpha * tolerance)) + 2))


def _push(
    lists: SortedLists, seeds: Ints, alpha: float, tolerance: float, room: int,
    first: int, last: int, number: Ints, context: Ints, score: Ints,
) -> None:  # fmt: skip
    bits = max(4, (2 * room - 1).bit_length())
    push.push_contexts(
        lists.indptr, lists.indices, seeds[first:last], alpha, tolerance,
        np.full(1 << bits, push.FREE, np.int64), np.empty(1 << bits, np.int64), 64 - bits,
        np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, 4)),
        number[first:last], context[first:last], score[first:last],
    )  # fmt: skip
