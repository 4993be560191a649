"""Budgets of metapaths: against the sequential rule, and what becomes of them hop by hop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyg_direct.core.types import BatchKey, Csc, SamplingPlan
from pyg_direct.ops.backend import ID_LIMIT
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.metapaths import MetapathBudgets

CPU = torch.device("cpu")


def csc_of(ends: list[tuple[int, int]], types: int) -> Csc:
    """Return a graph of relations (source type, destination type) without nodes."""
    src, dst = np.array(ends, np.int64).T
    base = np.zeros(len(ends) + 1, np.int64)
    none = np.zeros(0, np.int64)
    return Csc(
        np.zeros(len(ends), np.int64), none, None, src, dst, np.arange(len(ends)), base,
        np.zeros(types, np.int64),
    )  # fmt: skip


def one_by_one(budget: int, degrees: list[int]) -> list[int]:
    """Return the counts of items that ask one after another, the shortest list first."""
    counts, order = [0] * len(degrees), sorted(range(len(degrees)), key=lambda i: degrees[i])
    for asked, i in enumerate(order):
        counts[i] = min(degrees[i], budget // (len(order) - asked))
        budget -= counts[i]
    return counts


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 9, 50, ID_LIMIT - 1, 1 << 40]), max_size=9),
    st.integers(0, 12),
)
def test_counts_are_those_of_items_that_ask_one_after_another(
    degrees: list[int], fanout: int
) -> None:
    budgets = MetapathBudgets(csc_of([(0, 0)], 1), np.array([[fanout]]), CPU)
    budgets.begin([len(degrees)], False)
    counts = budgets.counts(0, torch.tensor(degrees, dtype=torch.int64))
    assert counts.tolist() == one_by_one(len(degrees) * fanout, degrees)


@pytest.mark.parametrize(
    ("fanout", "degrees", "counts"), [(3, [1, 9], [1, 5]), (3, [2, 8, 8], [2, 3, 4])]
)
def test_metapath_budgets_of_the_worked_examples(
    fanout: int, degrees: list[int], counts: list[int]
) -> None:
    budgets = MetapathBudgets(csc_of([(0, 0)], 1), np.array([[fanout]]), CPU)
    budgets.begin([len(degrees)], False)
    assert budgets.counts(0, torch.tensor(degrees)).tolist() == counts


def test_a_budget_is_left_to_the_next_hop_of_its_metapath_alone() -> None:
    """Two relations find nodes of type 1; each metapath goes on with a budget of its own."""
    csc = csc_of([(1, 0), (1, 0), (2, 1)], 3)
    budgets = MetapathBudgets(csc, np.array([[2, 2, 0], [0, 0, 3]]), CPU)
    budgets.begin([1, 0, 0], False)
    # One seed: a list of 1 in the first relation, of 2 in the second.
    assert budgets.counts(0, torch.tensor([1, 5])).tolist() == [1, 2]
    budgets.follow(0, torch.tensor([0, 1, 2]), [1, 0, 0], [1, 3, 0])
    # Each metapath has a budget of 1 * 2 * 3 for type 2: one node spends it all, two share it.
    assert budgets.counts(1, torch.tensor([9, 9, 9])).tolist() == [6, 3, 3]


def test_a_node_follows_the_first_edge_that_found_it() -> None:
    csc = csc_of([(1, 0), (1, 0), (2, 1)], 3)
    budgets = MetapathBudgets(csc, np.array([[2, 2, 0], [0, 0, 1]]), CPU)
    budgets.begin([1, 0, 0], False)
    assert budgets.counts(0, torch.tensor([2, 2])).tolist() == [2, 2]
    # Edges to the nodes 0, 1 by the first relation, and to 1, 2 by the second.
    budgets.follow(0, torch.tensor([0, 1, 1, 2]), [1, 0, 0], [1, 3, 0])
    # The first metapath has two nodes for its budget of 2, the second one for its budget of 2.
    assert budgets.counts(1, torch.tensor([9, 9, 9])).tolist() == [1, 1, 2]


@pytest.mark.parametrize(("disjoint", "counts"), [(False, [0, 1, 5]), (True, [0, 1, 2])])
def test_subgraphs_share_nothing(disjoint: bool, counts: list[int]) -> None:
    budgets = MetapathBudgets(csc_of([(0, 0)], 1), np.array([[2]]), CPU)
    budgets.begin([3], disjoint)
    assert budgets.counts(0, torch.tensor([0, 1, 7])).tolist() == counts


def test_budgets_stay_in_range() -> None:
    budgets = MetapathBudgets(csc_of([(0, 0)], 1), np.full((5, 1), 2**63 - 1), CPU)
    budgets.begin([1], False)
    for hop in range(5):
        assert budgets.counts(hop, torch.tensor([2])).tolist() == [2]
        budgets.follow(hop, torch.tensor([hop + 1, hop + 1]), [hop + 1], [hop + 2])


def test_nodes_of_any_origin_cannot_draw() -> None:
    csc = csc_of([(0, 0)], 1)
    plan = SamplingPlan(np.array([[2]]), False, False, False, torch.int64, adaptive=True)
    work = CpuBackend().workspace(csc, plan)
    none = [torch.empty(0, dtype=torch.int64)]
    assert work.begin(none, BatchKey(1, 2))
    with pytest.raises(ValueError, match="what is left of the budgets"):
        work.draw(0, work.frontier(0), BatchKey(1, 2))
