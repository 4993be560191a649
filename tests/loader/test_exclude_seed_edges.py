"""`exclude_seed_edges`: no message goes over the edges that a batch predicts."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput

from pyg_direct import LinkNeighborLoader, NeighborSampler

NODES, EDGES = 30, 300


def graph() -> Data:
    """Return a graph with parallel edges, self-loops, and many edges back."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES, (2, EDGES), generator=generator)
    edge_index[:, 200:260] = edge_index[:, 100:160].flip(0)
    data = Data(edge_index=edge_index, num_nodes=NODES)
    data.time = torch.randint(20, (EDGES,), generator=generator)
    data.weight = torch.rand(EDGES, generator=generator)
    data.weight[::4] = 0.0
    return data


def numbers(edge_index: Tensor) -> Tensor:
    return edge_index[0] * NODES + edge_index[1]


def batch_of(data: Any, links: Any, mode: Any, fanouts: Any = (-1, -1), **options: Any) -> Any:
    size = 40 if not isinstance(links, Tensor) else links.size(1)
    options = {"batch_size": size, "seed": 3, **options}
    loader = LinkNeighborLoader(data, list(fanouts), links, exclude_seed_edges=mode, **options)
    return next(iter(loader))


def is_out(data: Data, links: Tensor, mode: str) -> Tensor:
    """Whether each edge is out of a batch that holds these links."""
    out = torch.isin(numbers(data.edge_index), numbers(links))
    if mode == "reverse":
        out |= torch.isin(numbers(data.edge_index), numbers(links.flip(0)))
    return out


LINKS = slice(90, 130)  # with parallel edges, and some whose reverse is an edge


@pytest.mark.parametrize("mode", ["self", "reverse"])
@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
@pytest.mark.parametrize("fanouts", [(-1, -1), (3, 2), (2, 0), (50, -1)])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
def test_the_batch_is_that_of_the_graph_without_them(
    mode: str, subgraph_type: str, fanouts: Any, replace: bool, negatives: Any
) -> None:
    """Not only the law: edge for edge. So what is left of a list is drawn from, k times."""
    data = graph()
    links = data.edge_index[:, LINKS]
    kept = (~is_out(data, links, mode)).nonzero().view(-1)
    without = Data(edge_index=data.edge_index[:, kept], num_nodes=NODES)
    options = {"subgraph_type": subgraph_type, "replace": replace, "neg_sampling": negatives}
    got = batch_of(data, links, mode, fanouts, **options)
    expected = batch_of(without, links, None, fanouts, **options)
    assert got.n_id.tolist() == expected.n_id.tolist()
    assert got.edge_index.tolist() == expected.edge_index.tolist()
    assert got.e_id.tolist() == kept[expected.e_id].tolist()
    assert len(kept) < EDGES - 40
    assert got.num_edges > 0


def test_true_means_self() -> None:
    data = graph()
    links = data.edge_index[:, LINKS]
    one, other = batch_of(data, links, True, (3, 3)), batch_of(data, links, "self", (3, 3))
    assert one.e_id.tolist() == other.e_id.tolist()
    assert not is_out(data, links, "self")[one.e_id].any()
    assert is_out(data, links, "self")[batch_of(data, links, False).e_id].any()


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("window", [None, 4])
def test_earlier_edges_between_the_same_ends_are_history(strategy: str, window: Any) -> None:
    """Times 1, 5, 5, 8 between 0 and 1: a link at time 5 leaves out the two of time 5."""
    data = Data(edge_index=torch.tensor([[0, 0, 0, 0, 2], [1, 1, 1, 1, 1]]), num_nodes=3)
    data.time = torch.tensor([1, 5, 5, 8, 4])
    for time, expected in ((5, [0, 4]), (1, []), (8, [0, 1, 2, 4]), (9, [0, 1, 2, 3, 4])):
        batch = batch_of(
            data, torch.tensor([[0], [1]]), "self", [9], time_attr="time", time_window=window,
            temporal_strategy=strategy, edge_label_time=torch.tensor([time]),
        )  # fmt: skip
        seen = [e for e in expected if window is None or data.time[e] >= time - window]
        assert sorted(batch.e_id.tolist()) == seen
    if strategy == "last":
        batch = batch_of(
            data, torch.tensor([[0], [1]]), "self", [1], time_attr="time",
            temporal_strategy=strategy, edge_label_time=torch.tensor([5]),
        )  # fmt: skip
        assert batch.e_id.tolist() == [4], "the latest one that is left"


def test_times_of_nodes_leave_no_history() -> None:
    data = Data(
        edge_index=torch.tensor([[0, 0, 2], [1, 1, 1]]), time=torch.tensor([1, 9, 3]), num_nodes=3
    )
    batch = batch_of(
        data, torch.tensor([[0], [1]]), "self", [9], time_attr="time",
        edge_label_time=torch.tensor([5]),
    )  # fmt: skip
    assert batch.e_id.tolist() == [2]


def shop() -> HeteroData:
    """Return purchases with a reverse type, ratings with one by another name, and follows."""
    generator = torch.Generator().manual_seed(1)
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 20, 15
    ends = torch.stack([torch.randint(20, (90,), generator=generator),
                        torch.randint(15, (90,), generator=generator)])  # fmt: skip
    data["user", "buys", "item"].edge_index = ends
    data["item", "rev_buys", "user"].edge_index = ends.flip(0)
    data["user", "rates", "item"].edge_index = ends[:, :50]
    data["item", "rated_by", "user"].edge_index = ends[:, :50].flip(0)
    follows = torch.randint(20, (2, 60), generator=generator)
    data["user", "follows", "user"].edge_index = torch.cat([follows, follows.flip(0)], 1)
    return data


BUYS, REV_BUYS = ("user", "buys", "item"), ("item", "rev_buys", "user")
RATES, RATED_BY = ("user", "rates", "item"), ("item", "rated_by", "user")
FOLLOWS = ("user", "follows", "user")


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize(
    ("link_type", "mode", "out"),
    [
        (BUYS, "self", {BUYS}),
        (BUYS, "reverse", {BUYS, REV_BUYS}),
        (REV_BUYS, "reverse", {BUYS, REV_BUYS}),
        (RATES, RATED_BY, {RATES, RATED_BY}),
        (RATES, list(REV_BUYS), {RATES, REV_BUYS}),
        (FOLLOWS, "self", {FOLLOWS}),
        (FOLLOWS, "reverse", {FOLLOWS}),
    ],
)
@pytest.mark.parametrize("disjoint", [False, True])
def test_seed_edges_are_left_out_of_their_edge_type_and_its_reverse(
    link_type: Any, mode: Any, out: set[Any], disjoint: bool
) -> None:
    data = shop()
    links = data[link_type].edge_index[:, 5:9]
    batch = batch_of(data, (link_type, links), mode, batch_size=4, disjoint=disjoint)
    whole = batch_of(data, (link_type, links), None, batch_size=4, disjoint=disjoint)
    for kind in data.edge_types:
        number = batch[kind[2]].batch if disjoint else torch.zeros(99, dtype=torch.int64)
        forbidden = set()
        for i, (u, v) in enumerate(links.t().tolist()):
            pairs = {(u, v)} if kind == link_type and kind in out else set()
            if kind in out and (kind != link_type or (mode == "reverse" and kind == FOLLOWS)):
                pairs |= {(v, u)}
            forbidden |= {(i if disjoint else 0, *pair) for pair in pairs}
        edges = data[kind].edge_index[:, batch[kind].e_id]
        group = number[batch[kind].edge_index[1]]
        assert not forbidden & set(zip(group.tolist(), *edges.tolist(), strict=True))
    assert batch[link_type].num_edges < whole[link_type].num_edges


def test_seed_edges_are_left_out_where_edges_are_followed_from_sources() -> None:
    """Followed from their sources, edges are in the lists of the other ends."""
    data = graph()
    links = data.edge_index[:, LINKS]
    sampler = NeighborSampler(
        data, [-1, -1], sample_direction="backward", exclude_seed_edges="self", seed=0
    )
    whole = NeighborSampler(data, [-1, -1], sample_direction="backward", seed=0)
    inputs = EdgeSamplerInput(None, links[0], links[1])
    got, expected = (s.sample_from_edges(inputs).edge for s in (sampler, whole))
    out = is_out(data, links, "self")
    assert sorted(got.tolist()) == sorted(expected[~out[expected]].tolist())
    assert out[expected].any()


def test_duplicated_links_and_self_loops() -> None:
    data = Data(edge_index=torch.tensor([[0, 1, 1, 2, 1], [1, 1, 1, 1, 0]]), num_nodes=3)
    links = torch.tensor([[1, 1, 0], [1, 1, 1]])
    for disjoint in (False, True):
        batch = batch_of(data, links, "reverse", [-1], disjoint=disjoint)
        if not disjoint:
            assert batch.e_id.tolist() == [3]
        else:
            for i, left in enumerate([[0, 3], [0, 3], []]):
                assert batch.e_id[batch.edge_index[1] == i].tolist() == left


def test_bidirectional_subgraphs_leave_seed_edges_out_both_ways_only() -> None:
    data = graph()
    links = data.edge_index[:, LINKS]
    batch = batch_of(data, links, "reverse", (3, 3), subgraph_type="bidirectional")
    found = batch.n_id[batch.edge_index]
    both = torch.cat([links, links.flip(0)], 1)
    assert not torch.isin(numbers(found), numbers(both)).any()
    with pytest.raises(ValueError, match=r"bidirectional.*'reverse'"):
        batch_of(data, links, "self", (3, 3), subgraph_type="bidirectional")


def test_a_ready_sampler_leaves_them_out() -> None:
    data = graph()
    links = data.edge_index[:, LINKS]
    sampler = NeighborSampler(data, [3, 3], exclude_seed_edges="reverse")
    loader = LinkNeighborLoader(
        data, [3, 3], links, neighbor_sampler=sampler, batch_size=40, seed=3
    )
    expected = batch_of(data, links, "reverse", (3, 3))
    assert next(iter(copy.deepcopy(loader))).e_id.tolist() == expected.e_id.tolist()
    assert next(iter(loader)).e_id.tolist() == expected.e_id.tolist()
    with pytest.raises(ValueError, match="exclude_seed_edges would be ignored"):
        LinkNeighborLoader(data, [3], links, neighbor_sampler=sampler, exclude_seed_edges=True)


@pytest.mark.parametrize("wrong", ["both", 1.5, ("a", "b", "c"), 2])
def test_wrong_values_of_exclude_seed_edges_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="exclude_seed_edges must be True or 'self', 'reverse'"):
        LinkNeighborLoader(graph(), [2], exclude_seed_edges=wrong)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("reverse", "finds no reverse of .*rates.*'rev_rates'.*Name it"),
        (BUYS, "is not the reverse of .*must lead from 'item' to 'user'"),
        (("item", "no", "user"), "must be True or 'self'"),
    ],
)
def test_missing_reverse_types_are_refused(mode: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(shop(), [2], RATES, exclude_seed_edges=mode)
