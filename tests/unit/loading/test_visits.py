"""`expected_visits` against how many batches have each node."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SubsetRandomSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from pyg_direct import (
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    expected_visits,
)
from pyg_direct.loading.cache import likely_visits

NODES, EDGES = 120, 500
AB, BA = ("a", "to", "b"), ("b", "to", "a")


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randperm(NODES * NODES, generator=generator)[:EDGES]  # none twice
    return Data(
        num_nodes=NODES, edge_index=torch.stack([edges // NODES, edges % NODES]),
        time=torch.arange(NODES), weight=torch.rand(EDGES, generator=generator),
    )  # fmt: skip


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = NODES
    data[AB].edge_index = graph().edge_index
    data[BA].edge_index = graph().edge_index.flip(0)
    return data


def counted(loader: Any, batches: int) -> dict[Any, Tensor]:
    """Return the share of so many batches that have each node, by type."""
    by_type = isinstance(loader.data, HeteroData)
    kinds = loader.data.node_types if by_type else [None]
    found, made = {kind: torch.zeros(NODES, dtype=torch.float64) for kind in kinds}, 0
    while made < batches:
        for batch in loader:
            for kind in kinds:
                found[kind][(batch[kind] if by_type else batch).n_id] += 1
            made += 1
    return {kind: visits / made for kind, visits in found.items()}


def check(loader: Any, batches: int, of_seeds: bool = False) -> None:
    """Compare how many nodes a batch has of each type; `of_seeds` each node, but for noise."""
    visits = expected_visits(loader)
    expected: Any = visits if isinstance(visits, dict) else {None: visits}
    for kind, found in counted(loader, batches).items():
        assert float(expected[kind].sum()) == pytest.approx(float(found.sum()), rel=0.05)
        assert float(expected[kind].min()) >= 0
        assert float(expected[kind].max()) <= 1
        error = (expected[kind] * (1 - expected[kind]) / batches).sqrt()
        if of_seeds:
            assert float(((expected[kind] - found).abs() - 5 * error).max()) < 0.01


REPEATED = torch.cat([torch.arange(30), torch.zeros(20).long(), torch.full((10,), 7)])
SEEDS: dict[str, dict[str, Any]] = {
    "all": {"input_nodes": None},
    "some": {"input_nodes": torch.arange(40), "batch_size": 8},
    "repeated": {"input_nodes": REPEATED, "batch_size": 8},
    "one node": {"input_nodes": torch.zeros(50).long(), "batch_size": 5},
    "an incomplete batch": {"input_nodes": torch.arange(11), "batch_size": 10},
    "without it": {"input_nodes": torch.arange(11), "batch_size": 10, "drop_last": True},
    "one batch": {"input_nodes": torch.arange(7), "batch_size": 10},
}


@pytest.mark.parametrize("seeds", list(SEEDS))
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fanouts", [[], [3, 2]])
def test_nodes_of_batches_around_nodes(seeds: str, shuffle: bool, fanouts: list[int]) -> None:
    given = {"batch_size": 10, **SEEDS[seeds]}
    loader = NeighborLoader(graph(), fanouts, shuffle=shuffle, seed=1, **given)
    check(loader, 100, of_seeds=not fanouts)


@pytest.mark.parametrize("fanouts", [[2], [4, 3], [-1]])
@pytest.mark.parametrize("replace", [False, True])
def test_nodes_of_batches_with_and_without_replacement(fanouts: list[int], replace: bool) -> None:
    for data, seeds in ((graph(), torch.arange(50)), (typed(), ("a", torch.arange(50)))):
        loader: Any = NeighborLoader(
            data, fanouts, seeds, replace=replace, batch_size=5, shuffle=True, seed=1
        )
        check(loader, 60)


WEIGHT = torch.cat([torch.full((10,), 20.0), torch.ones(NODES - 20), torch.zeros(10)])
NEGATIVES: dict[str, Any] = {
    "none": None,
    "binary": NegativeSampling("binary"),
    "some": NegativeSampling("binary", 0.3),
    "many": NegativeSampling("binary", 5),
    "weighted": NegativeSampling("binary", 2, WEIGHT, WEIGHT.flip(0)),
    "triplet": NegativeSampling("triplet", 3),
    "weighted triplet": NegativeSampling("triplet", 2, None, WEIGHT),
}


@pytest.mark.parametrize("negatives", list(NEGATIVES))
@pytest.mark.parametrize("by_type", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_nodes_of_batches_of_links(negatives: str, by_type: bool, shuffle: bool) -> None:
    data = typed() if by_type else graph()
    links = torch.stack([torch.arange(60), torch.arange(60) // 2])
    loader = LinkNeighborLoader(
        data, [], (AB, links) if by_type else links, neg_sampling=NEGATIVES[negatives],
        batch_size=6, shuffle=shuffle, seed=1,
    )  # fmt: skip
    check(loader, 100, of_seeds=True)


def test_a_node_that_ends_every_link_is_in_every_batch() -> None:
    edge_index = torch.stack([torch.arange(1, 100), torch.zeros(99)]).long()
    data = Data(num_nodes=NODES, edge_index=edge_index)
    visits: Any = expected_visits(LinkNeighborLoader(data, [0], batch_size=10, shuffle=True))
    assert visits[:2].tolist() == pytest.approx([1.0, 0.1])
    loops = torch.arange(20).repeat(2, 1)  # both ends are one node
    for shuffle in (False, True):
        loader = LinkNeighborLoader(data, [], loops, batch_size=10, shuffle=shuffle)
        visits = expected_visits(loader)
        assert float(visits.sum()) == pytest.approx(10)


@pytest.mark.parametrize("fanouts", [[2], [3, 2]])
def test_nodes_of_hops_around_links(fanouts: list[int]) -> None:
    for data in (graph(), typed()):
        loader = LinkNeighborLoader(
            data, fanouts, AB if isinstance(data, HeteroData) else None, batch_size=5,
            neg_sampling="binary", shuffle=True, seed=1,
        )  # fmt: skip
        check(loader, 60)


def loader_with(name: str) -> Any:
    data, seeds = graph(), torch.arange(40)
    arguments: dict[str, dict[str, Any]] = {
        "sampling='adaptive'": {"sampling": "adaptive"},
        "sampling='labor'": {"sampling": "labor"},
        "time_attr=": {"time_attr": "time"},
        "disjoint=True": {"disjoint": True},
        "weight_attr=": {"weight_attr": "weight"},
        "sampler= of your own": {"sampler": SubsetRandomSampler(range(5))},
        "sampler= with replacement": {"sampler": RandomSampler(range(40), replacement=True)},
        "batch_sampler=": {"batch_sampler": [[1, 2], [3]]},
        "transform_sampler_output=": {"transform_sampler_output": lambda out: out},
    }
    if name in arguments:
        return NeighborLoader(data, [2, 2], seeds, **arguments[name])
    if name == "neighbor_sampler=":
        return NeighborLoader(data, [], seeds, neighbor_sampler=Other(data, [2]))
    if name == "HGTLoader":
        return HGTLoader(typed(), [2], "a")
    given: dict[str, Any] = {name.partition("=")[0]: True}
    return LinkNeighborLoader(data, [2], neg_sampling="binary", **given)


class Other(NeighborSampler):
    """A sampler that may draw as it likes."""


REFUSED = [
    "sampling='adaptive'", "sampling='labor'", "time_attr=", "disjoint=True", "weight_attr=",
    "sampler= of your own", "sampler= with replacement", "batch_sampler=", "neighbor_sampler=",
    "transform_sampler_output=", "exclude_seed_edges=", "strict_negatives=True", "HGTLoader",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_options_without_known_expectation_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name.replace("with replacement", "of your own")):
        expected_visits(loader_with(name))


def test_weights_that_decide_nothing_are_taken() -> None:
    seeds = torch.arange(40)
    check(NeighborLoader(graph(), [-1], seeds, weight_attr="weight", batch_size=8), 50)


@pytest.mark.parametrize("name", ["sampling='adaptive'", "weight_attr=", "disjoint=True"])
def test_caches_of_such_loaders_count_batches(name: str) -> None:
    loader = loader_with(name)
    visits = likely_visits(loader)[None]
    assert float(visits[40:].sum()) > 0
    assert visits[:40].tolist() == [float(v) for v in visits[:40].round()]
