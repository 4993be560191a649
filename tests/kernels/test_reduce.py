"""Reducing the rows of in-neighbours, against torch."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.kernels import aggregate
from pyg_direct.ops.cpu.backend import CpuBackend

NODES, EDGES = 50, 300
TORCH_NAMES = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


def problem(dtype=torch.float32, width=7, seed=0):
    draw = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(NODES - 3, (2, EDGES), generator=draw)
    table = torch.randn(NODES, width, generator=draw).to(dtype)
    return graph_of(Data(edge_index=edge_index, num_nodes=NODES)).csc, edge_index, table


def expected(edge_index, message, kind):
    out = torch.zeros(NODES, message.size(1), dtype=message.dtype)
    index = edge_index[1].view(-1, 1).expand_as(message)
    return out.scatter_reduce_(0, index, message, TORCH_NAMES[kind], include_self=False)


@pytest.mark.parametrize("kind", TORCH_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 7, 64])
def test_same_as_torch(kind, dtype, width):
    csc, edge_index, table = problem(dtype, width)
    out = CpuBackend().reduce(csc, 0, table, kind, (0, NODES))
    wide = table.float() if dtype == torch.bfloat16 else table
    assert out.dtype == wide.dtype
    torch.testing.assert_close(out, expected(edge_index, wide[edge_index[0]], kind))


def test_weights_are_by_position():
    csc, edge_index, table = problem()
    weight = torch.rand(EDGES)
    by_position = weight[torch.from_numpy(csc.perm.astype(np.int64))]
    wanted = expected(edge_index, weight.view(-1, 1) * table[edge_index[0]], "sum")
    for first, last in ((0, NODES), (10, 31)):
        begin, end = csc.indptr[first], csc.indptr[last]
        out = CpuBackend().reduce(csc, 0, table, "sum", (first, last), by_position[begin:end])
        torch.testing.assert_close(out, wanted[first:last])


@pytest.mark.parametrize("kind", TORCH_NAMES)
def test_bits_do_not_depend_on_the_range(kind):
    csc, _, table = problem()
    whole = CpuBackend().reduce(csc, 0, table, kind, (0, NODES))
    cuts = [0, 1, 1, 13, 14, 40, NODES]
    parts = [CpuBackend().reduce(csc, 0, table, kind, (a, b)) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_a_nan_among_sources_makes_the_result_nan(kind):
    csc, edge_index, table = problem()
    table[3, 2] = float("nan")
    wanted = expected(edge_index, table[edge_index[0]], kind)
    out = CpuBackend().reduce(csc, 0, table, kind, (0, NODES))
    torch.testing.assert_close(out, wanted, equal_nan=True)


def test_a_source_out_of_range_is_an_error():
    csc, _, table = problem()
    with pytest.raises(IndexError, match="Cannot gather row"):
        CpuBackend().reduce(csc, 0, table[:20], "sum", (0, NODES))


@pytest.mark.parametrize(
    ("table", "kind", "weight"),
    [
        (torch.zeros(NODES, 2, 2), "sum", None),
        (torch.zeros(NODES, 2, dtype=torch.int64), "sum", None),
        (torch.zeros(2, NODES).t(), "sum", None),
        (torch.zeros(NODES, 2), "mul", None),
        (torch.zeros(NODES, 2), "mean", torch.ones(EDGES)),
        (torch.zeros(NODES, 2), "sum", torch.ones(EDGES).double()),
    ],
)
def test_reductions_without_a_kernel_give_none(table, kind, weight):
    csc, _, _ = problem()
    assert CpuBackend().reduce(csc, 0, table, kind, (0, NODES), weight) is None


def test_reduced_rows_of_the_worked_example():
    table = np.array([[1, 2], [3, 4]], np.float32)
    indptr, indices, none = np.array([0, 2, 2]), np.array([1, 0]), np.empty(0, np.float32)
    for kind, wanted in (
        (aggregate.SUM, [4, 6]),
        (aggregate.MEAN, [2, 3]),
        (aggregate.MAX, [3, 4]),
    ):
        out = np.empty((2, 2), np.float32)
        arguments = (indptr, indices, table, table.ctypes.data, none, kind, 0, 2, out)
        assert aggregate.reduce_rows(*arguments) == -1
        assert out.tolist() == [wanted, [0, 0]]
