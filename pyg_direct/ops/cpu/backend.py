"""The CPU backend: numba kernels over NumPy views of the user's tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import split
from ...core.types import Csc, SamplingPlan, Table, Traffic
from ...kernels import aggregate, decode, gather
from ..backend import NUMBER_KINDS, CacheRequest, row_out_of_range
from ..buffers import Resources, shared_pool
from ..host.hottest import Candidate
from ..host_memory import usable_bytes
from ..ids import IN_PLACE, Ids
from ..placement import Placement
from ..streams import Graphs, NoStreams, Streams
from . import file_pages
from .file_pages import PagedWorkspace
from .workspace import CpuWorkspace

Ints = npt.NDArray[Any]

REDUCTIONS = {
    "sum": aggregate.SUM,
    "mean": aggregate.MEAN,
    "max": aggregate.MAX,
    "min": aggregate.MIN,
}
SUMMED_AS = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
}
ROWS_ROUNDED_AT_ONCE = 128  # as float32 they stay in a core's own cache
MIN_BYTES_PER_THREAD = 1 << 20  # below, waking a thread costs more than it saves


class CpuBackend:
    """Samples and gathers with `threads` threads a batch, into recycled memory."""

    default_producers = 0
    most_producers = 1 << 16  # each has a core to itself, if the user has as many
    gather_blocks: int | None = None  # there are none
    reads_over_link = caches_rows = waits_for_counts = False
    cache: CacheRequest | None = None
    graphs: Graphs | None = None

    def __init__(self, threads: int = 1) -> None:
        self.device = torch.device("cpu")
        self._resources = Resources(threads, shared_pool())
        self.streams: Streams = NoStreams()
        self.streams_of_caller: Streams = self.streams
        self.memory = CpuMemory()
        self._pages = file_pages.FilePages()

    @property
    def threads(self) -> int:
        """CPU threads that may share one batch; can be set between batches."""
        return self._resources.threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._resources.threads = threads

    def workspace(self, csc: Csc, plan: SamplingPlan) -> CpuWorkspace:
        """Return a new workspace; one that asks for pages if the files are larger than memory."""
        if csc.file_bytes > usable_bytes():
            return PagedWorkspace(csc, plan, self._resources, self._pages)
        return CpuWorkspace(csc, plan, self._resources)

    def gather(
        self,
        tables: Sequence[Table],
        index: Tensor,
        end: int | None = None,
        traffic: Traffic | None = None,
        wrong: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the rows `index` of each table, in recycled memory. Each id is checked.

        One call of a kernel copies from all tables; each that is decoded takes a call of its own.
        """
        if index.dtype != torch.int64 or not (index.is_contiguous() and index.is_cpu):
            index = index.to(self.device, torch.int64).contiguous()  # the kernel gets its address
        rows, wanted, nbytes, large = index.shape[0], [], 0, False
        for table, dtype, _ in tables:
            wanted.append(((rows, *table.shape[1:]), dtype or table.dtype))
        outputs = self._resources.pool.empties(wanted)
        places: list[int] = []
        for (table, dtype, scale), out in zip(tables, outputs, strict=True):
            size = out.nbytes
            if dtype is not None:
                self._decode(table, scale, index, out)
            elif size > 0:
                num_rows, row_bytes = table.shape[0], size // rows
                places += table.data_ptr(), num_rows, row_bytes, out.data_ptr()
                nbytes += size
                large = large or num_rows * row_bytes >= file_pages.MIN_TABLE_BYTES
        if not places:
            return outputs
        described = np.array(places, np.int64)
        threads = min(self._resources.threads, nbytes // MIN_BYTES_PER_THREAD)
        if threads <= 1 and not large:
            _gather(described, index, 0, rows)
        else:
            copied = [table.rows for table in tables if table.dtype is None]
            with self._pages.reading(copied, index.numpy()):
                split(rows, threads, partial(_gather, described, index))
        return outputs

    def _decode(self, table: Tensor, scale: Tensor | None, index: Tensor, out: Tensor) -> None:
        """Fill `out` [n, ...] with decoded rows."""
        columns = math.prod(table.shape[1:])
        table, out = table.detach().view(len(table), columns), out.view(len(index), columns)
        ids, kind = index.numpy(), NUMBER_KINDS[table.dtype]
        if scale is not None and scale.dim() == 2:
            kind = decode.INT8_BY_ROW
        source = table if table.dtype == torch.int8 else table.view(torch.uint16)
        factors = torch.empty(0, dtype=torch.float32) if scale is None else scale.reshape(-1)
        task = partial(
            _decode, source.numpy(), factors.numpy(), kind, ids, NUMBER_KINDS[out.dtype], out
        )
        with self._pages.reading([table], ids):
            split(len(index), min(self.threads, out.nbytes // MIN_BYTES_PER_THREAD), task)

    def fill_cache(self, tables: Sequence[Candidate], size: str | int | float) -> None:
        """Do nothing: all rows are in host memory."""

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
        bad = aggregate.reduce_rows(
            csc.indptr[begin:end], csc.indices, rows, table.data_ptr(), factors, REDUCTIONS[kind],
            first, last, out.numpy(),
        )  # fmt: skip
        if bad >= 0:
            raise row_out_of_range(int(csc.indices[bad]), len(table))
        return out


def kernel_cache() -> str | None:
    """Return the folder where numba keeps compiled kernels, or None if none can be written."""
    cache: str | None = gather.gather_tables.stats.cache_path  # type: ignore[attr-defined]
    return cache


def _gather(tables: Ints, index: Tensor, first: int, last: int) -> None:
    table, bad = gather.gather_tables(tables, index.data_ptr(), first, last)
    if bad >= 0:
        raise row_out_of_range(int(index[bad]), int(tables[4 * table + 1]))


def _decode(
    table: Ints, scale: Any, kind: int, index: Ints, wanted: int, out: Tensor, first: int, last: int
) -> None:
    if wanted == decode.FLOAT32:
        bad = decode.gather_decoded(table, scale, kind, index, first, last, out.numpy())
    else:
        scratch = np.empty((ROWS_ROUNDED_AT_ONCE, out.size(1)), np.float32)
        bits = out.view(torch.uint16).numpy()
        bad = decode.gather_rounded(table, scale, kind, index, first, last, wanted, scratch, bits)
    if bad >= 0:
        raise row_out_of_range(int(index[bad]), len(table))


class CpuMemory:
    """Host memory; nothing is copied or registered."""

    checks_reads = True  # `ops.cpu.drawing`

    def __init__(self) -> None:
        self.placement = Placement(torch.device("cpu"))

    def place_graph(self, csc: Csc, topology: str = "auto", device_bytes: int | None = None) -> Csc:
        """Return `csc` as it is."""
        _refuse_device(topology, "topology")
        return csc

    def to_numpy(self, csc: Csc) -> Csc:
        """Return `csc` as it is."""
        return csc

    def place_tables(self, tables: Iterable[tuple[str, Tensor]], features: str = "auto") -> None:
        """Do nothing."""
        _refuse_device(features, "features")

    def readable(self, table: Tensor) -> Tensor | None:
        """Return `table` itself if it is in host memory."""
        return table if table.is_cpu else None

    def ids(self, on_host: bool) -> Ids:
        """Return what leaves all ids where they are."""
        return IN_PLACE

    def to_batch(self, value: Any, device: torch.device) -> Any:
        """Return a part of a batch on `device`: as in PyG, a batch is where its data is."""
        return value if value.device == device else value.to(device)

    def pin(self, batch: Any) -> Any:
        """Return a batch in page-locked memory, where torch has a GPU to copy it to."""
        can_pin = torch.cuda.is_available() and hasattr(batch, "pin_memory")
        return batch.pin_memory() if can_pin else batch


def _refuse_device(mode: str, name: str) -> None:
    if mode == "device":
        raise ValueError(
            f"{name}='device' needs a CUDA device, but batches are made on the CPU. Use "
            f"{name}='auto', or device='cuda'."
        )
