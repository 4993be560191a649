"""Edges, weights, times and seeds that are no dense tensors, and sizes that no memory holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import pyg_direct

NODES = 5
EDGES = torch.stack([torch.arange(20) % NODES, torch.arange(20) // 4])
PARTITION = torch.arange(NODES) % 2

LOADERS: dict[str, Any] = {
    "nodes": lambda data: pyg_direct.NeighborLoader(data, [2]),
    "links": lambda data: pyg_direct.LinkNeighborLoader(data, [2], EDGES[:, :2]),
    "sampler": lambda data: pyg_direct.NeighborSampler(data, [2]),
    "shadow": lambda data: pyg_direct.ShaDowKHopSampler(data, 1, 2),
    "pagerank": lambda data: pyg_direct.PageRankLoader(data, 2),
    "saint nodes": lambda data: pyg_direct.GraphSAINTNodeSampler(data, 3),
    "saint edges": lambda data: pyg_direct.GraphSAINTEdgeSampler(data, 3),
    "saint walks": lambda data: pyg_direct.GraphSAINTRandomWalkSampler(data, 3, 2),
    "clusters": lambda data: pyg_direct.ClusterData(data, 2, log=False, partition=PARTITION),
    "walks": lambda data: pyg_direct.RandomWalker(data),
    "node2vec": lambda data: pyg_direct.Node2Vec(data.edge_index, 4, 4, 2, num_nodes=NODES),
}

WRONG: dict[str, Any] = {
    "array": EDGES.numpy(),
    "list": EDGES.tolist(),
    "meta": EDGES.to("meta"),
    "coo": "coo",
    "csr": "csr",
    "floats": EDGES.float(),
    "flags": EDGES.bool(),
    "one row": EDGES[0],
    "too large": EDGES + NODES - 1,
    "negative": EDGES - 1,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support|Sparse invariant checks")
@pytest.mark.parametrize("name", list(LOADERS))
@pytest.mark.parametrize("wrong", list(WRONG))
def test_invalid_edges_are_refused_at_construction(name: str, wrong: str) -> None:
    edges = WRONG[wrong]
    if isinstance(edges, str):  # with warnings of torch's
        edges = torch.eye(NODES).to_sparse() if edges == "coo" else torch.eye(NODES).to_sparse_csr()
    with pytest.raises(ValueError, match="edge_index"):
        LOADERS[name](Data(edge_index=edges, num_nodes=NODES))


@pytest.mark.parametrize("name", [name for name in LOADERS if name != "node2vec"])
def test_an_invalid_number_of_nodes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"number of nodes is unknown: set data.num_nodes"):
        LOADERS[name](Data(edge_index=EDGES, num_nodes="5"))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support|Sparse invariant checks")
@pytest.mark.parametrize("name", ["shadow", "pagerank"])
def test_a_matrix_of_torch_is_refused_where_torch_sparses_is_needed(name: str) -> None:
    with pytest.raises(ValueError, match=r"adj_t to a torch_sparse.SparseTensor, not Tensor"):
        LOADERS[name](Data(adj_t=torch.eye(NODES).to_sparse_csr(), num_nodes=NODES))


NOT_DENSE: dict[str, Any] = {
    "meta": lambda tensor: tensor.to("meta"), "sparse": lambda tensor: tensor.to_sparse(),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(NOT_DENSE))
@pytest.mark.parametrize("argument", [
    "weight_attr", "time_attr", "input_nodes", "typed input_nodes", "hgt input_nodes", "input_time",
    "edge_label_index", "edge_label", "edge_label_time", "node_idx", "contexts of node_idx",
])  # fmt: skip
def test_tensors_without_a_number_for_each_place_are_named(kind: str, argument: str) -> None:
    make, data = NOT_DENSE[kind], Data(edge_index=EDGES, num_nodes=NODES, time=torch.arange(NODES))
    typed = HeteroData()
    typed["a"].num_nodes, typed["a", "to", "a"].edge_index = NODES, EDGES
    ids, ones = make(torch.arange(1, 3)), make(torch.ones(20))
    with_weights = Data(edge_index=EDGES, num_nodes=NODES, w=ones)
    with_times = Data(edge_index=EDGES, num_nodes=NODES, w=make(torch.arange(1, 21)))
    links = pyg_direct.LinkNeighborLoader
    made: dict[str, Any] = {
        "weight_attr": lambda: pyg_direct.NeighborLoader(with_weights, [2], weight_attr="w"),
        "time_attr": lambda: pyg_direct.NeighborLoader(with_times, [2], time_attr="w"),
        "input_nodes": lambda: pyg_direct.NeighborLoader(data, [2], ids),
        "typed input_nodes": lambda: pyg_direct.NeighborLoader(typed, [2], ("a", ids)),
        "hgt input_nodes": lambda: pyg_direct.HGTLoader(typed, [2], ("a", ids)),
        "input_time": lambda: pyg_direct.NeighborLoader(
            data, [2], torch.arange(2), ids, time_attr="time"
        ),
        "edge_label_index": lambda: links(data, [2], make(EDGES)),
        "edge_label": lambda: links(data, [2], edge_label=ones),
        "edge_label_time": lambda: links(
            data, [2], edge_label_time=make(torch.arange(1, 21)), time_attr="time"
        ),
        "node_idx": lambda: pyg_direct.ShaDowKHopSampler(data, 1, 2, ids),
        "contexts of node_idx": lambda: pyg_direct.PageRankLoader(data, 2, ids),
    }
    with pytest.raises(ValueError, match=rf"{argument.split()[-1]}.* must be a dense tensor in"):
        made[argument]()


@pytest.mark.parametrize("size", [2**31, 2**62])
def test_sizes_that_no_memory_holds_are_refused_before_it_is_taken(size: int) -> None:
    data = Data(edge_index=EDGES, num_nodes=NODES)
    for make, text in (
        (lambda: pyg_direct.ShaDowKHopSampler(data, size, 2), "depth must be 255 hops at most"),
        (lambda: pyg_direct.PageRankLoader(data, size), "k must be at most the number of nodes"),
        (lambda: pyg_direct.ClusterData(data, size, partition=PARTITION), "num_parts must be at"),
        (lambda: pyg_direct.GraphSAINTRandomWalkSampler(data, 2, size), "walk_length must be"),
        (lambda: pyg_direct.Node2Vec(EDGES, 4, size, 2), "walk_length must be below"),
    ):
        with pytest.raises(ValueError, match=text):
            make()


def test_sizes_above_those_of_a_small_graph_are_taken() -> None:
    data = Data(edge_index=EDGES, num_nodes=NODES)
    assert next(iter(pyg_direct.PageRankLoader(data, 64))).context.shape == (1, 64)
    assert len(pyg_direct.ClusterData(data, 9, log=False, partition=PARTITION)) == 9
    assert len(pyg_direct.ShaDowKHopSampler(data, 255, 1)) == NODES
