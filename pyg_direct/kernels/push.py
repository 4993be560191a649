"""Personalised PageRank of seeds by forward push, and the nodes that have most of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import helper, light_kernel
from .relabel import HASH_MULTIPLIER

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

FREE = -1


@helper
def place_of(node: int, keys: Ints, places: Ints, shift: np.uint64, count: int) -> int:
    """Return the place of a node in the table; `count`, and the node is entered, if it has none."""
    mask = np.uint64(keys.shape[0] - 1)
    slot = (np.uint64(node) * HASH_MULTIPLIER) >> shift
    while keys[slot] != node:
        if keys[slot] == FREE:
            keys[slot], places[slot] = node, count
            return count
        slot = (slot + np.uint64(1)) & mask
    return places[slot]  # type: ignore[no-any-return]


@helper
def clear_table(node: Ints, count: int, keys: Ints, shift: np.uint64) -> None:
    """Free the slots of all nodes that were entered."""
    mask = np.uint64(keys.shape[0] - 1)
    for i in range(count):
        slot = (np.uint64(node[i]) * HASH_MULTIPLIER) >> shift
        while keys[slot] != FREE:  # those after it are of nodes that go as well
            keys[slot] = FREE
            slot = (slot + np.uint64(1)) & mask


@helper
def push_from(
    seed: int,
    indptr: Ints,
    indices: Ints,
    alpha: float,
    tolerance: float,
    keys: Ints,
    places: Ints,
    shift: np.uint64,
    node: Ints,
    queue: Ints,
    mass: Doubles,
) -> int:
    """Push until no residual is above its limit; return how many nodes were reached.

    Reached nodes get places 0, 1, ... in the order of discovery, the seed first. `mass` has by
    place: what has settled, the residual, the residual's limit, and whether the queue holds it.

    Example: the seed 0 has the neighbours 1 and 2, which have none, and alpha = 0.5. The first push
    settles 0.5 at node 0 and leaves residuals of 0.25 at 1 and 2. Each of them settles half, and as
    they have no neighbours the walk goes on at the seed, with 0.125 from each.
    """
    room = queue.shape[0]
    node[0], count = seed, place_of(seed, keys, places, shift, 0) + 1
    mass[0, 0], mass[0, 1], mass[0, 3] = 0.0, 1.0, 1.0
    mass[0, 2] = tolerance * max(1, indptr[seed + 1] - indptr[seed])
    queue[0], head, pending = 0, 0, 1
    while pending > 0:
        u = queue[head]
        head, pending = head + 1, pending - 1
        if head == room:
            head = 0
        first, last = indptr[node[u]], indptr[node[u] + 1]
        moved = mass[u, 1]
        mass[u, 1] = mass[u, 3] = 0.0
        if first == last and u == 0:  # the walk cannot leave the seed
            mass[u, 0] += moved
            continue
        mass[u, 0] += alpha * moved
        share = (1.0 - alpha) * moved / max(1, last - first)
        for e in range(first, max(last, first + 1)):
            w = 0
            if first < last:
                w = place_of(indices[e], keys, places, shift, count)
            if w == count:
                node[w], count = indices[e], count + 1
                mass[w, 0] = mass[w, 1] = mass[w, 3] = 0.0
                mass[w, 2] = tolerance * max(1, indptr[node[w] + 1] - indptr[node[w]])
            mass[w, 1] += share
            if mass[w, 1] > mass[w, 2] and mass[w, 3] == 0.0:
                mass[w, 3] = 1.0
                at = head + pending
                queue[at - room if at >= room else at] = w
                pending += 1
    return count


@light_kernel
def push_contexts(
    indptr: Ints,  # [N + 1]
    indices: Ints,  # [E], each in [0, N)
    seeds: Ints,  # [n], each in [0, N)
    alpha: float,  # in (0, 1): the chance that the walk goes back to the seed
    tolerance: float,  # of residuals, for each edge of their node
    keys: Ints,  # scratch, [2^b], more than the nodes that a seed can reach; FREE before and after
    places: Ints,  # scratch, [2^b]
    shift: int,  # 64 - b
    node: Ints,  # scratch, [room], for the nodes that a seed can reach
    queue: Ints,  # scratch, [room]
    mass: Doubles,  # scratch, [room, 4]
    number: Ints,  # [n] out: how many nodes the context of a seed has
    context: Ints,  # [n, k] out: the seed, then the nodes with the highest scores
    score: Doubles,  # [n, k] out: what is known of their PageRank, a lower bound
) -> None:
    """Write the context of each seed: of equal scores the node with the lower id comes first.

    A node's score is what has settled there, and the part alpha of its residual that would next.

    Example: the seed 0 has the neighbours 1 and 2, which have none. With alpha = 0.5 and tolerance
    = 0.4 only the seed is pushed from, and the context is 0, 1, 2 with scores 0.5, 0.125, 0.125.
    """
    k = context.shape[1]
    for i in range(seeds.shape[0]):
        count = push_from(
            seeds[i], indptr, indices, alpha, tolerance, keys, places, np.uint64(shift), node,
            queue, mass,
        )  # fmt: skip
        context[i, 0], score[i, 0] = node[0], mass[0, 0] + alpha * mass[0, 1]
        taken = 1
        for u in range(1, count):
            found = mass[u, 0] + alpha * mass[u, 1]
            j = taken
            while j > 1 and (
                found > score[i, j - 1]
                or (found == score[i, j - 1] and node[u] < context[i, j - 1])
            ):
                if j < k:
                    context[i, j], score[i, j] = context[i, j - 1], score[i, j - 1]
                j -= 1
            if j < k:
                context[i, j], score[i, j] = node[u], found
                taken = min(k, taken + 1)
        number[i] = taken
        clear_table(node, count, keys, np.uint64(shift))
