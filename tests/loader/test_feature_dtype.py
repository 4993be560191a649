"""`feature_dtype=`: narrow attributes come in that dtype, with the bits of `.to` afterwards."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import assert_same_batch, remote_stores
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    PageRankLoader,
    QuantizedTensor,
    ShaDowKHopSampler,
    quantize,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NODES, EDGES, WIDTH = 80, 500, 19


def numbers(rows: int, *shape: int, seed: int = 0) -> Tensor:
    """Return float32 of all sizes that float16 can hold, tiny ones and zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.logspace(-9, 4, rows * int(np.prod(shape))).view(rows, *shape)
    found = torch.randn(rows, *shape, generator=generator).clamp(-6, 6) * size
    found[1] = 0
    return found[torch.randperm(rows, generator=generator)]


def edges(seed: int = 0) -> Tensor:
    return torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(seed))


def graph() -> Data:
    """Return a graph with an attribute of every kind of storage, and some that stay as they are."""
    x = numbers(NODES, WIDTH)
    mapped = quantize(x, torch.float16).stored
    return Data(
        x=quantize(x),
        by_row=quantize(x, scale="row"),
        half=quantize(x, torch.float16),
        brain=quantize(x, torch.bfloat16),
        plain_half=x.half(),
        plain_brain=x.bfloat16(),
        flat=x[:, 0].half(),
        deep=numbers(NODES, 2, 3).bfloat16(),
        empty=torch.empty(NODES, 0, dtype=torch.float16),
        transposed=mapped.t().contiguous().t(),  # PyG selects its rows
        learnt=torch.nn.Parameter(x.half()),
        array=x.half().numpy(),
        y=x[:, 0].clone(),
        time=torch.arange(NODES, dtype=torch.float64),
        number=torch.arange(NODES),
        edge_index=edges(),
        edge_attr=quantize(numbers(EDGES, 3)),
        edge_half=numbers(EDGES, 3).half(),
        edge_weight=torch.rand(EDGES),
        of_the_graph=torch.ones(3, dtype=torch.float16),
    )


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].x = quantize(numbers(NODES, WIDTH), scale="row")
    data["a"].y = torch.arange(NODES)
    data["b"].x = numbers(NODES, 5, seed=1).bfloat16()
    data["a", "to", "b"].edge_index = edges(1)
    data["b", "to", "a"].edge_index = edges(2)
    data["b", "to", "a"].edge_attr = numbers(EDGES, 2).half()
    return data


NARROW = {
    "x", "by_row", "half", "brain", "plain_half", "plain_brain", "flat", "deep", "empty",
    "transposed", "learnt", "array", "edge_attr", "edge_half",
}  # fmt: skip


def converted(batch: Any, dtype: torch.dtype) -> Any:
    """Return a plain batch with its narrow attributes in `dtype`."""
    for store in batch.stores:
        for name in set(store) & NARROW:
            store[name] = store[name].to(dtype)
    return batch


def check(loader: type, data: Any, dtype: torch.dtype, **options: Any) -> None:
    """Compare an epoch with a plain one whose batches are converted."""
    options = {"batch_size": 30, "seed": 3, **options}
    count = 0
    plain = loader(data, **options)
    for ours, theirs in zip(loader(data, feature_dtype=dtype, **options), plain, strict=True):
        assert_same_batch(ours, converted(theirs, dtype))
        count += 1
    assert count > 1


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_are_those_of_a_conversion_afterwards(dtype: torch.dtype) -> None:
    data = graph()
    check(NeighborLoader, data, dtype, num_neighbors=[4, 3])
    batch = next(iter(NeighborLoader(data, [4], batch_size=9, feature_dtype=dtype)))
    assert {batch[name].dtype for name in NARROW} == {dtype}
    assert all(type(batch[name]) is Tensor for name in NARROW)
    wide = {"y": torch.float32, "time": torch.float64, "edge_weight": torch.float32}
    assert {name: batch[name].dtype for name in wide} == wide
    assert batch.of_the_graph is data.of_the_graph


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_of_several_edge_types_are_those_of_a_conversion_afterwards(
    dtype: torch.dtype,
) -> None:
    check(NeighborLoader, typed(), dtype, num_neighbors=[4, 3], input_nodes="a")


class Parts(ClusterLoader):
    """Over a graph in four parts."""

    def __init__(self, data: Data, **options: Any) -> None:
        super().__init__(in_parts(data), **options)


def in_parts(data: Data) -> ClusterData:
    return ClusterData(data, 4, partition=torch.arange(NODES) % 4, log=False)


SUBGRAPHS: dict[str, tuple[type, dict[str, Any]]] = {
    "shadow": (ShaDowKHopSampler, {"depth": 2, "num_neighbors": 3, "batch_size": 30}),
    "pagerank": (PageRankLoader, {"k": 6, "batch_size": 30}),
    "saint_nodes": (GraphSAINTNodeSampler, {"batch_size": 20, "num_steps": 3}),
    "saint_edges": (GraphSAINTEdgeSampler, {"batch_size": 20, "num_steps": 3}),
    "saint_walks": (
        GraphSAINTRandomWalkSampler,
        {"batch_size": 9, "walk_length": 2, "num_steps": 3},
    ),
    "clusters": (Parts, {"batch_size": 2}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SUBGRAPHS.values(), ids=SUBGRAPHS.keys())
def test_samplers_of_subgraphs(case: tuple[type, dict[str, Any]], dtype: torch.dtype) -> None:
    loader, options = case
    data = graph()
    del data.array, data.learnt  # PyG's samplers hand out arrays whole
    check(loader, data, dtype, **options)
    with pytest.raises(ValueError, match=r"no effect: .* has data.x torch.float32"):
        loader(Data(x=torch.ones(NODES, 2), edge_index=edges()), feature_dtype=dtype, **options)
    with pytest.raises(ValueError, match=r"feature_dtype must be None or one of torch.float32, "):
        loader(data, feature_dtype=torch.int8, **options)


def test_parts_of_a_graph_stay_narrow() -> None:
    """`ClusterData` brings tables of `quantize` into its order as they are stored."""
    data = graph()
    del data.array  # PyG's cannot select from arrays
    parts = in_parts(data)
    order = parts.partition.node_perm
    for name in ("x", "by_row", "half", "brain"):
        assert isinstance(parts.data[name], QuantizedTensor)
        assert torch.equal(parts.data[name].dense(), data[name].dense()[order])
    edge_order = parts.partition.edge_perm
    assert isinstance(parts.data.edge_attr, QuantizedTensor)
    assert torch.equal(parts.data.edge_attr.dense(), data.edge_attr.dense()[edge_order])
    assert torch.equal(parts[1].x, data.x.dense()[order][20:40])
    data = Data(x=quantize(numbers(NODES, 2)), edge_index=edges(), of_all=quantize(numbers(3, 2)))
    assert in_parts(data).data.of_all is data.of_all


def test_hgt_batches_are_those_of_a_conversion_afterwards() -> None:
    check(HGTLoader, typed(), torch.float16, num_samples=[8, 8], input_nodes="a")


@pytest.mark.usefixtures("each_backend")
def test_rows_of_remote_stores_are_converted_where_they_are_features() -> None:
    """What they give for a batch decides, as nothing is known of it before."""
    data = typed()
    data["a"].x = numbers(NODES, 4)
    loader = NeighborLoader(
        remote_stores(data), [4], ("a", None), batch_size=30, feature_dtype=torch.float32
    )
    for batch in loader:
        assert torch.equal(batch["a"].x.cpu(), data["a"].x[batch["a"].n_id])
        assert torch.equal(batch["b"].x.cpu(), data["b"].x[batch["b"].n_id].float())
        assert batch["b"].x.dtype == torch.float32  # which `equal` does not look at


@pytest.mark.usefixtures("each_backend")
def test_link_batches_are_those_of_a_conversion_afterwards() -> None:
    options: dict[str, Any] = {"num_neighbors": [3], "neg_sampling": "binary", "batch_size": 200}
    check(LinkNeighborLoader, graph(), torch.float32, **options)
    check(LinkNeighborLoader, typed(), torch.bfloat16, edge_label_index=("a", "to", "b"), **options)


def test_in_another_process() -> None:
    options: dict[str, Any] = {"num_neighbors": [3], "batch_size": 30, "seed": 3}
    loader = NeighborLoader(typed(), input_nodes="a", feature_dtype=torch.bfloat16, **options)
    other = pickle.loads(pickle.dumps(loader))
    for ours, theirs in zip(other, loader, strict=True):
        assert ours["a"].x.dtype == torch.bfloat16
        assert_same_batch(ours, theirs)


@pytest.mark.usefixtures("each_backend")
def test_tables_in_files(tmp_path: Path) -> None:
    x = numbers(NODES, WIDTH)
    np.save(tmp_path / "x.npy", x.half().numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r+"))
    check(NeighborLoader, Data(x=mapped, edge_index=edges()), torch.float32, num_neighbors=[4, 3])
    data = Data(x=quantize(x, scale="row"), edge_index=edges(), edge_attr=numbers(EDGES, 3).half())
    pyg_direct.save(data, tmp_path / "graph")
    opened = pyg_direct.open(tmp_path / "graph")
    assert isinstance(opened.x, QuantizedTensor)
    check(NeighborLoader, opened, torch.float16, num_neighbors=[4, 3])


def test_an_array_of_numpys_alone() -> None:
    data = Data(x=numbers(NODES, WIDTH).half().numpy(), edge_index=edges())
    batch = next(iter(NeighborLoader(data, [2], batch_size=4, feature_dtype=torch.float32)))
    assert batch.x.dtype == torch.float32
    assert batch.x.tolist() == data.x[batch.n_id.numpy()].tolist()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_rows_are_converted_and_keep_their_layout() -> None:
    data = Data(x=numbers(NODES, WIDTH).half().relu().to_sparse_csr(), edge_index=edges())
    batch = next(iter(NeighborLoader(data, [2], batch_size=4, feature_dtype=torch.float32)))
    assert batch.x.layout == torch.sparse_csr
    assert torch.equal(batch.x.to_dense(), data.x.to_dense()[batch.n_id].float())


def test_a_gradient_reaches_a_narrow_parameter() -> None:
    data = Data(x=torch.nn.Parameter(torch.ones(NODES, 2).half()), edge_index=edges())
    batch = next(iter(NeighborLoader(data, [2], batch_size=4, feature_dtype=torch.float32)))
    batch.x.sum().backward()
    assert data.x.grad is not None
    assert torch.equal(data.x.grad[batch.n_id], torch.ones(len(batch.n_id), 2).half())


def test_numbers_are_rounded_to_the_nearest_and_overflow_to_infinity() -> None:
    """Nearest numbers, of two the even one; too large ones are infinite."""
    x = torch.tensor([[65519.0, 65520.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 3 * 2.0**-25]])
    data = Data(
        x=QuantizedTensor(torch.ones(1, 6, dtype=torch.int8), x[0]), edge_index=edges()[:, :0]
    )
    (batch,) = NeighborLoader(data, [1], feature_dtype=torch.float16)
    assert batch.x.tolist() == [[65504.0, float("inf"), 1.0, 1 + 2.0**-9, 0.0, 2.0**-23]]
    (batch,) = NeighborLoader(data, [1], feature_dtype=torch.bfloat16)
    assert torch.equal(batch.x, x.bfloat16())


@pytest.mark.parametrize("wrong", [torch.float64, torch.int8, "float16", np.float16, True])
def test_other_dtypes_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"feature_dtype must be None or one of torch.float32, "):
        NeighborLoader(graph(), [2], feature_dtype=wrong)


def test_a_graph_without_narrow_attributes_is_refused() -> None:
    data = Data(x=torch.ones(NODES, 2), edge_index=edges(), num_nodes=NODES)
    for loader in (NeighborLoader, LinkNeighborLoader):
        with pytest.raises(
            ValueError, match=r"no effect: .* has data.x torch.float32\. .*quantize"
        ):
            loader(data, [2], feature_dtype=torch.float16)
    del data.x
    with pytest.raises(ValueError, match="has no attributes"):
        NeighborLoader(data, [2], feature_dtype=torch.float16)
