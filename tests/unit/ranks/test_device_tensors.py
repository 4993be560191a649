"""Tensors of a device that ranks exchange: from there and to there, and never by way of the host.

The device, and what moves its tensors, are the tests' own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from placed import BACKEND, DEVICE, Device, Placed, group_that_moves
from rank_processes import run_ranks
from torch import Tensor

from pyg_direct.exchange import batches
from pyg_direct.exchange.rows import Ownership, RowFetcher, RowLayout, RowTraffic
from pyg_direct.models.remote.messages import RowTransfer, StepMessages
from pyg_direct.ranks.channel import Channel, device_backends

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")

SIZE = 3


def on_ranks(function: Any, tmp_path: Path) -> list[Any]:
    """Return what a function of a channel gives on each rank, and what went to the host."""

    def rank_of(_: int) -> Any:
        group = batches._new_group(dist.group.WORLD, 30.0, device_backends(group_that_moves()))
        with Device() as device:
            found = function(Channel(group, 30.0))
            to_host = device.to_host[:]
            return on_host(found), to_host, device.moved

    return run_ranks(SIZE, rank_of, tmp_path)


def on_host(value: Any) -> Any:
    """Return nested tensors of the device as lists."""
    if isinstance(value, (list, tuple)):
        return [on_host(part) for part in value]
    if isinstance(value, dict):
        return {name: on_host(part) for name, part in value.items()}
    assert type(value) is Placed
    return value.behind.tolist()


def rows_of(rank: int, p: int) -> Tensor:
    """Return what a rank sends to rank p; some send nothing."""
    return torch.full((2 * rank + p, 3), 10.0 * rank + p)


def test_tensors_stay_where_they_are_and_only_counts_go_to_the_host(tmp_path: Path) -> None:
    def exchanged(channel: Channel) -> Any:
        every = [rows_of(channel.rank, p) for p in range(SIZE)]
        return channel.exchange([[t.to(DEVICE), t.half().to(DEVICE)] for t in every])

    for rank, (found, to_host, moved) in enumerate(on_ranks(exchanged, tmp_path)):
        assert found == [[rows_of(p, rank).tolist()] * 2 for p in range(SIZE)]
        assert to_host == []
        assert moved > 0


def test_a_group_that_moves_no_tensors_of_a_device_gets_them_from_the_host(tmp_path: Path) -> None:
    """So that a way over the host is seen by these tests."""

    def exchanged(channel: Channel) -> Any:
        channel._devices.clear()
        return channel.exchange([[rows_of(channel.rank, p).to(DEVICE)] for p in range(SIZE)])

    for rank, (found, to_host, moved) in enumerate(on_ranks(exchanged, tmp_path)):
        assert found == [[rows_of(p, rank).tolist()] for p in range(SIZE)]
        assert to_host == ["aten._to_copy.default"] * (SIZE - 1)
        assert moved == 0


def test_values_of_a_step_stay_on_the_device(tmp_path: Path) -> None:
    def step(channel: Channel) -> Any:
        messages, rank = StepMessages(channel), channel.rank
        found = []
        for _ in range(3):  # on the host the third one would carry its title
            parts = [rows_of(rank, p).to(DEVICE) for p in range(SIZE)]
            counts = [len(rows_of(p, rank)) for p in range(SIZE)]
            found += messages.move(
                [RowTransfer("rows", 0, parts, counts), RowTransfer("again", 0, parts, counts)]
            )
        return found

    for rank, (found, to_host, moved) in enumerate(on_ranks(step, tmp_path)):
        assert found == [[rows_of(p, rank).tolist() for p in range(SIZE)]] * 6
        assert to_host == []
        assert moved > 0


ROWS = torch.arange(30.0).view(10, 3)


class OnDevice:
    """Has rows of one rank, on the device."""

    def __init__(self, rank: int) -> None:
        self.table = ROWS[rank::SIZE].to(DEVICE)

    def tables(self) -> Any:
        return [[[self.table]]]

    def answer(self, asked: Any) -> Any:
        return [
            [[[self.table.index_select(0, torch.from_numpy(rows).to(DEVICE))]] for (rows,) in parts]
            for parts in asked
        ]

    def reading(self, *_: Any) -> Any:
        return torch.no_grad()


def test_rows_that_owners_have_on_the_device_come_there(tmp_path: Path) -> None:
    ids = np.array([9, 0, 4, 4, 7, 2])

    def fetched(channel: Channel) -> Any:
        numbers = np.arange(len(ROWS))
        owners = Ownership([[0], [1], [2]], [(numbers % SIZE).astype(np.int16)], [numbers // SIZE])
        formats = [{"x": RowLayout(torch.float32, (3,))}]
        holder: Any = OnDevice(channel.rank)
        fetcher = RowFetcher(channel, owners, formats, holder, RowTraffic())
        return fetcher.fetch([[ids[channel.rank :]], [ids[:2]]])

    for rank, (found, to_host, moved) in enumerate(on_ranks(fetched, tmp_path)):
        expected = [[{"x": ROWS[of_batch].tolist()}] for of_batch in (ids[rank:], ids[:2])]
        assert found == expected
        assert to_host == []
        assert moved > 0


def test_a_group_of_the_loaders_moves_tensors_of_devices_as_the_users_does(tmp_path: Path) -> None:
    def made(_: int) -> Any:
        theirs = group_that_moves()
        ours = batches._new_group(theirs, 30.0, device_backends(theirs))
        return dist.get_backend_config(ours), device_backends(dist.group.WORLD)

    assert run_ranks(2, made, tmp_path) == [(f"cpu:gloo,meta:{BACKEND}", {})] * 2
