"""No neighbour later than its seed, ever; and among the others, the law that was asked for."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData

from pyg_direct import NeighborLoader

pytestmark = pytest.mark.usefixtures("each_backend")

ALPHA = 1e-4  # of each of the few tests below; the seeds are fixed, nothing is tried twice


def graph(num_nodes, num_edges, latest, seed):
    generator = torch.Generator().manual_seed(seed)
    return Data(
        num_nodes=num_nodes,
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
        node_time=torch.randint(latest + 1, (num_nodes,), generator=generator),
        edge_time=torch.randint(latest + 1, (num_edges,), generator=generator),
        weight=torch.rand(num_edges, generator=generator),
    )


@pytest.mark.pyg("temporal_strategy")
def test_uniform_is_uniform_over_the_past():
    """Of 12 neighbours 8 are in the past; each is drawn equally often."""
    copies, degree, past, k = 20_000, 12, 8, 3
    centre = torch.arange(copies) + degree
    data = Data(
        num_nodes=copies + degree,
        edge_index=torch.stack(
            [torch.arange(degree).repeat(copies), centre.repeat_interleave(degree)]
        ),
        time=torch.cat([torch.arange(degree).flip(0), torch.full((copies,), past - 1)]),
    )
    (batch,) = NeighborLoader(
        data, [k], input_nodes=centre, batch_size=copies, time_attr="time", seed=4
    )
    counts = np.bincount(data.time[data.edge_index[0, batch.e_id]], minlength=degree)
    assert counts[past:].sum() == 0
    expected = copies * k / past
    q = ((counts[:past] - expected) ** 2 / expected).sum()
    # Draws without replacement are negatively correlated, hence the factor (SPEC of the tests).
    q *= (past - 1) / (past * (1 - k / past))
    assert stats.chi2.sf(q, past - 1) > ALPHA
    biased = counts[:past] + np.linspace(-0.05, 0.05, past) * expected
    q_biased = ((biased - expected) ** 2 / expected).sum()
    assert stats.chi2.sf(q_biased, past - 1) < ALPHA, "the test has the power to see 5 %"


@pytest.mark.pyg("time_attr")
def test_times_of_too_few_or_too_many_types_are_refused():
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 50, 30
    data["user"].time = torch.arange(50)
    data["user", "buys", "item"].edge_index = torch.arange(60).view(2, 30) % 30
    with pytest.raises(ValueError, match="input_time is needed: the nodes of type 'item'"):
        NeighborLoader(data, [4], input_nodes="item", time_attr="time")
    data["user", "buys", "item"].time = torch.arange(30)
    with pytest.raises(ValueError, match="attribute of nodes and of edges; rename one"):
        NeighborLoader(data, [4], input_nodes="user", time_attr="time")


def sorted_by_time(data):
    order = np.lexsort((data.edge_time.numpy(), data.edge_index[1].numpy()))
    return Data(
        num_nodes=data.num_nodes,
        edge_index=data.edge_index[:, order],
        edge_time=data.edge_time[order],
    )


@pytest.mark.pyg("is_sorted")
def test_is_sorted_needs_sorted_edges_and_gives_the_same_batch():
    data = graph(30, 300, 50, 0)
    arguments = {"time_attr": "edge_time", "input_time": torch.arange(30), "batch_size": 30}
    with pytest.raises(ValueError, match="is_sorted=True"):
        NeighborLoader(data, [3], is_sorted=True, **arguments)
    by_column = data.edge_index[1].argsort(stable=True)
    data.edge_index, data.edge_time = data.edge_index[:, by_column], data.edge_time[by_column]
    with pytest.raises(ValueError, match="not sorted by time"):
        NeighborLoader(data, [3], is_sorted=True, **arguments)
    ordered = sorted_by_time(data)
    (a,) = NeighborLoader(ordered, [3], is_sorted=True, seed=1, **arguments)
    (b,) = NeighborLoader(ordered, [3], seed=1, **arguments)
    assert torch.equal(a.e_id, b.e_id)


@pytest.mark.pyg("temporal_strategy", "time_attr")
@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"time_attr": "nothing"}, "time_attr='nothing' is not an attribute"),
        ({"node_time": torch.rand(5)}, {"time_attr": "node_time"}, "integer times"),
        ({}, {"time_attr": "edge_time"}, "input_time is needed"),
        ({}, {"input_time": torch.arange(5)}, "time_attr is not"),
        ({}, {"time_attr": "node_time", "input_time": torch.arange(4)}, "one integer for each"),
        ({}, {"time_attr": "node_time", "input_time": torch.rand(5)}, "one integer for each"),
        ({}, {"time_attr": "node_time", "temporal_strategy": "first"}, "one of 'uniform', 'last'"),
    ],
)
def test_times_of_wrong_kind_or_size_are_refused(change, arguments, message):
    data = graph(5, 20, 9, 0)
    for key, value in change.items():
        data[key] = value
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [2], **arguments)
