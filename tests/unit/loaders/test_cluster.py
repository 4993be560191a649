"""`ClusterData` and `ClusterLoader`: METIS's parts, a user's own, files and PyG's batches."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData

from pyg_direct import ClusterData, ClusterLoader
from pyg_direct.graph.coo_to_csc import undirected


def graph(num_nodes: int = 40, edges: int = 200) -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.unique(torch.randint(num_nodes, (2, edges), generator=generator), dim=1)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=generator)]
    return Data(
        edge_index=edge_index,
        num_nodes=num_nodes,
        x=torch.arange(num_nodes * 2.0).view(-1, 2),
        edge_attr=torch.arange(edge_index.size(1)),
        name="all",
    )


def two_cliques() -> Data:
    """Nodes 0, 2, 4 and 1, 3, 5 are cliques with self-loops; one edge joins 0 and 1."""
    adjacency = torch.zeros(6, 6)
    adjacency[::2, ::2] = adjacency[1::2, 1::2] = 1
    adjacency[0, 1] = adjacency[1, 0] = 1
    return Data(edge_index=adjacency.nonzero().t(), num_nodes=6, x=torch.arange(6.0))


def test_metis_finds_the_cliques() -> None:
    pytest.importorskip("pymetis")
    parts = ClusterData(two_cliques(), 2, log=False)
    assert parts.partition.partptr.tolist() == [0, 3, 6]
    found = {tuple(parts.partition.node_perm[i : i + 3].tolist()) for i in (0, 3)}
    assert found == {(0, 2, 4), (1, 3, 5)}
    assert parts[0].num_edges == 9
    kept = ClusterData(two_cliques(), 2, log=False, keep_inter_cluster_edges=True)
    assert kept[0].num_edges == 10
    assert str(parts) == "ClusterData(2)"


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_equal_pygs(sparse_format: Any, shuffle: bool) -> None:
    parts = ClusterData(
        graph(), 7, log=False, sparse_format=sparse_format, partition=torch.arange(40) * 3 % 7
    )
    order = torch.randperm(7).tolist() if shuffle else list(range(7))
    ours = ClusterLoader(parts, batch_size=3, sampler=order)
    theirs = torch_geometric.loader.ClusterLoader(parts, batch_size=3, sampler=order)
    for one, other in zip(ours, theirs, strict=True):
        assert set(one.keys()) == set(other.keys())
        for name in one.keys():  # noqa: SIM118
            same = torch.equal if isinstance(one[name], torch.Tensor) else lambda a, b: a == b
            assert same(one[name], other[name]), name


def test_a_partition_of_ones_own() -> None:
    parts = ClusterData(graph(), 3, log=False, partition=torch.arange(40, dtype=torch.int32) % 3)
    assert len(parts) == 3
    assert parts.partition.partptr.dtype == torch.int64  # as in PyG's files
    assert sorted(parts[1].x[:, 0].tolist()) == [2.0 * node for node in range(1, 40, 3)]


def test_parts_are_saved_and_loaded_as_pyg_does(tmp_path: Path) -> None:
    where: Any = {"save_dir": str(tmp_path), "log": False}
    first = ClusterData(graph(), 4, partition=torch.arange(40) % 4, **where)
    loaded = ClusterData(graph(), 4, **where)
    assert torch.equal(loaded.partition.node_perm, first.partition.node_perm)
    theirs = torch_geometric.loader.ClusterData(graph(), 4, **where)
    assert torch.equal(theirs.partition.edge_perm, first.partition.edge_perm)
    with pytest.raises(ValueError, match="would be ignored"):
        ClusterData(graph(), 4, partition=torch.arange(40) % 4, **where)
    for other in (graph(41), graph(39), graph(40, 150)):
        with pytest.raises(ValueError, match="saved parts are of 40 nodes and "):
            ClusterData(other, 4, **where)
    where["recursive"] = True
    ClusterData(graph(), 4, partition=torch.arange(40) % 4, **where)
    with pytest.raises(ValueError, match=r"part_4_recursive.* would be ignored"):
        ClusterData(graph(), 4, partition=torch.arange(40) % 4, **where)


def test_a_file_name_without_a_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="filename has no meaning without save_dir"):
        ClusterData(graph(), 4, log=False, partition=torch.arange(40) % 4, filename="parts.pt")


def test_metis_is_given_an_undirected_graph() -> None:
    """The example of `undirected`."""
    pointers, neighbours = undirected(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]]).numpy(), 3)
    assert pointers.tolist() == [0, 1, 3, 5]
    assert neighbours.tolist() == [1, 0, 2, 1, 2]


def test_parts_have_the_numbers_that_pygs_have() -> None:
    """Of a graph with self-loops, which METIS is given as PyG gives them."""
    cliques = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3))[[0, 3, 1, 4, 2, 5]][
        :, [0, 3, 1, 4, 2, 5]
    ]
    cliques[0, 1] = cliques[1, 0] = 1
    data = Data(edge_index=cliques.nonzero().t(), num_nodes=6)
    assert ClusterData(data, 2, log=False).partition.node_perm.tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("num_parts", [1, 3, 60])
def test_odd_numbers_of_parts(num_parts: int, recursive: bool) -> None:
    """One part, and more than there are nodes: every node is in one of them."""
    pytest.importorskip("pymetis")
    parts = ClusterData(graph(), num_parts, recursive, log=False)
    assert sum(part.num_nodes for part in parts) == 40
    assert len(parts) == num_parts


def test_clusters_without_pymetis_name_its_installation_and_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"pip install pymetis\. .* partition="):
        ClusterData(graph(), 3, log=False)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"num_parts": 0}, ValueError, "num_parts"),
        ({"recursive": "no"}, TypeError, "recursive"),
        ({"sparse_format": "coo"}, ValueError, "sparse_format"),
        ({"partition": torch.zeros(3, dtype=int)}, ValueError, "40 nodes"),
        ({"partition": torch.zeros(40)}, ValueError, "integer"),
        ({"partition": torch.full((40,), 5)}, ValueError, r"parts in \[0, 5\), got 5 to 5"),
        ({"partition": torch.arange(40) % 5 - 1}, ValueError, r"parts in \[0, 5\), got -1 to 3"),
        ({"data": HeteroData()}, ValueError, "homogeneous"),
        ({"data": Data(num_nodes=3)}, ValueError, "edge_index"),
    ],
)
def test_wrong_arguments_of_clusters_are_refused(
    wrong: dict[str, Any], error: type, message: str
) -> None:
    arguments = {"data": graph(), "num_parts": 5, "log": False, **wrong}
    with pytest.raises(error, match=message):
        ClusterData(**arguments)


def test_the_loader_needs_parts() -> None:
    with pytest.raises(TypeError, match="ClusterData"):
        ClusterLoader(graph())
