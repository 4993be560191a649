"""Ids lie on the host, as PyG's, so that programs can index their own tensors with them.

The device is emulated and is not torch's CPU, so that an index on the wrong side fails as it does
on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulator import emulated
from graphs import citations, papers_and_authors, remote_stores
from torch import Tensor
from torch_geometric.loader import NeighborLoader as PygLoader
from torch_geometric.nn import GraphSAGE
from two_gpus import IDS, Machine, assert_like_pyg_on_a_gpu, places

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.ops.cuda import memory as device_memory
from pyg_direct.ops.devices import HOST
from pyg_direct.ops.streams import NoStreams

KEY = ("author", "writes", "paper")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with emulated() as backend:
        yield Machine(backend, monkeypatch)


def test_layerwise_inference_of_pyg(machine: Machine) -> None:
    """`BasicGNN.inference` reads ``x_all[batch.n_id]`` from a table on the host."""
    data, model = citations(), GraphSAGE(16, 8, num_layers=2)
    model.eval()
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
        machine.used = machine.gpu(0)
        loader = NeighborLoader(data, [-1], batch_size=128)
        assert isinstance(loader, PygLoader)
        out = model.to(machine.gpu(0)).inference(loader, device=machine.gpu(0))
    assert out.device == HOST
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_transform_indexes_tables_on_the_host_by_input_id(
    machine: Machine, num_workers: int, filter_per_worker: bool
) -> None:
    """As RelBench's: a table of labels on the host, by position among the seeds."""
    data, machine.used = papers_and_authors(), machine.gpu(0)
    nodes, target = torch.arange(0, 200, 3), torch.randn(67)

    def attach(batch: Any) -> Any:
        batch["paper"].target = target[batch["paper"].input_id]
        batch["paper"].again = data["paper"].y[batch["paper"].n_id]
        return batch

    loader = NeighborLoader(
        data, [3, 2], input_nodes=("paper", nodes), transform=attach, batch_size=20, shuffle=True,
        num_workers=num_workers, filter_per_worker=filter_per_worker,
    )  # fmt: skip
    seen = 0
    for batch in loader:
        store = batch["paper"]
        assert torch.equal(nodes[store.input_id], store.n_id[: store.batch_size])
        assert torch.equal(store.target, target[store.input_id])
        assert torch.equal(store.y.cpu(), store.again)
        seen += store.batch_size
    assert seen == 67


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_ids_of_link_batches_are_where_pyg_puts_them_on_a_gpu(
    machine: Machine, neg_sampling: str | None
) -> None:
    data, machine.used = papers_and_authors(), machine.gpu(0)
    loader = LinkNeighborLoader(
        data, [3], edge_label_index=KEY, neg_sampling=neg_sampling, batch_size=100, shuffle=True
    )
    for batch in loader:
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        ends = data[KEY].edge_index[:, batch[KEY].input_id]
        if neg_sampling == "triplet":
            src, dst = batch["author"].src_index, batch["paper"].dst_pos_index
        else:
            src, dst = batch[KEY].edge_label_index[:, : ends.size(1)]
        assert torch.equal(batch["author"].n_id[src.cpu()], ends[0])
        assert torch.equal(batch["paper"].n_id[dst.cpu()], ends[1])


def test_remote_stores_are_asked_with_ids_on_the_host(machine: Machine) -> None:
    data = papers_and_authors()
    features, edges = remote_stores(data)
    machine.used = machine.gpu(0)
    loader = NeighborLoader((features, edges), [3, 2], input_nodes="paper", batch_size=64)
    for batch in loader:
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        assert torch.equal(batch["author"].x.cpu(), data["author"].x[batch["author"].n_id])


def test_ids_replaced_by_a_sampler_transform_are_copied_anew(machine: Machine) -> None:
    """A copy that has begun is of the ids as sampled: replaced ones are copied anew."""
    data, machine.used = citations(), machine.gpu(0)

    def last_first(out: Any) -> Any:
        out.node = out.node.flip(0)
        return out

    plain = next(iter(NeighborLoader(data, [2], batch_size=50, seed=1)))
    loader = NeighborLoader(data, [2], batch_size=50, seed=1, transform_sampler_output=last_first)
    batch = next(iter(loader))
    assert torch.equal(batch.n_id, plain.n_id.flip(0))
    assert torch.equal(batch.x.cpu(), data.x[batch.n_id])


@pytest.mark.parametrize("kind", ["directional", "induced", "bidirectional"])
def test_kinds_of_subgraphs(machine: Machine, kind: str) -> None:
    data, machine.used = citations(), machine.gpu(0)
    data.edge_attr = torch.arange(data.num_edges)
    for batch in NeighborLoader(data, [3], batch_size=100, subgraph_type=kind, disjoint=True):
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        assert torch.equal(batch.edge_attr.cpu(), batch.e_id)


def test_ids_of_the_users_own(machine: Machine) -> None:
    """As PyG's example for Reddit sets them, with the loader's own data changed behind it."""
    data, machine.used = citations(), machine.gpu(0)
    loader = NeighborLoader(copy.copy(data), [-1], batch_size=100)
    del loader.data.x, loader.data.y
    loader.data.num_nodes = data.num_nodes
    loader.data.n_id = torch.arange(data.num_nodes)
    for batch in loader:
        assert batch.n_id.device == HOST
        assert data.x[batch.n_id].shape == (batch.num_nodes, 16)


def test_edge_ids_of_the_users_own(machine: Machine) -> None:
    data, machine.used = citations(), machine.gpu(0)
    data.e_id = torch.arange(data.num_edges) * 2
    for batch in NeighborLoader(data, [3], batch_size=100):
        assert batch.e_id.device == HOST
        assert torch.equal(data.edge_index[:, batch.e_id // 2], batch.n_id[batch.edge_index.cpu()])


FAMILY = ["ShaDowKHopSampler", "PageRankLoader", "GraphSAINTNodeSampler", "ClusterLoader"]


def family(data: Any, **kwargs: Any) -> dict[str, Any]:
    parts = torch.arange(data.num_nodes) % 4
    return {
        "ShaDowKHopSampler": lambda: pyg_direct.ShaDowKHopSampler(data, 2, 3, **kwargs),
        "PageRankLoader": lambda: pyg_direct.PageRankLoader(data, 6, batch_size=9, **kwargs),
        "GraphSAINTNodeSampler": lambda: pyg_direct.GraphSAINTNodeSampler(data, 50, **kwargs),
        "ClusterLoader": lambda: pyg_direct.ClusterLoader(
            pyg_direct.ClusterData(data, 4, partition=parts, log=False), **kwargs
        ),
    }


@pytest.mark.parametrize("name", FAMILY)
def test_ids_of_the_users_own_in_the_family(machine: Machine, name: str) -> None:
    data, machine.used = citations(), machine.gpu(0)
    data.n_id, data.e_id = torch.arange(data.num_nodes), torch.arange(data.num_edges)
    for where, home in ((HOST, {}), (machine.gpu(0), {"ids": "device"})):
        batch = next(iter(family(data, **home)[name]()))
        assert places(batch)["n_id"] == places(batch)["e_id"] == {where}
        assert places(batch)["x"] == places(batch)["edge_index"] == {machine.gpu(0)}
        assert torch.equal(data.x[batch.n_id.cpu()], batch.x.cpu())
        ends = data.edge_index[:, batch.e_id.cpu()]
        assert torch.equal(ends, batch.n_id.cpu()[batch.edge_index.cpu()])


def test_contexts_are_on_the_device(machine: Machine) -> None:
    data, machine.used = citations(), machine.gpu(0)
    plain = next(iter(family(data, device="cpu")["PageRankLoader"]()))
    for options in ({}, {"ids": "device"}):
        batch = next(iter(family(data, **options)["PageRankLoader"]()))
        found = places(batch)
        assert found.pop("n_id") == {machine.gpu(0) if options else HOST}
        assert set().union(*found.values()) == {machine.gpu(0)}
        for name in ("context", "context_mask", "pagerank", "n_id", "root_n_id", "x"):
            assert torch.equal(batch[name].cpu(), plain[name])


def test_ids_of_hgt(machine: Machine) -> None:
    data, machine.used = papers_and_authors(), machine.gpu(0)
    for options in ({}, {"ids": "device"}):
        where = machine.gpu(0) if options else HOST
        loader = pyg_direct.HGTLoader(data, [5, 5], "paper", batch_size=10, **options)
        found = places(next(iter(loader)))
        assert {name: found.pop(name) for name in IDS} == {name: {where} for name in IDS}
        assert set().union(*found.values()) == {machine.gpu(0)}


@pytest.mark.parametrize("name", FAMILY)
def test_a_wrong_place_for_ids_in_the_family(name: str) -> None:
    with pytest.raises(ValueError, match="ids must be"):
        family(citations(), ids="gpu")[name]()


def test_ids_on_the_device(machine: Machine) -> None:
    data, machine.used = citations(), machine.gpu(0)
    expected = next(iter(NeighborLoader(data, [3], batch_size=100, seed=2)))
    batch = next(iter(NeighborLoader(data, [3], batch_size=100, seed=2, ids="device")))
    assert set().union(*places(batch).values()) == {machine.gpu(0)}
    for name in IDS:
        assert torch.equal(batch[name].cpu(), expected[name])


class LateCopies(NoStreams):
    """Copies to the host arrive when somebody waits for their event, and not before."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Tensor, Tensor]] = []

    def begin_download(self, source: Tensor) -> Tensor:
        host = torch.full(source.shape, -1, dtype=source.dtype)
        self.under_way.append((host, source))
        return host

    def record_event(self) -> Any:
        event, self.under_way = self.under_way, []
        return event

    def synchronize(self, event: Any) -> None:
        for host, source in event:
            host.copy_(source)


@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_ids_are_there_when_the_batch_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, prefetch: int, filter_per_worker: bool
) -> None:
    late = LateCopies()
    monkeypatch.setattr(device_memory, "begin_download", late.begin_download)
    machine.streams = late
    data, machine.used, seen = citations(), machine.gpu(0), []

    def read(batch: Any) -> Any:
        seen.append(torch.equal(data.y[batch.n_id], batch.y.cpu()))
        return batch

    loader = NeighborLoader(
        data, [3], batch_size=100, transform=read, prefetch=prefetch,
        filter_per_worker=filter_per_worker,
    )  # fmt: skip
    for batch in loader:
        assert torch.equal(data.x[batch.n_id], batch.x.cpu())
        assert int(batch.e_id.min()) >= 0
    assert seen == [True] * 3


def test_a_misplaced_id_fails_here() -> None:
    """Else these tests would show nothing."""
    with emulated() as backend:
        index = torch.arange(3).to(backend.device)
        with pytest.raises((RuntimeError, IndexError), match="indices should be either on cpu"):
            torch.arange(9)[index]
