"""The CUDA backend: the kernels of `cuda/*.cu` over torch's device memory and current stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.types import Csc, SamplingPlan, Table, Traffic
from ...core.units import blocks_of_row
from ...kernels import decode
from ..backend import NUMBER_KINDS, CacheRequest, row_out_of_range
from ..host.hottest import SLOT_BYTES, Candidate
from ..streams import Graphs, NoStreams, Streams
from . import memory as device_memory
from . import tuning
from .compiler import library_for, require_cuda
from .launch import Kernel, Library
from .placer import Placer
from .row_cache import RowCaches
from .streams import CallersStream, CudaGraphs
from .workspace import CudaWorkspace

LINE_BYTES = 128  # what the link is asked for
LOADS_IN_FLIGHT = 4  # `kInFlight` of rows.cuh
SECTOR_BYTES = 32  # of a line, as it is sent: the least that a read costs
MAX_THREADS_PER_PROCESSOR = 2048
ANY_ID = (1 << 63) - 1  # the end of ids that are not looked at
WORDS = {16: "uint4", 8: "u64", 4: "u32", 2: "u16", 1: "u8"}

Reading = dict[str, Tensor]
"""Arrays of a kernel that gathers, by name, which not every gather has."""


class CudaBackend:
    """Samples and gathers on one CUDA device, on torch's current stream.

    Args:
        device: the device; without an index, torch's current one.
        library: its kernels; None compiles them with CuPy. Tests pass an emulated device.
        gather_blocks: blocks of 256 threads that may read rows from host memory at the same time;
            None takes what fills the link, by `blocks_to_fill_link`. The fewer they are, the more
            of the GPU is left to training. Rows in device memory are gathered by the whole device.

    Raises:
        RuntimeError: no usable CUDA device, or no CuPy that fits; the message says what to install.
    """

    def __init__(
        self,
        device: torch.device,
        library: Library | None = None,
        gather_blocks: int | None = None,
    ) -> None:
        if library is None:
            require_cuda(device)
            if device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
            library = library_for(device)
        self.library = library
        compiler = library.compiler
        self.device, self.streams = compiler.device, compiler.streams
        self.streams_of_caller: Streams = NoStreams()
        self.graphs: Graphs | None = CudaGraphs(self.device)
        if compiler.foreign_allocator:  # which has no memory for captures either
            self.streams_of_caller = CallersStream(self.device)
            self.most_producers = 0
            self.graphs = None
        self.gather_blocks = gather_blocks
        self.one_block = True  # small hops of its workspaces are done by one block
        self.threads = 1  # of the CPU, which has no share in a batch
        self.memory = Placer(
            self.device, compiler.registry, compiler.copies, compiler.free_bytes, self.streams
        )
        self._caches = RowCaches(
            self.device, self.memory.placement, compiler.registry.runtime.synchronize
        )
        self.cache: CacheRequest | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Kernels stay in their process: a copy in another one loads its own."""
        return CudaBackend, (self.device, None, self.gather_blocks)

    reads_over_link = caches_rows = waits_for_counts = True
    default_producers = 1  # so that a batch is under way while another one is trained on
    # They launch under one interpreter lock onto the same two streams: a second one fills the gaps
    # in which the first waits for its counts, and a third would only hold device memory.
    most_producers = 2

    def workspace(self, csc: Csc, plan: SamplingPlan) -> CudaWorkspace:
        """Return a new workspace, for use on the current stream."""
        # Were the graph deleted while the stream reads it, the memory must stay as it is.
        self.streams.record_stream(array for _, array in csc.arrays())
        return CudaWorkspace(csc, plan, self.library, self.one_block)

    def gather(
        self,
        tables: Sequence[Table],
        index: Tensor,
        end: int | None = None,
        traffic: Traffic | None = None,
        wrong: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the rows `index` of each table, one launch a table.

        A table is on the device, or in host memory whose address the device can read. Rows of
        tables in host memory above `SORTED_TABLE_BYTES` are read by ascending ids, which are sorted
        once for all of them, on the current stream.

        Raises:
            IndexError: an id out of range.
        """
        if wrong is None:
            _check_ids(index, end, tables)
        if traffic is not None:
            for rows, _, scale in tables:
                self._note_reads(rows, len(index), traffic)
                if scale is not None and scale.dim() == 2:
                    self._note_reads(scale, len(index), traffic)
        reading = {} if wrong is None else {"wrong": wrong}
        read = [part for rows, _, scale in tables for part in (rows, scale) if part is not None]
        self.streams.record_stream([*read, *reading.values()])
        large = [self._is_large(rows) for rows, _, _ in tables]
        ids, by_id = index, reading
        if any(large):
            ids, place = torch.sort(index)
            by_id = {**reading, "place": place}
        return [
            self._rows(table, *((ids, by_id) if is_large else (index, reading)), traffic)
            for table, is_large in zip(tables, large, strict=True)
        ]

    def fill_cache(self, tables: Sequence[Candidate], size: str | int | float) -> None:
        """Hold the hottest rows of tables in device memory, of those that lie on the host."""
        on_host = []
        for name, table, visits in tables:
            readable = self.memory.readable(table)
            if readable is not None and readable.device != self.device:
                on_host.append(Candidate(name, readable, visits))
        if isinstance(size, str):
            room_bytes = self.memory.left_bytes()
        elif isinstance(size, float):
            whole = (table.nbytes + SLOT_BYTES * len(table) for _, table, _ in on_host)
            room_bytes = int(size * sum(whole))
        else:
            room_bytes = size
        self._caches.fill(on_host, room_bytes, self.gather_bytes)

    def _is_large(self, table: Tensor) -> bool:
        """Whether the order counts in which rows of a table are read."""
        return table.device != self.device and table.nbytes > tuning.SORTED_TABLE_BYTES

    def _rows(
        self, table: Table, index: Tensor, reading: Reading, traffic: Traffic | None
    ) -> Tensor:
        """Return rows of one table, read in the order of `index`."""
        rows, dtype, scale = table
        if len(rows) == 0 and len(index) > 0:
            raise row_out_of_range(0, 0)
        shape = (len(index), *rows.shape[1:])
        out = device_memory.empty(math.prod(shape), dtype or rows.dtype, self.device).view(shape)
        if out.numel() == 0:
            return out
        reading = {**reading, **self._from_cache(rows, traffic)}
        if dtype is None:
            self.gather_bytes(as_bytes(rows), index, as_bytes(out), len(index), **reading)
        else:
            self._decode(rows, scale, index, out, reading)
        return out

    def _from_cache(self, table: Tensor, traffic: Traffic | None) -> Reading:
        """Return what kernels need beside a table of which rows are cached; {} without a cache."""
        cache = self._caches.of(table, self.gather_bytes)
        if cache is None:
            return {}
        self.streams.record_stream((cache.slots, cache.held))
        row = Traffic()
        self._note_reads(table, 1, row)
        found = {} if traffic is None else traffic.found
        counter = found.get((row.requests, row.num_bytes))
        if counter is None:
            counter = device_memory.upload(torch.zeros(1, dtype=torch.int64), self.device)
            found[row.requests, row.num_bytes] = counter
        self.streams.record_stream((counter,))
        return {"slots": cache.slots, "held": cache.held, "found": counter}

    def _decode(
        self,
        table: Tensor,
        scale: Tensor | None,
        index: Tensor,
        out: Tensor,
        reading: Reading,
    ) -> None:
        """Fill `out` [n, ...] with rows that are decoded by the kernel that reads them."""
        stored = NUMBER_KINDS[table.dtype]
        if scale is None:
            scale = torch.empty(0, device=self.device)
        elif scale.dim() == 2:
            stored = decode.INT8_BY_ROW
        else:  # every row needs all of them
            scale = device_memory.upload(scale, self.device)
        row_bytes = table.nbytes // len(table)
        word = math.gcd(16, table.data_ptr(), row_bytes)
        blocks, cut = self._cut(table, row_bytes, word, len(index))
        self._kernel("decode.cu", "gather_decoded", word, reading)(
            blocks, table=as_bytes(table), scale=scale.view(-1).view(torch.int32), stored=stored,
            wanted=NUMBER_KINDS[out.dtype], out=as_bytes(out), **cut,
            **_picked(index, len(table), reading),
        )  # fmt: skip

    def _note_reads(self, table: Tensor, rows: int, traffic: Traffic) -> None:
        """Add the requests and bytes that gathering rows of a table in host memory takes.

        The kernel reads each line that a row touches once, which the counts of
        ``python -m benchmarks requests`` show.
        """
        if table.device == self.device or table.numel() == 0:
            return
        row_bytes, address = table.nbytes // len(table), table.data_ptr()
        sectors = blocks_of_row(row_bytes, SECTOR_BYTES, address)
        traffic.requests += rows * blocks_of_row(row_bytes, LINE_BYTES, address)
        traffic.num_bytes += rows * sectors * SECTOR_BYTES

    def reduce(
        self,
        csc: Csc,
        relation: int,
        table: Tensor,
        kind: str,
        nodes: tuple[int, int],
        weight: Tensor | None = None,
    ) -> Tensor | None:
        """Return None: there is no kernel for it; rows are gathered and reduced by PyG's layers."""
        return None

    def gather_bytes(
        self, table: Tensor, index: Tensor, out: Tensor, rows: int, **reading: Tensor
    ) -> None:
        """Fill `out` [rows * row_bytes] from `table` [N * row_bytes], both uint8.

        `reading`: `place` and `wrong` of the struct `Picked`, where they are wanted, and the arrays
        of `gather_cached_rows` that `gather_rows` has not.
        """
        row_bytes = len(out) // rows
        word = math.gcd(16, table.data_ptr(), out.data_ptr(), row_bytes)
        blocks, cut = self._cut(table, row_bytes, word, rows)
        kernel = self._kernel("gather.cu", "gather_rows", word, reading)
        picked = _picked(index, len(table) // row_bytes, reading)
        kernel(blocks, table=table, out=out, **cut, **picked)

    def _kernel(self, file: str, name: str, word: int, reading: Reading) -> Kernel:
        """Return a kernel for words of so many bytes, or its twin that reads a cache."""
        if "held" in reading:
            file, name = "cached.cu", name.replace("gather_", "gather_cached_")
        placed = "true" if "place" in reading else "false"
        return self.library.load(file, V=WORDS[word], kPlaced=placed)[name]

    def _cut(
        self, table: Tensor, row_bytes: int, word: int, rows: int
    ) -> tuple[int, dict[str, int]]:
        """Return how many blocks read so many rows, and how rows are cut: RowShape of rows.cuh."""
        lanes, pieces, mask = row_shape(table.data_ptr(), row_bytes, word)
        block, compiler = self.block_threads, self.library.compiler
        most = compiler.processors * MAX_THREADS_PER_PROCESSOR // block
        if table.device != self.device:
            most = self.gather_blocks or blocks_to_fill_link(
                row_bytes // pieces,
                block // lanes,
                compiler.link_bytes_under_way or tuning.LINK_BYTES_UNDER_WAY,
            )
        groups = -(-rows * pieces // LOADS_IN_FLIGHT)
        blocks = max(1, min(-(-groups * lanes // block), most))
        cut = {"row_bytes": row_bytes, "lanes": lanes, "line_mask": mask, "pieces": pieces}
        return blocks, cut

    @property
    def block_threads(self) -> int:
        """Threads of every block that is launched."""
        return self.library.compiler.block_threads


def _check_ids(index: Tensor, end: int | None, tables: Sequence[Table]) -> None:
    """Raise an IndexError unless all ids are rows of all tables. Without `end` it waits."""
    if len(index) > 0:
        low, high = (0, end - 1) if end is not None else map(int, torch.aminmax(index))
        for rows, _, _ in tables:
            if low < 0 or high >= len(rows):
                raise row_out_of_range(low if low < 0 else high, len(rows))


def _picked(index: Tensor, num_rows: int, reading: Reading) -> dict[str, Tensor | int]:
    """Return the arguments of a kernel of the struct `Picked` in rows.cuh, and those given."""
    none = index[:0]
    return {
        "index": index, "rows": len(index), "place": none, "wrong": none,
        "end": num_rows if "wrong" in reading else ANY_ID, **reading,
    }  # fmt: skip


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as uint8 [bytes]."""
    return tensor.detach().view(-1).view(torch.uint8)


def row_shape(address: int, row_bytes: int, word: int) -> tuple[int, int, int]:
    """Return how rows are cut for `gather_rows`: lanes of a row, pieces of a row, line mask.

    Args:
        address: of the table.
        row_bytes: bytes of a row.
        word: bytes that a lane moves at once; divides the address and the row.

    Example: rows of 400 bytes in words of 16 go to 32 lanes in one piece, as 400 bytes after the
    longest phase of 112 are 512. Words of 1 and 2 bytes, for rows of such lengths, cover a part of
    a line with 32 lanes, which is then asked for again.
    """
    if row_bytes <= LINE_BYTES:
        lanes = min(32, 1 << max(0, (row_bytes // word - 1).bit_length()))
        return lanes, -(-row_bytes // (lanes * word)), 0
    # Row i begins at address + i * row_bytes, so phases are equal modulo `step`.
    step = math.gcd(row_bytes, LINE_BYTES)
    reach = row_bytes + LINE_BYTES - step + address % step
    lanes = min(32, max(LINE_BYTES // word, 1 << (-(-reach // word) - 1).bit_length()))
    return lanes, -(-reach // (lanes * word)), LINE_BYTES - 1


def blocks_to_fill_link(piece_bytes: int, groups: int, bytes_under_way: int) -> int:
    """Return how many blocks of `gather_rows` keep the link to host memory busy.

    By Little's law, bytes under way = rate * latency. A group of lanes has LOADS_IN_FLIGHT pieces
    of rows under way for one part in GATHER_DUTY of its time.

    Args:
        piece_bytes: of a row that a group of lanes reads at once, without the lanes that fall
            before or after it. Fewer than a sector of 32 bytes cost a sector.
        groups: groups of lanes in a block.
        bytes_under_way: that fill the link.

    Example: rows of 400 bytes on 32 lanes, 8 groups a block: 4 * 400 * 8 bytes for a third of the
    time are 4.3 KB, so 102 KB take 24 blocks.
    """
    of_block = groups * LOADS_IN_FLIGHT * max(piece_bytes, SECTOR_BYTES)
    return -(-bytes_under_way * tuning.GATHER_DUTY // of_block)
