"""COO to CSC on the CPU: a parallel, stable counting sort; of few edges, NumPy's sort."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.threads import MIN_EDGES_PER_THREAD, available_cores, run_all
from ..core.types import EDGE_TIME
from ..kernels import counting_sort as kernels
from ..kernels import temporal

Ints = npt.NDArray[Any]

INT32_END = 2**31
FEW_EDGES = 1 << 16  # NumPy sorts them in some ms, while kernels for it take 1 s to compile
LARGEST_COPIED_BUCKET = 1 << 20  # edges: 8 MB for each thread
EDGES_PER_BUCKET = 1 << 16  # whose numbers and pointers fit into the second-level cache
MAX_BUCKETS = 1 << 11  # as many cache lines are written in turn


class Compressed(NamedTuple):
    """One relation, grouped by destination."""

    indptr: Ints  # [num_dst + 1]
    indices: Ints  # [E]
    perm: Ints | None  # [E]; None if the edges were in order already


def narrow(end: int) -> type[np.signedinteger[Any]]:
    """Return the narrowest integer type for values in [0, end)."""
    return np.int32 if end <= INT32_END else np.int64


def compress(
    row: Ints,
    col: Ints,
    num_src: int,
    num_dst: int,
    trusted: bool = False,
    names: tuple[str, str] = ("edge_index[0, {}]", "edge_index[1, {}]"),
) -> Compressed:
    """Group edges by destination in memory of our own; among the edges of one, their order is kept.

    Args:
        row: int32 or int64 [E], sources.
        col: int32 or int64 [E], destinations.
        num_src: sources must be in [0, num_src).
        num_dst: destinations must be in [0, num_dst).
        trusted: the caller says that `col` is sorted.
        names: what errors call an entry of `row` and of `col`, with {} for its position.

    Returns:
        Arrays that share no memory with `row` and `col`; where `col` is sorted, `perm` is None.

    Raises:
        ValueError: an id out of range, or `trusted` edges that are not sorted.
    """
    if 0 < len(row) <= FEW_EDGES:
        found = _sorted_by_numpy(row, col, num_src, num_dst, trusted)
        if found is not None:
            return found
    indices = np.empty(len(row), narrow(num_src))
    status, at = kernels.copy_sorted(row, col, num_src, num_dst, indices)
    if status == kernels.OK:
        indptr = np.empty(num_dst + 1, narrow(len(row) + 1))
        kernels.index_to_ptr(col, 0, indptr)
        return Compressed(indptr, indices, None)
    del indices
    if status != kernels.UNSORTED or trusted:
        raise ValueError(_complaint(status, at, row, col, num_src, num_dst, names))
    return _counting_sort(row, col, num_src, num_dst, names)


def _sorted_by_numpy(
    row: Ints, col: Ints, num_src: int, num_dst: int, trusted: bool
) -> Compressed | None:
    """As `compress`, by NumPy; None if there is an error to report."""
    if min(row.min(), col.min()) < 0 or row.max() >= num_src or col.max() >= num_dst:
        return None
    position_type, perm = narrow(len(row) + 1), None
    if (col[1:] < col[:-1]).any():
        if trusted:
            return None
        perm = np.argsort(col, kind="stable")
        row, perm = row[perm], perm.astype(position_type)
    indptr = np.zeros(num_dst + 1, position_type)
    np.cumsum(np.bincount(col, minlength=num_dst), out=indptr[1:])
    return Compressed(indptr, row.astype(narrow(num_src)), perm)


def _counting_sort(
    row: Ints, col: Ints, num_src: int, num_dst: int, names: tuple[str, str]
) -> Compressed:
    edges, position_type = len(row), narrow(len(row) + 1)
    chunks = max(1, min(available_cores(), edges // MIN_EDGES_PER_THREAD, 16))
    cuts = [edges * i // chunks for i in range(chunks + 1)]
    ranges = list(pairwise(cuts))
    wanted = max(1, min(MAX_BUCKETS, edges // EDGES_PER_BUCKET))
    shift = max(0, (num_dst - 1).bit_length() - (wanted - 1).bit_length())
    counts = np.zeros((chunks, (max(num_dst, 1) - 1 >> shift) + 1), np.int64)
    for status, at in run_all(
        [
            partial(kernels.count_buckets, row, col, a, b, num_src, num_dst, shift, counts[c])
            for c, (a, b) in enumerate(ranges)
        ]
    ):
        if status != kernels.OK:
            raise ValueError(_complaint(status, at, row, col, num_src, num_dst, names))
    bucket_ptr = np.concatenate([[0], np.cumsum(counts.sum(0))])
    next_place = bucket_ptr[:-1] + np.cumsum(counts, 0) - counts
    out = (
        np.zeros(num_dst + 1, position_type),
        np.empty(edges, narrow(num_src)),
        np.empty(edges, position_type),
    )
    shares = list(pairwise([*np.searchsorted(bucket_ptr, cuts[:-1]).tolist(), counts.shape[1]]))
    places = [(*range_, place) for range_, place in zip(ranges, next_place, strict=True)]
    sort = _sort_words if _fits_words(out, num_src, shift) else _sort_numbers
    sort(row, col, num_src, shift, bucket_ptr, places, shares, out)
    return Compressed(*out)


Arrays = tuple[Ints, Ints, Ints]  # of `Compressed`, to be filled
Places = list[tuple[int, int, Ints]]  # first and last edge of each part, and where they are to go
Shares = list[tuple[int, int]]  # first and last bucket of each part


def _fits_words(out: Arrays, num_src: int, shift: int) -> bool:
    """Whether an edge fits the words of `deal_edges`, and the words fit the output arrays."""
    _, indices, perm = out
    bits = (num_src - 1).bit_length() + (len(indices) - 1).bit_length() + shift
    return indices.itemsize == perm.itemsize == 4 and bits < 64


def _sort_words(
    row: Ints, col: Ints, num_src: int, shift: int, bucket_ptr: Ints, places: Places,
    shares: Shares, out: Arrays,
) -> None:  # fmt: skip
    """Fill `out` by sorting words that hold source, destination and number of each edge."""
    _, indices, perm = out
    edge_bits = (len(row) - 1).bit_length()
    words = indices.view(np.uint32), perm.view(np.uint32)
    run_all(
        [
            partial(kernels.deal_edges, row, col, a, b, shift, edge_bits, place, *words)
            for a, b, place in places
        ]
    )
    room = min(LARGEST_COPIED_BUCKET, int(np.diff(bucket_ptr).max()))
    run_all(
        [
            partial(
                kernels.sort_dealt, row, col, a, b, shift, edge_bits, bucket_ptr, *words, *out,
                np.empty(room, np.int64),
            )
            for a, b in shares
        ]
    )  # fmt: skip


def _sort_numbers(
    row: Ints, col: Ints, num_src: int, shift: int, bucket_ptr: Ints, places: Places,
    shares: Shares, out: Arrays,
) -> None:  # fmt: skip
    """Fill `out` by sorting the numbers of the edges."""
    _, indices, perm = out
    edge = indices if indices.itemsize >= perm.itemsize else np.empty_like(perm)
    run_all(
        [partial(kernels.fill_buckets, col, a, b, shift, place, edge) for a, b, place in places]
    )
    run_all(
        [
            partial(kernels.sort_buckets, row, col, a, b, shift, bucket_ptr, edge, *out)
            for a, b in shares
        ]
    )


def pad_and_check(compressed: Compressed, size: tuple[int, int], name: str) -> Compressed:
    """Copy a relation that the user's data holds as CSC, with a list for every destination.

    Raises:
        ValueError: arrays that are not integers of one dimension, more lists than destinations,
            pointers that do not fit the indices, or ids out of range.
    """
    num_src, num_dst = size
    ptr, row, perm = (None if part is None else np.asarray(part) for part in compressed)
    assert ptr is not None
    assert row is not None
    for part, array in (("pointers", ptr), ("indices", row), ("edge ids", perm)):
        if array is not None and (array.ndim != 1 or array.dtype.kind not in "iu"):
            raise ValueError(
                f"{name} is not a valid CSC: its {part} must be integers of one dimension, got "
                f"{array.dtype} of shape {array.shape}."
            )
    if len(ptr) > num_dst + 1:
        raise ValueError(f"{name} has {len(ptr) - 1} destinations, but there are {num_dst} nodes.")
    # Compared, not subtracted: the difference of two integers of a dtype need not fit into it.
    falls = bool((ptr[1:] < ptr[:-1]).any())
    if len(ptr) == 0 or ptr[0] != 0 or ptr[-1] != len(row) or falls:
        raise ValueError(
            f"{name} is not a valid CSC: its pointers do not fit its {len(row)} indices."
        )
    if perm is not None and len(perm) != len(row):
        raise ValueError(
            f"{name} is not a valid CSC: it has {len(row)} indices, but {len(perm)} edge ids."
        )
    indptr = np.empty(num_dst + 1, narrow(len(row) + 1))
    indptr[: len(ptr)], indptr[len(ptr) :] = ptr, ptr[-1]
    indices = _copied_ids(row, num_src, f"{name} refers to node {{}}, but source ids")
    ids = (
        None if perm is None else _copied_ids(perm, len(row), f"{name} has edge id {{}}, but they")
    )
    return Compressed(indptr, indices, ids)


def _copied_ids(ids: Ints, end: int, what: str) -> Ints:
    """Return `ids` in the narrowest integer type, if they are in [0, end)."""
    if len(ids) and (ids.min() < 0 or ids.max() >= end):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"{what.format(bad)} must be in [0, {end}).")
    return ids.astype(narrow(end))


def sort_by_time(
    compressed: Compressed, by_node: Ints | None, by_edge: Ints | None, trusted: bool, name: str
) -> Compressed:
    """Sort the neighbours of each node by time, stably, unless they are sorted already.

    Args:
        compressed: one relation.
        by_node: int64 [num_src], times of the sources, or None.
        by_edge: int64 [E], times of the edges in the user's order, or None.
        trusted: the user says that they are sorted.
        name: what errors call the data.

    Raises:
        ValueError: `trusted` lists that are not sorted.
    """
    indptr, indices, perm = compressed
    num_dst = len(indptr) - 1
    if by_edge is not None:
        time, base = by_edge if perm is None else by_edge[perm], EDGE_TIME
    else:
        assert by_node is not None
        time, base = by_node, 0
    at = temporal.first_unsorted(indptr, 0, num_dst, indices, time, base)
    if at < 0:
        return compressed
    if trusted:
        raise ValueError(
            f"is_sorted=True, but the neighbours of a node in {name} are not sorted by time (at "
            f"position {at} by column). Sort them, or leave is_sorted=False."
        )
    destination = np.repeat(np.arange(num_dst), np.diff(indptr))
    order = np.lexsort((time if base == EDGE_TIME else time[indices], destination))
    return Compressed(indptr, indices[order], order if perm is None else perm[order])


def _complaint(
    status: int, edge: int, row: Ints, col: Ints, num_src: int, num_dst: int, names: tuple[str, str]
) -> str:
    """Return the error that a kernel found, as text."""
    if status == kernels.UNSORTED:
        return (
            f"is_sorted=True, but the edges are not sorted: {names[1].format(edge)} is {col[edge]} "
            f"after {col[edge - 1]}. Sort them by column, or leave is_sorted=False."
        )
    at_source = status == kernels.BAD_SOURCE
    name, ids, end = (names[0], row, num_src) if at_source else (names[1], col, num_dst)
    return out_of_range(name.format(edge), ids[edge], end)


def out_of_range(name: str, node: int, end: int) -> str:
    """Return the error for an end of an edge that is not a node."""
    return (
        f"{name} is {node}, but the ids of its node type must be in [0, {end}). Check the edges, "
        f"or set num_nodes."
    )


def undirected(edge_index: Any, num_nodes: int) -> tuple[Any, Any]:
    """Return (pointers [N + 1], neighbours) of the undirected graph, for METIS.

    Every edge in both directions, once. Self-loops stay, as in PyG: METIS takes them as they are,
    and numbers its parts by them.

    Example: the edges 0->1, 1->0, 1->2, 2->2 give pointers 0, 1, 3, 5 and neighbours 1, 0, 2, 1, 2.
    """
    low, high = np.minimum(*edge_index), np.maximum(*edge_index)
    pair = np.unique(low.astype(np.int64) * num_nodes + high)
    low, high = pair // num_nodes, pair % num_nodes
    back = low != high
    ends = np.concatenate([low[back], high]), np.concatenate([high[back], low])
    both = compress(*ends, num_nodes, num_nodes)
    return both.indptr, both.indices
