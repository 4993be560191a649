"""Counting passes, which sort nodes and edges stably."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]


@kernel
def counting_pass(key: Ints, shift: int, mask: int, counts: Ints, order: Ints, out: Ints) -> None:
    """Write `order` to `out`, sorted stably by the digit ``key[i] >> shift & mask`` of its entries.

    `counts` is scratch memory, with one entry more than there are digits. Passes over the digits
    of a key, the lowest first, sort by the whole key.

    Example: keys 2, 0, 2, 1 and the order 0, 1, 2, 3 give 1, 3, 0, 2.
    """
    counts[:] = 0
    for i in range(order.shape[0]):
        counts[((key[order[i]] >> shift) & mask) + 1] += 1
    for digit in range(1, counts.shape[0]):
        counts[digit] += counts[digit - 1]
    for i in range(order.shape[0]):
        digit = (key[order[i]] >> shift) & mask
        out[counts[digit]] = order[i]
        counts[digit] += 1


@kernel
def place_nodes(order: Ints, node: Ints, place: Ints, out: Ints) -> None:
    """Write the nodes in their new order to `out`, and the new place of each to `place`.

    Example: the order 2, 0, 1 of nodes 7, 8, 9 gives out = [9, 7, 8] and place = [1, 2, 0].
    """
    for i in range(order.shape[0]):
        out[i] = node[order[i]]
        place[order[i]] = i
