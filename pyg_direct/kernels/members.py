"""A subgraph between nodes that were drawn: the nodes in the order of their ids, and their edges.

The set of nodes has a bit for each node of the graph, so that it stays in a near cache where a
table of numbers does not; beside each word of 64 bits stands how many members come before it. A
second row of bits tells which words are not 0, so that a small set in a large graph is listed, and
emptied, without a look at all words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import count_ones, light_kernel, prefetch, trailing_zeros
from .sample import Maybe

Ints = npt.NDArray[Any]

WORD_BITS = np.uint64(6)  # a word holds 2^6 nodes
IN_WORD = np.uint64(63)
NONE, ONE = np.uint64(0), np.uint64(1)

NODES_AHEAD = 16  # nodes whose lists are looked up in advance
LISTS_AHEAD, LINES_AHEAD = 4, 4  # how far ahead lists are prefetched, and how much of each
EDGES_AHEAD = 16
LINE_BYTES = 64


@light_kernel
def enter_members(drawn: Ints, num_nodes: int, words: Ints, nonzero: Ints) -> int:
    """Put nodes into a set, and return -1.

    An id out of range ends it; its place in `drawn` is returned.

    Example: the nodes 1, 3 and 1 make the word 0b1010, and nonzero = [0b1].
    """
    for i in range(drawn.shape[0]):
        if drawn[i] < 0 or drawn[i] >= num_nodes:
            return i
        node = np.uint64(drawn[i])
        word = node >> WORD_BITS
        words[word] |= ONE << (node & IN_WORD)
        nonzero[word >> WORD_BITS] |= ONE << (word & IN_WORD)
    return -1


@light_kernel
def list_members(words: Ints, nonzero: Ints, before: Ints, out: Ints) -> int:
    """Write the nodes of a set to `out`, in the order of their ids; return how many there are.

    `before` gets, at each word that is not 0, how many nodes are in the words before it.

    Example: the words 0b1010 and 0b1 give 1, 3, 64 and before = [0, 2].
    """
    count = 0
    for i in range(nonzero.shape[0]):
        rest = nonzero[i]
        while rest != NONE:
            word = (np.uint64(i) << WORD_BITS) + trailing_zeros(rest)
            rest &= rest - ONE
            before[word] = count
            bits = words[word]
            while bits != NONE:
                out[count] = (word << WORD_BITS) + trailing_zeros(bits)
                bits &= bits - ONE
                count += 1
    return count


@light_kernel
def remove_members(words: Ints, nonzero: Ints) -> None:
    """Empty a set."""
    for i in range(nonzero.shape[0]):
        rest = nonzero[i]
        nonzero[i] = NONE
        while rest != NONE:
            words[(np.uint64(i) << WORD_BITS) + trailing_zeros(rest)] = NONE
            rest &= rest - ONE


@light_kernel
def add_degrees(node: Ints, indptr: Ints, out: Ints) -> None:
    """Write to `out` [nodes + 1] how many entries the lists before each node's have.

    Example: lists of 2, 0 and 3 entries give 0, 2, 2, 5.
    """
    total = 0
    for i in range(node.shape[0]):
        if i + NODES_AHEAD < node.shape[0]:
            prefetch(indptr, node[i + NODES_AHEAD])
        out[i] = total
        total += indptr[node[i] + 1] - indptr[node[i]]
    out[node.shape[0]] = total


@light_kernel
def list_inside(
    node: Ints,  # [nodes], those of the set
    first: int,  # the range of nodes to do
    last: int,
    indptr: Ints,
    indices: Ints,
    words: Ints,
    before: Ints,
    at: int,  # where to begin in `position` and `place`
    ends: Ints,  # [nodes] out: where the entries of each end in these
    position: Ints,  # out, with room for all entries of these lists
    place: Ints,  # out, likewise
) -> int:
    """List those entries of the nodes' lists that are in the set: where they are, and their places.

    Returns:
        Where the last one ends.

    Example: of the set of 4 and 7, the lists 4: [4] and 7: [4, 9] give the positions of both 4,
    and twice its place, 0.
    """
    line = LINE_BYTES // indices.itemsize
    end = np.uint64(at)  # unsigned, as all indices here: none counts from the end
    for i in range(first, last):
        if i + LISTS_AHEAD < last:
            for k in range(LINES_AHEAD):
                prefetch(indices, indptr[node[i + LISTS_AHEAD]] + k * line)
        begin = end
        for p in range(np.uint64(indptr[node[i]]), np.uint64(indptr[node[i] + 1])):
            entry = np.uint64(indices[p])
            # Written whether in the set or not: a misprediction costs more than the store.
            position[end] = p
            end += (words[entry >> WORD_BITS] >> (entry & IN_WORD)) & ONE
        for e in range(begin, end):  # while the list is in a near cache
            entry = np.uint64(indices[np.uint64(position[e])])
            word = entry >> WORD_BITS
            lower = words[word] & ((ONE << (entry & IN_WORD)) - ONE)
            place[e] = before[word] + count_ones(lower)
        ends[i] = end
    return np.int64(end)  # type: ignore[no-any-return]


@light_kernel
def place_inside(
    first: int,  # the range of nodes to do
    last: int,
    at: int,  # where they begin in `position`
    ends: Ints,  # as `list_inside` made them
    position: Ints,
    place: Ints,
    perm: Maybe,  # [E]; None where the position is the edge id
    out_at: int,  # where they begin in the outputs
    edge_index: Ints,  # [2, edges] out
    edge: Maybe,  # [edges] out; None where nobody reads ids, for which `perm` has a miss each
) -> None:
    """Write the edges from each node to the entries that were found in its list.

    Example: ends = 1, 2 and the places 0, 0 give edge_index [[0, 1], [0, 0]].
    """
    shift = np.uint64(out_at - at)
    begin, stop = np.uint64(at), np.uint64(ends[last - 1] if last > first else at)
    for e in range(begin, stop):  # loops of one array each, so that they become vector instructions
        edge_index[1, e + shift] = place[e]
    for i in range(first, last):
        end = np.uint64(ends[i])
        for e in range(begin, end):
            edge_index[0, e + shift] = i
        begin = end
    if edge is not None:
        for e in range(np.uint64(at), stop):
            if perm is None:
                edge[e + shift] = position[e]
            else:
                if e + EDGES_AHEAD < stop:
                    prefetch(perm, position[e + EDGES_AHEAD])
                edge[e + shift] = perm[np.uint64(position[e])]
