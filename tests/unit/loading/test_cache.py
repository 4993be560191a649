"""Which rows a loader asks its backend to cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler, QuantizedTensor
from pyg_direct.batch.assemble import node_tables_of
from pyg_direct.core.lazy_tensor import OrderedTensor
from pyg_direct.loading.cache import (
    _by_row,
    given_visits,
    presampled_visits,
)
from pyg_direct.loading.visits import visits_of_batches

LINKS = torch.tensor([[0, 1], [0, 1]])


def typed() -> Any:
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]])
    return data


def test_visits_of_rows_in_an_order() -> None:
    """The rows of nodes 0, 1 and 2 lie at 2, 0 and 1."""
    positions = torch.tensor([2, 0, 1])
    assert _by_row(torch.tensor([5.0, 6.0, 7.0]), positions).tolist() == [6, 7, 5]
    data = HeteroData()
    data["a"].x = OrderedTensor(torch.randn(3, 1), positions)
    data["a"].y = torch.arange(3)
    found = {name: (len(table), by) for _, name, table, by in node_tables_of(data)}
    assert found["data['a'].y"] == (3, None)
    tables = [(table, by) for _, name, table, by in node_tables_of(data) if name.endswith("x")]
    assert [(table is positions, by is positions) for table, by in tables] == [
        (True, False),  # the positions themselves are read by the ids of nodes
        (False, True),
    ]


def test_factors_of_columns_are_no_rows_of_nodes() -> None:
    data = HeteroData()
    stored = torch.ones(3, 2, dtype=torch.int8)
    data["a"].x = QuantizedTensor(stored, torch.ones(2))
    data["a"].y = QuantizedTensor(stored, torch.ones(3, 1))
    assert [name for _, name, _, _ in node_tables_of(data)] == ["data['a'].x"] + ["data['a'].y"] * 2


def test_types_without_numbers_are_not_cached() -> None:
    found = given_visits({"a": torch.tensor([1, 2])}, {"a": 2, "b": 3})
    assert {kind: visits.tolist() for kind, visits in found.items()} == {
        "a": [1, 2], "b": [0, 0, 0],
    }  # fmt: skip


def test_both_ends_of_links_are_visited() -> None:
    """A batch has one of two links, so each end is in every second batch, with its neighbour."""
    kind = ("a", "to", "b")
    loader = LinkNeighborLoader(typed(), [1], edge_label_index=(kind, LINKS), batch_size=1)
    visits = visits_of_batches(loader)
    assert visits["b"].tolist() == [0.5, 0.5, 0, 0]
    assert visits["a"].tolist() == pytest.approx([0.5, 0.5, 0, 0], abs=1e-3)
    data = Data(num_nodes=2, edge_index=torch.empty(2, 0, dtype=torch.int64))
    loader = LinkNeighborLoader(data, [1], edge_label_index=torch.tensor([[0], [1]]))
    assert visits_of_batches(loader)[None].tolist() == [1, 1]


def test_a_node_that_is_a_seed_twice_is_counted_with_two_draws() -> None:
    """Two seeds have four neighbours each, of which a draw takes one; one of them draws twice."""
    edge_index = torch.stack([torch.arange(2, 10), torch.tensor([0, 1]).repeat_interleave(4)])
    loader = NeighborLoader(Data(edge_index=edge_index, num_nodes=10), [1], [0, 0, 1], batch_size=3)
    found = visits_of_batches(loader)[None].tolist()
    assert found == pytest.approx([1, 1, *[1 - 0.75**2] * 4, *[1 - 0.75] * 4], abs=0.05)


class Drawing(NeighborSampler):
    """Draws from torch's generator, as samplers of others do."""

    def sample_from_nodes(self, *args: Any, **kwargs: Any) -> Any:
        torch.rand(1)
        return super().sample_from_nodes(*args, **kwargs)


def test_sampling_beforehand_leaves_torchs_generator_as_it_was() -> None:
    data, before = typed(), torch.get_rng_state()
    loader = NeighborLoader(data, [], "b", batch_size=2, neighbor_sampler=Drawing(data, [1]))
    visits = presampled_visits(loader, {"a": 4, "b": 4})
    assert visits["a"].tolist() == [1, 1, 1, 0]
    assert torch.equal(torch.get_rng_state(), before)
