"""Random walks over a graph in host memory, whose edges are grouped by source."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import split
from ...core.types import BatchKey, Csc
from ...kernels import alias, walk, weighted
from ...kernels.gaps import Span
from .induced import sorted_lists
from .keys import uniforms

Ints = npt.NDArray[Any]

MIN_STEPS_PER_THREAD = 1 << 15  # below, waking a thread costs more than it saves


class Walks:
    """Walks over one graph. They do not depend on the number of threads.

    Args:
        csc: the graph, with NumPy arrays: the list of a node holds where its edges lead.
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
