"""From the scratch arrays of a batch to tensors that the user keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import split
from ...kernels import emit
from ..buffers import NUMPY_DTYPES, Resources

Ints = npt.NDArray[Any]
Lists = list[tuple[int, int]]
"""For each node type: where its list begins in an array of all of them, and how long it is."""


Outputs = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""Of each relation its edges [2, e_r] and their ids, int64 [e_r]; of each type its nodes [n_t]."""

MIN_EDGES_PER_THREAD = 1 << 15
NO_IDS = {dtype: np.empty(0, NUMPY_DTYPES[dtype]) for dtype in (torch.int32, torch.int64)}


def copy_out(
    resources: Resources,
    id_dtype: torch.dtype,
    sources: tuple[Ints, Ints, Ints, Ints | None, Ints],
    edge_ptr: Ints,
    edge_base: Ints,
    sizes: Iterable[int],
    lists: Iterable[tuple[int, int]],
) -> Outputs:
    """Return the edges of each relation, and the nodes of each type.

    Args:
        resources: memory and threads.
        id_dtype: of the edges, int32 or int64.
        sources: rows, columns and positions [edges] of all relations; the ids by position [E], or
            None where they are the same; and the nodes of all types.
        edge_ptr: [hops, R + 1], where each relation begins in these.
        edge_base: [R], subtracted from positions that are ids.
        sizes: e_r.
        lists: of each type, where its list begins and how long it is.
    """
    empty, total = resources.pool.empty, 0
    outputs: Outputs = ([], [], [])
    edge_indices, edges, nodes = outputs
    out: list[int] = []
    for size in sizes:
        edge_index, edge = empty((2, size), id_dtype), empty((size,), torch.int64)
        at = edge_index.data_ptr()
        out += at, at + size * id_dtype.itemsize, edge.data_ptr()
        edge_indices.append(edge_index)
        edges.append(edge)
        total += size
    for start, size in lists:
        node = empty((size,), torch.int64)
        out += start, size, node.data_ptr()
        nodes.append(node)
    row, col, position, perm, node_lists = sources
    arguments = (edge_ptr, row, col, position, perm, edge_base)
    targets = (NO_IDS[id_dtype], node_lists, np.array(out, np.int64))
    threads = min(resources.threads, total // MIN_EDGES_PER_THREAD)
    if threads <= 1:
        emit.emit_edges(*arguments, 0, total, *targets)
    else:
        split(total, threads, lambda a, b: emit.emit_edges(*arguments, a, b, *targets))
    return outputs


def copy_lists(resources: Resources, source: Ints, lists: Lists) -> list[Tensor]:
    """Return int64 copies of some lists in an array."""
    copies = []
    for start, size in lists:
        out = resources.pool.empty((size,), torch.int64)
        out.numpy()[:] = source[start : start + size]
        copies.append(out)
    return copies
