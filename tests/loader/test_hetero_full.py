"""Full neighbourhoods of heterogeneous graphs equal PyG's, element for element.

On a real graph, and on whatever hypothesis makes. `tests/reference` needs no sampler.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from data import make_debian_hetero as stored
from data.make_expectations import digests
from graphs import assert_same_epoch, is_hop_count
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from pyg_direct import NeighborLoader

HOPS = ([-1, -1], [-1], [-1, -1, -1], [-1, 0], [])
KINDS = ("directional", "bidirectional", "induced")


def edges_of(loader: Any) -> int:
    return sum(store.edge_index.size(1) for batch in loader for store in batch.edge_stores)


# A real graph #####################################################################################


@pytest.fixture(scope="module")
def piece() -> HeteroData:
    return stored.from_json(json.loads(stored.TARGET.read_text())["graph"])


@pytest.fixture(scope="module")
def whole() -> HeteroData:
    return stored.whole_graph()


@pytest.mark.parametrize("graph", ["piece", "whole"])
@pytest.mark.parametrize("seed_type", stored.SEED_TYPES)
def test_debian_hetero_equals_stored_batches(
    request: pytest.FixtureRequest, loader_class: type, graph: str, seed_type: str
) -> None:
    data = request.getfixturevalue(graph)
    expected = json.loads(stored.TARGET.read_text())[graph][seed_type]
    loader = loader_class(data, **stored.arguments_for(data, seed_type))
    assert [digests(batch) for batch in loader] == expected
    assert len(expected) == stored.NUM_BATCHES


@pytest.mark.pyg("batch.order")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed_type", stored.SEED_TYPES)
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")
def test_debian_hetero_equals_pyg(
    piece: HeteroData, pyg_loader: type, each_backend: str, seed_type: str, kind: str
) -> None:
    arguments = {**stored.arguments_for(piece, seed_type), "subgraph_type": kind}
    ours = list(NeighborLoader(piece, **arguments))
    assert assert_same_epoch(ours, pyg_loader(piece, **arguments)) == stored.NUM_BATCHES
    assert edges_of(ours) > 20 or seed_type == "package"


@pytest.mark.pyg("batch.order")
@pytest.mark.parametrize("seed_type", stored.SEED_TYPES)
def test_whole_debian_hetero_equals_pyg(
    whole: HeteroData, pyg_loader: type, seed_type: str
) -> None:
    arguments = stored.arguments_for(whole, seed_type)
    ours = NeighborLoader(whole, **arguments, num_workers=2)
    assert assert_same_epoch(ours, pyg_loader(whole, **arguments)) == stored.NUM_BATCHES


# Any graph ########################################################################################


@st.composite
def heterogeneous_graphs(draw: st.DrawFn) -> tuple[HeteroData, str, list[int]]:
    """Draw a graph with its seeds: loops, parallel edges, hubs, empty types and relations.

    Relations may share their ends. Edge types are in the order of their names, in which
    torch_sparse visits them.
    """
    data, sizes = HeteroData(), draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    types = ["t" + letter for letter in "abcd"[: len(sizes)]]
    for name, size in zip(types, sizes, strict=True):
        data[name].x = torch.arange(size * 2, dtype=torch.float32).view(size, 2)
        data[name].mask = torch.arange(size) % 2 == 0
        data[name].num_nodes = size
    kind = st.sampled_from(types)
    relation = st.tuples(kind, st.sampled_from(["r0", "r1", "rev_r0"]), kind)
    for key in sorted(draw(st.sets(relation, min_size=1, max_size=6))):
        ends = [data[name].num_nodes - 1 for name in (key[0], key[2])]
        hub = draw(st.integers(0, ends[1]))
        target = st.one_of(st.integers(0, ends[1]), st.just(hub))
        edges = draw(st.lists(st.tuples(st.integers(0, ends[0]), target), max_size=14))
        data[key].edge_index = (
            torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous()
        )
        data[key].number = torch.arange(len(edges))
        data[key].edge_attr = torch.rand(len(edges), 2)
    seed_type = draw(kind)
    node = st.integers(0, data[seed_type].num_nodes - 1)
    return data, seed_type, draw(st.lists(node, min_size=1, max_size=5, unique=True))


@pytest.mark.pyg("subgraph_type", "batch.order", "sampler.odd_graphs")
@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")
@given(case=heterogeneous_graphs())
def test_any_graph_equals_pyg(
    pyg_loader: type, kind: str, case: tuple[HeteroData, str, list[int]]
) -> None:
    data, seed_type, seeds = case
    arguments = {"input_nodes": (seed_type, seeds), "batch_size": 3, "subgraph_type": kind}
    for hops in HOPS:
        ours = NeighborLoader(data, hops, **arguments)
        assert_same_epoch(ours, pyg_loader(data, hops, **arguments))


def test_names_of_hop_counts() -> None:
    assert is_hop_count("a.to.b.num_sampled_edges")
    assert not is_hop_count("a.to.b.edge_index")
