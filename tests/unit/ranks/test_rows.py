"""Rows that ranks fetch from each other: values and counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pyg_direct.exchange.part import as_bytes
from pyg_direct.exchange.rows import (
    Ownership,
    RowFetcher,
    RowLayout,
    RowTraffic,
)
from pyg_direct.ranks.channel import Channel
from pyg_direct.ranks.threads import on_threads

# The first type has two attributes, whose rows are no multiple of 8 bytes; the second has none.
TABLES = {"x": torch.arange(21.0).view(7, 3), "tag": torch.arange(28).view(7, 2, 2).to(torch.uint8)}
FORMATS: list[dict[str, RowLayout]] = [
    {name: RowLayout(table.dtype, tuple(table.shape[1:])) for name, table in TABLES.items()}, {},
]  # fmt: skip
# Four parts of two ranks: rank 0 holds the parts 0 and 2, which is not their order in memory.
PART = np.array([0, 3, 1, 0, 2, 2, 3], np.int16)
ROW = np.array([0, 0, 0, 1, 0, 1, 1], np.int32)  # in its part
OWNERS = Ownership([[0, 2], [1, 3]], [PART, np.zeros(3, np.int16)], [ROW, np.arange(3)])
BATCHES = [
    [[np.array([6, 0, 5, 6]), np.array([1])], [np.array([0, 1]), None]],
    [[np.array([5]), np.array([0, 2])], [np.array([1, 2, 5, 3]), None]],
]


class Holder:
    """Has the rows of one rank, to be copied from its tables or to be asked for."""

    def __init__(self, rank: int, asks: bool) -> None:
        self.asks = asks
        rows = [np.flatnonzero(part == PART) for part in OWNERS.parts_of[rank]]
        self.parts = [[[table[at] for table in TABLES.values()], []] for at in rows]

    def tables(self) -> Any:
        return None if self.asks else self.parts

    def reading(self, t: int, owner: Any, rows: Any) -> Any:
        return contextlib.nullcontext()

    def answer(self, asked: Sequence[Any]) -> Any:
        return [
            [
                [
                    [table[rows] for table in tables]
                    for tables, rows in zip(part, of_part, strict=True)
                ]
                for part, of_part in zip(self.parts, of_rank, strict=True)
            ]
            for of_rank in asked
        ]


def on_two_ranks(function: Callable[[RowFetcher, int], Any], asks: bool) -> Any:
    """Return what a function of its fetcher gives on each rank."""

    def work(channel: Channel) -> Any:
        holder = Holder(channel.rank, asks)
        fetcher = RowFetcher(channel, OWNERS, FORMATS, holder, RowTraffic())
        return function(fetcher, channel.rank)

    return on_threads(2, work)


@pytest.mark.parametrize("asks", [False, True], ids=["own tables", "asked for"])
def test_rows_come_from_their_owners(asks: bool) -> None:
    def fetch(fetcher: RowFetcher, rank: int) -> Any:
        return fetcher.fetch(BATCHES[rank]), vars(fetcher.traffic)

    for rank, (batches, traffic) in enumerate(on_two_ranks(fetch, asks)):
        nodes = [of_batch[0] for of_batch in BATCHES[rank]]
        for (rows, of_other), at in zip(batches, nodes, strict=True):
            assert of_other == {}
            for name, table in TABLES.items():
                assert torch.equal(rows[name], table[at]), (rank, name)
        remote = [[6, 6, 1], [5, 5, 3]][rank]  # by node, in all batches
        counted = {
            "rows": sum(map(len, nodes)), "remote_rows": 3, "fetched_rows": len(set(remote)),
            "loaded_rows": 0 if asks else sum(map(len, nodes)) - 3,
        }  # fmt: skip
        assert {name: traffic[name] for name in counted} == counted


def test_rows_can_be_counted_in_place_of_fetched() -> None:
    def sent(fetcher: RowFetcher, rank: int) -> Any:
        channel, answered = fetcher._channel, fetcher.count(BATCHES[rank])
        asked = sum(channel.traffic().sent_bytes)
        fetcher.fetch(BATCHES[rank])
        return asked + answered, sum(channel.traffic().sent_bytes) - asked, answered

    for counted, fetched, answered in on_two_ranks(sent, asks=True):
        assert counted == fetched
        assert answered >= 2 * 16  # the rows of two nodes


def test_bytes_of_rows() -> None:
    assert [layout.num_bytes for layout in FORMATS[0].values()] == [12, 4]
    assert RowLayout(torch.float16, ()).num_bytes == 2
    assert as_bytes(TABLES["tag"]).tolist()[1] == [4, 5, 6, 7]
    assert as_bytes(torch.empty(0, 3)).shape == (0, 12)
    of_numpy = torch.from_numpy(np.empty((5, 0), np.float32))  # whose strides are 0
    assert as_bytes(of_numpy).shape == (5, 0)
