"""Names that PyG and torch may change without notice: for each a test that fails by its name."""

from __future__ import annotations

import ast
import inspect
import io
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data
import torch_geometric.loader
import torch_geometric.nn
from graphs import remote_stores
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NodeSamplerInput,
    NumNeighbors,
    SamplerOutput,
)

from pyg_direct.core import private_torch, pyg

MODULES = (pyg, private_torch)
CHECKS: dict[str, Callable[[], None]] = {}


def check(*names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a check of the names of the two modules."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        CHECKS.update(dict.fromkeys(names, function))
        return function

    return register


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


@check("graph_classes")
def _() -> None:
    for data in (Data(x=torch.zeros(2, 1)), hetero()):
        file = io.BytesIO()
        torch.save(data, file)
        file.seek(0)
        with torch.serialization.safe_globals(pyg.graph_classes()):
            found = torch.load(file, weights_only=True)
        assert found.to_dict().keys() == data.to_dict().keys()


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


@check("tree_leaves", "tree_map", "tree_map_only")
def _() -> None:
    nested = {"a": [1, (2, "x")]}
    changed = private_torch.tree_map_only(int, lambda number: number + 1, nested)
    assert changed == {"a": [2, (3, "x")]}
    assert private_torch.tree_map(str, nested) == {"a": ["1", ("2", "x")]}
    assert private_torch.tree_leaves(nested) == [1, 2, "x"]


@check("group_store", "let_wait")
def _() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        store = private_torch.group_store(group)
        assert store.add("counted", 2) == 2
        assert private_torch.group_store(group).get("counted") == b"2"
        private_torch.let_wait(group, timedelta(days=3))
        dist.barrier(group)
    finally:
        dist.destroy_process_group()


@check("in_backward")
def _() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append(private_torch.in_backward()))
    assert not private_torch.in_backward()
    y.sum().backward()
    assert seen == [True]
    assert not private_torch.in_backward()


@check("without_hooks")
def _() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.register_hook(lambda grad: grad * 5)
    with private_torch.without_hooks([p]):
        (found,) = torch.autograd.grad(p.sum(), p)
    assert found.tolist() == [1, 1]
    p.sum().backward()
    assert p.grad.tolist() == [5, 5]


@check("schema_of", "overload_of")
def _() -> None:
    function = torch.ops.aten.add_.Tensor
    schema = private_torch.schema_of(function)
    assert (schema.name, schema.is_mutable) == ("aten::add_", True)
    assert [argument.name for argument in schema.arguments] == ["self", "other", "alpha"]
    assert private_torch.overload_of(function) == "Tensor"


@check("is_composite")
def _() -> None:
    x, weight = torch.randn(4, 3), torch.randn(2, 3)
    linear = torch.ops.aten.linear.default
    assert private_torch.is_composite(linear)
    assert not private_torch.is_composite(torch.ops.aten.add.Tensor)
    assert torch.equal(linear.decompose(x, weight), linear(x, weight))


@check("is_transformed")
def _() -> None:
    found: list[bool] = []

    def seen(x: Tensor) -> Tensor:
        found.append(private_torch.is_transformed())
        return x.sum()

    seen(torch.ones(2))
    torch.func.grad(seen)(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        seen(torch.ones(2))
    seen(torch.ones(2))
    assert found == [False, True, True, False]


@check("is_pointwise", "_UNTAGGED")
def _() -> None:
    names = {"add", "relu", *private_torch._UNTAGGED}
    for name in names:
        packet = getattr(torch.ops.aten, name)
        assert private_torch.is_pointwise(getattr(packet, packet.overloads()[0])), name
    assert not private_torch.is_pointwise(torch.ops.aten.mm.default)


@check("storage_of")
def _() -> None:
    values = torch.zeros(2, 2)
    assert private_torch.storage_of(values[1]) == private_torch.storage_of(values)
    assert private_torch.storage_of(values.clone()) != private_torch.storage_of(values)


@check("storage_in")
def _() -> None:
    handle = os.memfd_create("test")
    os.write(handle, bytes(range(8)))
    storages = [private_torch.storage_in(os.dup(handle), 8) for _ in range(2)]
    first, second = (torch.empty(0, dtype=torch.uint8).set_(s) for s in storages)
    assert first.is_shared()
    first[2] = 77
    os.close(handle)
    assert second.tolist() == [0, 1, 77, 3, 4, 5, 6, 7]


@check("no_torch_function", "TorchDispatchMode", "wrapper_tensor")
def _() -> None:
    seen = []

    class Watched(Tensor):
        __torch_function__ = private_torch.no_torch_function

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append("tensor")
            return torch.ones(())

    class Watch(private_torch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append("mode")
            return func(*args, **(kwargs or {}))

    made = private_torch.wrapper_tensor(Watched, (3, 2), torch.int64, torch.device("cpu"))
    assert type(made) is Watched
    assert (made.shape, made.dtype, made.device.type) == ((3, 2), torch.int64, "cpu")
    with Watch():
        assert made + 1 == 1
    assert seen[:2] == ["mode", "tensor"]


@check("WithoutFunctionModes")
def _() -> None:
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        with private_torch.WithoutFunctionModes():
            torch.ones(2).index_select(0, torch.tensor([1]))
        assert seen == []
        torch.ones(2)
    assert seen == [torch.ones]


@check("to_copy")
def _() -> None:
    found = private_torch.to_copy(torch.ones(2), dtype=torch.float64)
    assert found.dtype == torch.float64


class Refusing(torch.Tensor):
    """Refuses all operations."""

    __torch_function__ = private_torch.no_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


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


@check("WITHOUT_BITS")
def _() -> None:
    for func, physical in private_torch.WITHOUT_BITS.items():
        x = torch.tensor([1 + 2j, 3])
        assert func(x).is_conj() or func(x).is_neg()
        assert not physical(x).is_conj()
        assert not physical(x).is_neg()
        assert torch.equal(physical(x), func(x))


@check("WithoutDispatch")
def _() -> None:
    made = private_torch.wrapper_tensor(Refusing, (3, 2), torch.float32, torch.device("cpu"))
    with private_torch.WithoutDispatch():
        made.resize_(4, 5).as_strided_((4, 5), (1, 4), 0)
    assert (made.shape, made.stride()) == ((4, 5), (1, 4))


@check("at_end_of_backward")
def _() -> None:
    seen, x = [], torch.ones((), requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: private_torch.at_end_of_backward(lambda: seen.append(x.grad.item())))
    y.backward()
    assert seen == [2.0]


@check("compiled_in_place")
def _() -> None:
    layer, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    layer.compile()
    assert private_torch.compiled_in_place(layer)
    assert not private_torch.compiled_in_place(other)
    assert not private_torch.compiled_in_place(torch.nn.Sequential(layer))


@check("writes_to")
def _() -> None:
    values = torch.zeros(2)
    before = private_torch.writes_to(values)
    values[0] = 1
    assert private_torch.writes_to(values) == before + 1


@check("viewed_by")
def _() -> None:
    values = torch.zeros(2, 2)
    assert private_torch.viewed_by(values[0]) is values
    assert private_torch.viewed_by(values) is None


@check("batches_of")
def _() -> None:
    loader = torch.utils.data.DataLoader(list(range(4)), batch_size=3)
    assert list(private_torch.batches_of(loader)) == [[0, 1, 2], [3]]


@check("pointers_of")
def _() -> None:
    for dtype in (torch.int64, torch.int32):
        found = private_torch.pointers_of(torch.tensor([0, 0, 2], dtype=dtype), 3)
        assert (found.tolist(), found.dtype) == ([0, 2, 2, 3], torch.int64)


@check("coo_parts")
def _() -> None:
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2), check_invariants=False)
    indices, values = private_torch.coo_parts(twice)
    assert (indices.tolist(), values.tolist()) == ([[0, 0], [1, 1]], [1.0, 2.0])


@check("new_wrapper")
def _() -> None:
    class Wrapper(torch.Tensor):
        """Has a shape and no elements."""

        @classmethod
        def __torch_dispatch__(cls, *call: Any) -> Any:
            raise NotImplementedError

    made = private_torch.new_wrapper(Wrapper, (2, 3), dtype=torch.float16, device="cpu")
    assert (type(made), made.shape, made.dtype) == (Wrapper, (2, 3), torch.float16)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_private_names_of_pyg_do_what_we_need_of_them(name: str) -> None:
    CHECKS[name]()


def names_in(module: Any) -> set[str]:
    """Return what other modules may import from `module`."""
    found: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname for alias in node.names if alias.asname is not None}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found.add(ast.unparse(target))
    return found


def test_each_name_has_a_test() -> None:
    assert names_in(pyg) | names_in(private_torch) == CHECKS.keys()


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
