"""Loaders over parts that ranks hold in processes of their own, over gloo; ranks that fail."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from graphs import assert_same_batch, load_real_graph, papers_and_authors
from rank_processes import run_ranks
from torch.utils.data import Sampler
from torch_geometric.data import Data

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.exchange import batches as batch_exchange
from pyg_direct.files.parts import parted_graph


def graph(num_nodes: int = 400) -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(num_nodes, 12, generator=generator),
        y=torch.randint(3, (num_nodes,), generator=generator),
        edge_index=torch.randint(num_nodes, (2, 10 * num_nodes), generator=generator),
        edge_attr=torch.randn(10 * num_nodes, 2, generator=generator),
    )


DATA = graph()
torch.manual_seed(0)
TYPED = papers_and_authors()
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 4, "shuffle": True}


def loaders_of(data: Any, typed: Any, **split: Any) -> dict[str, Any]:
    """Return loaders over the same batches, of whole graphs or of parts."""
    options, links = {**OPTIONS, **split}, DATA.edge_index[:, :150]
    return {
        "node": NeighborLoader(data, [4, 3], **options),
        "all": NeighborLoader(data, [-1, 3], num_workers=2, **options),
        "disjoint": NeighborLoader(data, [3, 2], disjoint=True, tail="drop", **options),
        "link": LinkNeighborLoader(data, [3, 2], links, **options),
        "typed": NeighborLoader(typed, [3, 2, 2], "author", tail="uneven", **options),
    }


def partitioned(folder: Path, parts: int) -> tuple[Path, Path]:
    paths = folder / "parts", folder / "typed"
    pyg_direct.partition(DATA, paths[0], parts, "ldg")
    pyg_direct.partition(TYPED, paths[1], parts, "hash")
    return paths


@pytest.mark.parametrize(("world_size", "parts"), [(2, 2), (3, 4)])
def test_batches_are_those_of_a_single_process(world_size: int, parts: int, tmp_path: Path) -> None:
    paths = partitioned(tmp_path, parts)

    def compare(rank: int) -> dict[str, int]:
        whole = loaders_of(DATA, TYPED, rank=rank, world_size=world_size)
        ours = loaders_of(*map(pyg_direct.open, paths), split_by_rank=True)
        made = {}
        for name, loader in ours.items():
            for _ in range(2):
                batches = list(zip(loader, whole[name], strict=True))
                for one, other in batches:
                    assert_same_batch(one, other)
            made[name] = len(batches)
        return made

    for made in run_ranks(world_size, compare, tmp_path):
        assert all(count > 0 for count in made.values())


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", ["debian", "debian_hetero", "amazon_photo"])
def test_real_graphs_in_parts_by_every_method(name: str, world_size: int, tmp_path: Path) -> None:
    data = load_real_graph(name, tmp_path / "work")
    kind = data.node_types[0] if name == "debian_hetero" else None
    seeds = torch.randperm(data[kind].num_nodes if kind else data.num_nodes)[:500]
    paths = {method: tmp_path / method for method in ("metis", "ldg", "hash")}
    for method, path in paths.items():
        pyg_direct.partition(data, path, 4, method)

    def compare(rank: int) -> int:
        made = 0
        options = {**OPTIONS, "input_nodes": (kind, seeds) if kind else seeds}
        for fanouts in ([10, 5], [-1, 3]):
            alone = NeighborLoader(data, fanouts, rank=rank, world_size=world_size, **options)
            whole = list(alone)
            for path in paths.values():
                parts = pyg_direct.open(path)
                ours = NeighborLoader(parts, fanouts, split_by_rank=True, **options)
                for one, other in zip(ours, whole, strict=True):
                    assert_same_batch(one, other)
                    made += 1
        return made

    batches = -(-500 // OPTIONS["batch_size"])
    assert run_ranks(world_size, compare, tmp_path) == [6 * (batches // world_size)] * world_size


def test_rows_and_bytes_that_ranks_exchange_are_counted(tmp_path: Path) -> None:
    path = partitioned(tmp_path, 2)[0]

    def count(rank: int) -> tuple[Any, Any, int, int]:
        data = pyg_direct.open(path)
        loader = NeighborLoader(data, [4, 3], split_by_rank=True, **OPTIONS)
        of_node, rows, remote = parted_graph(data).part[0], 0, 0
        for _ in range(2):
            for batch in loader:
                rows += batch.num_nodes
                remote += int((of_node[batch.n_id] != rank).sum())
        dist.barrier()  # the other has made its last batches
        time.sleep(0.5)  # a rank counts what it sent after the other has it
        own = loader.stats()
        return own, loader.stats(all_ranks=True).exchange, rows, remote

    told = run_ranks(2, count, tmp_path)
    for (stats, of_all, rows, remote), (other, *_) in zip(told, told[::-1], strict=True):
        traffic = stats.exchange
        assert (traffic.rows, traffic.remote_rows) == (rows, remote)
        assert 0 < traffic.fetched_rows < remote  # once for the batches made together
        assert 0.0 < traffic.remote_request_share < 1.0
        assert traffic.sent_bytes == other.exchange.received_bytes[::-1]
        assert min(map(max, (traffic.messages, traffic.waiting_seconds))) > 0
        assert of_all.rows == rows + other.exchange.rows
        assert sum(epoch.exchange.rows for epoch in stats.epochs) == rows
        assert "of the rows" in repr(stats)
        # 13 batches of an epoch in 4 windows, each of 1 and 4 for each hop and 3 for the rows.
        assert traffic.collectives == 2 * 4 * (1 + 2 * 4 + 3)


def test_all_ranks_get_the_text_of_an_exception(tmp_path: Path) -> None:
    path = partitioned(tmp_path, 2)[0]

    def fail(batch: Any) -> Any:
        if (batch.input_id == 77).any():
            raise ZeroDivisionError("planted in a transform")
        return batch

    def loop(rank: int) -> tuple[str, str, int]:
        data = pyg_direct.open(path)
        loader = NeighborLoader(data, [4], split_by_rank=True, transform=fail, **OPTIONS)
        begun, raised, later = time.monotonic(), "", ""
        try:
            while True:
                for _ in loader:
                    begun = time.monotonic()
        except (RuntimeError, ZeroDivisionError) as error:
            raised = f"{type(error).__name__}: {error}"
        assert time.monotonic() - begun < 20.0  # not after the 300 s of an exchange
        try:
            next(iter(loader))
        except RuntimeError as error:
            later = str(error)
        again = NeighborLoader(data, [4], split_by_rank=True, **OPTIONS)  # as the message says
        return raised, later, len(list(again))

    texts = run_ranks(2, loop, tmp_path)
    for _, later, batches in texts:
        assert "failed: ZeroDivisionError: planted in a transform" in later
        assert "Build it anew on all ranks" in later
        assert batches == 13
    raised = [raised for raised, _, _ in texts]
    assert sorted(text.split(":")[0] for text in raised) == ["ExchangeError", "ZeroDivisionError"]
    assert all("planted in a transform" in text for text in raised)


class Failing(Sampler[int]):
    """A sampler of seeds that fails on rank 1, while the other ranks wait for it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 400

    def __iter__(self) -> Iterator[int]:
        if self.rank == 1:
            time.sleep(1.0)
            raise ZeroDivisionError("planted in a sampler")
        return iter(range(400))


def test_a_rank_that_begins_an_epoch_learns_of_a_failure(tmp_path: Path) -> None:
    path = partitioned(tmp_path, 2)[0]

    def loop(rank: int) -> tuple[str, float]:
        options = {"batch_size": 16, "seed": 1, "split_by_rank": True, "sampler": Failing(rank)}
        loader = NeighborLoader(pyg_direct.open(path), [4], **options)
        begun = time.monotonic()
        try:
            iter(loader)
        except (RuntimeError, ZeroDivisionError) as error:
            return str(error), time.monotonic() - begun
        return "no error", 0.0

    for text, seconds in run_ranks(2, loop, tmp_path):
        assert "planted in a sampler" in text
        assert seconds < 20.0  # not the 60 s of the process group


def test_an_epoch_for_which_another_rank_has_no_loader_ends_at_once(tmp_path: Path) -> None:
    path = partitioned(tmp_path, 2)[0]

    def loop(rank: int) -> tuple[int, str]:
        loader = NeighborLoader(pyg_direct.open(path), [4, 3], split_by_rank=True, **OPTIONS)
        made = len(list(loader))
        if rank == 1:
            del loader
            gc.collect()
            return made, ""
        try:
            made += len(list(loader))
        except RuntimeError as error:
            return made, str(error)
        return made, "no error"

    (first, text), (second, _) = run_ranks(2, loop, tmp_path)
    assert (first, second) == (13, 13)
    assert "Rank 1 has no such loader any more" in text
    assert "Build it anew on all ranks" in text


def test_loaders_one_after_another_take_no_more_groups(tmp_path: Path) -> None:
    path = partitioned(tmp_path, 2)[0]

    def loop(rank: int) -> tuple[set[str], list[int]]:
        groups, made = set(), []
        for _ in range(3):
            loader = NeighborLoader(pyg_direct.open(path), [4], split_by_rank=True, **OPTIONS)
            made.append(len(list(loader)))
            groups.add(loader._exchange.channel.group.group_name)
            del loader
            gc.collect()
            while any(thread.name == "pyg_direct-exchange" for thread in threading.enumerate()):
                time.sleep(0.01)  # until the other rank has dropped its loader
            dist.barrier()
        return groups, made

    for groups, made in run_ranks(2, loop, tmp_path):
        assert len(groups) == 1
        assert made == [13, 13, 13]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_a_rank_that_does_not_come_is_told(backend: str, tmp_path: Path) -> None:
    path = partitioned(tmp_path, 2)[0]

    def loop(rank: int) -> str:
        group = dist.new_group(backend=backend)  # of no use once ranks were waited for in vain
        if rank == 1:
            time.sleep(3.0)
            return ""
        batch_exchange.MEETING_MARGIN_SECONDS = 0.0
        options = {**OPTIONS, "split_by_rank": group, "timeout": 1.0}
        try:
            iter(NeighborLoader(pyg_direct.open(path), [4], **options))
        except RuntimeError as error:
            return str(error)
        return "no error"

    text = run_ranks(2, loop, tmp_path)[0]
    assert "Not all ranks have begun to iterate a loader over" in text
    assert "Rank 1 did not come within 1 s" in text


def test_a_rank_without_its_part_tells_the_others(tmp_path: Path) -> None:
    path = partitioned(tmp_path, 2)[0]
    (path / "part_001").rename(path / "moved")

    def loop(rank: int) -> str:
        loader = NeighborLoader(pyg_direct.open(path), [4], split_by_rank=True, **OPTIONS)
        try:
            next(iter(loader))
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    first, second = run_ranks(2, loop, tmp_path)
    assert "InvalidGraphFileError" in second
    assert "part_001 is missing" in second
    assert "RuntimeError: Rank 1 failed: InvalidGraphFileError" in first


def test_ranks_with_different_partitions_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "other"]
    for path, method in zip(paths, ("ldg", "hash"), strict=True):
        pyg_direct.partition(DATA, path, 2, method)

    def loop(rank: int) -> str:
        data = pyg_direct.open(paths[rank])
        try:
            next(iter(NeighborLoader(data, [4], split_by_rank=True, **OPTIONS)))
        except ValueError as error:
            return str(error)
        return "no error"

    told = run_ranks(2, loop, tmp_path)
    for path, text in zip(paths, told, strict=True):
        assert "Rank 1 has opened another partition than rank 0" in text
        assert str(path) in text


def test_more_ranks_than_parts_are_refused(tmp_path: Path) -> None:
    path = partitioned(tmp_path, 1)[0]

    def loop(rank: int) -> str:
        try:
            next(iter(NeighborLoader(pyg_direct.open(path), [4], split_by_rank=True, **OPTIONS)))
        except ValueError as error:
            return str(error)
        return "no error"

    assert all("has 1 parts, too few for 2 ranks" in text for text in run_ranks(2, loop, tmp_path))
