"""Every loader selects an attribute's entries by the nodes, or by the edges, that it is of."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import pyg_direct

NODES, EDGES = 24, 70


class Columns(Data):
    """Has an attribute of nodes, and one of edges, whose entries are columns."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 1 if key in ("wide", "edge_wide") else super().__cat_dim__(key, value)


def graph(edges: int, folder: Path) -> Data:
    """Return a graph whose attributes hold the ids of its nodes, or of its edges."""
    generator = torch.Generator().manual_seed(0)
    node, edge = np.arange(NODES), np.arange(edges)
    mapped = np.memmap(folder / "rows.bin", "float32", "w+", shape=(NODES, 3))
    mapped[:] = node[:, None]
    data = Columns(
        num_nodes=NODES,
        edge_index=torch.randint(NODES, (2, edges), generator=generator),
        y=torch.arange(NODES),
        number=torch.arange(NODES),
        edge_number=torch.arange(edges),
        array=np.stack([node, -node], 1),
        mapped=mapped,
        wide=torch.arange(NODES).repeat(2, 1),
        words=[f"node {i}" for i in node],
        texts=np.array([f"node {i}" for i in node]),
        edge_array=edge.astype(np.float32),
        edge_wide=np.stack([edge, edge]),
        edge_words=[f"edge {i}" for i in edge],
        kept=torch.ones(5),
        level=torch.tensor(2.0),
    )
    if edges != NODES:
        data.weight = torch.arange(edges) / 2  # its name does not tell that it is of edges
    return data


def saint(cls: type) -> Callable[[Data], Any]:
    walks = (2,) if cls is pyg_direct.GraphSAINTRandomWalkSampler else ()
    return lambda data: cls(data, 6, *walks, num_steps=2, seed=1)


def parts(data: Data, **options: Any) -> Any:
    partition = torch.arange(NODES) % 4
    return pyg_direct.ClusterData(data, 4, log=False, partition=partition, **options)


LOADERS: dict[str, Callable[[Data], Any]] = {
    "shadow": lambda data: pyg_direct.ShaDowKHopSampler(data, 2, 2, batch_size=5, seed=1),
    "pagerank": lambda data: pyg_direct.PageRankLoader(data, 4, batch_size=5),
    "saint nodes": saint(pyg_direct.GraphSAINTNodeSampler),
    "saint edges": saint(pyg_direct.GraphSAINTEdgeSampler),
    "saint walks": saint(pyg_direct.GraphSAINTRandomWalkSampler),
    "clusters": lambda data: pyg_direct.ClusterLoader(parts(data), batch_size=2),
    "clusters by column": lambda data: pyg_direct.ClusterLoader(
        parts(data, sparse_format="csc"), batch_size=2
    ),
    "one part": parts,
    "one part by column": lambda data: parts(data, sparse_format="csc"),
    "part and edges to others": lambda data: parts(data, keep_inter_cluster_edges=True),
}


def batches(loader: Any) -> Iterator[Any]:
    count = 0
    for batch in loader:
        yield batch
        count += 1
    assert count > 0


@pytest.mark.parametrize("edges", [EDGES, NODES])
@pytest.mark.parametrize("name", list(LOADERS))
def test_entries_are_those_of_the_nodes_and_edges_of_a_batch(
    name: str, edges: int, tmp_path: Path
) -> None:
    data = graph(edges, tmp_path)
    found_edges = 0
    for batch in batches(LOADERS[name](data)):
        node, edge = batch.number, batch.edge_number
        if "others" not in name:
            assert torch.equal(node[batch.edge_index], data.edge_index[:, edge])
        assert torch.as_tensor(batch.array).tolist() == torch.stack([node, -node], 1).tolist()
        assert torch.as_tensor(batch.mapped).tolist() == node[:, None].repeat(1, 3).tolist()
        assert batch.wide.tolist() == [node.tolist()] * 2
        assert list(batch.words) == list(batch.texts) == [f"node {i}" for i in node.tolist()]
        assert torch.as_tensor(batch.edge_array).tolist() == edge.tolist()
        assert torch.as_tensor(batch.edge_wide).tolist() == [edge.tolist()] * 2
        assert batch.edge_words == [f"edge {i}" for i in edge.tolist()]
        assert batch.kept is data.kept
        assert batch.level is data.level
        rooted = "root_n_id" in batch
        assert batch.y.tolist() == (node[batch.root_n_id] if rooted else node).tolist()
        if edges != NODES:
            assert batch.weight.tolist() == (edge / 2).tolist()
        found_edges += len(edge)
    assert found_edges > 0


@pytest.mark.parametrize("name", [name for name in LOADERS if "others" not in name])
def test_edges_whose_attributes_all_lack_the_word_have_theirs(name: str, tmp_path: Path) -> None:
    """A graph in parts has no `edge_index`, and PyG would count its edges by such names."""
    whole = graph(EDGES, tmp_path)
    cost = torch.arange(EDGES)
    data = Data(number=whole.number, edge_index=whole.edge_index, num_nodes=NODES, cost=cost)
    for batch in batches(LOADERS[name](data)):
        assert torch.equal(batch.number[batch.edge_index], data.edge_index[:, batch.cost])


@pytest.mark.parametrize("name", ["clusters", "one part"])
def test_parts_of_pygs_own_class_have_their_entries(name: str, tmp_path: Path) -> None:
    """PyG's `ClusterData` has no edges any more, by whose number they could be told."""
    from torch_geometric.loader import ClusterData

    data = graph(EDGES, tmp_path)
    for key in ("array", "mapped", "texts", "edge_array", "edge_wide", "edge_words"):
        del data[key]  # PyG refuses arrays
    ours = parts(data, save_dir=str(tmp_path))
    theirs = ClusterData(data, 4, log=False, save_dir=str(tmp_path))
    if name == "one part":
        assert [part.number.tolist() for part in theirs] == [part.number.tolist() for part in ours]
        return
    for batch in pyg_direct.ClusterLoader(theirs, batch_size=2):
        assert batch.weight.tolist() == (batch.edge_number / 2).tolist()
        assert torch.equal(batch.number[batch.edge_index], data.edge_index[:, batch.edge_number])


@pytest.mark.parametrize("loader", ["nodes", "links", "hgt"])
def test_arrays_in_loaders_of_hops_are_selected_by_type(loader: str, tmp_path: Path) -> None:
    data = HeteroData()
    mapped = np.memmap(tmp_path / "typed.bin", "float32", "w+", shape=(NODES, 2))
    mapped[:] = np.arange(NODES)[:, None]
    data["a"].num_nodes = NODES
    data["a"].array, data["a"].mapped = np.arange(NODES), mapped
    store = data["a", "to", "a"]
    store.edge_index = graph(NODES, tmp_path).edge_index
    store.array = np.arange(NODES) * 2.0
    key = ("a", "to", "a")
    made: Any = {
        "nodes": lambda: pyg_direct.NeighborLoader(data, [2, 2], "a", batch_size=6),
        "links": lambda: pyg_direct.LinkNeighborLoader(data, [2], key, batch_size=6),
        "hgt": lambda: pyg_direct.HGTLoader(data, [4], "a", batch_size=6),
    }[loader]()
    for batch in batches(made):
        assert batch["a"].array.tolist() == batch["a"].n_id.tolist()
        assert batch["a"].mapped[:, 1].tolist() == batch["a"].n_id.tolist()
        assert batch[key].array.tolist() == (batch[key].e_id * 2).tolist()


def test_attributes_that_come_later_have_the_roles_of_their_sizes(tmp_path: Path) -> None:
    data = graph(EDGES, tmp_path)
    loader = pyg_direct.GraphSAINTNodeSampler(data, 6, num_steps=3, seed=1)
    made = iter(loader)
    next(made)
    data.later, data.cost = torch.arange(NODES), np.arange(EDGES)
    batch = next(made)
    assert torch.equal(batch.later, batch.number)
    assert batch.cost.tolist() == batch.edge_number.tolist()
