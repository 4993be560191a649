"""The loader as an object: repr, attributes, calls, iterators and ready samplers."""

import copy
from typing import Any

import pytest
import torch
import torch_geometric.loader
from graphs import assert_same_epoch, citations, example_graph, papers_and_authors
from loaders import make, seeds_of
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler


def test_repr_says_what_is_loaded() -> None:
    loader = NeighborLoader(example_graph(), [2, 3], input_nodes=[5, 1], batch_size=2)
    assert repr(loader) == (
        "NeighborLoader(12 nodes, 20 edges, 2 seeds, num_neighbors=[2, 3], batch_size=2, "
        "device=cpu)"
    )
    data = papers_and_authors()
    links = LinkNeighborLoader(data, [4], edge_label_index=("author", "paper"))
    assert repr(links) == (
        f"LinkNeighborLoader(330 nodes of 3 types, {data.num_edges:,} edges of 5 types, 500 seeds, "
        "num_neighbors=[4], batch_size=1, device=cpu)"
    )


def test_repr_on_a_gpu_says_where_things_lie(emulated_loaders: list[Any]) -> None:
    text = repr(NeighborLoader(example_graph(), [2]))
    assert "device=privateuseone:0, " in text
    assert " in GPU memory)" in text


@pytest.mark.pyg("filter_per_worker", "loader.len", "loader.attributes")
def test_the_loader_as_an_object(loader_class: type) -> None:
    data = example_graph()
    loader = loader_class(data, [2, 3], input_nodes=torch.tensor([5, 1]), batch_size=2)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert str(loader) == "NeighborLoader()"
    assert loader.data is data
    assert len(loader.node_sampler.num_neighbors) == 2
    assert loader.input_data.node.tolist() == [5, 1]
    assert loader.transform is loader.custom_cls is loader.transform_sampler_output is None
    assert loader.filter_per_worker is True  # for data on the CPU
    assert (len(loader), loader.batch_size, loader.dataset) == (1, 2, range(2))


@pytest.mark.pyg("loader.call")
@pytest.mark.parametrize("index", [[1, 0], torch.tensor([1, 0])], ids=["list", "tensor"])
def test_call_takes_positions(loader_class: type, index: list[int] | Tensor) -> None:
    loader = make(loader_class, input_nodes=torch.tensor([5, 7]), filter_per_worker=False)
    batch = loader(index)
    assert batch.n_id[:2].tolist() == [7, 5]
    assert batch.input_id.tolist() == [1, 0]
    assert "x" in batch


@pytest.mark.pyg("loader.pickle")
def test_two_iterators_at_a_time(loader_class: type) -> None:
    loader = make(loader_class)
    expected = seeds_of(loader)
    pairs = list(zip(loader, loader, strict=True))
    for side in (0, 1):
        assert seeds_of([pair[side] for pair in pairs]) == expected


@pytest.mark.pyg("num_neighbors")
def test_num_neighbors_can_be_set_on_a_shallow_copy() -> None:
    """What Lightning does for evaluation."""
    loader = make(NeighborLoader, [0])
    sampler = copy.copy(loader.node_sampler)
    sampler.num_neighbors = [-1, -1]
    other = torch_geometric.loader.NodeLoader(example_graph(), sampler, batch_size=5)
    assert_same_epoch(other, make(NeighborLoader))
    assert all(batch.num_edges == 0 for batch in loader)


@pytest.mark.pyg("neighbor_sampler")
def test_a_ready_sampler() -> None:
    data = example_graph()
    sampler = NeighborSampler(data, [2, 2], replace=True, disjoint=True, seed=4)
    loader = NeighborLoader(data, [9], neighbor_sampler=sampler, batch_size=5, seed=8)
    assert loader.node_sampler is sampler
    direct = make(NeighborLoader, [2, 2], replace=True, disjoint=True, seed=8)
    assert_same_epoch(loader, direct)


SETTINGS: dict[str, list[Any]] = {
    "time_window": [None, 9, 3],
    "temporal_strategy": ["last", "uniform"],
    "replace": [True, False],
    "num_neighbors": [[2, 2], [3, -1]],
    "subgraph_type": ["directional", "induced"],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_shallow_copies_are_their_own(name: str) -> None:
    """Copies share a placed graph and what is kept for it; each samples as a new one does."""
    data = citations()
    data.time = torch.arange(data.num_nodes) % 20
    seeds = NodeSamplerInput(None, torch.arange(30), torch.full((30,), 19))
    given: dict[str, Any] = {"num_neighbors": [2, 2], "time_attr": "time"}
    used = NeighborSampler(data, **given)
    for value in [*SETTINGS[name], *SETTINGS[name]]:
        used = copy.copy(used)
        setattr(used, name, SubgraphType(value) if name == "subgraph_type" else value)
        got = used.sample_from_nodes(seeds, key=(1, 2))
        expected = NeighborSampler(data, **{**given, name: value})
        assert torch.equal(got.edge, expected.sample_from_nodes(seeds, key=(1, 2)).edge)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("replace", "no", "replace must be"),
        ("subgraph_type", "whole", "subgraph_type must be one of"),
        ("subgraph_type", "bidirectional", "pass exclude_seed_edges='reverse'"),
        ("temporal_strategy", "latest", "temporal_strategy must be"),
        ("time_window", 3, "no meaning without time_attr"),
        ("sample_direction", "backward", "cannot be set on a sampler"),
    ],
)
def test_settings_are_checked_when_they_are_set(name: str, value: Any, message: str) -> None:
    sampler = NeighborSampler(example_graph(), [2], exclude_seed_edges=True)
    before = getattr(sampler, name)
    with pytest.raises((ValueError, TypeError), match=message):
        setattr(sampler, name, value)
    setattr(sampler, name, before)
    assert getattr(sampler, name) == before


def test_a_subgraph_type_is_set_by_its_name() -> None:
    sampler = NeighborSampler(example_graph(), [2])
    sampler.subgraph_type = "induced"
    assert sampler.subgraph_type == SubgraphType.induced
