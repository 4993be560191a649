"""Power-law graphs of any size, node by node: what a node has depends only on its id and the seed.

Every node has a popularity rank, a fixed permutation of the ids: rank = (node * a) mod N. Node of
rank r has E * ((r + 1) / N)^(1 / skew) - E * (r / N)^(1 / skew) in-neighbours, rounded so that the
sum is E, and is a neighbour with density ~ r^(1 / skew - 1): both degrees follow a power law, of
exponent 3 for skew 2 and 2.33 for skew 4. Only products, quotients and square roots are used, which
every machine rounds alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import helper, kernel
from .philox import philox4x32

Ints = npt.NDArray[Any]
Word = np.uint64

SOURCES, FEATURES, CENTROIDS, SPLIT = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
ZERO, MASK, SHIFT = np.uint64(0), np.uint64(0xFFFFFFFF), np.uint64(32)
BYTE, BYTE_BITS = np.uint64(255), np.uint64(8)
TWO_TO_MINUS_32 = 2.0**-32
NOISE_BYTES = 16  # of one counter


@helper
def edges_below(rank: int, num_nodes: int, num_edges: int, roots: int) -> int:
    """Return how many edges the nodes of the ranks below `rank` have in all.

    Example: with `roots` = 1 (skew 2), the first quarter of the nodes has half of the edges.
    """
    share = rank / num_nodes
    for _ in range(roots):
        share = math.sqrt(share)
    return min(num_edges, int(share * num_edges))


@kernel
def degrees(
    first: int, last: int, multiplier: int, num_nodes: int, num_edges: int, roots: int, out: Ints
) -> None:
    """Fill `out` with the in-degrees of the nodes in [first, last)."""
    for v in range(first, last):
        rank = v * multiplier % num_nodes
        out[v - first] = edges_below(rank + 1, num_nodes, num_edges, roots) - edges_below(
            rank, num_nodes, num_edges, roots
        )


@kernel
def sources(
    first_node: int,
    first_edge: int,
    degree: Ints,  # [nodes] from `degrees`
    multiplier: int,
    inverse: int,  # multiplier * inverse mod num_nodes is 1
    num_nodes: int,
    num_groups: int,
    alike: float,  # probability that both ends of an edge are of one group
    roots: int,
    k0: Word,
    k1: Word,
    out: Ints,  # [edges] out
) -> None:
    """Draw the sources of the edges of consecutive nodes, each list in ascending order.

    The group of a node is its rank modulo `num_groups`. A source is drawn by its rank; an edge
    within a group takes the nearest rank of that group.
    """
    at = 0
    for i in range(degree.shape[0]):
        group = (first_node + i) * multiplier % num_nodes % num_groups
        begin = at
        for _ in range(degree[i]):
            edge = np.uint64(first_edge + at)
            words = philox4x32(edge & MASK, edge >> SHIFT, ZERO, SOURCES, k0, k1)
            uniform = (np.float64(words[0]) + np.float64(words[1]) * TWO_TO_MINUS_32) * (
                TWO_TO_MINUS_32
            )
            for _ in range(roots):
                uniform *= uniform
            rank = min(np.int64(uniform * num_nodes), num_nodes - 1)
            if np.float64(words[2]) * TWO_TO_MINUS_32 < alike:
                rank = rank - rank % num_groups + group
                if rank >= num_nodes:
                    rank -= num_groups
            out[at] = rank * inverse % num_nodes
            at += 1
        out[begin:at].sort()


@kernel
def labels(
    first: int, last: int, multiplier: int, num_nodes: int, num_groups: int, num_classes: int,
    out: Ints,
) -> None:  # fmt: skip
    """Fill `out` with the classes of the nodes in [first, last): their groups, dealt to classes."""
    for v in range(first, last):
        out[v - first] = v * multiplier % num_nodes % num_groups % num_classes


@kernel
def features(
    first: int,
    label: Ints,  # [nodes]
    centroid: npt.NDArray[np.int8],  # [classes, width]
    k0: Word,
    k1: Word,
    out: npt.NDArray[np.int8],  # [nodes, width] out
) -> None:
    """Fill `out` with features of consecutive nodes: their centroid and uniform noise in [-64, 64).

    Example: centroid 5 and the random byte 130 give 5 + 130 // 2 - 64 = 6.
    """
    width = out.shape[1]
    for i in range(out.shape[0]):
        node = np.uint64(first + i)
        for block in range(0, width, NOISE_BYTES):
            words = philox4x32(node, np.uint64(block), ZERO, FEATURES, k0, k1)
            for j in range(block, min(block + NOISE_BYTES, width)):
                shift = np.uint64((j - block) % 4) * BYTE_BITS
                noise = (words[(j - block) // 4] >> shift) & BYTE
                out[i, j] = centroid[label[i], j] + np.int64(noise) // 2 - 64


@kernel
def uniform_of_nodes(first: int, k0: Word, k1: Word, out: npt.NDArray[np.float64]) -> None:
    """Fill `out` with one uniform number in [0, 1) for each of consecutive nodes."""
    for i in range(out.shape[0]):
        words = philox4x32(np.uint64(first + i), ZERO, ZERO, SPLIT, k0, k1)
        out[i] = np.float64(words[0]) * TWO_TO_MINUS_32
