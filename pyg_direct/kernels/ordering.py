"""Subgraphs in a sorted order: counting passes, and searches of sorted lists."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import kernel, prefetch

Ints = npt.NDArray[Any]

PREFETCH_DISTANCE = 8  # nodes whose lists are looked up in advance


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


@kernel
def lower_bound(values: Ints, first: int, last: int, wanted: int) -> int:
    """Return the first place in the sorted values[first:last] that holds `wanted` or more.

    Looks in steps that double from `first` on, which is quick where it is near.

    Example: in [1, 4, 4, 9], 4 is at place 1 and 5 belongs at place 3.
    """
    step = 1
    while first + step <= last and values[first + step - 1] < wanted:
        first += step
        step *= 2
    last = min(last, first + step)
    while first < last:
        middle = (first + last) >> 1
        if values[middle] < wanted:
            first = middle + 1
        else:
            last = middle
    return first


@kernel
def edges_between(
    ptr: Ints,  # [groups + 1]
    group_of: Ints,  # [nodes]
    node: Ints,  # [nodes], those of a group sorted by id, each once
    indptr: Ints,
    indices: Ints,  # each list sorted
    item: int,  # the destination to begin with
    count: int,  # edges that are listed already
    row: Ints,  # [room] out, places in `node`
    col: Ints,  # [room] out
    position: Ints,  # [room] out, positions in `indices`
) -> tuple[int, int]:
    """List the edges between the nodes of each group, by destination, then by source.

    Of a node's list and the nodes of its group, the longer one is searched for the entries of the
    other, so the list of a hub is not read through.

    Returns:
        The destination at which the outputs may be too short, or how many destinations there are;
        and the number of edges listed. With longer outputs the list can be continued there.

    Example: one group of the nodes 2, 5, 7, where 5 has the list [0, 2, 2, 7]: rows 0, 0, 2 and
    column 1.
    """
    for i in range(item, node.shape[0]):
        if i + PREFETCH_DISTANCE < node.shape[0]:
            prefetch(indptr, node[i + PREFETCH_DISTANCE])
        first, last = ptr[group_of[i]], ptr[group_of[i] + 1]
        start, end = indptr[node[i]], indptr[node[i] + 1]
        if count + end - start > row.shape[0]:
            return i, count
        if end - start <= last - first:
            for p in range(start, end):
                first = lower_bound(node, first, last, indices[p])
                if first < last and node[first] == indices[p]:
                    row[count], col[count], position[count] = first, i, p
                    count += 1
        else:
            for j in range(first, last):
                start = lower_bound(indices, start, end, node[j])
                while start < end and indices[start] == node[j]:
                    row[count], col[count], position[count] = j, i, start
                    start += 1
                    count += 1
    return node.shape[0], count


@kernel
def place_edges(
    order: Ints,  # [edges]
    row: Ints,  # [edges], ends by number
    col: Ints,  # [edges]
    edge: Ints,  # [edges]
    edge_index: Ints,  # [2, edges] out
    out: Ints,  # [edges] out
) -> None:
    """Write the edges in their new order.

    Example: the order 1, 0 of edges 3->4 and 1->2 with the ids 10 and 11 gives edge_index
    [[1, 3], [2, 4]] and out = [11, 10].
    """
    for i in range(order.shape[0]):
        e = order[i]
        edge_index[0, i] = row[e]
        edge_index[1, i] = col[e]
        out[i] = edge[e]
