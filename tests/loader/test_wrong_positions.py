"""Positions of seeds that are not integers, two graphs as stores, and graphs without edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import example_graph
from torch_geometric.data import Data, HeteroData

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
def test_positions_that_are_no_integers(kind: str, name: str) -> None:
    loader = LOADERS[kind](batch_sampler=[WRONG[name]])
    calls = [lambda: list(loader), lambda: loader(WRONG[name])]
    if kind == "times":
        calls.append(lambda: loader(WRONG[name], torch.tensor([1])))
    for make in calls:
        with pytest.raises(
            TypeError, match=r"(?s)positions, which must be integers, got .*sampler="
        ):
            make()


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


def test_graphs_whose_edges_were_forgotten() -> None:
    """Attributes of edges say that there should be some."""
    data = HeteroData()
    data["a"].x, data["a", "to", "a"].edge_attr = torch.ones(2, 1), torch.ones(2, 1)
    plain = Data(x=torch.ones(3, 1), edge_weight=torch.ones(4))
    for graph, name in ((plain, "data"), (data, r"data\[\('a', 'to', 'a'\)\]")):
        with pytest.raises(ValueError, match=rf"{name} has no edges: set {name}.edge_index"):
            NeighborSampler(graph, [2])
    empty = Data(x=torch.ones(3, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert len(list(NeighborLoader(empty, [2]))) == 3
