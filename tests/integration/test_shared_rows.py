"""Rows that ranks load in common: bits of batches, who reads which rows, counts, and failures."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from graphs import assert_same_batch, papers_and_authors, remote_stores
from rank_processes import run_ranks
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import HGTLoader, LinkNeighborLoader, NeighborLoader, QuantizedTensor
from pyg_direct.tools.plan_orders import Batching
from pyg_direct.tools.plan_ranks import RanksAsked, step_of_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")

TIMEOUT_SECONDS = 3.0
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 4, "shuffle": True}


def graph(num_nodes: int = 400) -> Data:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randperm(num_nodes**2, generator=generator)[: 10 * num_nodes]
    return Data(
        x=torch.randn(num_nodes, 12, generator=generator),
        half=torch.randn(num_nodes, 3, 2, generator=generator).half(),
        nothing=torch.empty(num_nodes, 0),
        y=torch.randint(3, (num_nodes,), generator=generator),
        time=torch.randint(100, (num_nodes,), generator=generator),
        edge_index=torch.stack([pairs // num_nodes, pairs % num_nodes]),
        edge_attr=torch.randn(10 * num_nodes, 2, generator=generator),
        weight=torch.rand(10 * num_nodes, generator=generator),
    )


DATA = graph()
torch.manual_seed(0)
TYPED = papers_and_authors()
OWNERS = torch.arange(400) % 7 % 5


def quantized(data: Data) -> Data:
    made = Data(edge_index=data.edge_index, y=data.y, num_nodes=data.num_nodes)
    made.rows = pyg_direct.quantize(data.x, torch.int8, scale="row")
    made.columns = pyg_direct.quantize(data.x, torch.int8)
    made.narrow = data.half
    return made


def loaders_of(data: Data, typed: HeteroData, path: Path, shares: bool, **split: Any) -> Any:
    """Return loaders over the same batches, which share rows or do not."""
    options, links = {**OPTIONS, **split}, DATA.edge_index[:, :150]

    def owned(owners: Any) -> dict[str, Any]:
        return {"share_rows": True, "owners": owners} if shares else {}

    rows: dict[str, Any] = {"share_rows": True} if shares else {}
    of_types = {kind: torch.arange(typed[kind].num_nodes) % 3 for kind in typed.node_types}
    return {
        "node": NeighborLoader(data, [4, 3], **options, **owned(OWNERS)),
        "threads": NeighborLoader(data, [-1, 3], num_workers=2, **options, **rows),
        "one rank": NeighborLoader(data, [4], **options, **owned(torch.zeros(400).long())),
        "labor": NeighborLoader(data, [4, 3], sampling="labor", prefetch=0, **options, **rows),
        "one shape": NeighborLoader(
            data, [4, 3], static_shapes={"nodes": 90, "edges": 80}, **options, **rows
        ),
        "weighted": NeighborLoader(data, [4], weight_attr="weight", **options, **rows),
        "temporal": NeighborLoader(data, [4], time_attr="time", **options, **rows),
        "induced": NeighborLoader(
            data, [3, 2], subgraph_type="induced", filter_per_worker=False, **options, **rows
        ),
        "link": LinkNeighborLoader(data, [3], links, neg_sampling="binary", **options, **rows),
        "typed": NeighborLoader(typed, [3, 2], "author", tail="uneven", **options, **rows),
        "hgt": HGTLoader(typed, [8, 8], "author", tail="drop", **options, **owned(of_types)),
        "opened": NeighborLoader(pyg_direct.open(path), [4, 3], **options, **rows),
        "quantized": NeighborLoader(
            quantized(data), [4], feature_dtype=torch.bfloat16, **options, **rows
        ),
    }


def compare(world_size: int, folder: Path) -> list[dict[str, int]]:
    path = folder / "saved"
    pyg_direct.save(DATA, path, row_order="degree")

    def on_rank(rank: int) -> dict[str, int]:
        alone: Any = {"rank": rank, "world_size": world_size}
        whole = loaders_of(DATA, TYPED, path, False, **alone)
        ours = loaders_of(DATA, TYPED, path, True, split_by_rank=True)
        made = {}
        for name, loader in ours.items():
            for _ in range(2):
                batches = list(zip(loader, whole[name], strict=True))
                for one, other in batches:
                    assert_same_batch(one, other)
            made[name] = len(batches)
        return made

    return run_ranks(world_size, on_rank, folder)


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_batches_are_those_of_ranks_that_load_alone(world_size: int, tmp_path: Path) -> None:
    for made in compare(world_size, tmp_path):
        assert all(count > 0 for count in made.values())


def test_ranks_need_only_the_rows_that_they_own(tmp_path: Path) -> None:
    def on_rank(rank: int) -> int:
        data = graph()
        data.x[rank != OWNERS % 2] = torch.nan  # what another rank owns is not read here
        loader = NeighborLoader(
            data, [4, 3], split_by_rank=True, share_rows=True, owners=OWNERS, **OPTIONS
        )
        for made, batch in enumerate(loader):
            assert torch.equal(batch.x, DATA.x[batch.n_id]), made
        return made + 1

    assert run_ranks(2, on_rank, tmp_path) == [13, 13]


def test_a_row_is_loaded_once_for_the_batches_that_ranks_make_together(tmp_path: Path) -> None:
    def on_rank(rank: int) -> tuple[Any, Any, int]:
        loader = NeighborLoader(DATA, [8, 8], split_by_rank=True, share_rows=True, **OPTIONS)
        rows = sum(batch.num_nodes for batch in loader)
        dist.barrier()  # the other has made its last batches
        return loader.stats().exchange, loader.stats(all_ranks=True), rows

    told = run_ranks(2, on_rank, tmp_path)
    for traffic, of_all, rows in told:
        assert traffic.rows == rows
        assert 0.4 < traffic.remote_row_share < 0.6
        assert traffic.requests == 0
        assert traffic.sent_bytes[0] == 0 or traffic.sent_bytes[1] == 0  # none to itself
        assert "rows loaded where" in repr(of_all)
        assert "frontiers" not in repr(of_all)
    # 400 nodes, of which a batch of 16 seeds has nearly all: two such are loaded as one or less.
    assert sum(traffic.loaded_rows for traffic, *_ in told) < 0.7 * sum(rows for *_, rows in told)


def test_ranks_load_and_send_the_rows_that_were_planned(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(20_000, (2, 60_000), generator=generator)
    data = Data(x=torch.randn(20_000, 4, generator=generator), edge_index=edges)
    planned = step_of_ranks(data, RanksAsked(2, Batching([3, 3], 200), {None: 16}))

    def on_rank(rank: int) -> tuple[int, int, int]:
        options: dict[str, Any] = {"batch_size": 200, "seed": 1, "shuffle": True}
        loader = NeighborLoader(data, [3, 3], split_by_rank=True, share_rows=True, **options)
        steps = len(list(loader))
        found = loader.stats().exchange
        return steps, found.loaded_rows, found.fetched_rows

    (steps, *one), (_, *other) = run_ranks(2, on_rank, tmp_path)
    assert steps == 50
    loaded, fetched = (sum(pair) / steps for pair in zip(one, other, strict=True))
    assert loaded == pytest.approx(planned.common, rel=0.01)
    assert 16 * fetched == pytest.approx(planned.sent_bytes, rel=0.01)


def test_ddp_of_an_accelerated_model_learns_the_same(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[list[float]]:
        losses = []
        for rows in ({}, {"share_rows": True}):
            torch.manual_seed(0)
            options = {**OPTIONS, **rows}
            loader = NeighborLoader(DATA, [4, 3], num_workers=2, split_by_rank=True, **options)
            model = pyg_direct.accelerate(GraphSAGE(12, 8, 2, 3), loader)
            ddp = torch.nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
            found = []
            for _ in range(2):
                for batch in loader:
                    optimizer.zero_grad()
                    out = ddp(batch.x, batch.edge_index)[: batch.batch_size]
                    loss = cross_entropy(out, batch.y[: batch.batch_size])
                    loss.backward()
                    optimizer.step()
                    found.append(float(loss.detach()))
            losses.append(found)
        return losses

    for alone, in_common in run_ranks(2, on_rank, tmp_path):
        assert len(alone) == 2 * 13
        assert alone == pytest.approx(in_common, rel=1e-3)


def test_a_loader_can_be_sent_to_a_process_until_ranks_have_met(tmp_path: Path) -> None:
    def on_rank(rank: int) -> str:
        loader = NeighborLoader(DATA, [4], split_by_rank=True, share_rows=True, **OPTIONS)
        sent = pickle.loads(pickle.dumps(loader))
        for one, other in zip(loader, sent, strict=True):
            assert_same_batch(one, other)
        with pytest.raises(TypeError) as caught:
            pickle.dumps(loader)
        return str(caught.value)

    for text in run_ranks(2, on_rank, tmp_path):
        assert "cannot be copied or sent to another process" in text


def until_an_error(loader: Any) -> str:
    try:
        while True:
            for _ in loader:
                pass
    except (RuntimeError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


def test_all_ranks_get_the_text_of_a_failure(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[str]:
        options = {**OPTIONS, "split_by_rank": True, "share_rows": True}

        def fail(batch: Data) -> Data:
            if (batch.input_id == 77).any():
                raise ValueError("planted in a transform")
            return batch

        texts = [until_an_error(NeighborLoader(DATA, [4], transform=fail, **options))]
        data = graph()
        loader = NeighborLoader(data, [4], **options)
        next(iter(loader))
        dist.barrier()  # both have a batch
        if rank == 1:
            data.x = data.x.double()
        texts.append(until_an_error(loader))

        def outside(out: Any) -> Any:
            out.node = out.node + 400 if rank == 0 else out.node
            return out

        loader = NeighborLoader(DATA, [4], transform_sampler_output=outside, **options)
        texts.append(until_an_error(loader))
        return texts

    for first, second, third in run_ranks(2, on_rank, tmp_path):
        assert "planted in a transform" in first
        assert "have changed since the loader was first iterated" in second
        assert "must be node ids in [0, 400)" in third


def test_ranks_with_other_rows_or_owners_are_refused(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[str]:
        options = {**OPTIONS, "split_by_rank": True, "share_rows": True}
        wide = Data(x=DATA.x[:, : 12 - rank].contiguous(), edge_index=DATA.edge_index)
        loaders = [
            NeighborLoader(wide, [4], **options),
            NeighborLoader(DATA, [4], owners=(OWNERS + rank), **options),
            NeighborLoader(DATA, [4], **options),
        ]
        texts = []
        for loader in loaders[:2]:
            with pytest.raises((ValueError, RuntimeError)) as caught:
                next(iter(loader))
            texts.append(str(caught.value))
        for _ in range(2):  # outside of an epoch each rank reads all rows
            batch = loaders[2]([1, 2, rank])
            assert torch.equal(batch.x, DATA.x[batch.n_id])
            iter(loaders[2])
        return texts

    for attributes, owners in run_ranks(2, on_rank, tmp_path):
        assert "share_rows=True needs the same attributes on all ranks" in attributes
        assert "share_rows=True needs the same owners on all ranks" in owners


def test_a_rank_that_is_killed_is_noticed(tmp_path: Path) -> None:
    def on_rank(rank: int) -> str:
        loader = NeighborLoader(
            DATA, [4], split_by_rank=True, share_rows=True, timeout=TIMEOUT_SECONDS, **OPTIONS
        )
        if rank == 1:
            next(iter(loader))
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "told").write_text(until_an_error(loader))
        return ""

    with pytest.raises(AssertionError, match="rank 1 ended with -9"):
        run_ranks(2, on_rank, tmp_path)
    assert "The connection to another rank is lost" in (tmp_path / "told").read_text()


def test_batches_of_one_part_are_made_by_the_rank_that_owns_it(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[bool]:
        loader = NeighborLoader(
            DATA, [3], batch_size=16, seed=4, order="parts",
            split_by_rank=True, share_rows=True, owners=OWNERS % 2, tail="drop",
        )  # fmt: skip
        return [bool((OWNERS[b.n_id[: b.batch_size]] % 2 == rank).all()) for b in loader]

    for found in run_ranks(2, on_rank, tmp_path):
        assert sum(found) >= len(found) - 3  # what is less than a batch of each comes last, mixed


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"share_rows": 2}, TypeError, "share_rows must be True or False"),
        ({"rank": 0, "world_size": 2, "share_rows": True}, ValueError, "pass split_by_rank=True"),
        ({"split_by_rank": True, "owners": OWNERS}, ValueError, "no meaning without share_rows"),
        ({"owners": "metis"}, ValueError, "owners must be 'hash'"),
        ({"owners": OWNERS[:-1]}, ValueError, "one integer for each of 400 nodes"),
        ({"owners": OWNERS - 1}, ValueError, r"parts in \[0, 1024\), got -1 to 3"),
        ({"owners": {"paper": OWNERS}}, TypeError, "or a tensor with the part of each node"),
        ({"order": "parts"}, ValueError, "share_rows=True with owners="),
        ({"device": "cuda", "cache": 0.5}, ValueError, "cache=0.5 cannot be used with share_rows"),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments: Any, error: Any, text: str) -> None:
    options: dict[str, Any] = {"batch_size": 16, "seed": 1, **arguments}
    if "share_rows" not in arguments and "split_by_rank" not in arguments:
        options |= {"split_by_rank": True, "share_rows": True}
    with pytest.raises(error, match=text):
        NeighborLoader(DATA, [4], **options)


def test_share_rows_without_rows_to_share_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"split_by_rank": True, "share_rows": True}
    bare = Data(y=DATA.y, edge_index=DATA.edge_index, num_nodes=400)
    with pytest.raises(ValueError, match="no effect: no node attribute is a dense tensor"):
        NeighborLoader(bare, [4], **options)
    with pytest.raises(ValueError, match="cannot be used with ShaDowKHopSampler"):
        pyg_direct.ShaDowKHopSampler(DATA, depth=1, num_neighbors=3, **options)
    with pytest.raises(ValueError, match="share_rows=True needs a Data or a HeteroData"):
        NeighborLoader(remote_stores(TYPED), [4], "author", **options)
    pyg_direct.partition(DATA, tmp_path / "parts", 2, "hash")
    with pytest.raises(ValueError, match="exchange rows already"):
        NeighborLoader(pyg_direct.open(tmp_path / "parts"), [4], **options)


def test_a_quantized_table_travels_as_it_is_stored(tmp_path: Path) -> None:
    def on_rank(rank: int) -> int:
        data = quantized(DATA)
        del data.narrow, data.columns
        assert isinstance(data.rows, QuantizedTensor)
        loader = NeighborLoader(data, [4], split_by_rank=True, share_rows=True, **OPTIONS)
        list(loader)
        dist.barrier()
        traffic = loader.stats().exchange
        return (sum(traffic.received_bytes), traffic.fetched_rows)

    for received, rows in run_ranks(2, on_rank, tmp_path):
        assert received < rows * (12 + 4 + 8) * 2.2  # elements, factor, id; asked and answered
