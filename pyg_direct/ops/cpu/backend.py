"""The CPU backend: numba kernels over NumPy views of the user's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels import gather, reduce
from ...kernels.threads import split
from ...types import Csc, SamplingPlan
from ..backend import row_out_of_range
from ..streams import Event, NoStreams, Streams
from .buffers import BufferPool, Resources
from .memory import CpuMemory
from .workspace import CpuWorkspace

Ints = npt.NDArray[Any]

REDUCTIONS = {"sum": reduce.SUM, "mean": reduce.MEAN, "max": reduce.MAX, "min": reduce.MIN}
SUMMED_AS = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
}
MIN_BYTES_PER_THREAD = 1 << 20  # below, waking a thread costs more than it saves


class CpuBackend:
    """Samples and gathers with `threads` threads a batch, into recycled memory."""

    default_producers = 0
    most_producers = 1 << 16  # each has a core to itself, if the user has as many
    gather_blocks: int | None = None  # there are none

    def __init__(self, threads: int = 1) -> None:
        self.device = torch.device("cpu")
        self._resources = Resources(threads, BufferPool())
        self.streams: Streams = NoStreams()
        self.memory = CpuMemory()

    @property
    def threads(self) -> int:
        """CPU threads that may share one batch; can be set between batches."""
        return self._resources.threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._resources.threads = threads

    def workspace(self, csc: Csc, plan: SamplingPlan) -> CpuWorkspace:
        """Return a new workspace."""
        return CpuWorkspace(csc, plan, self._resources)

    def copy_to_host(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Event]:
        """Return the tensors themselves."""
        return list(tensors), self.streams.record_event()

    def gather(self, table: Tensor, index: Tensor, end: int | None = None) -> Tensor:
        """Return the rows `index` of `table`, in recycled memory. Each id is checked."""
        rows = len(index)
        out = self._resources.pool.empty((rows, *table.shape[1:]), table.dtype)
        row_bytes = out.nbytes // max(1, rows)
        if row_bytes > 0:
            task = partial(
                _gather, table.data_ptr(), index.numpy(), len(table), row_bytes, out.data_ptr()
            )
            split(rows, min(self.threads, out.nbytes // MIN_BYTES_PER_THREAD), task)
        return out

    def reduce(
        self,
        csc: Csc,
        relation: int,
        table: Tensor,
        kind: str,
        nodes: tuple[int, int],
        weight: Tensor | None = None,
    ) -> Tensor | None:
        """Reduce the rows of the in-neighbours of consecutive nodes, in the calling thread."""
        if table.dtype not in SUMMED_AS or table.dim() != 2 or not table.is_contiguous():
            return None
        if kind not in REDUCTIONS:
            return None
        dtype = SUMMED_AS[table.dtype]
        if weight is not None and (kind != "sum" or weight.dtype != dtype):
            return None
        first, last = nodes
        rows = (table.view(torch.uint16) if dtype != table.dtype else table).numpy()
        out = torch.empty(last - first, table.size(1), dtype=dtype)
        factors = out[:0, 0].numpy() if weight is None else weight.contiguous().numpy()
        begin = int(csc.indptr_base[relation])
        end = begin + int(csc.num_nodes[csc.dst_type[relation]]) + 1
        bad = reduce.reduce_rows(
            csc.indptr[begin:end], csc.indices, rows, table.data_ptr(), factors, REDUCTIONS[kind],
            first, last, out.numpy(),
        )  # fmt: skip
        if bad >= 0:
            raise row_out_of_range(int(csc.indices[bad]), len(table))
        return out


def _gather(
    table: int, index: Ints, num_rows: int, row_bytes: int, out: int, first: int, last: int
) -> None:
    bad = gather.gather_rows(table, index, num_rows, row_bytes, first, last, out)
    if bad >= 0:
        raise row_out_of_range(int(index[bad]), num_rows)
