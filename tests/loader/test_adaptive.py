"""Adaptive fan-outs: batches against a plain reference, on both backends, and what is refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conformance import (
    Case,
    attributed_cases,
    cases,
    check_case,
    homogeneous,
    replace_plan,
    with_excluded_edges,
    with_seed_times,
    with_times,
)
from emulator import ORDERS, emulated
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

SHOP = {
    "user": 40, "order": 300, "item": 30,
}  # fmt: skip
TIMES: dict[str, Any] = {"time_attr": "time", "input_time": torch.full((40,), 60)}


def shop() -> HeteroData:
    """Return users, orders and items: most lists are short, a few are long."""
    g, data = torch.Generator().manual_seed(3), HeteroData()
    for kind, size in SHOP.items():
        data[kind].x = torch.randn(size, 4, generator=g)
    order = torch.arange(SHOP["order"])
    data["order"].time = torch.randint(100, order.shape, generator=g)
    for kind in ("user", "item"):
        weight = torch.rand(SHOP[kind], generator=g) ** 4
        other = torch.multinomial(weight, len(order), True, generator=g)
        data[kind].time = torch.zeros(SHOP[kind], dtype=torch.int64)
        data["order", "of", kind].edge_index = torch.stack([order, other])
        data[kind, "rev_of", "order"].edge_index = torch.stack([other, order])
    return data


def adaptive(data: Any, fanouts: Any, **given: Any) -> NeighborLoader:
    options = {"input_nodes": "user", "batch_size": 8, "seed": 5, **given}
    return NeighborLoader(data, fanouts, sampling="adaptive", **options)


def check_counts(
    data: HeteroData, batch: Any, fanouts: list[int], subgraphs: bool, until: Any = None
) -> Counter[str]:
    """Compare each node's edges with the rule, whose metapaths are tuples of edge types here.

    Returns:
        How often a node got fewer edges than the fan-out, more, or as many.
    """
    seen: Counter[str] = Counter()
    path_of: dict[Any, tuple[Any, ...]] = {}  # (type, local id) -> subgraph and edge types
    budget: Counter[tuple[Any, ...]] = Counter()
    size = batch["user"].batch_size
    for i in range(size):
        path_of["user", i] = (i if subgraphs else 0,)
        budget[path_of["user", i]] += 1
    frontier = {kind: range(0) for kind in data.node_types}
    frontier["user"] = range(size)
    past = {kind: 0 for kind in data.edge_types}
    for hop, k in enumerate(fanouts):
        found = {}
        for kind in data.edge_types:
            store, dst = batch[kind], kind[-1]
            number = store.num_sampled_edges[hop]
            edges = store.edge_index[:, past[kind] : past[kind] + number].cpu()
            past[kind] += number
            counts = Counter(edges[1].tolist())
            groups = defaultdict(list)
            for i in frontier[dst]:
                v = int(batch[dst].n_id[i])
                source = data[kind].edge_index[0, data[kind].edge_index[1] == v]
                if until is not None:
                    source = source[data[kind[0]].time[source] <= until]
                groups[path_of[dst, i]].append((len(source), i))
            for path, items in groups.items():
                budget[(*path, kind)] = left = budget[path] * k
                for asked, (degree, i) in enumerate(sorted(items)):
                    count = min(degree, left // (len(items) - asked))
                    left -= count
                    assert counts[i] == count, (hop, kind, path, i)
                    seen["fewer" if count < k else "more" if count > k else "equal"] += 1
            for source, i in edges.t().tolist():
                found.setdefault((kind[0], source), (*path_of[dst, i], kind))
        for kind in data.node_types:
            first = frontier[kind].stop
            frontier[kind] = range(first, first + batch[kind].num_sampled_nodes[hop + 1])
            path_of |= {(kind, i): found[kind, i] for i in frontier[kind]}
    return seen


@pytest.mark.parametrize(
    ("given", "subgraphs"), [({}, False), ({"disjoint": True}, True), (TIMES, True),
                             ({**TIMES, "temporal_strategy": "last"}, True)],
    ids=["plain", "disjoint", "uniform in time", "last"],
)  # fmt: skip
def test_each_node_gets_its_share_of_the_budget(
    given: dict[str, Any], subgraphs: bool, each_backend: str
) -> None:
    data, seen = shop(), Counter[str]()
    for batch in adaptive(data, [3, 3, 2], **given):
        until = 60 if "time_attr" in given else None
        seen += check_counts(data, batch, [3, 3, 2], subgraphs, until)
        if until is not None:
            assert int(batch["order"].time.max()) <= until
    assert min(seen["fewer"], seen["more"]) > 10  # else nothing was adapted


def test_a_plain_batch_is_not_adapted() -> None:
    """The control: the check above sees a loader that leaves fan-outs as they are."""
    data = shop()
    (batch, *_) = NeighborLoader(data, [3, 3, 2], input_nodes="user", batch_size=8, seed=5)
    with pytest.raises(AssertionError):
        check_counts(data, batch, [3, 3, 2], False)


def test_the_latest_are_taken(each_backend: str) -> None:
    data = shop()
    kind = ("order", "of", "user")
    (batch, *_) = adaptive(data, [4], temporal_strategy="last", **TIMES)
    node, edges = batch["order"].n_id, batch[kind].edge_index
    for i in range(8):
        source, users = data[kind].edge_index
        times = data["order"].time[source[users == batch["user"].n_id[i]]]
        got = sorted(data["order"].time[node[edges[0, edges[1] == i]]].tolist())
        assert got == times[times <= 60].sort().values[-4:].tolist()


def test_adaptive_batches_are_plain_ones_where_all_lists_are_long() -> None:
    """Every node gets the fan-out then, and the draws are the same ones."""
    g = torch.Generator().manual_seed(0)
    data = Data(edge_index=torch.randint(50, (2, 5000), generator=g), num_nodes=50)
    both = [
        next(iter(NeighborLoader(data, [4], batch_size=50, seed=1, sampling=law)))
        for law in ("uniform", "adaptive")
    ]
    for plain, other in zip(both[0].e_id, both[1].e_id, strict=True):
        assert plain == other


def test_a_fanout_above_what_lists_hold_takes_all() -> None:
    data = shop()
    every = NeighborLoader(data, [-1, -1], input_nodes="user", batch_size=40)
    for one, other in zip(adaptive(data, [400, 400], batch_size=40), every, strict=True):
        for kind in data.edge_types:
            assert torch.equal(one[kind].e_id, other[kind].e_id)


@given(
    case=st.one_of(cases(), attributed_cases()), order=st.sampled_from(ORDERS),
    seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_the_emulated_kernels_give_the_same_batches(
    case: Case, order: int, seed: int, share: float
) -> None:
    plan = replace_plan(
        case.plan, adaptive=True, replace=False, fanouts=np.maximum(case.plan.fanouts, 0)
    )
    case = with_excluded_edges(np.random.default_rng(seed), replace(case, plan=plan), share)
    if case.csc.weights is None:
        with emulated(order=order) as backend:
            check_case(backend, case, batches=2)


def test_latest_neighbours_are_right_beside_excluded_edges() -> None:
    """Those before the latest are not cut out of what is left of a list again."""
    rng = np.random.default_rng(0)
    case = homogeneous([3, 2], plan={"adaptive": True, "recent": True})
    case = with_seed_times(rng, case, with_times(rng, case.csc, by_edge=True))
    with emulated() as backend:
        check_case(backend, with_excluded_edges(rng, case), one_block=(False,))


def test_one_long_list_takes_what_a_fan_out_of_one_gives_to_all_lists() -> None:
    case = homogeneous([1], seeds=60, plan={"adaptive": True})
    csc = case.csc
    indptr = np.append(0, np.full(len(csc.indptr) - 1, csc.indptr[-1])).astype(csc.indptr.dtype)
    case = replace(case, csc=replace(csc, indptr=indptr))
    with emulated() as backend:
        check_case(backend, case)


# Beside other arguments ###########################################################################


def assert_equal(one: Any, other: Any, ids_of_edges: bool = True) -> None:
    for kind in one.node_types:
        assert torch.equal(one[kind].n_id, other[kind].n_id)
        assert torch.equal(one[kind].x, other[kind].x)
    for kind in one.edge_types:
        assert torch.equal(one[kind].e_id, other[kind].e_id) or not ids_of_edges
        assert torch.equal(one[kind].edge_index, other[kind].edge_index)


def test_threads_that_share_a_hop_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyg_direct.ops.cpu.drawing.MIN_ITEMS_PER_THREAD", 1)
    data, out = shop(), []
    for threads in (1, 4):
        sampler = NeighborSampler(data, [3, 70], sampling="adaptive", seed=2, threads=threads)
        seeds = NodeSamplerInput(None, torch.arange(20), None, "user")
        out.append(sampler.sample_from_nodes(seeds, key=(1, 2)))
    for kind in data.edge_types:
        assert torch.equal(out[0].edge[kind], out[1].edge[kind])


def test_a_saved_graph_gives_the_same(tmp_path: Any) -> None:
    data = shop()
    pyg_direct.save(data, tmp_path / "graph", time_attr="time")
    for verify in (True, False):
        saved = pyg_direct.open(tmp_path / "graph", verify=verify)
        for one, other in zip(
            adaptive(data, [3, 3], **TIMES), adaptive(saved, [3, 3], **TIMES), strict=True
        ):
            assert_equal(one, other, ids_of_edges=False)  # edges are stored by destination


def test_models_run_faster_on_it() -> None:
    from torch_geometric.nn import SAGEConv, to_hetero

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 3)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    data = shop()
    loader = adaptive(data, [3, 3], **TIMES)
    model = to_hetero(Net(), data.metadata())
    batch = next(iter(loader))
    with torch.no_grad():
        wanted = model(batch.x_dict, batch.edge_index_dict)["user"][:8]
        fast = pyg_direct.accelerate(model, loader)
        got = fast(batch.x_dict, batch.edge_index_dict)["user"][:8]
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("given", [
    {}, {"disjoint": True}, {"neg_sampling": "binary"}, {"neg_sampling": "triplet"},
    {"exclude_seed_edges": "self"}, {"disjoint": True, "exclude_seed_edges": "self"},
], ids=str)  # fmt: skip
def test_adaptive_link_batches_pass_the_audit(given: dict[str, Any], each_backend: str) -> None:
    kind, data = ("order", "of", "user"), shop()
    loader = LinkNeighborLoader(
        data, [3, 3], edge_label_index=(kind, None), batch_size=20, seed=1, sampling="adaptive",
        **given,
    )  # fmt: skip
    result = pyg_direct.audit(loader, 4)
    assert result.checked["counts obey the fan-outs"] > 0
    leaks = {"no seed link is there for messages to go over"}
    assert set(result.wrong) <= (set() if "exclude_seed_edges" in given else leaks), str(result)


def test_audit_sees_a_budget_that_is_exceeded() -> None:
    data = shop()
    loader = adaptive(data, [3, 3], **TIMES)
    assert pyg_direct.audit(loader, time_attr="time").ok
    batches = list(loader)
    loader.node_sampler.num_neighbors = [1, 1]
    assert set(pyg_direct.audit(loader, batches).wrong) == {"counts obey the fan-outs"}


@pytest.mark.parametrize(
    ("given", "fanouts", "message"),
    [
        ({"replace": True}, [3], "cannot be combined with replace=True"),
        ({"weight_attr": "weight"}, [3], "cannot be combined with weight_attr"),
        ({}, [3, -1], "cannot be combined with negative fan-outs"),
    ],
    ids=str,
)
def test_options_that_adaptive_sampling_does_not_take_are_refused(
    given: dict[str, Any], fanouts: list[int], message: str
) -> None:
    data = shop()
    for store in data.edge_stores:
        store.weight = torch.ones(store.edge_index.size(1))
    with pytest.raises(ValueError, match=message):
        adaptive(data, fanouts, **given)


def test_a_fanout_that_is_set_later_is_refused_too() -> None:
    loader = adaptive(shop(), [3])
    loader.node_sampler.num_neighbors = [-1]
    with pytest.raises(ValueError, match="negative fan-outs"):
        next(iter(loader))
