"""Names that PyG may change without notice: for each a test that fails by its name."""

from __future__ import annotations

import ast
import inspect
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torch_geometric.loader
import torch_geometric.nn
from graphs import remote_stores
from private_names import Checks, names_in
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NodeSamplerInput,
    NumNeighbors,
    SamplerOutput,
)

from pyg_direct.core import pyg

CHECKS = Checks()
check = CHECKS.of


def hetero() -> HeteroData:
    data = HeteroData()
    data["a"].x = torch.arange(3.0).view(3, 1)
    data["b"].x = torch.arange(2.0).view(2, 1)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 2], [1, 1]])
    data.title = "of the graph"
    return data


@check("NOT_ATTRIBUTES", "SPARSE", "TOPOLOGY")
def _() -> None:
    values = {name: torch.eye(4).to_sparse() for name in pyg.SPARSE}
    values |= {"edge_index": torch.zeros((2, 4), dtype=torch.int64), "num_nodes": 4}
    assert values.keys() == set(pyg.NOT_ATTRIBUTES)
    for name, value in values.items():
        data = Data(**{name: value, "num_nodes": 4})
        assert not data.is_node_attr(name), name
        assert name not in pyg.TOPOLOGY or data.num_edges == 4, name


@check("BaseStorage", "stores_of", "store_of")
def _() -> None:
    data, typed = Data(x=torch.zeros(2, 1)), hetero()
    assert pyg.stores_of(data)[None] is data.stores[0] is pyg.store_of(data, None)
    assert list(pyg.stores_of(typed)) == ["a", "b", ("a", "to", "b")]
    assert pyg.stores_of(typed)["a"] is typed["a"] is pyg.store_of(typed, "a")
    assert all(isinstance(store, pyg.BaseStorage) for store in pyg.stores_of(typed).values())
    assert pyg.store_of(typed, "new") is typed["new"]


@check("fields_of")
def _() -> None:
    data = Data(x=torch.zeros(2, 1))
    fields = pyg.fields_of(pyg.store_of(data, None))
    fields["n_id"] = torch.arange(2)
    assert type(fields) is dict
    assert data.n_id is fields["n_id"]
    del fields["x"]
    assert "x" not in data


@check("graph_fields_of")
def _() -> None:
    assert pyg.graph_fields_of(hetero()) == {"title": "of the graph"}


@check("cat_dim")
def _() -> None:
    class Wide(Data):
        def __cat_dim__(self, key: str, value: Any, *args: Any) -> Any:
            return 1 if key == "x" else super().__cat_dim__(key, value, *args)

    data, typed = Wide(x=torch.zeros(2, 3), y=torch.zeros(3)), hetero()
    store = pyg.store_of(data, None)
    assert (pyg.cat_dim(store, "x", data.x), pyg.cat_dim(store, "y", data.y)) == (1, 0)
    edges = typed["a", "to", "b"]
    assert pyg.cat_dim(edges, "edge_index", edges.edge_index) == -1


@check("shallow_copy")
def _() -> None:
    data = Data(x=torch.zeros(2, 1), note="kept")
    assert data.is_node_attr("x")  # so that the store has cached it
    batch = pyg.shallow_copy(data)
    assert batch.x is data.x
    assert batch.note == "kept"
    batch.weight = torch.zeros(2)
    assert batch.is_node_attr("weight")
    assert "weight" not in data
    assert pyg.store_of(batch, None)._parent() is batch
    assert vars(batch).keys() == vars(data).keys()


@check("with_counts")
def _() -> None:
    data = Data(x=torch.zeros(3, 1), cost=torch.zeros(7), edge_index=None)
    assert not data.is_edge_attr("cost")
    counted = pyg.with_counts(pyg.store_of(data, None), 3, 7)
    assert (counted.num_nodes, counted.num_edges) == (3, 7)
    assert counted.is_edge_attr("cost")
    assert counted.is_node_attr("x")
    assert data.edge_index is None


@check("N_KEYS")
def _() -> None:
    assert {"x", "batch"} <= set(pyg.N_KEYS)
    assert Data(x=torch.zeros(2, 1)).num_nodes == 2


@check("ptr2index")
def _() -> None:
    assert pyg.ptr2index(torch.tensor([0, 2, 2, 3])).tolist() == [0, 0, 2]


@check("torch_load")
def _() -> None:
    assert next(iter(inspect.signature(pyg.torch_load).parameters)) == "path"


@check("Partition")
def _() -> None:
    names = [
        "indptr", "index", "partptr", "node_perm", "edge_perm", "sparse_format",
    ]  # fmt: skip
    assert list(inspect.signature(pyg.Partition).parameters) == names


@check("filter_custom_store")
def _() -> None:
    names = ["feature_store", "graph_store", "node", "row", "col", "edge", "custom_cls"]
    assert list(inspect.signature(pyg.filter_custom_store).parameters) == names


@check("filter_custom_hetero_store", "remote_backend_utils")
def _() -> None:
    features, edges = remote_stores(hetero())
    parts = [{"a": torch.tensor([2]), "b": torch.tensor([1])}]
    parts += [{("a", "to", "b"): torch.tensor([0])}] * 2
    made = pyg.filter_custom_hetero_store(features, edges, *parts, {}, None)
    assert made["a"].x.tolist() == [[2.0]]
    assert made["a", "to", "b"].edge_index.tolist() == [[0], [0]]
    assert pyg.remote_backend_utils.num_nodes(features, edges, "a") == 3


@check("index_select")
def _() -> None:
    picked = pyg.index_select(torch.tensor([[1, 2], [3, 4]]), torch.tensor([1]), dim=1)
    assert picked.tolist() == [[2], [4]]


@check("DataType")
def _() -> None:
    assert [kind.value for kind in pyg.DataType] == ["homogeneous", "heterogeneous", "remote"]
    assert pyg.DataType.from_data(Data()) == pyg.DataType.homogeneous


@check("SubgraphType")
def _() -> None:
    assert [kind.value for kind in pyg.SubgraphType] == ["directional", "bidirectional", "induced"]


@check("node_sample", "edge_sample")
def _() -> None:
    assert list(inspect.signature(pyg.node_sample).parameters) == ["inputs", "sample_fn"]
    names = ["inputs", "sample_fn", "num_nodes", "disjoint", "node_time", "neg_sampling"]
    assert list(inspect.signature(pyg.edge_sample).parameters) == names
    asked: list[Tensor] = []

    def sample(seed: Tensor, seed_time: Any) -> SamplerOutput:
        asked.append(seed)
        return SamplerOutput(seed, *[torch.empty(0, dtype=torch.int64)] * 3)

    assert pyg.node_sample(NodeSamplerInput(None, torch.tensor([4, 2])), sample).node[0] == 4
    links = EdgeSamplerInput(None, torch.tensor([5, 1]), torch.tensor([1, 3]))
    out = pyg.edge_sample(links, sample, 6, False, None, None)
    assert asked[1].tolist() == [1, 3, 5]
    assert out.metadata[1].tolist() == [[2, 0], [0, 1]]


@check("DEFAULT_REL", "EdgeTypeStr")
def _() -> None:
    assert HeteroData({("a", "b"): {}}).edge_types == [("a", pyg.DEFAULT_REL, "b")]
    key = pyg.EdgeTypeStr(("a", "to", "b"))
    assert NumNeighbors({("a", "to", "b"): [2]}).values == {key: [2]}


@check("SparseTensor")
def _() -> None:
    assert not isinstance(torch.zeros(1), pyg.SparseTensor)
    own = sys.modules.get("torch_sparse")
    assert own is None or own.SparseTensor is pyg.SparseTensor


@check("maybe_num_nodes")
def _() -> None:
    edges = torch.tensor([[0, 3], [1, 1]])
    assert (pyg.maybe_num_nodes(edges, None), pyg.maybe_num_nodes(edges, 9)) == (4, 9)


@check("DATA_MODULES")
def _() -> None:
    path = Path(torch_geometric.__file__).parent.joinpath(*pyg.DATA_MODULES.split(".")[1:])
    imported = [
        alias.name
        for node in ast.walk(ast.parse(path.with_suffix(".py").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert {"NeighborSampler", "NodeLoader", "LinkLoader"} <= set(imported)


@check("saint_file_of")
def _() -> None:
    class Loader(torch_geometric.loader.GraphSAINTSampler):
        def __init__(self) -> None:
            self.sample_coverage = 5

    assert pyg.saint_file_of(Loader()) == "loader_5.pt"


@check("graph_classes")
def _() -> None:
    typed = HeteroData()
    typed["a"].x = torch.zeros(2, 1)
    typed["a", "to", "a"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    for graph in (Data(x=torch.zeros(2, 1)), typed):
        file = io.BytesIO()
        torch.save(graph, file)
        file.seek(0)
        known = set(torch.serialization.get_safe_globals())
        with torch.serialization.safe_globals(pyg.graph_classes()):
            assert torch.load(file, weights_only=True).num_nodes == 2
        assert set(torch.serialization.get_safe_globals()) == known


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_private_names_do_what_we_need_of_them(name: str) -> None:
    CHECKS[name]()


def test_each_name_has_a_test() -> None:
    assert names_in(pyg) == CHECKS.keys()


# What PyG and torch look up in our subclasses of their classes, and what their initialisers set.
HOOKS = [
    (torch.utils.data.DataLoader, "_get_iterator", ["self"]),
    (torch.utils.data.DataLoader, "check_worker_number_rationality", ["self"]),
    (torch_geometric.loader.ClusterData, "_metis", ["self", "edge_index", "num_nodes"]),
    (torch_geometric.loader.ClusterData, "_permute_data", ["self", "data", "partition"]),
    (torch_geometric.loader.GraphSAINTSampler, "_compute_norm", ["self"]),
    (torch_geometric.nn.Node2Vec, "pos_sample", ["self", "batch"]),
    (torch_geometric.nn.Node2Vec, "neg_sample", ["self", "batch"]),
    (BaseSampler, "sample_from_nodes", ["self", "index", "kwargs"]),
    (BaseSampler, "sample_from_edges", ["self", "index", "neg_sampling"]),
]


@pytest.mark.parametrize(("owner", "name", "parameters"), HOOKS, ids=lambda value: str(value))
def test_hooks_of_pyg_have_the_parameters_that_we_give(
    owner: Any, name: str, parameters: list[str]
) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


@pytest.mark.parametrize(
    "name",
    ["loader_cores", "_worker_threads", "_old_worker_init_fn", "_aff_init_fn", "_mt_init_fn"],
)
def test_hook_of_the_mixins(name: str) -> None:
    """PyG's mixins set or look up these names on the loader."""
    source = inspect.getsource(sys.modules["torch_geometric.loader.mixin"])
    assert f"self.{name}" in source or f"def {name}" in source
