"""With all neighbours taken nothing is random: every tensor equals PyG's, element for element."""

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_geometric.typing
from data import make_expectations as stored
from graphs import (
    HOP_COUNTS,
    REAL_GRAPHS,
    assert_maps_to,
    assert_same_epoch,
    example_graph,
    graphs_and_seeds,
    load_real_graph,
)
from hypothesis import given
from reference import sample
from torch_geometric.data import Data

from pyg_direct import NeighborLoader

KINDS = ("directional", "bidirectional", "induced")
HOPS = ([-1, -1], [-1], [-1, -1, -1], [-1, 0], [])


# Real graphs ######################################################################################


@pytest.fixture(scope="module", params=REAL_GRAPHS)
def real_graph(request: Any, tmp_path_factory: Any) -> Iterator[tuple[str, Data]]:
    yield request.param, load_real_graph(request.param, tmp_path_factory.mktemp(request.param))
    gc.collect()


def real_loader(loader_class: type, data: Data, **kwargs: Any) -> Any:
    return loader_class(
        data, [-1, -1], input_nodes=stored.seeds_of(data), batch_size=stored.BATCH_SIZE, **kwargs
    )


@pytest.mark.pyg("batch.order")
def test_real_graph_equals_pyg(real_graph: tuple[str, Data], pyg_loader: type) -> None:
    _, data = real_graph
    ours, theirs = real_loader(NeighborLoader, data), real_loader(pyg_loader, data)
    assert assert_same_epoch(ours, theirs) == stored.NUM_BATCHES


def test_real_graph_equals_stored_batches(real_graph: tuple[str, Data]) -> None:
    name, data = real_graph
    expected = json.loads(stored.TARGET.read_text())["real"][name]
    batches = list(real_loader(NeighborLoader, data, num_workers=2))
    assert [stored.digests(batch) for batch in batches] == expected
    for batch in batches:
        assert_maps_to(batch, data)


# The stored small graph ###########################################################################


@pytest.mark.parametrize("kind", KINDS)
def test_example_equals_stored_batches(loader_class: type, kind: str) -> None:
    expected = json.loads(stored.TARGET.read_text())
    data = example_graph()
    assert data.edge_index.tolist() == expected["edge_index"]
    loader = loader_class(data, [-1, -1], batch_size=5, subgraph_type=kind)
    assert [stored.as_lists(batch) for batch in loader] == expected["example"][kind]


# Any graph ########################################################################################


@pytest.mark.pyg("subgraph_type", "batch.order", "sampler.odd_graphs")
@pytest.mark.parametrize("kind", KINDS)
@given(case=graphs_and_seeds())
def test_any_graph_equals_pyg(pyg_loader: type, kind: str, case: tuple[Data, list[int]]) -> None:
    data, seeds = case
    if torch_geometric.typing.WITH_PYG_LIB:
        seeds = list(dict.fromkeys(seeds))  # pyg-lib numbers duplicated seeds wrongly
    for hops in HOPS:
        arguments = dict(input_nodes=torch.tensor(seeds), batch_size=3, subgraph_type=kind)
        assert_same_epoch(
            NeighborLoader(data, hops, **arguments), pyg_loader(data, hops, **arguments)
        )


@pytest.mark.pyg("is_sorted")
@given(case=graphs_and_seeds())
def test_sorted_graph_equals_pyg(pyg_loader: type, case: tuple[Data, list[int]]) -> None:
    data, seeds = case
    order = data.edge_index[1].argsort(stable=True)
    data.edge_index = data.edge_index[:, order]
    seeds = list(dict.fromkeys(seeds))
    arguments = dict(input_nodes=seeds, batch_size=2, is_sorted=True)
    assert_same_epoch(
        NeighborLoader(data, [-1, -1], **arguments), pyg_loader(data, [-1, -1], **arguments)
    )


@given(case=graphs_and_seeds())
def test_fanouts_beyond_every_degree_take_all(case: tuple[Data, list[int]]) -> None:
    data, seeds = case
    arguments = dict(input_nodes=torch.tensor(seeds), batch_size=4)
    assert_same_epoch(
        NeighborLoader(data, [data.num_edges, 10**12], **arguments),
        NeighborLoader(data, [-1, -(10**12)], **arguments),
    )


# Against the independent reference, which needs no sampler ##################################


def call(case: tuple[Data, list[int]], hops: list[int], **arguments: Any) -> Data:
    data, seeds = case
    return NeighborLoader(data, hops, input_nodes=torch.tensor(seeds), **arguments)(
        list(range(len(seeds)))
    )


@pytest.mark.pyg("subgraph_type", "batch.num_sampled", "batch.edge_attributes")
@pytest.mark.parametrize("disjoint", [False, True])
@given(case=graphs_and_seeds())
def test_bidirectional(disjoint: bool, case: tuple[Data, list[int]]) -> None:
    """The union of the sampled edges and their reverses, once each, sorted by destination."""
    data, seeds = case
    one_way = sample(data.edge_index, data.num_nodes, seeds, [-1, -1], disjoint)
    pairs = set(zip(one_way.row, one_way.col, strict=True))
    both = sorted(pairs | {(b, a) for a, b in pairs}, key=lambda pair: (pair[1], pair[0]))
    batch = call(case, [-1, -1], subgraph_type="bidirectional", disjoint=disjoint)
    assert batch.n_id.tolist() == one_way.n_id
    assert list(map(tuple, batch.edge_index.t().tolist())) == both
    assert HOP_COUNTS.isdisjoint(batch.keys())
    # The id is that of one of the edges between the two, in either direction.
    ends = batch.n_id[batch.edge_index]
    there = data.edge_index[:, batch.e_id]
    assert torch.equal(ends.sort(0).values, there.sort(0).values)
    assert set(batch.e_id.tolist()) <= set(one_way.e_id)
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
