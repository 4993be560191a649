"""No neighbour later than its seed, ever; and among the others, the law that was asked for."""

import numpy as np
import pytest
import torch
from graphs import load_real_graph
from hypothesis import given, settings
from hypothesis import strategies as st
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


def check(data, batch, seed_time, fanouts, strategy, replace, by_edge):
    """Check a batch against the definition, node by node."""
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    row, col = batch.edge_index
    assert torch.equal(batch.batch[row], batch.batch[col])
    limit = seed_time[batch.batch]
    times = data.edge_time if by_edge else data.node_time[data.edge_index[0]]
    assert bool((times[batch.e_id] <= limit[col]).all()), "a neighbour from the future"
    first = sum(batch.num_sampled_nodes[:1])
    for local in range(first):
        k = fanouts[0]
        possible = times[(data.edge_index[1] == batch.n_id[local]) & (times <= limit[local])]
        mine = times[batch.e_id[: batch.num_sampled_edges[0]]][
            col[: batch.num_sampled_edges[0]] == local
        ]
        expected = len(possible) if k < 0 else min(k, len(possible))
        if replace and k >= 0:
            expected = k if len(possible) else 0
        assert len(mine) == expected
        if strategy == "last" and k >= 0 and len(possible):
            latest = possible.sort().values[-k:] if k else possible[:0]
            if replace:
                assert set(mine.tolist()) <= set(latest.tolist())
            else:
                assert torch.equal(mine.sort().values, latest)


@pytest.mark.pyg("temporal_strategy", "time_attr", "input_time")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    num_nodes=st.integers(1, 40),
    num_edges=st.integers(0, 300),
    latest=st.sampled_from([0, 3, 1000]),
    seed=st.integers(0, 2**20),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 3, 50]), min_size=1, max_size=3),
    strategy=st.sampled_from(["uniform", "last"]),
    replace=st.booleans(),
    by_edge=st.booleans(),
    weighted=st.booleans(),
    given_time=st.booleans(),
)
def test_no_neighbour_is_later_than_its_seed(
    num_nodes, num_edges, latest, seed, fanouts, strategy, replace, by_edge, weighted, given_time
):
    data = graph(num_nodes, num_edges, latest, seed)
    seed_time = data.node_time if not given_time else data.node_time.flip(0)
    loader = NeighborLoader(
        data,
        fanouts,
        batch_size=16,
        time_attr="edge_time" if by_edge else "node_time",
        input_time=seed_time if given_time or by_edge else None,
        temporal_strategy=strategy,
        replace=replace,
        weight_attr="weight" if weighted else None,
    )
    for batch in loader:
        check(data, batch, seed_time[batch.input_id], fanouts, strategy, replace, by_edge)
        if given_time or by_edge:
            assert torch.equal(batch.seed_time, seed_time[batch.input_id])
        else:
            assert "seed_time" not in batch


@pytest.mark.pyg("time_attr")
@pytest.mark.parametrize("name", ["collegemsg", "bitcoin_otc"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_real_graphs(name, strategy, tmp_path):
    raw = load_real_graph(name, tmp_path)
    time_name = next(key for key in raw.to_dict() if "time" in key)
    data = Data(num_nodes=raw.num_nodes, edge_index=raw.edge_index, edge_time=raw[time_name])
    data.node_time = torch.zeros(data.num_nodes, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    low, high = int(data.edge_time.min()), int(data.edge_time.max())
    nodes = torch.randint(data.num_nodes, (64,), generator=generator)
    times = torch.randint(low, high, (64,), generator=generator)
    loader = NeighborLoader(
        data,
        [5, 5],
        input_nodes=nodes,
        input_time=times,
        batch_size=32,
        time_attr="edge_time",
        temporal_strategy=strategy,
    )
    edges = 0
    for batch in loader:
        check(data, batch, times[batch.input_id], [5, 5], strategy, False, by_edge=True)
        edges += batch.num_edges
    assert edges > 100


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
def test_heterogeneous_times():
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["user"].num_nodes = 50
    data["user"].time = torch.randint(100, (50,), generator=generator)
    data["item"].num_nodes = 30  # without a time: not bound
    for key, sizes in {
        ("user", "buys", "item"): (50, 30),
        ("item", "bought_by", "user"): (30, 50),
        ("user", "follows", "user"): (50, 50),
    }.items():
        data[key].edge_index = torch.stack(
            [torch.randint(size, (400,), generator=generator) for size in sizes]
        )
    loader = NeighborLoader(data, [4, 4, 4], input_nodes="user", time_attr="time", batch_size=10)
    items = 0
    for batch in loader:
        user = batch["user"]
        limit = user.time[: user.batch_size]
        assert bool((user.time <= limit[user.batch]).all())
        items += batch["item"].num_nodes
    assert items > 0
    times = torch.arange(30)
    (batch,) = NeighborLoader(
        data, [4, 4], input_nodes="item", input_time=times, time_attr="time", batch_size=30
    )
    assert bool((batch["user"].time <= times[batch["user"].batch]).all())
    with pytest.raises(ValueError, match="input_time is needed: the nodes of type 'item'"):
        NeighborLoader(data, [4], input_nodes="item", time_attr="time")


def sorted_by_time(data):
    order = np.lexsort((data.edge_time.numpy(), data.edge_index[1].numpy()))
    return Data(
        num_nodes=data.num_nodes,
        edge_index=data.edge_index[:, order],
        edge_time=data.edge_time[order],
    )


@pytest.mark.pyg("is_sorted")
def test_is_sorted():
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
def test_bad_times(change, arguments, message):
    data = graph(5, 20, 9, 0)
    for key, value in change.items():
        data[key] = value
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [2], **arguments)
