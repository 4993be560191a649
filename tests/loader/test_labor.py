"""LABOR: batches against a plain reference, on both backends, and what is refused beside it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from device_graphs import assert_equal
from emulator import ORDERS, emulated, give_to_loaders
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import coalesce

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg_direct.core.types import BatchKey, ExtendedKey, Variates
from pyg_direct.kernels import labor
from pyg_direct.kernels.philox import philox4x32_of_ints
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.host import keys as rng
from pyg_direct.sampling.sampler import keyed

NODES = 120


def simple_graph(nodes: int = NODES, edges: int = 2400) -> Data:
    """Return a graph without parallel edges, with some long lists and attributes."""
    g = torch.Generator().manual_seed(1)
    edge_index = torch.randint(nodes, (2, edges), generator=g)
    edge_index[1, ::5] = 7
    edge_index = coalesce(edge_index, num_nodes=nodes)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=g)]
    return Data(
        x=torch.randn(nodes, 3, generator=g),
        edge_index=edge_index,
        edge_attr=torch.arange(edge_index.size(1)),
        num_nodes=nodes,
    )


def typed_graph() -> HeteroData:
    g, sizes = torch.Generator().manual_seed(2), {"a": 60, "b": 45}
    data = HeteroData()
    for name, size in sizes.items():
        data[name].x = torch.randn(size, 2, generator=g)
    for key in (("a", "to", "b"), ("b", "rev_to", "a"), ("a", "is", "a"), ("a", "also", "b")):
        ends = [torch.randint(sizes[key[i]], (700,), generator=g) for i in (0, 2)]
        data[key].edge_index = coalesce(torch.stack(ends))
    return data


def variate(node: int, layer: int, node_type: int, variates: Variates) -> int:
    """Return the variate of one node, as `kernels/labor.py` defines it."""
    first, following, share = variates
    counter = (node & 0xFFFFFFFF, node >> 32, layer | node_type << 8, 2)
    words = philox4x32_of_ints(*counter, *following)
    if words[2] >= share:
        words = philox4x32_of_ints(*counter, *first)
    return int(words[0]) << 32 | int(words[1])


def expected(data: Data, nodes: list[int], k: int, layer: int, variates: Variates) -> list[Any]:
    """Return the edges (source, destination) of a hop, node by node."""
    edges = []
    for v in nodes:
        sources = data.edge_index[0, data.edge_index[1] == v].tolist()
        if 0 <= k < len(sources):
            sources = sorted(sources, key=lambda t: variate(t, layer, 0, variates))[:k]
        edges += [(t, v) for t in sources]
    return edges


@pytest.mark.parametrize("layer_dependency", [False, True])
@pytest.mark.parametrize("fanouts", [[3, 2], [1, -1], [300, 70], [0, 2]], ids=str)
@pytest.mark.parametrize("share", [0, 1 << 31, (1 << 32) - 1])
def test_edges_are_those_of_smallest_variates(
    layer_dependency: bool, fanouts: list[int], share: int, each_backend: Any
) -> None:
    data, seeds = simple_graph(), torch.tensor([7, 3, 50])
    sampler = NeighborSampler(
        data, fanouts, sampling="labor", layer_dependency=layer_dependency, device=each_backend
    )
    own, other = BatchKey(11, 12), BatchKey(13, 14)
    key = ExtendedKey.of(own, variates=Variates(own, other, share)) if share else own
    sampled = keyed(sampler).sample([seeds], key)
    row, col = sampled.edge_index[0].cpu()
    node = sampled.node[0].cpu()
    got = list(zip(node[row].tolist(), node[col].tolist(), strict=True))
    known, frontier, wanted = seeds.tolist(), seeds.tolist(), []
    for hop, k in enumerate(fanouts):
        layer = 0 if layer_dependency else hop
        new = expected(data, frontier, k, layer, Variates(own, other, share))
        frontier = [t for t in dict.fromkeys(t for t, _ in new) if t not in known]
        known += frontier
        wanted += new
    assert got == wanted
    assert node.tolist() == known


@pytest.mark.parametrize("count", [4, labor.ALL_PAIRS, labor.ALL_PAIRS + 1])
def test_the_smallest_variates_by_hand(count: int) -> None:
    """Of equal ones the first, whichever way candidates are ordered."""
    variates = np.full(count, 6, np.uint64)
    variates[1:3] = 2, 5
    places, order = 10 + np.arange(count), np.empty(labor.ALL_PAIRS, np.int64)
    for size, expected in ((2, [11, 12]), (4, [11, 12, 10, 13])):
        position = np.empty(size, np.int64)
        labor.take_smallest(position, 0, size, variates, places, count, order)
        assert position.tolist() == expected


@pytest.fixture(params=ORDERS)
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[CudaBackend]]:
    with emulated(order=request.param) as backend:
        yield give_to_loaders(backend, monkeypatch)


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"num_neighbors": [40, -1]},
    {"layer_dependency": True, "subgraph_type": "induced"},
    {"batch_dependency": 3, "shuffle": True},
    {"subgraph_type": "bidirectional", "num_workers": 2, "prefetch": 2},
    {"batch_dependency": 2, "num_workers": 2, "persistent_workers": True},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_both_backends_make_the_same_batches(
    device: list[CudaBackend], monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    def epochs() -> list[dict[str, Any]]:
        given = {"num_neighbors": [4, 3], "batch_size": 16, **arguments}
        loader = NeighborLoader(simple_graph(), seed=5, sampling="labor", **given)
        return [batch.to_dict() for _ in range(2) for batch in loader]

    got = epochs()
    assert device, "the loader did not ask for the emulated backend"
    monkeypatch.undo()
    wanted = epochs()
    assert len(got) == len(wanted) == 16
    for mine, theirs in zip(got, wanted, strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("exclude", [None, "self", "reverse"])
def test_links_and_types_on_both_backends(
    device: list[CudaBackend], monkeypatch: pytest.MonkeyPatch, exclude: str | None
) -> None:
    def epochs() -> list[dict[str, Any]]:
        typed = LinkNeighborLoader(
            typed_graph(), [4, 3], edge_label_index=("a", "to", "b"), batch_size=200, seed=5,
            sampling="labor", batch_dependency=2, neg_sampling="binary",
            exclude_seed_edges=exclude,
        )  # fmt: skip
        plain = LinkNeighborLoader(
            simple_graph(), [3, 2], batch_size=600, seed=5, sampling="labor",
            exclude_seed_edges=exclude,
        )  # fmt: skip
        return [batch.to_dict() for loader in (typed, plain) for batch in loader]

    got = epochs()
    assert device
    monkeypatch.undo()
    for mine, theirs in zip(got, epochs(), strict=True):
        assert_equal(mine, theirs)


def test_excluded_edges_are_passed_over() -> None:
    """The law is that of the graph without them."""
    data = simple_graph()
    links = data.edge_index[:, data.edge_index[1] == 7][:, :20]
    arguments: dict[str, Any] = {"batch_size": 20, "seed": 0, "sampling": "labor"}
    loader = LinkNeighborLoader(data, [5], links, exclude_seed_edges="self", **arguments)
    (batch,) = loader
    kept = ~((data.edge_index[1] == 7) & torch.isin(data.edge_index[0], links[0]))
    less = Data(edge_index=data.edge_index[:, kept], num_nodes=NODES)
    (wanted,) = LinkNeighborLoader(less, [5], links, **arguments)
    assert torch.equal(batch.n_id, wanted.n_id)
    assert torch.equal(batch.edge_index, wanted.edge_index)


def edges_of(batch: Any) -> set[tuple[int, int]]:
    row, col = batch.n_id[batch.edge_index]
    return set(zip(row.tolist(), col.tolist(), strict=True))


def test_lists_share_sources_within_a_batch() -> None:
    """Two nodes with the same list take the same edges, and relations share their source type."""
    data = HeteroData(a={"num_nodes": 100}, b={"num_nodes": 30}, c={"num_nodes": 30})
    row, col = torch.cartesian_prod(torch.arange(100), torch.arange(30)).t()
    for kind in ("b", "c"):
        data["a", "to", kind].edge_index = torch.stack([row, col])
        data[kind, "back", "b"].edge_index = torch.stack([torch.arange(30), torch.arange(30)])
    arguments: dict[str, Any] = {"input_nodes": ("b", None), "batch_size": 30, "seed": 0}
    (uniform,) = NeighborLoader(data, [5, 5], **arguments)
    (batch,) = NeighborLoader(data, [5, 5], sampling="labor", **arguments)
    assert batch["a"].num_sampled_nodes[1] == 5
    assert uniform["a"].num_sampled_nodes[1] > 60
    (same,) = NeighborLoader(data, [5, 5], sampling="labor", layer_dependency=True, **arguments)
    assert batch["a"].num_nodes > 5
    assert same["a"].num_nodes == 5


@pytest.mark.parametrize("window", [1, 2, 4, 7])
def test_keys_of_dependent_batches(window: int) -> None:
    """Any batch has its key alone, and windows follow one another."""
    keys = [key for _, key in zip(range(20), rng.dependent_keys(3, 2, 0, window), strict=False)]
    for batch, key in enumerate(keys):
        assert key == next(rng.keys(3, 2, batch))
        again = next(rng.dependent_keys(3, 2, batch, window))
        assert again.variates == key.variates
        first, following, share = key.variates
        assert share == (batch % window << 32) // window
        later = keys[batch + window].variates if batch + window < 20 else None
        assert later is None or (later.first == following and later.first != first)
        assert first not in keys
    other = next(rng.dependent_keys(3, 3, 0, window)).variates  # of the next epoch
    assert not {other.first, other.next} & set(keys[0].variates[:2])


def test_dependent_batches_share_a_share_of_the_variates() -> None:
    data = Data(edge_index=torch.stack([torch.arange(1000), torch.zeros(1000).long()]))
    data.num_nodes = 1001
    for window, least, most in ((1, 0.0, 0.15), (4, 0.6, 0.85), (20, 0.9, 0.99)):
        loader = NeighborLoader(
            data, [500], torch.zeros(40).long(), batch_size=1, seed=1, sampling="labor",
            batch_dependency=window,
        )  # fmt: skip
        taken = [edges_of(batch) for batch in loader]
        # Of two independent draws of a half, a half is the same.
        kept = [2 * len(a & b) / 500 - 1 for a, b in pairwise(taken)]
        assert least - 0.1 < np.mean(kept) < most + 0.05, window


def test_threads_that_share_a_batch_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = simple_graph(9000, 90_000)
    one = NeighborSampler(data, [3, 2], sampling="labor", seed=1)
    four = NeighborSampler(data, [3, 2], sampling="labor", seed=1, threads=4)
    seeds: list[Tensor | None] = [torch.arange(8500)]
    key = BatchKey(1, 2)
    mine, theirs = keyed(one).sample(seeds, key), keyed(four).sample(seeds, key)
    assert torch.equal(mine.edge_index[0], theirs.edge_index[0])
    assert torch.equal(mine.edge[0], theirs.edge[0])


def test_a_sampler_in_pygs_own_loader_and_a_saved_graph(tmp_path: Any) -> None:
    data = simple_graph()
    sampler = NeighborSampler(data, [3, 2], sampling="labor", seed=1)
    theirs = NodeLoader(data, sampler, batch_size=40, num_workers=2)  # processes
    assert sum(batch.num_nodes for batch in theirs) > 120
    pyg_direct.save(data, tmp_path / "graph")
    arguments: dict[str, Any] = {"batch_size": 40, "sampling": "labor", "seed": 2}
    here = NeighborLoader(data, [3, 2], **arguments)
    there = NeighborLoader(pyg_direct.open(tmp_path / "graph"), [3, 2], **arguments)
    for mine, theirs in zip(here, there, strict=True):
        assert torch.equal(mine.n_id, theirs.n_id)
        assert torch.equal(mine.edge_index, theirs.edge_index)
        assert torch.equal(mine.x, theirs.x)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"replace": True}, "cannot be combined with replace=True"),
        ({"disjoint": True}, "cannot be combined with disjoint=True"),
        ({"time_attr": "time"}, "cannot be combined with time_attr"),
        ({"weight_attr": "weight"}, "cannot be combined with weight_attr"),
        (
            {"sampling": "Labor"},
            "sampling must be one of 'uniform', 'labor', 'adaptive', got 'Labor'",
        ),
        ({"sampling": "uniform", "layer_dependency": True}, "layer_dependency=True has no meaning"),
        ({"sampling": "uniform", "batch_dependency": 2}, "batch_dependency=2 has no meaning"),
        ({"batch_dependency": 0}, "batch_dependency must be an int of 1 or more, got 0"),
        ({"batch_dependency": 1.5}, "batch_dependency must be an int of 1 or more, got 1.5"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [NeighborLoader, LinkNeighborLoader])
def test_options_that_labor_does_not_take_are_refused(
    make: Any, arguments: dict[str, Any], text: str
) -> None:
    data = simple_graph()
    data.weight, data.time = torch.rand(data.num_edges), torch.arange(NODES)
    if make is LinkNeighborLoader and "time_attr" in arguments:
        arguments = {**arguments, "edge_label_time": torch.zeros(data.num_edges).long()}
    with pytest.raises((ValueError, TypeError), match=re.escape(text)):
        make(data, [3], **{"sampling": "labor", **arguments})


def test_settings_that_are_changed_later_are_refused_as_well() -> None:
    sampler = NeighborSampler(simple_graph(), [3], sampling="labor")
    sampler.replace = True
    with pytest.raises(ValueError, match="cannot be combined with replace=True"):
        list(NodeLoader(simple_graph(), sampler, batch_size=40))
    with pytest.raises(ValueError, match="sampling would be ignored"):
        NeighborLoader(simple_graph(), [3], neighbor_sampler=sampler, sampling="labor")


def test_a_ready_sampler_has_dependent_batches() -> None:
    data = simple_graph()
    sampler = NeighborSampler(data, [3, 2], sampling="labor", seed=1)
    arguments: dict[str, Any] = {"batch_size": 40, "seed": 2, "batch_dependency": 4}
    ready = NeighborLoader(data, [], neighbor_sampler=sampler, **arguments)
    for mine, theirs in zip(
        ready, NeighborLoader(data, [3, 2], sampling="labor", **arguments), strict=True
    ):
        assert torch.equal(mine.n_id, theirs.n_id)


def test_accelerated_models_on_its_batches() -> None:
    data = simple_graph()
    data.x = data.x.double()
    model = GraphSAGE(3, 8, 2, 4).double()
    given: dict[str, Any] = {"batch_size": 20, "seed": 1, "sampling": "labor"}
    loader = NeighborLoader(data, [4, 3], order="proximity", batch_dependency=3, **given)
    plain = list(NeighborLoader(data, [4, 3], order="proximity", batch_dependency=3, **given))
    fast = pyg_direct.accelerate(model, loader)
    for batch, same in zip(loader, plain, strict=True):
        out = fast(batch.x, batch.edge_index)[: batch.batch_size]
        wanted = model(same.x, same.edge_index)[: batch.batch_size]
        torch.testing.assert_close(out, wanted)
    assert fast.acceleration.reason == ""


def test_parallel_edges_are_named() -> None:
    data = typed_graph()
    data["a", "is", "a"].edge_index = torch.tensor([[5, 9, 3, 9], [2, 4, 4, 4]])
    text = "several of type ('a', 'is', 'a') from node 9 to node 4"
    with pytest.raises(ValueError, match=re.escape(text)):
        NeighborLoader(data, [2], input_nodes="a", sampling="labor")
    # An edge and its reverse are not parallel, nor are those of two types.
    data["a", "is", "a"].edge_index = torch.tensor([[5, 9, 3, 4], [2, 4, 4, 9]])
    NeighborLoader(data, [2], input_nodes="a", sampling="labor")


def test_too_dependent_batches_give_a_warning() -> None:
    with pytest.warns(UserWarning, match="batch_dependency=257"):
        NeighborLoader(simple_graph(), [3], sampling="labor", batch_dependency=257)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NeighborLoader(simple_graph(), [3], sampling="labor", batch_dependency=256)
