"""Rows of tables that other ranks own: asked for by the ranks whose batches need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ops.buffers import new_array, shared_pool
from ..ops.host.parts import RowNumbers, gather_of_parts
from ..ranks.channel import ALIGNMENT, Bytes, Channel, Message, as_bytes, packed

Ints = npt.NDArray[Any]

AskedRows = Sequence[Sequence[Ints]]
"""The rows that a rank asks another for: by part of the other rank and node type."""
Blocks = Sequence[Sequence[Sequence[Bytes]]]
"""Rows of bytes [n, bytes], by part, node type and attribute."""


class RowLayout(NamedTuple):
    """What the rows of an attribute are."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # of one row

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def new(self, count: int) -> tuple[Tensor, Bytes]:
        """Return a new tensor of so many rows, and its bytes."""
        tensor = shared_pool().empty((count, *self.shape), self.dtype)
        return tensor, as_bytes(tensor)


class RowTraffic:
    """How many rows and frontier nodes batches needed, and how many of them other ranks gave."""

    def __init__(self) -> None:
        self.rows = self.remote_rows = self.fetched_rows = self.loaded_rows = self.rows_alone = 0
        self.requests = self.remote_requests = 0


class Ownership(NamedTuple):
    """Which part owns each node, and which rank holds each part."""

    parts_of: Sequence[Sequence[int]]  # of each rank
    part: Sequence[Ints]  # T x [N_t]
    row: Sequence[Ints]  # T x [N_t]: which row of its part each node is

    @classmethod
    def by_rank(cls, owners: Sequence[Ints], size: int) -> Ownership:
        """Return that of whole tables, of which each of some ranks owns rows.

        Args:
            owners: T x [N_t], the rank that owns each node.
            size: number of ranks.
        """
        dtype = np.int32 if max(map(len, owners)) < 1 << 31 else np.int64
        rows = [np.arange(len(owner), dtype=dtype) for owner in owners]
        return cls([[rank] for rank in range(size)], owners, rows)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return sum(map(len, self.parts_of))


class RowHolder(Protocol):
    """Has the rows of the parts of this rank."""

    def tables(self) -> Sequence[Sequence[Sequence[Bytes]]] | None:
        """Return the tables of each own part, by type and attribute; None to be asked instead."""

    def answer(self, asked: Sequence[AskedRows]) -> Sequence[Blocks]:
        """Return the rows that each rank asks for; this one asks, too, where `tables` is None."""

    def reading(self, t: int, owner: Ints, rows: Ints) -> AbstractContextManager[Any]:
        """Return a context in which rows of a type are copied from `tables`.

        Args:
            t: the type.
            owner: int16 [n], the part of each row.
            rows: [n], where they are in the table of their part.
        """


class RowFetcher:
    """Fetches the rows of nodes for some batches from the ranks that own them. Collective.

    Args:
        channel: to the other ranks.
        owners: of the nodes.
        formats: T x the attributes of each type by name; a type without any is left out.
        holder: of this rank's rows.
        traffic: counts.
    """

    def __init__(
        self,
        channel: Channel,
        owners: Ownership,
        formats: Sequence[Mapping[str, RowLayout]],
        holder: RowHolder,
        traffic: RowTraffic,
    ) -> None:
        self._channel, self._owners, self._formats = channel, owners, formats
        self._holder, self.traffic = holder, traffic
        self._row_dtype = np.result_type(*(row.dtype for row in owners.row))
        here = np.zeros(owners.num_parts, np.bool_)
        if holder.tables() is not None:
            here[owners.parts_of[channel.rank]] = True
        self._numbers = [
            RowNumbers(len(part) if rows else 0, row, here)
            for part, row, rows in zip(owners.part, owners.row, formats, strict=True)
        ]

    def fetch(self, nodes: Sequence[Sequence[Ints | None]]) -> list[list[dict[str, Tensor]]]:
        """Return the rows of the nodes of some batches; each that is elsewhere comes once.

        Args:
            nodes: by batch and type their ids; None for none.

        Returns:
            By batch and type the rows [n, ...] of each attribute.

        Raises:
            OtherRankError: another rank could not read what it was asked for.
        """
        me, parts_of = self._channel.rank, self._owners.parts_of
        owners, refs, wanted = self._number(nodes)
        by_rank, asked = self._ask(wanted)
        answers = list(self._holder.answer(asked))
        replies = [packed(_flat(answer)) if r != me else [] for r, answer in enumerate(answers)]
        coming = [self._reply_bytes(rows) if r != me else 0 for r, rows in enumerate(by_rank)]
        found = self._channel.send(replies, coming)
        tables_here = self._holder.tables()
        tables: dict[int, Any] = dict(
            zip(parts_of[me], answers[me] if tables_here is None else tables_here, strict=True)
        )
        for r, parts in enumerate(parts_of):
            if r != me:
                tables.update(zip(parts, self._read_reply(found[r], by_rank[r]), strict=True))
        return [
            [
                self._put_together(t, owners[t][b], refs[t][b], tables)
                for t in range(len(self._formats))
            ]
            for b in range(len(nodes))
        ]

    def count(self, nodes: Sequence[Sequence[Ints | None]]) -> int:
        """Ask for the rows of the nodes of some batches, as `fetch` does. Collective.

        Returns:
            The bytes of the answers that this rank would send, but does not.
        """
        _, asked = self._ask(self._number(nodes)[2])
        me = self._channel.rank
        return sum(self._reply_bytes(rows) for r, rows in enumerate(asked) if r != me)

    def _ask(self, wanted: list[list[Ints]]) -> tuple[list[AskedRows], list[AskedRows]]:
        """Return what this rank asks each other one for, and what each asks it for."""
        me = self._channel.rank
        by_rank: list[AskedRows] = [
            [[of_type[p] for of_type in wanted] for p in parts] for parts in self._owners.parts_of
        ]
        came = self._channel.exchange(
            [self._request(rows) if r != me else [] for r, rows in enumerate(by_rank)]
        )
        asked: list[AskedRows] = [
            self._read_request(message) if r != me else by_rank[me]
            for r, message in enumerate(came)
        ]
        return by_rank, asked

    def _number(self, nodes: Sequence[Sequence[Ints | None]]) -> tuple[Any, Any, list[list[Ints]]]:
        """Return by type and batch the owners and references; by type and part the rows wanted."""
        none: Ints = np.empty(0, np.int64)
        owners, refs, wanted = list[list[Ints]](), list[list[Ints]](), list[list[Ints]]()
        for t, numbers in enumerate(self._numbers):
            of_type = [
                none if ids is None or not self._formats[t] else ids
                for ids in (of_batch[t] for of_batch in nodes)
            ]
            owners.append([self._owners.part[t][ids] for ids in of_type])
            found, rows, _ = numbers.of_window(list(zip(of_type, owners[t], strict=True)))
            refs.append(found)
            wanted.append(rows)
            self._count(owners[t], rows)
        return owners, refs, wanted

    def _count(self, owners: Sequence[Ints], wanted: Sequence[Ints]) -> None:
        mine = self._owners.parts_of[self._channel.rank]
        total = sum(map(len, owners))
        by_part = [np.bincount(owner, minlength=self._owners.num_parts) for owner in owners]
        own = sum(int(counts[list(mine)].sum()) for counts in by_part)
        self.traffic.rows += total
        self.traffic.remote_rows += total - own
        self.traffic.fetched_rows += sum(
            len(rows) for p, rows in enumerate(wanted) if p not in mine
        )
        if self._holder.tables() is not None:
            self.traffic.loaded_rows += own

    def _request(self, wanted: AskedRows) -> list[Bytes]:
        """Return the message that asks a rank for rows: their numbers, then themselves."""
        flat = [rows for by_type in wanted for rows in by_type]
        sizes = np.array([len(rows) for rows in flat], np.int64)
        return packed([sizes, np.concatenate([np.empty(0, self._row_dtype), *flat])])

    def _read_request(self, message: Message) -> list[list[Ints]]:
        parts, types = len(self._owners.parts_of[self._channel.rank]), len(self._formats)
        sizes = message.take(np.int64, parts * types)
        rows = np.split(message.take(self._row_dtype, int(sizes.sum())), np.cumsum(sizes)[:-1])
        return [rows[i * types : (i + 1) * types] for i in range(parts)]

    def _shapes(self, asked: AskedRows) -> list[list[list[tuple[int, int]]]]:
        """Return the shapes of the blocks that a rank asks for."""
        return [
            [
                [(len(rows), rows_of.num_bytes) for rows_of in formats.values()]
                for rows, formats in zip(by_type, self._formats, strict=True)
            ]
            for by_type in asked
        ]

    def _reply_bytes(self, asked: AskedRows) -> int:
        """Return how many bytes the answer to a request has."""
        sizes: list[int] = [rows * width for rows, width in _flat(self._shapes(asked))]
        return sum(size + -size % ALIGNMENT for size in sizes)

    def _read_reply(self, message: Message, asked: AskedRows) -> Blocks:
        return [
            [
                [
                    message.take(np.uint8, rows * width).reshape(rows, width)
                    for rows, width in shapes
                ]
                for shapes in by_type
            ]
            for by_type in self._shapes(asked)
        ]

    def _put_together(
        self, t: int, owner: Ints, ref: Ints, tables: Mapping[int, Any]
    ) -> dict[str, Tensor]:
        """Return the rows of the nodes of one batch and type."""
        made = {}
        with self._holder.reading(t, owner, ref):
            for i, (name, rows) in enumerate(self._formats[t].items()):
                made[name], out = rows.new(len(owner))
                of_parts = [tables[p][t][i] for p in range(self._owners.num_parts)]
                gather_of_parts(of_parts, owner, ref, out)
        return made


def rows_of_blocks(tables: Sequence[Bytes], rows: Ints) -> list[Bytes]:
    """Return some rows of each table, uint8 [n, bytes].

    Raises:
        IndexError: a table has no such row.
    """
    found = []
    for table in tables:
        found.append(new_array((len(rows), table.shape[1]), torch.uint8))
        gather_of_parts([table], np.zeros(len(rows), np.int16), rows, found[-1])
    return found


def _flat(blocks: Any) -> list[Any]:
    """Return what lists of parts, of types and of attributes hold."""
    return [block for by_type in blocks for of_type in by_type for block in of_type]
