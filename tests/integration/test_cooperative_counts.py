"""What ranks count that make batches together: of loading, and of models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import papers_and_authors
from rank_processes import run_ranks
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE, to_hetero

from pyg_direct import NeighborLoader, accelerate
from pyg_direct.tools.plan_cooperative import common_step, owners_of
from pyg_direct.tools.plan_orders import Batching
from pyg_direct.tools.plan_ranks import RanksAsked, step_of_ranks

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
        DATA, FANOUT, torch.arange(seeds), batch_size=SEEDS, seed=3, timeout=120.0,
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


def planned(data: Any, part: Any, size: int, kind: Any, path: Path) -> tuple[int, Any, Any]:
    """Return the steps of an epoch, what a plan counts of them alone, and with owners."""
    columns = {t: data[t].num_features for t in data.node_types} if kind else {None: COLUMNS}
    wide = {t: 4 * count for t, count in columns.items()}
    steps = (data[kind].num_nodes if kind else NODES) // SEEDS // size
    batching = Batching(FANOUT, SEEDS, kind)
    asked = RanksAsked(size, batching, wide, columns, (HIDDEN, OUT), steps)
    torch.save(part, path)
    return steps, step_of_ranks(data, asked), common_step(data, asked, owners_of(path, data, asked))


@pytest.mark.parametrize(
    ("typed", "size"), [(False, 3), (True, 2), pytest.param(False, 4, marks=pytest.mark.slow)]
)
def test_a_plan_counts_what_ranks_do(typed: bool, size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    data: Any = papers_and_authors() if typed else DATA
    kind, part = None, torch.arange(NODES) // 50
    if typed:
        kind = "paper"
        part = {t: torch.arange(data[t].num_nodes) // 7 for t in data.node_types}
    steps, alone, common = planned(data, part, size, kind, tmp_path / "part.pt")
    given: dict[str, Any] = {
        "input_nodes": kind, "batch_size": SEEDS, "seed": 0, "shuffle": True, "drop_last": True,
        "split_by_rank": True, "tail": "drop", "timeout": 120.0,
    }  # fmt: skip

    def on_rank(rank: int) -> Any:
        own = NeighborLoader(data, FANOUT, **given)
        together = NeighborLoader(data, FANOUT, cooperative=True, owners=part, **given)
        shared = NeighborLoader(data, FANOUT, share_rows=True, **given)
        assert len(list(shared)) == steps
        model: Any = GraphSAGE(-1 if typed else COLUMNS, HIDDEN, 2, OUT)
        if typed:
            model = to_hetero(model, data.metadata())
            batch = next(iter(NeighborLoader(data, [2], kind)))
            model(batch.x_dict, batch.edge_index_dict)
        model = accelerate(model, together)
        for _ in together:  # whose first epoch begins with a meeting
            pass
        together.sampler.set_epoch(0)
        edges = 0
        for batch in together:
            edges += sum(sum(s.num_sampled_edges) for s in batch.edge_stores)
            if typed:
                out = model(batch.x_dict, batch.edge_index_dict)[kind]
            else:
                out = model(batch.x, batch.edge_index)
            out[:SEEDS].sum().backward()
        alone = [*own]
        rows = [sum(s.num_nodes for s in b.node_stores) for b in alone]
        by_hop = [[list(s.num_sampled_edges) for s in b.edge_stores] for b in alone]
        sums = sum(rows), np.sum(by_hop), np.cumsum(by_hop, axis=2).sum(), edges, rows[0]
        of_all = [loader.stats(all_ranks=True).epochs[-1].exchange for loader in (together, shared)]
        return np.array(sums), *of_all

    found = run_ranks(size, on_rank, tmp_path)
    rows, sampled, read, edges, _ = sum(sums for sums, *_ in found) / steps
    _, traffic, shared = found[0]
    assert (alone.alone.rows, alone.alone.edges, alone.alone.read_edges) == (rows, sampled, read)
    assert steps * alone.common == pytest.approx(shared.loaded_rows)
    if not typed:
        assert steps * alone.sent_bytes == pytest.approx(4 * COLUMNS * shared.fetched_rows)
    assert steps * common.work.rows == pytest.approx(traffic.loaded_rows)
    assert common.work.edges == edges
    firsts = [sums[-1] for sums, *_ in found]
    assert traffic.rows_alone == pytest.approx(steps * sum(firsts), rel=0.1)  # other draws
    assert f"batches of its own would have {traffic.rows_alone:,};" in traffic.line(1)
    assert steps * common.fetched == pytest.approx(traffic.fetched_rows)
    assert steps * common.loading_bytes == pytest.approx(sum(traffic.sent_bytes))
    assert steps * common.loading_collectives * size == pytest.approx(traffic.collectives)
    assert steps * 2 * common.layer_bytes == pytest.approx(sum(traffic.computing_sent_bytes))
