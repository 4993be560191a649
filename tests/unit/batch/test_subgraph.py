"""What batches share that no sampler of PyG's has made."""

import torch
from torch_geometric.data import Data

from pyg_direct.batch.gather import Gatherer
from pyg_direct.batch.subgraph import attributes_of, named_attributes_of, swapped_ends
from pyg_direct.ops.cpu.backend import CpuBackend


def test_swapped_ends_are_a_contiguous_copy() -> None:
    edge_index = torch.tensor([[0, 1, 2], [3, 4, 5]])
    swapped = swapped_ends(edge_index)
    assert swapped.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert swapped.is_contiguous()
    assert swapped_ends(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0)


def test_rows_of_as_many_edges_as_nodes_are_those_of_nodes() -> None:
    """As in PyG, which asks for the number of nodes first."""
    data = Data(x=torch.arange(3), other=torch.arange(4), text="all", level=torch.tensor(2.0))
    node, edge = torch.tensor([2, 0]), torch.tensor([1])
    for ends, wanted in (((3, 3), [2, 0]), ((4, 3), [1]), ((5, 6), [0, 1, 2])):
        found = dict(attributes_of(data, ends, node, edge, Gatherer(CpuBackend())))
        assert (found["x"].tolist(), found["text"]) == (wanted, "all")
        assert found["level"] is data.level


def test_attributes_along_another_dimension() -> None:
    data = Data(num_nodes=3, some_index=torch.arange(6).view(2, 3))  # concatenated by columns
    node, edge = torch.tensor([2, 0]), torch.tensor([1])
    found = dict(named_attributes_of(data, (3, 4), node, edge, Gatherer(CpuBackend())))
    assert found["some_index"].tolist() == [[2, 0], [5, 3]]
