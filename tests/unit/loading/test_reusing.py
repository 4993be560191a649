"""What a schedule of reused rows counts; `tests/unit/models/test_reuse.py` trains with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.loading import reusing
from pyg_direct.sampling.sampler import keyed


@pytest.mark.parametrize(
    ("fanout", "replace", "edges"), [(2, False, 3), (2, True, 4), (-1, False, 6)]
)
def test_edges_that_are_not_drawn_are_counted(fanout: int, replace: bool, edges: int) -> None:
    """Of nodes with no neighbour, one and five."""
    data = Data(edge_index=torch.tensor([[0, 0, 0, 1, 1, 2], [1, 2, 2, 2, 2, 2]]), num_nodes=3)
    sampler = keyed(NeighborSampler(data, [1, fanout], replace=replace))
    assert reusing._edges_of(sampler, np.arange(3)) == edges


def test_nodes_without_visits_have_no_rows() -> None:
    loader = NeighborLoader(Data(edge_index=torch.zeros(2, 1).long(), num_nodes=4), [1, 1])
    nodes, num_nodes = reusing.hottest(loader, torch.tensor([0.0, 1, 0, 2]), 0.75)
    assert (nodes.tolist(), num_nodes) == ([1, 3], 4)
