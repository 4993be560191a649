"""`cache=` of the loaders: the same batches, found rows counted, and what the user is told."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_graphs import assert_equal, heterogeneous_graph
from emulator import emulated, give_to_loaders
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with emulated() as backend:
        give_to_loaders(backend, monkeypatch, to_host=True)
        yield backend.library.compiler


def graph(quantized: bool = False) -> Data:
    generator = torch.Generator().manual_seed(0)
    ends = (torch.rand(2, 3000, generator=generator) ** 3 * 400).long()
    x = torch.randn(400, 33, generator=generator)
    return Data(x=pyg_direct.quantize(x) if quantized else x, y=torch.arange(400), edge_index=ends)


def typed_graph() -> HeteroData:
    data = heterogeneous_graph()
    for kind in data.node_types:
        data[kind].x = torch.randn(data[kind].num_nodes, 9)
    return data


HOST = {"features": "host", "num_neighbors": [4, 3], "batch_size": 32, "seed": 1}
SIZES = (0, 0.3, 1.0, 9000, 1 << 30, "auto")


def batches(loader: Any) -> list[dict[str, Any]]:
    return [batch.to_dict() for _ in range(2) for batch in loader]


# Every size with one policy, and every policy with some rows and with all.
CACHES = [
    *(("visits", size) for size in SIZES),
    *((policy, size) for policy in ("presample", "degree") for size in (0.3, "auto")),
    *(("tensor", size) for size in (0.3, 1.0, "auto")),
]


@functools.cache
def batches_without_a_cache() -> list[dict[str, Any]]:
    """Return the batches of an emulated device that caches nothing."""
    return batches(NeighborLoader(graph(), shuffle=True, **HOST))


@pytest.mark.parametrize(("policy", "cache"), CACHES)
def test_batches_are_the_same_bits(device: Any, cache: Any, policy: Any) -> None:
    chosen = torch.rand(400) if policy == "tensor" else policy
    loader = NeighborLoader(graph(), shuffle=True, cache=cache, cache_policy=chosen, **HOST)
    for mine, theirs in zip(batches(loader), batches_without_a_cache(), strict=True):
        assert_equal(mine, theirs)
    stats = loader.stats()
    assert (stats.cache_hits > 0) == (cache != 0)
    assert ("cache of data.x" in str(loader.placement)) == (cache != 0)
    if cache in (1.0, "auto") and policy == "tensor":
        assert stats.cache_hits == stats.nodes
        assert stats.pcie_requests == stats.pcie_bytes == 0


@pytest.mark.parametrize("make", ["typed", "links", "quantized", "producers", "decoded"])
def test_every_kind_of_table(device: Any, make: str) -> None:
    def loader(**cache: Any) -> Any:
        if make == "typed":
            return NeighborLoader(typed_graph(), input_nodes="paper", **HOST, **cache)
        if make == "links":
            links = graph().edge_index[:, :300]
            given = {"neg_sampling": "binary", "edge_label_index": links}
            return LinkNeighborLoader(graph(), **given, **HOST, **cache)
        if make == "producers":
            return NeighborLoader(graph(), num_workers=2, **HOST, **cache)
        data = graph(quantized=make == "quantized")
        if make == "decoded":
            data.x = data.x.half()
            cache["feature_dtype"] = torch.float32
        return NeighborLoader(data, **HOST, **cache)

    torch.manual_seed(3)
    plain = batches(loader())
    torch.manual_seed(3)
    with_cache = loader(cache=0.4)
    for mine, theirs in zip(batches(with_cache), plain, strict=True):
        assert_equal(mine, theirs)
    assert with_cache.stats().cache_hits > 0


def test_hits_are_counted_epoch_by_epoch(device: Any) -> None:
    scores = torch.zeros(400)
    scores[:40] = 1
    loader = NeighborLoader(graph(), cache=1.0, cache_policy=scores, **HOST)
    for epoch in range(2):
        met = sum(int((batch.n_id < 40).sum()) for batch in loader)
        assert loader.stats().epochs[epoch].cache_hits == met > 0
    assert f"{loader.stats().cache_hits / 26:,.0f} rows a batch from the cache" in str(
        loader.stats()
    )


def test_presampled_rows_are_hit_more_often_than_others(device: Any) -> None:
    shares = {}
    for policy in ("presample", torch.arange(400)):
        loader = NeighborLoader(graph(), cache=0.1, cache_policy=policy, **HOST)
        list(loader)
        shares[isinstance(policy, str)] = loader.stats().cache_hits / loader.stats().nodes
    assert shares[True] > 1.5 * shares[False]


@pytest.mark.parametrize("links", [False, True])
def test_visits_go_by_the_seeds(device: Any, links: bool) -> None:
    """Two rings: only the nodes of the one with seeds are cached, whatever the degrees."""
    ring = torch.stack([torch.arange(50), (torch.arange(50) + 1) % 50])
    edge_index = torch.cat([ring, ring + 50, ring.flip(0) + 50], 1)
    data = Data(x=torch.randn(100, 20), edge_index=edge_index)
    given = {"features": "host", "cache": 1.0, "batch_size": 10, "seed": 0}
    if links:
        loader: Any = LinkNeighborLoader(data, [2], edge_label_index=ring, **given)
    else:
        loader = NeighborLoader(data, [2], input_nodes=torch.arange(50), **given)
    list(loader)
    assert "50 of 100 rows" in str(loader.placement)
    assert loader.stats().cache_hits == loader.stats().nodes


def test_random_numbers_of_the_user_are_left_alone(device: Any) -> None:
    class Sampler(NeighborSampler):
        def sample_from_nodes(self, index: NodeSamplerInput, **given: Any) -> Any:
            torch.rand(1)
            return super().sample_from_nodes(index, **given)

    data = graph()
    found = []
    for cache in (None, 0.5):
        given = {k: v for k, v in HOST.items() if k not in ("num_neighbors", "features")}
        sampler = Sampler(data, [4, 3], seed=1)
        torch.manual_seed(5)
        loader = NeighborLoader(
            data, [4, 3], neighbor_sampler=sampler, features="host", cache=cache, **given
        )
        list(loader)
        found.append(float(torch.rand(1)))
    assert found[0] == found[1]


def test_loaders_over_one_sampler_share_a_cache(device: Any) -> None:
    data = graph()
    sampler = NeighborSampler(data, [4, 3])
    given = {"num_neighbors": [4, 3], "neighbor_sampler": sampler, "features": "host"}
    list(NeighborLoader(data, batch_size=50, cache=0.5, **given))
    second = NeighborLoader(data, batch_size=50, cache=0.5, **given)
    list(second)
    assert str(second.placement).count("cache of") == 1
    assert second.stats().cache_hits > 0
    for other in ({"cache": 0.2}, {"cache": 0.5, "cache_policy": "degree"}):
        with pytest.raises(ValueError, match=r"contradicts cache=0\.5"):
            NeighborLoader(data, batch_size=50, **other, **given)


def test_on_the_cpu_it_has_no_effect_and_is_named() -> None:
    data = graph()
    arguments = {"num_neighbors": [4, 3], "batch_size": 32, "seed": 1}
    loader = NeighborLoader(data, cache="auto", **arguments)
    for mine, theirs in zip(loader, NeighborLoader(data, **arguments), strict=True):
        assert_equal(mine.to_dict(), theirs.to_dict())
    assert "no effect on the CPU: cache" in str(loader.placement)
    assert loader.stats().cache_hits == 0


@pytest.mark.parametrize("argument", ["share_rows", "cooperative"])
def test_ranks_that_share_rows_make_batches_on_the_cpu_where_it_has_no_effect(
    argument: str,
) -> None:
    ranks: dict[str, Any] = {"split_by_rank": True, argument: True}
    placement = NeighborLoader(graph(), [4, 3], cache="auto", **ranks).placement
    assert placement.device.type == "cpu"
    assert placement.reason == f"{argument}=True makes batches there"
    assert placement.gpu_arguments == ("cache",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache": "all"}, "cache must be None, 'auto'"),
        ({"cache": -1}, "cache must be"),
        ({"cache": 1.5}, "cache must be"),
        ({"cache": True}, "cache must be"),
        ({"cache": float("nan")}, "cache must be"),
        (
            {"cache": 10, "cache_policy": "lru"},
            "cache_policy must be one of visits, pre",
        ),
        ({"cache": 10, "cache_policy": torch.ones(3, 3)}, "cache_policy must be"),
        ({"cache_policy": "degree"}, "has no meaning without cache="),
    ],
)
def test_wrong_arguments_of_the_row_cache_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(graph(), [3], **arguments)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (torch.ones(3), "one number for each of 400 nodes, 0 or larger, got 3"),
        (-torch.ones(400), "0 or larger"),
        ({"paper": torch.ones(400)}, r"nodes of \['paper'\]"),
    ],
)
def test_expected_visits_of_wrong_size_are_refused_for_the_cache(
    device: Any, policy: Any, message: str
) -> None:
    loader = NeighborLoader(graph(), cache=0.5, cache_policy=policy, **HOST)
    with pytest.raises(ValueError, match=message):
        next(iter(loader))
