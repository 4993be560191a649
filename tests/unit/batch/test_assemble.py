"""Every field of the batch, one test body over PyG's class and ours."""

from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.typing
from graphs import assert_same_batch, assert_same_value, example_graph, papers_and_authors
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data

from pyg_direct import NeighborLoader

SEEDS = [7, 0, 3]
DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def bare(num_nodes: int = 12, **attributes: Any) -> Data:
    """Return the example graph with these attributes alone."""
    return Data(edge_index=example_graph().edge_index, num_nodes=num_nodes, **attributes)


def one_batch(loader_class: type, data: Any, hops: Any = (-1, -1), **arguments: Any) -> Data:
    arguments.setdefault("input_nodes", torch.tensor(SEEDS))
    return loader_class(data, list(hops), batch_size=len(SEEDS), **arguments)([0, 1, 2])


def values(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return values that are all different where `dtype` can tell so many apart."""
    numbers = torch.arange(int(np.prod(shape))).view(shape)
    return numbers % 3 == 0 if dtype == torch.bool else (numbers % 120).to(dtype)


def selected(value: Any, ids: Tensor, dim: int = 0) -> Tensor:
    """Return the rows `ids` in the most pedestrian way."""
    rows = [torch.as_tensor(value).select(dim, i) for i in ids.tolist()]
    return torch.stack(rows, dim)


@pytest.mark.pyg("batch.node_attributes", "batch.edge_attributes")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tail", [(), (1,), (5,), (2, 3), (0,)], ids=str)
def test_attributes_of_any_dtype_and_shape(loader_class: type, dtype: Any, tail: Any) -> None:
    data = bare(x=values(dtype, 12, *tail), edge_attr=values(dtype, 20, *tail))
    batch = one_batch(loader_class, data)
    assert_same_value(batch.x, selected(data.x, batch.n_id), "x")
    assert_same_value(batch.edge_attr, selected(data.edge_attr, batch.e_id), "edge_attr")


LAYOUTS = {
    "transposed": lambda: values(torch.float32, 5, 12).t(),
    "every second column": lambda: values(torch.float32, 12, 8)[:, ::2],
    "every second row": lambda: values(torch.float32, 24, 3)[::2],
    "broadcast": lambda: values(torch.float32, 1, 3).expand(12, 3),
    "an offset of one byte": lambda: values(torch.uint8, 12 * 8 + 1).view(-1)[1:].view(12, 8),
    "conjugated": lambda: (values(torch.complex64, 12, 2) * (1 + 2j)).conj(),
    "negated": lambda: (values(torch.complex64, 12, 2) * (1 + 2j)).conj().imag,
    "negated, contiguous": lambda: torch._neg_view(values(torch.float32, 12, 2)),
    "a parameter": lambda: torch.nn.Parameter(values(torch.float32, 12, 2), requires_grad=False),
    "sparse": lambda: values(torch.float32, 12, 4).to_sparse(),
}


@pytest.mark.pyg("batch.node_attributes")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_x(loader_class: type, layout: str) -> None:
    data = bare(x=LAYOUTS[layout]())
    batch = one_batch(loader_class, data)
    expected = torch.index_select(data.x.detach(), 0, batch.n_id)
    if data.x.is_sparse:
        assert batch.x.is_sparse
        assert torch.equal(batch.x.to_dense(), expected.to_dense())
    else:
        assert torch.equal(batch.x, expected)
        assert batch.x.data_ptr() != data.x.data_ptr()


def test_a_large_table_in_one_gather(loader_class: type) -> None:
    """More rows than one thread takes, and wide enough for recycled memory."""
    num_nodes = 20_000
    ring = torch.stack([torch.arange(num_nodes), torch.arange(num_nodes).roll(-1)])
    data = Data(x=torch.arange(num_nodes * 5).view(-1, 5), edge_index=ring, label=torch.rand(3))
    nodes = torch.randperm(num_nodes)[:15_000]
    batch = next(iter(loader_class(data, [1], input_nodes=nodes, batch_size=15_000)))
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.n_id[:15_000], nodes)
    assert torch.equal(batch.n_id[batch.edge_index], ring[:, batch.e_id])


def test_a_learnable_x_keeps_its_gradient(loader_class: type) -> None:
    data = bare(x=torch.randn(12, 3, requires_grad=True))
    batch = one_batch(loader_class, data)
    assert batch.x.requires_grad
    if batch.x.grad_fn.name().startswith("ToCopy"):
        pytest.skip("torch has no backward on the emulated device")
    batch.x.sum().backward()
    expected = torch.zeros(12, 3)
    expected[batch.n_id] = 1.0
    assert torch.equal(data.x.grad, expected)


@pytest.mark.pyg("batch.numpy")
def test_numpy_attributes_become_tensors(loader_class: type, tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "y", np.float32, "w+", shape=(12, 2))
    mapped[:] = np.arange(24).reshape(12, 2)
    data = bare(x=np.arange(36, dtype=np.float64).reshape(12, 3), y=mapped)
    data.edge_attr = np.arange(20, dtype=np.int16)
    batch = one_batch(loader_class, data)
    assert_same_value(batch.x, torch.from_numpy(data.x)[batch.n_id], "x")
    assert_same_value(batch.y, torch.from_numpy(np.array(mapped))[batch.n_id], "y")
    assert_same_value(batch.edge_attr, torch.from_numpy(data.edge_attr)[batch.e_id], "edge_attr")


@pytest.mark.pyg("batch.by_reference")
def test_everything_else_is_passed_on_by_reference(loader_class: type) -> None:
    others = {
        "text": "a string", "number": 3, "table": {"a": 1}, "thing": object(), "none_like": (),
        "graph_level": torch.rand(5), "scalar": torch.tensor(2.0), "short_list": [1, 2],
    }  # fmt: skip
    batch = one_batch(loader_class, bare(**others))
    for key, value in others.items():
        assert batch[key] is value, key


@pytest.mark.pyg("batch.lists_refused")
def test_lists_as_long_as_the_nodes_are_refused_as_in_pyg(loader_class: type) -> None:
    with pytest.raises(ValueError, match=r"invalid feature tensor type|data\.names is a list"):
        one_batch(loader_class, bare(names=[str(i) for i in range(12)]))


@pytest.mark.pyg("batch.node_attributes")
def test_as_many_edges_as_nodes_goes_by_the_name(loader_class: type) -> None:
    edge_index = example_graph().edge_index[:, :12]
    data = Data(x=torch.arange(12), edge_attr=torch.arange(12) + 50, edge_index=edge_index)
    data.weight_of_edge, data.weight = torch.arange(12) + 70, torch.arange(12) + 90
    batch = one_batch(loader_class, data)
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.weight, data.weight[batch.n_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert torch.equal(batch.weight_of_edge, data.weight_of_edge[batch.e_id])


@pytest.mark.pyg("data", "batch.node_attributes")
def test_attributes_along_another_dimension(loader_class: type) -> None:
    """PyG concatenates `*index*` along the last dimension, and a subclass decides for itself."""

    class Transposed(Data):
        def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
            return 1 if key == "xt" else super().__cat_dim__(key, value, *args, **kwargs)

    data = Transposed(xt=torch.arange(36).view(3, 12), edge_index=example_graph().edge_index)
    data.num_nodes, data.other_index = 12, torch.arange(24).view(2, 12)
    batch = one_batch(loader_class, data)
    assert type(batch) is Transposed
    assert torch.equal(batch.xt, data.xt[:, batch.n_id])
    assert torch.equal(batch.other_index, data.other_index[:, batch.n_id])


@pytest.mark.pyg("batch.n_id")
def test_a_users_own_n_id_and_e_id_are_kept_and_filtered(loader_class: type) -> None:
    plain = one_batch(loader_class, bare())
    batch = one_batch(loader_class, bare(n_id=torch.arange(12) + 100, e_id=torch.arange(20) + 500))
    assert torch.equal(batch.n_id, plain.n_id + 100)
    assert torch.equal(batch.e_id, plain.e_id + 500)


@pytest.mark.pyg("batch.batch")
@pytest.mark.filterwarnings("ignore:data.batch, an attribute of the nodes")
def test_a_users_own_batch_and_seed_time_vanish(loader_class: type) -> None:
    batch = one_batch(loader_class, bare(batch=torch.zeros(12), seed_time=torch.zeros(3)))
    assert "batch" not in batch
    assert "seed_time" not in batch


@pytest.mark.pyg("batch.batch")
def test_a_users_own_batch_of_a_type_is_filtered(loader_class: type) -> None:
    data = papers_and_authors()
    data["author"].batch = torch.arange(120) + 7
    batch = one_batch(loader_class, data, [2], input_nodes=("paper", torch.arange(3)))
    assert torch.equal(batch["author"].batch, batch["author"].n_id + 7)


@pytest.mark.pyg("batch.by_reference")
def test_the_users_data_is_not_changed(loader_class: type) -> None:
    data = example_graph()
    before = {key: value for key, value in data.to_dict().items()}
    copies = {k: v.clone() for k, v in before.items() if isinstance(v, Tensor)}
    one_batch(loader_class, data).x.zero_()
    after = data.to_dict()
    assert list(after) == list(before)
    assert all(after[key] is value for key, value in before.items())
    assert all(torch.equal(after[key], value) for key, value in copies.items())


def test_attributes_replaced_under_the_loader_are_seen(loader_class: type) -> None:
    data = example_graph()
    loader = loader_class(data, [-1], input_nodes=torch.tensor(SEEDS), batch_size=3)
    loader([0])
    data.x = data.x.half() + 100
    data.y += 5  # in place
    data.new = torch.arange(12) * 2
    batch = loader([0, 1, 2])
    for key in ("x", "y", "new"):
        assert_same_value(batch[key], data[key][batch.n_id], key)


@pytest.mark.pyg("batch.by_reference")
@pytest.mark.filterwarnings("ignore:DataBatch has a property|data.batch, an attribute")
def test_batch_of_graphs_as_the_graph(loader_class: type) -> None:
    """Its own `batch` vector goes, as PyG's loader sets that key; `ptr` is graph-level."""
    data = Batch.from_data_list([example_graph(), example_graph()])
    batch = one_batch(loader_class, data)
    assert isinstance(batch, Batch)
    assert "batch" not in batch
    assert batch.ptr is data.ptr
    assert torch.equal(batch.x, data.x[batch.n_id])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_grad_holds_wherever_the_batch_is_made(num_workers: int) -> None:
    """Whether gradients are on is a property of a thread, and the consumer's is the one meant."""
    data = bare(x=torch.randn(12, 3, requires_grad=True))
    loader = NeighborLoader(
        data, [-1], num_workers=num_workers, batch_size=12, persistent_workers=num_workers > 0
    )
    with torch.no_grad():
        (batch,) = loader
    assert not batch.x.requires_grad
    (batch,) = loader
    assert batch.x.requires_grad


@pytest.mark.pyg("batch.num_nodes")
def test_num_nodes_only_where_the_data_stores_it(loader_class: type) -> None:
    batch = one_batch(loader_class, bare())
    assert batch.to_dict()["num_nodes"] == len(batch.n_id) == batch.num_nodes
    assert "num_nodes" not in one_batch(loader_class, example_graph()).to_dict()


@pytest.mark.pyg("batch.edge_index")
def test_a_graph_without_edges(loader_class: type) -> None:
    empty = Data(x=torch.rand(12, 2), edge_index=torch.empty(2, 0, dtype=torch.int64))
    batch = one_batch(loader_class, empty)
    assert batch.n_id.tolist() == SEEDS
    assert batch.edge_index.shape == (2, 0)
    assert batch.e_id.shape == (0,)
    assert batch.num_nodes == 3


@pytest.mark.pyg("batch.edge_index")
def test_types_and_places(loader_class: type) -> None:
    batch = one_batch(loader_class, example_graph())
    for key in ("n_id", "e_id", "input_id", "edge_index"):
        assert batch[key].dtype == torch.int64, key
        assert batch[key].device.type == "cpu", key
        assert batch[key].is_contiguous(), key
    assert type(batch) is Data
    assert type(batch.edge_index) is Tensor
    assert type(batch.batch_size) is int
    assert batch.batch_size == 3


@pytest.mark.pyg("batch.order")
def test_isolated_seeds_stay(loader_class: type) -> None:
    loader = loader_class(example_graph(), [2, 2], input_nodes=[10, 6, 11], batch_size=3)
    batch = loader([0, 1, 2])
    assert batch.n_id.tolist() == [10, 6, 11]
    assert batch.edge_index.shape == (2, 0)
    assert torch.equal(batch.x, example_graph().x[[10, 6, 11]])


# Graphs in other clothes ##########################################################################


@pytest.mark.pyg("batch.adj_t")
@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs torch_sparse")
@pytest.mark.parametrize("valued", [False, True])
def test_adj_t_of_a_batch_has_its_edges_and_values(loader_class: type, valued: bool) -> None:
    from torch_sparse import SparseTensor

    data = example_graph()
    value = torch.arange(20) * 10 if valued else None
    adj_t = SparseTensor(
        row=data.edge_index[1], col=data.edge_index[0], value=value, sparse_sizes=(12, 12)
    )
    batch = one_batch(loader_class, Data(x=data.x, adj_t=adj_t))
    assert "edge_index" not in batch
    assert batch.adj_t.sizes() == [len(batch.n_id), len(batch.n_id)]
    col, row, got = batch.adj_t.coo()
    ends = batch.n_id[torch.stack([row, col])].t().tolist()
    expected = one_batch(loader_class, data)
    pairs = expected.n_id[expected.edge_index].t().tolist()
    assert sorted(ends) == sorted(pairs)
    assert batch.n_id.tolist()[:3] == SEEDS
    assert (got is not None) == valued
    if valued:  # each value came with its own edge
        weights = (got // 10).tolist()
        assert data.edge_index[:, weights].t().tolist() == ends


@pytest.mark.pyg("batch.adj_t")
@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs torch_sparse")
@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
def test_adj_t_equals_pyg(pyg_loader: type, kind: str) -> None:
    from torch_sparse import SparseTensor

    row, col = example_graph().edge_index
    adj_t = SparseTensor(row=col, col=row, value=torch.rand(20), sparse_sizes=(12, 12))
    data = Data(x=torch.rand(12, 2), adj_t=adj_t)
    ours = one_batch(NeighborLoader, data, subgraph_type=kind)
    assert_same_batch(ours, one_batch(pyg_loader, data, subgraph_type=kind))


@pytest.mark.pyg("batch.edge_index")
@pytest.mark.parametrize("sort_order", [None, "row", "col"])
def test_edge_index_class(sort_order: str | None) -> None:
    """PyG needs pyg-lib for these."""
    data = example_graph()
    plain = data.edge_index
    if sort_order is not None:
        plain = plain[:, plain[0 if sort_order == "row" else 1].argsort(stable=True)]
    data.edge_index = EdgeIndex(plain, sparse_size=(12, 12), sort_order=sort_order)
    batch = one_batch(NeighborLoader, data)
    assert type(batch.edge_index) is Tensor
    data.edge_index = plain
    assert_same_batch(batch, one_batch(NeighborLoader, data))


@pytest.mark.pyg("batch.e_id", "batch.edge_index")
@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_an_int32_graph_gives_the_batch_of_int64_in_int32(kind: str, disjoint: bool) -> None:
    """PyG needs pyg-lib for these; the batch equals that of the int64 graph, but for one dtype."""
    data = example_graph()
    arguments = dict(subgraph_type=kind, disjoint=disjoint)
    wide = one_batch(NeighborLoader, data, **arguments)
    data.edge_index = data.edge_index.int()
    batch = one_batch(NeighborLoader, data, **arguments)
    assert batch.edge_index.dtype == torch.int32
    assert batch.n_id.dtype == batch.e_id.dtype == torch.int64
    batch.edge_index = batch.edge_index.long()
    assert_same_batch(batch, wide)
