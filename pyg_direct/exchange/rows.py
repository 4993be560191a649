"""Rows of tables that other ranks own: asked for by the ranks whose batches need them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ops.host.parts import RowNumbers, rows_of_parts
from ..ranks.channel import Channel, Kind, Layout

Ints = npt.NDArray[Any]

AskedRows = Sequence[Sequence[Ints]]
"""The rows that a rank asks another for: by part of the other rank and node type."""
Blocks = Sequence[Sequence[Sequence[Tensor]]]
"""Rows [n, ...], by part, node type and attribute."""


class RowLayout(NamedTuple):
    """What the rows of an attribute are."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # of one row

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def kind(self, count: int) -> Kind:
        """Return of which kind a tensor of so many rows is."""
        return self.dtype, (count, *self.shape)


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

    def tables(self) -> Blocks | None:
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
            ExchangeError: another rank has failed, for example to read what it was asked for.
        """
        me, parts_of = self._channel.rank, self._owners.parts_of
        owners, refs, wanted = self._number(nodes)
        by_rank, asked = self._ask(wanted)
        answers = self._holder.answer(asked)
        came = self._channel.send(
            [_flat(_flat(answer)) for answer in answers], [*map(self._kinds, by_rank)]
        )
        tables_here = self._holder.tables()
        tables: dict[int, Any] = {}
        for r, parts in enumerate(parts_of):
            rows = iter(came[r])
            read = [[[next(rows) for _ in of_type] for of_type in self._formats] for _ in parts]
            tables.update(zip(parts, read, strict=True))
        if tables_here is not None:
            tables.update(zip(parts_of[me], tables_here, strict=True))
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
        return sum(Layout(self._kinds(rows)).num_bytes for r, rows in enumerate(asked) if r != me)

    def _ask(self, wanted: list[list[Ints]]) -> tuple[list[AskedRows], list[AskedRows]]:
        """Return what this rank asks each other one for, and what each asks it for."""
        by_rank: list[AskedRows] = [
            [[of_type[p] for of_type in wanted] for p in parts] for parts in self._owners.parts_of
        ]
        messages = []  # the numbers of rows by part and type, and the rows
        for by_part in by_rank:
            flat = _flat(by_part)
            rows = np.concatenate([np.empty(0, self._row_dtype), *flat])
            messages.append([torch.tensor([*map(len, flat)]).long(), torch.from_numpy(rows)])
        return by_rank, [self._asked(*came) for came in self._channel.exchange(messages)]

    def _asked(self, sizes: Tensor, rows: Tensor) -> AskedRows:
        """Return what a rank asks for, by part and type, as its message says."""
        each = iter(torch.split(rows, sizes.tolist()))
        parts = self._owners.parts_of[self._channel.rank]
        return [[next(each).numpy() for _ in self._formats] for _ in parts]

    def _kinds(self, asked: AskedRows) -> list[Kind]:
        """Return the kinds of the rows in the answer to a request."""
        return [
            layout.kind(len(rows))
            for by_type in asked
            for rows, formats in zip(by_type, self._formats, strict=True)
            for layout in formats.values()
        ]

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

    def _put_together(
        self, t: int, owner: Ints, ref: Ints, tables: Mapping[int, Any]
    ) -> dict[str, Tensor]:
        """Return the rows of the nodes of one batch and type."""
        made = {}
        with self._holder.reading(t, owner, ref):
            for i, name in enumerate(self._formats[t]):
                of_parts = [tables[p][t][i] for p in range(self._owners.num_parts)]
                made[name] = rows_of_parts(of_parts, owner, ref)
        return made


def _flat(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return [*chain.from_iterable(lists)]
