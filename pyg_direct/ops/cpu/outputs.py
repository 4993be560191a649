"""From the scratch arrays of a batch to tensors that the user keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels import emit
from ...kernels.threads import split
from .buffers import NUMPY_DTYPES, Resources

Ints = npt.NDArray[Any]
Edges = list[tuple[Tensor, Tensor]]
"""For each relation: its edges [2, e_r], and their ids, int64 [e_r]."""
Lists = list[tuple[int, int]]
"""For each node type: where its list begins in an array of all of them, and how long it is."""

MIN_EDGES_PER_THREAD = 1 << 15
NO_IDS = {dtype: np.empty(0, NUMPY_DTYPES[dtype]) for dtype in (torch.int32, torch.int64)}
NO_LISTS = np.empty((0, 3), np.int64)


def copy_out(
    resources: Resources,
    id_dtype: torch.dtype,
    edges: tuple[Ints, Ints, Ints, Ints | None],
    edge_ptr: Ints,
    edge_base: Ints,
    sizes: Iterable[int],
    nodes: tuple[Ints, Lists],
) -> tuple[Edges, list[Tensor]]:
    """Return the edges of each relation, and the nodes of each type, int64 [n_t].

    Args:
        resources: memory and threads.
        id_dtype: of the edges, int32 or int64.
        edges: rows, columns and positions [edges] of all relations, and the ids by position.
        edge_ptr: [hops, R + 1], where each relation begins in these.
        edge_base: [R], subtracted from positions that are ids.
        sizes: e_r.
        nodes: of all types, and where the list of each is.
    """
    empty = resources.pool.empty
    outputs: Edges = []
    addresses: list[int] = []
    for size in sizes:
        edge_index, edge = empty((2, size), id_dtype), empty((size,), torch.int64)
        at = edge_index.data_ptr()
        addresses += at, at + size * id_dtype.itemsize, edge.data_ptr()
        outputs.append((edge_index, edge))
    lists = [empty((size,), torch.int64) for _, size in nodes[1]]
    for (start, size), out in zip(nodes[1], lists, strict=True):
        addresses += start, size, out.data_ptr()
    places = np.array(addresses, np.int64).reshape(-1, 3)
    edge_places, node_places = places[: len(outputs)], places[len(outputs) :]

    def task(first: int, last: int) -> None:
        emit.emit_edges(
            edge_ptr, *edges, edge_base, first, last, NO_IDS[id_dtype], edge_places,
            nodes[0], node_places if first == 0 else NO_LISTS,
        )  # fmt: skip

    total = int(edge_ptr[-1, -1]) if len(edge_ptr) > 0 else 0
    split(total, min(resources.threads, total // MIN_EDGES_PER_THREAD), task)
    return outputs, lists


def copy_lists(resources: Resources, source: Ints, lists: Lists) -> list[Tensor]:
    """Return int64 copies of some lists in an array."""
    copies = []
    for start, size in lists:
        out = resources.pool.empty((size,), torch.int64)
        out.numpy()[:] = source[start : start + size]
        copies.append(out)
    return copies
