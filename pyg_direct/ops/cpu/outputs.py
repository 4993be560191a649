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

MIN_EDGES_PER_THREAD = 1 << 15
NO_IDS = {dtype: np.empty(0, NUMPY_DTYPES[dtype]) for dtype in (torch.int32, torch.int64)}


def copy_edges(
    resources: Resources,
    id_dtype: torch.dtype,
    edges: tuple[Ints, Ints, Ints, Ints | None],
    edge_ptr: Ints,
    edge_base: Ints,
    sizes: Iterable[int],
) -> list[tuple[Tensor, Tensor]]:
    """Return for each relation its edges [2, e_r] and their ids, int64 [e_r].

    Args:
        resources: memory and threads.
        id_dtype: of the edges, int32 or int64.
        edges: rows, columns and positions [edges] of all relations, and the ids by position.
        edge_ptr: [hops, R + 1], where each relation begins in these.
        edge_base: [R], subtracted from positions that are ids.
        sizes: e_r.
    """
    outputs, addresses = [], []
    for size in sizes:
        edge_index = resources.pool.empty((2, size), id_dtype)
        edge = resources.pool.empty((size,), torch.int64)
        at = edge_index.data_ptr()
        addresses.append((at, at + size * id_dtype.itemsize, edge.data_ptr()))
        outputs.append((edge_index, edge))
    out = np.array(addresses, np.int64).reshape(-1, 3)

    def task(first: int, last: int) -> None:
        emit.emit_edges(edge_ptr, *edges, edge_base, first, last, NO_IDS[id_dtype], out)

    total = int(edge_ptr[-1, -1]) if len(edge_ptr) > 0 else 0
    split(total, min(resources.threads, total // MIN_EDGES_PER_THREAD), task)
    return outputs


def copy_lists(resources: Resources, source: Ints, starts: Ints, sizes: Ints) -> list[Tensor]:
    """Return int64 copies of the lists source[start : start + size]."""
    lists = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        out = resources.pool.empty((size,), torch.int64)
        out.numpy()[:] = source[start : start + size]
        lists.append(out)
    return lists
