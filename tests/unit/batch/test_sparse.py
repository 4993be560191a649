"""Graphs and features that are sparse matrices of torch's own."""

import itertools
from typing import Any

import pytest
import torch
import torch_geometric.typing
from graphs import example_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToSparseTensor
from versions import needs_layouts

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.batch.sparse import MatrixEntries, csr_rows, stored_bytes, values_of
from pyg_direct.sampling.sampler import keyed

pytestmark = [  # what torch says once in a process of the matrices that the tests make
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly:UserWarning"),
]

LAYOUTS = ["coo", "csr", "csc"]
NODES = 12


def skip_compressed_on_the_emulated_device(backend: str, layout: str) -> None:
    if backend == "cuda" and layout != "coo":
        pytest.skip("torch has no compressed sparse tensors on the emulated device")


def distinct_edges() -> Tensor:
    """Return the edges of the example without repetitions, which CSR and CSC do not allow."""
    return example_graph().edge_index.unique(dim=1)[:, torch.randperm(18) % 18]


def matrix(name: str, layout: str, edge_index: Tensor) -> Tensor:
    """Return the edges as `adj` or `adj_t`, with values that tell source and destination."""
    row, col = edge_index
    indices = torch.stack([row, col] if name == "adj" else [col, row])
    out = torch.sparse_coo_tensor(indices, 100.0 * row + col, (NODES, NODES)).coalesce()
    return out if layout == "coo" else getattr(out, f"to_sparse_{layout}")()


def pairs(batch: Any, name: str) -> list[tuple[int, int]]:
    """Return the edges of a batch as sorted pairs of global ids, and check their values."""
    adj = batch[name].to_sparse_coo() if batch[name].layout != torch.sparse_coo else batch[name]
    first, second = batch.n_id[adj._indices()]
    row, col = (first, second) if name == "adj" else (second, first)
    assert values_of(adj).tolist() == (100 * row + col).tolist(), "each value came with its edge"
    return sorted(zip(row.tolist(), col.tolist(), strict=True))


@needs_layouts
@pytest.mark.parametrize("kind", ["directional", "induced", "bidirectional"])
@pytest.mark.parametrize("name", ["adj_t", "adj"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_graph_as_a_matrix(each_backend: str, layout: str, name: str, kind: str) -> None:
    skip_compressed_on_the_emulated_device(each_backend, layout)
    edge_index = distinct_edges()
    if kind == "bidirectional":  # each edge with its reverse, whose value is its own
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1).unique(dim=1)
    arguments = {"batch_size": 4, "subgraph_type": kind}
    plain = NeighborLoader(Data(edge_index=edge_index, num_nodes=NODES), [-1, -1], **arguments)
    data = Data(num_nodes=NODES, **{name: matrix(name, layout, edge_index)})
    loader = NeighborLoader(data, [-1, -1], **arguments)
    for ours, expected in zip(loader, plain, strict=True):
        assert sorted(ours.n_id.tolist()) == sorted(expected.n_id.tolist())
        assert ours[name].layout == data[name].layout
        assert ours[name].shape == (len(ours.n_id), len(ours.n_id))
        if kind == "bidirectional":
            continue  # the value of an edge may be that of its reverse
        ends = expected.n_id[expected.edge_index].t().tolist()
        assert pairs(ours, name) == sorted(map(tuple, ends))


@pytest.mark.parametrize("name", ["adj_t", "adj"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_matrix_is_followed_backward_like_its_edges(layout: str, name: str) -> None:
    edge_index = distinct_edges()
    plain = NeighborSampler(
        Data(edge_index=edge_index, num_nodes=NODES), [-1], sample_direction="backward"
    )
    data = Data(num_nodes=NODES, **{name: matrix(name, layout, edge_index)})
    ours = NeighborSampler(data, [-1], sample_direction="backward")
    a, b = keyed(ours).graph.csc, keyed(plain).graph.csc
    assert a.indptr.tolist() == b.indptr.tolist()
    for first, last in itertools.pairwise(a.indptr):
        mine, theirs = a.indices[first:last], b.indices[first:last]
        assert sorted(mine) == sorted(theirs)


def test_a_sparse_adj_t_of_an_edge_type_has_the_values_of_its_edges() -> None:
    data, edge_index = HeteroData(), distinct_edges()
    data["a"].num_nodes = data["b"].num_nodes = NODES
    data["a", "to", "b"].adj_t = matrix("adj_t", "csr", edge_index)
    batch = next(iter(NeighborLoader(data, [-1], input_nodes="b", batch_size=5)))
    adj_t = batch["a", "to", "b"].adj_t
    assert adj_t.shape == (5, len(batch["a"].n_id))
    dst, src = adj_t.to_sparse_coo()._indices()
    row, col = batch["a"].n_id[src], batch["b"].n_id[dst]
    assert adj_t.values().tolist() == (100 * row + col).tolist()


@needs_layouts
@pytest.mark.skipif(torch_geometric.typing.WITH_TORCH_SPARSE, reason="it takes torch_sparse's")
def test_the_transform_without_torch_sparse() -> None:
    """`ToSparseTensor` makes a matrix of torch's then, which is no reason to refuse it."""
    assert next(iter(NeighborLoader(ToSparseTensor()(example_graph()), [2]))).adj_t.shape[0] > 0


@needs_layouts
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_matrices_of_to_sparse_tensor_keep_their_layout(layout: str) -> None:
    data = Data(edge_index=distinct_edges(), x=torch.eye(NODES))
    made = ToSparseTensor(layout=getattr(torch, f"sparse_{layout}"))(data)
    batch = next(iter(NeighborLoader(made, [2, 2], batch_size=3)))
    assert batch.adj_t.layout == made.adj_t.layout
    assert torch.equal(batch.x, made.x[batch.n_id])


def test_rows_of_a_csr_matrix(each_backend: str) -> None:
    skip_compressed_on_the_emulated_device(each_backend, "csr")
    data = example_graph()
    dense = torch.arange(NODES * 5).view(NODES, 5) % 3
    data.x = dense.float().to_sparse_csr()
    for batch in NeighborLoader(data, [2, 2], batch_size=5):
        assert batch.x.layout == torch.sparse_csr
        assert torch.equal(batch.x.to_dense(), dense[batch.n_id].float())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stored_bytes_count_values_and_indices_of_each_layout(layout: str) -> None:
    table = matrix("adj", layout, distinct_edges())
    indices = 2 * 18 if layout == "coo" else 18 + NODES + 1
    assert stored_bytes(table) == 18 * 4 + indices * 8
    assert stored_bytes(table.to_dense()) == NODES * NODES * 4


def test_int32_ids_with_places_of_64_bits_are_sorted() -> None:
    row, col = torch.tensor([[40_000, 1, 0], [1, 0, 69_999]], dtype=torch.int32)
    full = torch.sparse_coo_tensor(torch.stack([row, col]).long(), torch.ones(3), (80_000, 80_000))
    made = MatrixEntries(row, col, torch.arange(3)).like("adj", full.to_sparse_csr(), (80_000,) * 2)
    assert made.col_indices().tolist() == [69_999, 0, 1]


def test_vector_entries_without_edge_ids_become_ones() -> None:
    ends = torch.tensor([[0, 1], [1, 0]])
    full = torch.sparse_coo_tensor(ends, torch.rand(2, 3), (2, 2, 3))
    made = MatrixEntries(*ends, None).like("adj_t", full, (2, 2))
    assert made.to_dense().sum((0, 1)).tolist() == [2, 2, 2]


def test_vector_entries_of_a_graph_come_into_batches() -> None:
    full = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.rand(2, 3), (2, 2, 3))
    batch = next(iter(NeighborLoader(Data(adj_t=full, num_nodes=2), [-1], batch_size=2)))
    assert torch.equal(batch.adj_t.to_dense(), full.to_dense())


def test_csr_rows_are_taken_in_order_and_bounds_are_checked() -> None:
    table = torch.tensor([[1.0, 0], [0, 2], [0, 0]]).to_sparse_csr()
    index = torch.tensor([2, 1, 1, 0])
    assert torch.equal(csr_rows(table, index).to_dense(), table.to_dense()[index])
    assert csr_rows(table, index[:0]).shape == (0, 2)
    with pytest.raises(IndexError, match="out of bounds"):
        csr_rows(table, torch.tensor([3]))
