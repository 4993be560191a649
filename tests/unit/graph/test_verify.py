"""Graphs that a file may hold and that cannot be sampled from: what is wrong with them is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from pyg_direct.core.types import Csc
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.graph.verify import first_unsorted_relation, problem_of, verified


def csc_of(time_attr: str | None = None, weight_attr: str | None = None) -> Csc:
    """Return a graph of three nodes and five, with a list of two edges at every node."""
    data = HeteroData()
    for kind, count in (("a", 3), ("b", 5)):
        data[kind].num_nodes, data[kind].time = count, torch.arange(count)
    for source, target, count in (("a", "b", 10), ("b", "a", 6)):
        row = torch.arange(count) % data[source].num_nodes
        data[source, "to", target].edge_index = torch.stack([row, torch.arange(count) // 2])
        data[source, "to", target].weight = 1.0 + torch.arange(count)
    csc = graph_of(data, time_attr=time_attr, weight_attr=weight_attr).csc
    return replace(csc, indptr=csc.indptr.copy(), indices=csc.indices.copy(), verified=False)


def test_a_right_graph_has_no_problem() -> None:
    for names in ((None, None), ("time", None), (None, "weight"), ("time", "weight")):
        csc = csc_of(*names)
        assert problem_of(csc) is None
        assert verified(csc).verified


@pytest.mark.parametrize("relation", [0, 1])
@pytest.mark.parametrize("place", [1, -2])
def test_a_list_that_ends_before_it_begins_is_found(relation: int, place: int) -> None:
    """The first, and the last, whose end is that of the edges."""
    csc = csc_of()
    ends = np.cumsum([0, *(csc.num_nodes[csc.dst_type] + 1)])
    lists = csc.indptr[ends[relation] : ends[relation + 1]]
    lists[place] = lists[-1] + 1 if place < 0 else lists[2] + 1
    assert problem_of(csc) == "its neighbour lists are not in order"


@pytest.mark.parametrize(("edge", "node"), [(9, 3), (15, 5), (0, -1)])
def test_an_id_of_no_node_of_its_type(edge: int, node: int) -> None:
    csc = csc_of()
    csc.indices[edge] = node
    with pytest.raises(ValueError, match=f"damaged.*{node}"):
        verified(csc, "it")


def test_weights_that_contradict_their_tables_are_found() -> None:
    csc = csc_of(weight_attr="weight")
    weights = csc.weights
    assert weights is not None
    assert weights.positive
    cumulative = weights.cumulative.copy()
    cumulative[-1] += 1
    assert problem_of(replace(csc, weights=weights._replace(cumulative=cumulative))) is not None
    alias = np.zeros_like(weights.alias)
    assert problem_of(replace(csc, weights=weights._replace(alias=alias))) is not None


def test_zero_weights_called_positive_are_found() -> None:
    csc, zero = csc_of("time", "weight"), np.zeros(16)
    assert csc.weights is not None
    none = csc.weights._replace(weight=zero, cumulative=zero.copy())
    for positive in (False, True):
        found = problem_of(replace(csc, weights=none._replace(positive=positive)))
        assert (found is not None) == positive


@pytest.mark.parametrize("relation", [0, 1])
def test_lists_not_sorted_by_time_are_found(relation: int) -> None:
    csc = csc_of("time")
    assert first_unsorted_relation(csc) == -1
    first = int(csc.edge_base[relation])
    csc.indices[first : first + 2] = csc.indices[first : first + 2][::-1].copy()
    assert first_unsorted_relation(csc) == relation
