"""Compute tables by blocks of rows, into memory or into files with checksums of their inputs."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from ...core.journal import Journal, sync_directory, sync_file
from ...core.lazy_tensor import RowTensor
from ...core.quantized import new_table, open_table
from ...core.units import size_text
from ...ops.backend import Backend
from ...ranks.together import Together
from ..lazy.lists import MessageOrder, Orders
from ..lazy.modes import AsCalled
from ..lazy.operations import Gather, Narrow, Operation, Pick
from ..lazy.values import ONE_REFERENCE, Fill, Leaf, Value, boxes_of, references
from .blocks import (
    BlockScatter,
    RowSelection,
    called_otherwise,
    fused_values,
    has_several,
    row_bytes,
    scatters_of,
)

BLOCK_BYTES = 8 << 20  # that one thread computes at a time, unless the budget is small
MIN_BLOCK_BYTES = 1 << 18
RUN_BYTES = 44 << 20  # what threads, the allocator and what it cannot give back hold beside blocks
TEMPORARIES = 3  # a block takes so many times the bytes of its rows
MANY_BYTES = 1 << 20  # a plain tensor that is counted


class Budget:
    """Memory of a run, in bytes.

    Args:
        limit: that may be taken; None for any.
        fixed: that is taken in any case, by blocks and threads.

    Raises:
        ValueError: a limit below `fixed`.
    """

    def __init__(self, limit: int | None, fixed: int) -> None:
        self.limit, self.held = limit, fixed
        self.check(0, "the blocks of the threads")

    def count(self, tensor: Tensor, what: str) -> None:
        """Count a tensor as long as its memory is in use.

        Raises:
            ValueError: the limit is exceeded.
        """
        size = tensor.untyped_storage().nbytes()
        self.check(size, what)
        self.held += size
        weakref.finalize(tensor.untyped_storage(), self._give_back, size)

    def fits(self, size: int) -> bool:
        """Whether so many bytes can be taken."""
        return self.limit is None or self.held + size <= self.limit

    def check(self, size: int, what: str) -> None:
        """Raise ValueError if so many bytes more exceed the limit."""
        if not self.fits(size):
            raise ValueError(
                f"memory_bytes={self.limit} is too small for {what} ({size_text(size)} beside "
                f"{size_text(self.held)} in use). Layers are stored in files already: pass a "
                f"larger memory_bytes=, or a smaller num_workers=."
            )

    def _give_back(self, size: int) -> None:
        self.held -= size


class Limits(NamedTuple):
    """Resource limits of a run."""

    num_workers: int  # threads that compute blocks at a time
    memory_bytes: int | None = None  # for all; None for any
    dtype: torch.dtype | None = None  # of floating-point tables that rows are taken from


class Executor:
    """Computes tables.

    Args:
        backend: where.
        limits: what the run may take.
        folder: where the files of a run go that can be resumed, of a run of several ranks, and
            results; None for none of them.
        resume: name files by what they hold, and take those of an earlier run.
        advance: told how many rows were computed.
        ranks: that compute the run together, each its blocks of rows; None for this process alone.
    """

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        folder: Path | None = None,
        resume: bool = False,
        advance: Callable[[int], None] | None = None,
        ranks: Together | None = None,
    ) -> None:
        self.backend, self.folder, self.resume = backend, folder, resume
        threads, memory_bytes, self._narrow = limits
        self._threads, self._advance, self._files = threads, advance, 0
        self.block_bytes = BLOCK_BYTES
        if memory_bytes is not None:
            share = memory_bytes // (8 * TEMPORARIES * threads)
            self.block_bytes = max(MIN_BLOCK_BYTES, min(BLOCK_BYTES, share))
        fixed = RUN_BYTES + threads * TEMPORARIES * self.block_bytes
        self.budget = Budget(memory_bytes, fixed)
        self.ranks = ranks or Together(False, backend.device)
        self.journal: Journal | None = None  # of a run that can be resumed, on the first rank
        self.orders = Orders(partial(self.budget.count, what="the order of the edges"))
        self._temporary: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self.paths: dict[int, Path] = {}  # of tables in files, by address

    def close(self) -> None:
        """End the threads, and remove the temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._threads = 1  # for tables that the model keeps, which may be read later

    # --- memory and files of tables ---

    def _new(self, shape: Any, dtype: torch.dtype, path: Path | None) -> Tensor:
        size = torch.empty(shape, dtype=dtype, device="meta").nbytes
        if path is None and self.budget.fits(size):
            table = torch.empty(shape, dtype=dtype)
            self.budget.count(table, "a layer")
            return table
        if path is not None:
            return new_table(tuple(shape), dtype, path)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="pyg_direct-")
        self._files += 1
        path = Path(self._temporary.name) / f"{self._files}.npy"
        table = new_table(tuple(shape), dtype, path)
        path.unlink()  # its pages go with the last tensor
        return table

    # --- computing ---

    def complete(self, target: Value, narrow: bool = False, path: Path | None = None) -> Tensor:
        """Compute all rows of a node, and of what else is costly on the way and needed again.

        Args:
            target: the node.
            narrow: keep it in the narrow dtype.
            path: where it goes to; None to let the budget decide.
        """
        held = target.box()  # which goes with the last who needs it
        if target.table is not None:
            return target.table
        if self.resume:
            path, is_done = self.ranks.from_first(
                f"the name of {_title(target)}", lambda: self._known(target)
            )
            table = _finished(path, target) if is_done else None
            if all(self.ranks.exchange(f"opening {_title(target)}", table is not None)):
                assert table is not None
                target.settle(table)
                self.paths[table.data_ptr()] = path
                return table
        self._prepare(target)
        nodes = fused_values(target)
        wanted = self._wanted(nodes)
        rows = self._new_rows(wanted, narrow, path)
        self._compute(list(zip(wanted, rows, strict=True)), nodes)
        for node, part in zip(wanted, rows, strict=True):
            if self.resume and self.ranks.rank == 0:
                key_of(node)  # as long as it knows what it was computed from
            node.settle(part.table())
        found: Tensor = held.data
        if path is not None:
            self.paths[found.data_ptr()] = path
        if self.journal is not None and path is not None:
            sync_file(path)
            sync_directory(path.parent)
            self.journal.record(path.stem, True)
        return found

    def _known(self, target: Value) -> tuple[Path, bool]:
        """Return the file of a table of a run that can be resumed, and whether it is complete."""
        assert self.folder is not None
        assert self.journal is not None
        path = self.folder / f"{key_of(target)}-{self._narrow}.npy"
        return path, self.journal.get(path.stem) is not None

    def _wanted(self, nodes: list[Value]) -> list[Value]:
        """Return the nodes of a cone that are kept: its target, and what is needed again."""
        found = self.ranks.from_first(
            f"the rows of {_title(nodes[0])}", lambda: [0, *_asked_again(nodes)]
        )
        return [nodes[i] for i in found]

    def _new_rows(self, wanted: list[Value], narrow: bool, path: Path | None) -> list[Rows]:
        """Return where rows go, of which only the first node's go to `path`."""
        tables: list[tuple[Any, torch.dtype, Path | None]] = []
        for place, node in enumerate(wanted):
            dtype = node.dtype
            if self._narrow is not None and dtype.is_floating_point and (narrow or place > 0):
                dtype = self._narrow
            tables.append((node.shape, dtype, path if place == 0 else None))
        if self.ranks.size > 1 and all(node.dim == 0 for node in wanted):
            paths = self.ranks.from_first("files of layers", lambda: self._new_files(tables))
            return [SharedRows(p, dtype) for p, (_, dtype, _) in zip(paths, tables, strict=True)]
        first = self.ranks.rank == 0
        return [
            OwnRows(self._new(shape, dtype, p if first else None), node.dim)
            for node, (shape, dtype, p) in zip(wanted, tables, strict=True)
        ]

    def _new_files(self, tables: list[tuple[Any, torch.dtype, Path | None]]) -> list[Path]:
        """Make the files of tables that several ranks compute."""
        assert self.folder is not None
        paths = []
        for shape, dtype, path in tables:
            self._files += 1
            paths.append(path or self.folder / f"{self._files}.npy")
            new_table(tuple(shape), dtype, paths[-1])
        return paths

    def blocks_of(self, node: Value) -> Iterator[Tensor]:
        """Yield the rows of a node, block by block."""
        self._prepare(node)
        nodes = fused_values(node)
        for first, last in self._blocks(nodes, node.num_rows):
            with AsCalled() as called:
                called.take(node.modes)
                block = RowSelection(self.backend, first, last).read(node)
            yield block

    def _prepare(self, target: Value) -> None:
        """Compute what must be there before a node is computed by blocks."""
        for node in called_otherwise(target):
            self.complete(node)
        by_run, by_list = scatters_of(target)
        while by_list:
            self.complete(by_list[0])
            by_run, by_list = scatters_of(target)
        for scatter in by_run:
            scatter.prepare()

    def _compute(self, wanted: list[tuple[Value, Rows]], nodes: list[Value]) -> None:
        """Compute tables by blocks of rows; of shared ones, this rank's."""
        modes = wanted[0][0].modes

        def block(bounds: tuple[int, int]) -> int:
            first, last = bounds
            rows = RowSelection(self.backend, first, last)
            with AsCalled() as called:  # some modes are those of a thread
                called.take(modes)
                for node, table in wanted:
                    table.write(first, rows.read(node))
            return last - first

        blocks = list(self._blocks(nodes, wanted[0][0].num_rows))
        shared = isinstance(wanted[0][1], SharedRows)
        if shared:
            blocks = blocks[self.ranks.rank :: self.ranks.size]
        in_threads = self._threads > 1 and len(blocks) > 1
        if in_threads and self._pool is None:
            self._pool = ThreadPoolExecutor(
                self._threads, "pyg_direct-inference", torch.set_num_threads, (1,)
            )
        with AsCalled() as called:
            called.take(modes)
            done: Any = self._pool.map if in_threads and self._pool is not None else map
            for count in done(block, blocks):
                if self._advance is not None:
                    self._advance(count)
        if shared:
            self.ranks.exchange(f"the end of {_title(wanted[0][0])}")

    def _blocks(self, nodes: list[Value], num_rows: int) -> Iterator[tuple[int, int]]:
        """Yield runs of rows for which about `block_bytes` are computed."""
        each = sum(row_bytes(n) for n in nodes) + 1
        total = torch.arange(num_rows + 1, dtype=torch.int64) * each
        messages: dict[MessageOrder, set[Value]] = {}
        for node in nodes:
            if isinstance(node, BlockScatter):
                messages.setdefault(node.order, set()).update(node.by_message())
        for order, own in messages.items():
            total += order.indptr * (sum(row_bytes(n) for n in own) or 16)
        bounds, first = total.numpy(), 0
        while first < num_rows:
            end = np.searchsorted(bounds, bounds[first] + self.block_bytes, side="right")
            last = min(num_rows, max(first + 1, int(end) - 1))
            yield first, last
            first = last


def _asked_again(nodes: list[Value]) -> list[int]:
    """Return which of some values, but the first, are costly, and needed by others or the user."""
    inside = Counter(id(box) for node in nodes for box in node.boxes or ())
    boxes, found = boxes_of(nodes), []
    for place, node in enumerate(nodes):
        held = references(boxes, place) - ONE_REFERENCE
        again = held > inside[id(boxes[place])] and not has_several(node)
        if place > 0 and again and any(map(_is_costly, fused_values(node))):
            found.append(place)
    return found


COSTLY = {"mm", "addmm", "bmm", "baddbmm", "convolution", "mkldnn_rnn_layer", "_trilinear"}


def _is_costly(value: Value) -> bool:
    """Whether a value is not to be computed twice."""
    if isinstance(value, Operation):
        return value.plan.known.name in COSTLY
    return isinstance(value, BlockScatter)


def _finished(path: Path, target: Value) -> Tensor | None:
    """Return the table of an earlier run, if it is still there as it was written."""
    try:
        table = open_table(path, target.dtype)
    except (OSError, EOFError, ValueError, RuntimeError):
        return None
    return table if table.shape == target.shape else None


def _title(value: Value) -> str:
    """Return what is said of a value to other ranks."""
    func = value.plan.known.func if isinstance(value, Operation) else ""
    return f"{type(value).__name__} {func} {tuple(value.shape)} {value.dtype}"


def key_of(value: Value) -> str:
    """Return a name for what a value holds: the operations, and checksums of what they read."""
    ahead = [value]
    while ahead:  # without recursion, as models are deep
        one = ahead[-1]
        missing = [v for v in one.inputs if not hasattr(v, "key")]
        if missing and not hasattr(one, "key"):
            ahead += missing
            continue
        ahead.pop()
        if not hasattr(one, "key"):
            parts = [type(one).__name__, one.dim, tuple(one.shape), one.dtype]
            parts += [*map(_text, _described(one)), *(v.key for v in one.inputs)]
            one.key = hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:32]
    return value.key


def _described(value: Value) -> list[Any]:
    """Return what a value depends on, beside the inputs: text and tensors."""
    if isinstance(value, Operation):
        return [str(value.plan.known.func), value.args, sorted(value.kwargs.items())]
    if isinstance(value, BlockScatter):
        return [value.reduce, value.include, value.order.index]
    if isinstance(value, Gather):
        return [value.index]
    if isinstance(value, Narrow):
        return [value.start, value.step]
    if isinstance(value, Pick):
        return [value.place]
    return [value.tensor if isinstance(value, Leaf) else cast(Fill, value).value]


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(checksum_of({"": value}))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


class OwnRows:
    """A table of which this process computes all rows.

    Args:
        table: all rows, not computed yet.
        dim: of the rows.
    """

    def __init__(self, table: Tensor, dim: int) -> None:
        self._table, self._dim = table, dim

    def write(self, first: int, rows: Tensor) -> None:
        """Write a run of rows."""
        self._table.narrow(self._dim, first, rows.size(self._dim)).copy_(rows)

    def table(self) -> Tensor:
        """Return the table."""
        return self._table


class SharedRows:
    """A table in a file, of which each rank computes some rows.

    They are written to the file, not through a map of it: on network file systems, two machines
    that change parts of one page of a map lose what one of them wrote. The table is mapped once all
    ranks have written.

    Args:
        path: of a file that `core.quantized.new_table` has made.
        dtype: of the table.
    """

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        array = np.load(path, mmap_mode="r")
        self.path, self._dtype = path, dtype
        self._begin: int = array.offset
        self._row_bytes = array.nbytes // max(1, len(array))

    def write(self, first: int, rows: Tensor) -> None:
        """Write a run of rows. Several threads may do so at a time."""
        if rows.numel() == 0:
            return
        stored = rows.to("cpu", self._dtype).contiguous()
        stored = stored.as_strided((stored.numel(),), (1,)).view(torch.uint8)  # one row: any stride
        with open(self.path, "r+b") as file:
            file.seek(self._begin + first * self._row_bytes)
            file.write(stored.numpy().data)

    def table(self) -> Tensor:
        """Return the table, once all ranks have written their rows."""
        return open_table(self.path, self._dtype)


Rows: TypeAlias = OwnRows | SharedRows


STEP_BYTES = 1 << 24  # of a tensor that are summed up at a time


def checksum_of(values: Mapping[str, Any]) -> int:
    """Return the CRC-32 of tensors, arrays, and the text of all else, with their names.

    It finds changes made by mistake, in about a second for a gigabyte, but does not protect against
    changes made on purpose.
    """
    found = 0
    for name in sorted(values):
        value = values[name]
        found = zlib.crc32(name.encode(), found)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if isinstance(value, RowTensor):
            found = zlib.crc32(str(checksum_of(value.stored_parts())).encode(), found)
            continue
        if not isinstance(value, Tensor):
            found = zlib.crc32(repr(value).encode(), found)
            continue
        found = zlib.crc32(f"{tuple(value.shape)} {value.dtype}".encode(), found)
        for piece in pieces_of(value.detach()):
            found = zlib.crc32(piece, found)
    return found


def pieces_of(value: Tensor) -> Iterator[Any]:
    """Yield the bytes of a tensor in the order of its elements, at most `STEP_BYTES` at a time.

    A tensor that is not contiguous is copied piece by piece, as there may be no room for all of it.
    """
    if value.is_contiguous():
        flat = value.view(-1)
        flat = flat.view(torch.uint8) if flat.numel() > 0 else flat
        for first in range(0, len(flat), STEP_BYTES):
            yield flat[first : first + STEP_BYTES].cpu().numpy()
        return
    rows = STEP_BYTES // (value[0].numel() * value.element_size())
    for part in torch.split(value, rows) if rows > 0 else value.unbind():
        yield from pieces_of(part.contiguous() if rows > 0 else part)
