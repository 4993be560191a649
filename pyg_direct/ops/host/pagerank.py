"""Contexts of seeds: the nodes of highest personalised PageRank around each."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import run_all
from ...kernels import push as kernels
from .induced import SortedLists

Ints = npt.NDArray[Any]


class Contexts(NamedTuple):
    """The context of each seed, its nodes one behind the other, the seed first."""

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
    kernels.push_contexts(
        lists.indptr, lists.indices, seeds[first:last], alpha, tolerance,
        np.full(1 << bits, kernels.FREE, np.int64), np.empty(1 << bits, np.int64), 64 - bits,
        np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, 4)),
        number[first:last], context[first:last], score[first:last],
    )  # fmt: skip
