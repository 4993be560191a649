"""What ranks count that make batches together: of loading, and of models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from pyg_direct import NeighborLoader, accelerate

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")

NODES, COLUMNS, HIDDEN, OUT, SEEDS = 400, 6, 8, 4, 12
FANOUT = [4, 3]


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 8 * NODES), generator=generator).unique(dim=1)
    return Data(torch.randn(NODES, COLUMNS, generator=generator), edges, num_nodes=NODES)


DATA = graph()


def loader_of(seeds: int = NODES, **options: Any) -> Any:
    return NeighborLoader(
        DATA, FANOUT, torch.arange(seeds), batch_size=SEEDS, seed=3, timeout=20.0,
        split_by_rank=True, cooperative=True, **options,
    )  # fmt: skip


def train(model: Any, loader: Any) -> list[int]:
    """Run an epoch; return the bytes that go to each rank, of two layers, by what batches tell."""
    expected = [0] * 2
    for batch in loader:
        model(batch.x, batch.edge_index)[: batch.batch_size].sum().backward()
        nodes, outputs = batch.cooperation.nodes[None], batch.cooperation.outputs
        for p in range(2):
            if p != batch.cooperation.rank:
                there, back = (between.by_hop[p] for between in (nodes.send, nodes.receive))
                rows = there[0] + there[1] + back[0] + back[1]  # of the last layer, both ways
                expected[p] += 4 * HIDDEN * rows
                expected[p] += 4 * OUT * (len(outputs.send[p]) + len(outputs.receive[p]))
    return expected


def test_exchanges_of_models_are_counted_with_the_loader_of_the_batches(tmp_path: Path) -> None:
    def on_rank(rank: int) -> Any:
        loader, other = loader_of(), loader_of(4 * SEEDS)
        model = accelerate(GraphSAGE(COLUMNS, HIDDEN, 2, OUT), loader)
        sent, expected = [], []
        for part in (loader, other, loader):
            expected.append(train(model, part))
            sent.append([*part.stats().epochs[-1].exchange.computing_sent_bytes])
        mine, every = loader.stats().exchange, loader.stats(all_ranks=True).exchange
        assert "; models received 0.00" in repr(loader.stats())
        return sent, expected, mine, every

    found = run_ranks(2, on_rank, tmp_path)
    for rank, (sent, expected, mine, every) in enumerate(found):
        assert sent == expected
        assert [sum(numbers) for numbers in zip(*expected[::2], strict=True)] == [
            *mine.computing_sent_bytes
        ]
        there = found[1 - rank][2]
        assert mine.computing_received_bytes[1 - rank] == there.computing_sent_bytes[rank] > 0
        assert mine.computing_waiting_seconds[1 - rank] == 0 < mine.computing_waiting_seconds[rank]
        assert every.computing_collectives == 2 * mine.computing_collectives > 0
        waited = (
            found[0][2].computing_waiting_seconds[0],
            found[1][2].computing_waiting_seconds[1],
        )
        assert every.computing_waiting_seconds == waited
