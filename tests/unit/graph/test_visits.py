"""Expected visits, against counts of sampled batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from device_graphs import graph, heterogeneous_graph
from torch_geometric.data import Data

import pyg_direct
from pyg_direct import NeighborLoader
from pyg_direct.core.types import SeedVisits
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.graph.visits import expected_visits, out_degrees


def test_degrees_by_type() -> None:
    data = heterogeneous_graph()
    found = graph_of(data)
    by_type = dict(zip(found.node_types, out_degrees(found.csc), strict=True))
    for kind, degrees in by_type.items():
        expected = torch.zeros(data[kind].num_nodes)
        for edge_type in data.edge_types:
            if edge_type[0] == kind:
                expected += torch.bincount(data[edge_type].edge_index[0], minlength=len(expected))
        assert degrees.tolist() == expected.tolist()


def test_expected_visits_of_the_worked_example() -> None:
    """Ten seeds, batches of five; node 10 has edges to seeds 0 and 1 alone."""
    data = Data(edge_index=torch.tensor([[10, 10], [0, 1]]), num_nodes=11)
    csc = graph_of(data).csc
    seeds = np.array([0.5] * 10 + [0.0])
    (found,) = expected_visits(csc, [SeedVisits(seeds)], np.array([[-1]]))
    assert found[:10] == pytest.approx(0.5)
    assert found[10] == pytest.approx(1 - 0.5**2)
    assert seeds[10] == 0.0


def test_a_fan_out_takes_its_share_of_long_lists() -> None:
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), num_nodes=5)
    seeds = SeedVisits(np.array([0.5, 0, 0, 0, 0]))
    (found,) = expected_visits(graph_of(data).csc, [seeds], np.array([[3]]))
    assert found.tolist() == pytest.approx([0.5, *[0.5 * 0.75] * 4])
    (found,) = expected_visits(graph_of(data).csc, [seeds], np.array([[3]]), replace=True)
    assert found.tolist() == pytest.approx([0.5, *[0.5 * (1 - 0.75**3)] * 4])


def test_a_seed_that_a_batch_has_twice_draws_twice() -> None:
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), num_nodes=5)
    seeds = SeedVisits(np.array([1.0, 0, 0, 0, 0]), np.array([2.0, 1, 1, 1, 1]))
    (found,) = expected_visits(graph_of(data).csc, [seeds], np.array([[1]]))
    assert found.tolist() == pytest.approx([1.0, *[1 - 0.75**2] * 4])


def test_nodes_that_were_found_are_not_expanded_again() -> None:
    """A cycle of two nodes: both are seeds of every batch, so no hop finds anything."""
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    seeds = SeedVisits(np.ones(2))
    (found,) = expected_visits(graph_of(data).csc, [seeds], np.array([[2], [2]]))
    assert found.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("typed", [False, True])
def test_sampled_batches_visit_as_often(typed: bool) -> None:
    data = heterogeneous_graph() if typed else graph(num_nodes=400, num_edges=3000)
    seeds = torch.arange(0, 60)
    loader = NeighborLoader(
        data, [4, 3], input_nodes=("paper", seeds) if typed else seeds, batch_size=6, shuffle=True,
        seed=0,
    )  # fmt: skip
    found = graph_of(data)
    visits: Any = pyg_direct.expected_visits(loader)
    by_type = visits if typed else {None: visits}
    expected = [by_type[kind].numpy() for kind in found.node_types]
    counts = [np.zeros(len(part)) for part in expected]
    epochs = 40
    for _ in range(epochs):
        for batch in loader:
            for t, kind in enumerate(found.node_types):
                np.add.at(counts[t], (batch[kind] if typed else batch).n_id.numpy(), 1)
    for mine, counted in zip(expected, counts, strict=True):
        assert mine.sum() == pytest.approx(counted.sum() / (10 * epochs), rel=0.1)
        if len(mine) > 50:
            assert np.corrcoef(mine, counted)[0, 1] > 0.95
