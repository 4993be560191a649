"""Ranks that are threads: what a channel among them brings and counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyg_direct.ranks.channel import Channel
from pyg_direct.ranks.threads import on_threads


def test_messages_and_bits_reach_all() -> None:
    def on_rank(channel: Channel) -> list[int]:
        me, found = channel.rank, list[int]()
        for turn in range(20):
            messages = [[torch.full((p + turn, 2), me)] for p in range(3)]
            came = channel.exchange(messages)
            for p, (rows,) in enumerate(came):
                assert rows.tolist() == [[p, p]] * (me + turn)
            found = channel.union(torch.tensor([1 << me, 0, 0], dtype=torch.uint8)).tolist()
        return [*found, *channel.traffic().sent_bytes, channel.traffic().collectives]

    turns = 16 * sum(range(20))
    sent = np.full((3, 3), turns) + 16 * 20 * np.arange(3)
    np.fill_diagonal(sent, 0)
    for rank in range(3):  # and its fields of 3 bytes, as in a ring
        sent[rank, (rank + 1) % 3] += 20 * 4
    for rank, found in enumerate(on_threads(3, on_rank)):
        assert found == [7, 0, 0, *sent[rank], 60]


def test_an_error_of_one_ends_all() -> None:
    def on_rank(channel: Channel) -> None:
        if channel.rank == 1:
            raise KeyError("of rank 1")
        channel.numbers(torch.zeros(3, 1, dtype=torch.int64))

    with pytest.raises(KeyError, match="of rank 1"):
        on_threads(3, on_rank)
