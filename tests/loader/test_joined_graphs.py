"""Graphs that PyG's `Batch` has joined, and other names that a graph and its loader both use."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

GRAPHS, NODES, SEEDS = 4, 20, 30


def graphs() -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    edges = [torch.randint(NODES, (2, 60), generator=generator) for _ in range(GRAPHS)]
    return [Data(x=torch.arange(NODES)[:, None] + g, edge_index=e) for g, e in enumerate(edges)]


def first(data: Any, **arguments: Any) -> Any:
    return next(iter(NeighborLoader(data, [3], batch_size=SEEDS, **arguments)))


def warned(make: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make()
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_of_graphs_is_warned_of_once_with_the_line_that_is_right(workers: int) -> None:
    loader = NeighborLoader(
        Batch.from_data_list(graphs()), [3], batch_size=SEEDS, num_workers=workers
    )
    texts = warned(lambda: [list(loader) for _ in range(2)])
    assert len(texts) == 2
    assert "batch.batch_size is 4. The loader's is batch['batch_size'], here 30" in texts[0]
    assert "data.batch, an attribute of the nodes, is in no batch" in texts[1]


@pytest.mark.filterwarnings("ignore:DataBatch has a property|data.batch, an attribute")
def test_the_line_of_the_warning_gives_the_seeds() -> None:
    batch = first(Batch.from_data_list(graphs()))
    assert batch["batch_size"] == len(batch.input_id) == SEEDS


def test_plain_data_of_joined_graphs_is_as_any_other() -> None:
    data = Data.from_dict(Batch.from_data_list(graphs()).to_dict())
    data.graph, data.batch, data.ptr = data.batch, None, None
    batch = first(data)
    assert batch.batch_size == SEEDS
    assert torch.equal(batch.graph, data.graph[batch.n_id])


def test_the_line_that_a_list_of_graphs_is_refused_with_joins_them() -> None:
    for given, kind in ((graphs(), "Data"), ([HeteroData()] * 3, "HeteroData")):
        with pytest.raises(ValueError, match=rf"join them: {kind}.from_dict\(Batch"):
            NeighborSampler(given, [2])
    data = Data.from_dict(Batch.from_data_list(graphs()).to_dict())
    assert data.num_nodes == GRAPHS * NODES


@pytest.mark.parametrize("name", ["batch_size", "input_id", "n_id", "num_sampled_nodes"])
def test_a_property_of_the_users_class_that_hides_a_field_is_named(name: str) -> None:
    kind = type("Mine", (Data,), {name: property(lambda self: "hidden")})
    one = graphs()[0]
    data = kind(x=one.x, edge_index=one.edge_index)
    with pytest.warns(UserWarning, match=rf"Mine has a property {name} of its own.*'hidden'"):
        first(data)


@pytest.mark.parametrize("name", ["batch", "input_id"])
def test_an_attribute_of_nodes_that_the_loader_replaces_is_named(name: str) -> None:
    data = graphs()[0]
    data[name] = torch.arange(NODES)
    with pytest.warns(UserWarning, match=rf"data.{name}, an attribute of the nodes, is in no"):
        first(data)


def test_a_batch_of_typed_graphs_is_warned_of_with_the_line_that_is_right() -> None:
    def one() -> HeteroData:
        data = HeteroData()
        data["a"].num_nodes, data["a", "to", "a"].edge_index = NODES, graphs()[0].edge_index
        return data

    joined, seeds = Batch.from_data_list([one(), one()]), ("a", torch.arange(7))
    with pytest.warns(UserWarning, match=r"batch_size is 2. The loader's is batch\['a'\].* here 7"):
        batch = first(joined, input_nodes=seeds)
    assert batch["a"].batch_size == 7
    assert batch["a"].batch.tolist() == joined["a"].batch[batch["a"].n_id].tolist()
    assert warned(lambda: first(one(), input_nodes=seeds)) == []


def test_batches_and_splits_are_taken_without_a_warning() -> None:
    data = graphs()[0]
    data.edge_label_index, data.edge_label = data.edge_index, torch.ones(60)
    data.n_id, data.e_id = torch.arange(NODES), torch.arange(60)
    assert warned(lambda: first(data)) == []
    assert warned(lambda: next(iter(LinkNeighborLoader(data, [2], data.edge_index)))) == []
    assert warned(lambda: first(first(data, disjoint=False))) == []
