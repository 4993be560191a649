"""Positions of seeds that are not integers, two graphs as stores, and graphs without edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import example_graph
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler

import pyg_direct
from pyg_direct import (
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    PageRankLoader,
    ShaDowKHopSampler,
)

LOADERS: dict[str, Any] = {
    "nodes": lambda **options: NeighborLoader(example_graph(), [2], **options),
    "links": lambda **options: LinkNeighborLoader(example_graph(), [2], **options),
    "contexts": lambda **options: PageRankLoader(example_graph(), 3, **options),
    "egos": lambda **options: ShaDowKHopSampler(example_graph(), 1, 2, **options),
    "times": lambda **options: NeighborLoader(with_times(), [2], time_attr="time", **options),
    "overridden": lambda **options: OwnCollate(example_graph(), [2], **options),
}


def with_times() -> Data:
    data = example_graph()
    data.time = torch.arange(12)
    return data


class OwnCollate(NeighborLoader):
    def collate_fn(self, index: Any) -> Any:
        return super().collate_fn(index)


WRONG: dict[str, Any] = {
    "float": [1.5],
    "whole_float": [1.0, 2.0],
    "array": np.array([0.5, 1.5]),
    "tensor": torch.tensor([1.0]),
    "bools": [True, False, True],
    "mask": torch.arange(12) % 2 == 0,
    "text": ["1"],
    "tensors": [torch.tensor(0.5), torch.tensor(1.0)],
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", LOADERS)
def test_positions_other_than_integers_are_refused(kind: str, name: str) -> None:
    loader = LOADERS[kind](batch_sampler=[WRONG[name]])
    calls = [lambda: list(loader), lambda: loader(WRONG[name])]
    if kind == "times":
        calls.append(lambda: loader(WRONG[name], torch.tensor([1])))
    for call in calls:
        with pytest.raises(
            TypeError, match=r"(?s)positions, which must be integers, got .*sampler="
        ):
            call()


@pytest.mark.parametrize(
    "index",
    [
        [3, 1],
        np.array([3, 1], np.int32),
        np.array([3, 1], np.uint8),
        torch.tensor([3, 1]),
        torch.tensor([[3], [1]], dtype=torch.int16),
        [torch.tensor(3), torch.tensor(1)],
        (3, 1),
    ],
)
def test_positions_of_all_integers(index: Any) -> None:
    expected = next(iter(NeighborLoader(example_graph(), [2], [3, 1], batch_size=2, seed=0)))
    loader = NeighborLoader(example_graph(), [2], batch_sampler=[index], seed=0)
    (batch,) = loader
    assert batch.n_id.tolist() == expected.n_id.tolist()
    assert loader(index).n_id[:2].tolist() == [3, 1]


def test_no_positions_at_all() -> None:
    assert NeighborLoader(example_graph(), [2])([]).num_nodes == 0


@pytest.mark.parametrize("kind", [Data, HeteroData])
@pytest.mark.parametrize("pair", [list, tuple])
def test_two_graphs_are_no_stores(kind: Any, pair: Any) -> None:
    data = example_graph()
    if kind is HeteroData:
        data = HeteroData()
        data["a"].x, data["a", "to", "a"].edge_index = torch.ones(2, 1), torch.tensor([[0], [1]])
    for loader in (NeighborLoader, LinkNeighborLoader, NeighborSampler):
        for graphs in ([data, data], [data, data.clone()]):
            with pytest.raises(ValueError, match=r"got a (list|tuple) of 2 graphs. Pass one"):
                loader(pair(graphs), [2])


def test_graphs_with_edge_attributes_but_no_edges_are_refused() -> None:
    """Attributes of edges say that there should be some."""
    data = HeteroData()
    data["a"].x, data["a", "to", "a"].edge_attr = torch.ones(2, 1), torch.ones(2, 1)
    plain = Data(x=torch.ones(3, 1), edge_weight=torch.ones(4))
    for graph, name in ((plain, "data"), (data, r"data\[\('a', 'to', 'a'\)\]")):
        with pytest.raises(ValueError, match=rf"{name} has no edges: set {name}.edge_index"):
            NeighborSampler(graph, [2])
    empty = Data(x=torch.ones(3, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert len(list(NeighborLoader(empty, [2]))) == 3


# Loaders over positions ###########################################################################


def over_positions(name: str, **options: Any) -> Any:
    data, nodes = example_graph(), torch.arange(5)
    parts = torch.arange(12) % 5
    made = {
        "shadow": lambda: pyg_direct.ShaDowKHopSampler(data, 1, 2, nodes, **options),
        "pagerank": lambda: pyg_direct.PageRankLoader(data, 3, nodes, **options),
        "clusters": lambda: pyg_direct.ClusterLoader(
            pyg_direct.ClusterData(data, 5, log=False, partition=parts), **options
        ),
        "node2vec": lambda: pyg_direct.Node2Vec(
            torch.tensor([[0, 1], [1, 4]]), 4, walk_length=4, context_size=2
        ).loader(**options),
    }
    return made[name]()


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].num_nodes, data["a", "to", "a"].edge_index = 12, example_graph().edge_index
    return data


NODES: Any = torch.arange(5)
AMONG_SEEDS: dict[str, Any] = {
    "nodes": lambda **options: NeighborLoader(example_graph(), [2], NODES, **options),
    "links": lambda **options: LinkNeighborLoader(
        example_graph(), [2], torch.stack([NODES, NODES]), **options
    ),
    "hgt": lambda **options: pyg_direct.HGTLoader(typed(), [2], ("a", NODES), **options),
    "typed": lambda **options: NeighborLoader(typed(), [2], ("a", NODES), **options),
    "times": lambda **options: NeighborLoader(
        with_times(), [2], NODES, time_attr="time", **options
    ),
}
OVER_POSITIONS = ["shadow", "pagerank", "clusters", "node2vec"]
ANY = [*OVER_POSITIONS, *AMONG_SEEDS]


def make(name: str, **options: Any) -> Any:
    return AMONG_SEEDS[name](**options) if name in AMONG_SEEDS else over_positions(name, **options)


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize(
    "sampler",
    [
        range(12),
        [2, 5],
        torch.tensor([2, 11]),
        SubsetRandomSampler(range(12)),
        RandomSampler(range(12)),
        WeightedRandomSampler(torch.ones(12), 12),
        ImbalancedSampler(torch.arange(12) % 3),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_sampler_of_too_many_positions_is_refused_when_a_loader_is_built(
    name: str, sampler: Any
) -> None:
    with pytest.raises(ValueError, match=r"sampler= names position \d+, but there are 5 "):
        make(name, sampler=sampler)


@pytest.mark.parametrize("name", list(AMONG_SEEDS))
def test_a_sampler_of_places_among_the_seeds_is_taken(name: str) -> None:
    for sampler in (range(5), [4, 0], WeightedRandomSampler(torch.tensor([0.0, 1, 1, 0, 0, 0]), 2)):
        assert len(list(AMONG_SEEDS[name](sampler=sampler))) == len(sampler)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ANY)
def test_positions_that_are_not_there_are_named_in_an_epoch_and_in_calls(
    name: str, workers: int
) -> None:
    loader = make(name, batch_sampler=[[1], [7]], num_workers=workers)
    batches = iter(loader)
    next(batches)
    with pytest.raises(IndexError, match="position 7, but there are 5 "):
        next(batches)
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"position {wrong}, but there are 5 .* 0 to 4"):
            loader([0, wrong])


@pytest.mark.parametrize("name", OVER_POSITIONS)
def test_positions_that_are_there_are_taken_also_from_the_end(name: str) -> None:
    weights = torch.tensor([1.0, 1, 0, 0, 1, 0, 0])  # of more than there are, but not drawn
    assert len(list(over_positions(name, sampler=WeightedRandomSampler(weights, 6)))) == 6
    loader = over_positions(name, seed=1)
    last, also_last = loader([4]), loader([-1])
    if name != "node2vec":
        assert last.num_nodes == also_last.num_nodes
        assert torch.equal(last.x, also_last.x)


def test_steps_of_graph_saint_take_any_sampler_as_in_pyg() -> None:
    loader = pyg_direct.GraphSAINTNodeSampler(example_graph(), 4, 3, sampler=range(9))
    assert len(list(loader)) == 9
