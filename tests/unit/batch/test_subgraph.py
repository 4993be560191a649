"""What batches share that no sampler of PyG's has made."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_direct.batch.gather import Gatherer
from pyg_direct.batch.roles import Attribute, Roles
from pyg_direct.batch.subgraph import attributes_of, entries_of, swapped_ends
from pyg_direct.ops.cpu.backend import CpuBackend


def test_swapped_ends_are_a_contiguous_copy() -> None:
    edge_index = torch.tensor([[0, 1, 2], [3, 4, 5]])
    swapped = swapped_ends(edge_index)
    assert swapped.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert swapped.is_contiguous()
    assert swapped_ends(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0)


def test_entries_of_an_attribute_are_of_its_kind() -> None:
    index = torch.tensor([2, 0])
    assert entries_of(["a", "b", "c"], index, 0) == ["c", "a"]
    assert entries_of(np.array(["a", "b", "c"]), index, 0).tolist() == ["c", "a"]
    assert entries_of(torch.arange(6).view(2, 3), index, 1).tolist() == [[2, 0], [5, 3]]


def test_attributes_are_selected_by_their_roles() -> None:
    data = Data(num_nodes=3, x=torch.arange(3), cost=np.arange(4.0), words=("a", "b", "c"), k=7)
    roles = Roles((Attribute("x", 0), Attribute("words", 0)), (Attribute("cost", 0),))
    node, edge = torch.tensor([2, 0]), torch.tensor([1])
    for given in (edge, lambda: edge):
        found = dict(attributes_of(data, roles, (3, 4), node, given, Gatherer(CpuBackend())))
        assert (found["x"].tolist(), found["cost"].tolist()) == ([2, 0], [1.0])
        assert (found["words"], found["k"]) == (["c", "a"], 7)
        assert "num_nodes" not in found


def test_ids_of_edges_are_not_asked_for_where_nothing_is_of_edges() -> None:
    data, node = Data(x=torch.arange(3)), torch.tensor([1])
    roles = Roles((Attribute("x", 0),), ())
    found = attributes_of(data, roles, (3, 4), node, pytest.fail, Gatherer(CpuBackend()))
    assert dict(found)["x"].tolist() == [1]
