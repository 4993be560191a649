"""Every combination of the sampling arguments means what its parts mean; those without are refused.

The graphs have no parallel edges and no equal times, so "the latest k" is one set.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

HOMOGENEOUS = ("node", "to", "node")
SIZES = {"a": 24, "b": 15, "c": 6}  # "c" has no times
RELATIONS = {("a", "to", "b"): 160, ("b", "rev_to", "a"): 150, ("a", "is", "a"): 120,
             ("c", "at", "a"): 60, ("a", "rev_at", "c"): 40}  # fmt: skip
LATEST = 1000
SEEDS = torch.tensor([3, 17, 0, 9, 12])


def distinct(number: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(LATEST, generator=generator)[:number]


def simple_edges(sizes: tuple[int, int], number: int, generator: torch.Generator) -> Tensor:
    pairs = torch.randperm(sizes[0] * sizes[1], generator=generator)[:number]
    return torch.stack([pairs // sizes[1], pairs % sizes[1]])


def heterogeneous() -> HeteroData:
    generator = torch.Generator().manual_seed(3)
    data = HeteroData()
    for name, size in SIZES.items():
        data[name].num_nodes, data[name].number = size, torch.arange(size)
        if name != "c":
            data[name].node_time = distinct(size, generator)
    for key, number in RELATIONS.items():
        store = data[key]
        store.edge_index = simple_edges((SIZES[key[0]], SIZES[key[2]]), number, generator)
        store.edge_number = torch.arange(number)
        if key != ("a", "is", "a"):
            store.edge_time = distinct(number, generator)
            store.weight = torch.rand(number, generator=generator)
            store.weight[torch.rand(number, generator=generator) < 0.4] = 0
            store.weight[0] = 1e30
    return data


def homogeneous() -> Data:
    part, generator = heterogeneous(), torch.Generator().manual_seed(4)
    edge_index = simple_edges((24, 24), 200, generator)
    weight = torch.rand(200, generator=generator)
    weight[::3] = 0
    return Data(
        num_nodes=24, number=part["a"].number, node_time=part["a"].node_time, edge_index=edge_index,
        edge_number=torch.arange(200), edge_time=distinct(200, generator), weight=weight,
    )  # fmt: skip


class Store(NamedTuple):
    """One edge type of a graph or of a batch, with its ends in the order (neighbour, node)."""

    near: Tensor  # local ids of the nodes that are sampled around
    far: Tensor  # and of their neighbours
    id: Tensor | None
    near_type: str
    far_type: str
    time: Tensor | None = None  # of the neighbour or of the edge
    weight: Tensor | None = None


class Law(NamedTuple):
    """The arguments of a sampler."""

    subgraph_type: str
    disjoint: bool
    replace: bool
    time_attr: str | None
    temporal_strategy: str
    weight_attr: str | None
    sample_direction: str

    @property
    def temporal(self) -> bool:
        return self.time_attr is not None


def parts(data: Any) -> tuple[dict[str, Any], dict[Any, Any]]:
    if isinstance(data, HeteroData):
        return dict(data.node_items()), dict(data.edge_items())
    return {"node": data}, {HOMOGENEOUS: data}


def stores(data: Any, law: Law, ids: str) -> dict[Any, Store]:
    """Return the edges by type, with the times and weights that `law` goes by."""
    nodes, edges = parts(data)
    found = {}
    for key, store in edges.items():
        ends = dict(zip(("row", "col"), zip(store.edge_index, key[::2], strict=True), strict=True))
        sides = ("row", "col") if law.sample_direction == "backward" else ("col", "row")
        (near, near_type), (far, far_type) = (ends[side] for side in sides)
        time = None
        if law.time_attr == "node_time" and "node_time" in nodes[far_type]:
            time = nodes[far_type].node_time[far]
        if law.time_attr == "edge_time" and "edge_time" in store:
            time = store.edge_time
        weight = store.get("weight") if law.weight_attr else None
        found[key] = Store(near, far, store.get(ids), near_type, far_type, time, weight)
    return found


def allowed(graph: Store, node: int, limit: int | None) -> list[int]:
    """Return the edges around a node that are not later than `limit`."""
    around = (graph.near == node).nonzero().view(-1).tolist()
    return [e for e in around if graph.time is None or limit is None or graph.time[e] <= limit]


def candidates(graph: Store, law: Law, node: int, limit: int | None, k: int) -> list[int]:
    """Return the edges that may be drawn around a node."""
    edges = allowed(graph, node, limit)
    if graph.weight is not None and k >= 0:
        edges = [e for e in edges if graph.weight[e] > 0]
    if graph.time is not None and law.temporal_strategy == "last" and 0 <= k < len(edges):
        edges = sorted(edges, key=lambda e: int(graph.time[e]))[len(edges) - k :]
    return edges


def check_nodes(data: Any, batch: Any, law: Law, seed_type: str, limit: Tensor) -> None:
    """Check ids, subgraphs and times of the nodes."""
    nodes, originals = parts(batch)[0], parts(data)[0]
    grouped = law.disjoint or law.temporal
    for name, store in nodes.items():
        assert torch.equal(store.number, originals[name].number[store.n_id])
        assert ("batch" in store) == grouped
        group = store.batch if grouped else torch.zeros_like(store.n_id)
        pairs = torch.stack([group, store.n_id])
        assert pairs.unique(dim=1).size(1) == pairs.size(1), "a node twice in a subgraph"
        if name == seed_type:
            first = len(limit)
            assert store.batch_size == first
            assert store.n_id[:first].tolist() == SEEDS.tolist()
            if grouped:
                assert group[:first].tolist() == list(range(first))
        else:
            first = 0
        if law.time_attr == "node_time" and "node_time" in store:
            assert bool((store.node_time[first:] <= limit[group[first:]]).all()), "from the future"


def check_edges(
    data: Any, batch: Any, law: Law, seed_type: str, limit: Tensor, fanouts: list[int]
) -> int:
    """Check the edges of each type against the definition; return how many there are."""
    graphs, sampled = stores(data, law, "edge_number"), stores(batch, law, "e_id")
    nodes, total = parts(batch)[0], 0
    for key, store in sampled.items():
        near, far = nodes[store.near_type], nodes[store.far_type]
        graph, grouped = graphs[key], law.disjoint or law.temporal
        total += len(store.near)
        group = near.batch[store.near] if grouped else torch.zeros_like(store.near)
        if grouped:
            assert torch.equal(group, far.batch[store.far])
        counted = law.subgraph_type == "directional"
        assert ("num_sampled_edges" in parts(batch)[1][key]) == counted
        if law.subgraph_type == "bidirectional":
            check_both_ways(data, batch, key, law, group, limit)
            continue
        ends = torch.stack([near.n_id[store.near], far.n_id[store.far]])
        assert torch.equal(ends, torch.stack([graph.near, graph.far])[:, store.id])
        if graph.time is not None:
            assert bool((graph.time[store.id] <= limit[group]).all()), "from the future"
        if law.subgraph_type == "induced":
            check_induced(graph, store, near, far, law, limit)
        elif store.near_type == seed_type:
            check_draws(graph, store, law, limit, fanouts[0])
    return total


def check_draws(graph: Store, store: Store, law: Law, limit: Tensor, k: int) -> None:
    for i, node in enumerate(SEEDS.tolist()):
        mine = store.id[store.near == i].tolist()
        possible = candidates(graph, law, node, int(limit[i]) if law.temporal else None, k)
        assert set(mine) <= set(possible)
        if law.replace and k >= 0:
            assert len(mine) == (k if possible else 0)
        else:
            assert (
                len(mine) == len(set(mine)) == (len(possible) if k < 0 else min(k, len(possible)))
            )


def check_induced(graph: Store, store: Store, near: Any, far: Any, law: Law, limit: Tensor) -> None:
    """All edges between the nodes of a subgraph, none later than its seed, each of them once."""
    grouped = law.disjoint or law.temporal
    inside = {
        (int(far.batch[j]) if grouped else 0, int(v)) for j, v in enumerate(far.n_id.tolist())
    }
    expected = []
    for i, node in enumerate(near.n_id.tolist()):
        group = int(near.batch[i]) if grouped else 0
        edges = allowed(graph, node, int(limit[group]) if law.temporal else None)
        expected += [(i, e) for e in edges if (group, int(graph.far[e])) in inside]
    assert sorted(zip(store.near.tolist(), store.id.tolist(), strict=True)) == sorted(expected)


def check_both_ways(
    data: Any, batch: Any, key: Any, law: Law, group: Tensor, limit: Tensor
) -> None:
    """Every pair is an edge of the graph in this or in the reverse direction, in time."""
    nodes, edges = parts(batch)[0], parts(data)[1]
    row, col = parts(batch)[1][key].edge_index
    ends = nodes[key[0]].n_id[row].tolist(), nodes[key[2]].n_id[col].tolist()
    known: dict[tuple[int, int], list[int]] = {}
    graphs = stores(data, law, "edge_number")
    for other, store in edges.items():
        if other[0] == key[0] and other[2] == key[2] and other != key:
            continue
        flips = ([False] if other == key else []) + ([True] if other[::2] == key[::2][::-1] else [])
        time = graphs[other].time
        for flip in flips:
            pairs = store.edge_index.flip(0) if flip else store.edge_index
            for e, (u, v) in enumerate(pairs.t().tolist()):
                known.setdefault((u, v), []).append(-1 if time is None else int(time[e]))
    for u, v, g in zip(*ends, group.tolist(), strict=True):
        assert (u, v) in known
        if law.temporal:
            assert min(known[u, v]) <= int(limit[g]), "from the future"


TIMES = ((None, "uniform"), ("node_time", "uniform"), ("node_time", "last"),
         ("edge_time", "uniform"), ("edge_time", "last"))  # fmt: skip


@pytest.mark.pyg("subgraph_type", "disjoint", "time_attr", "weight_attr", "sample_direction")
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")
@pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("time_attr", "strategy"), TIMES)
@pytest.mark.parametrize("rest", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_combination(
    each_backend: str, hetero: bool, subgraph_type: str, direction: str, time_attr: str | None,
    strategy: str, rest: int,
) -> None:  # fmt: skip
    """Half of the combinations, in which any three arguments meet in every way; slow: the rest."""
    data, seed_type = (heterogeneous(), "a") if hetero else (homogeneous(), "node")
    seeds, edges = (("a", SEEDS) if hetero else SEEDS), 0
    input_time = torch.tensor([LATEST, 500, 400, 700, 0])
    limit = input_time if time_attr else torch.zeros(5)
    odd = rest + hetero + (direction == "forward")
    for disjoint, replace, weighted, full in itertools.product((0, 1), repeat=4):
        if (disjoint + replace + weighted + full + odd) % 2:
            continue
        weight_attr, fanouts = "weight" if weighted else None, [-1, 3] if full else [2, 2]
        law = Law(subgraph_type, bool(disjoint), bool(replace), time_attr, strategy, weight_attr,
                  direction)  # fmt: skip
        sampler = NeighborSampler(data, fanouts, seed=5, **law._asdict())
        loader = NeighborLoader(
            data, [], seeds, input_time if law.temporal else None, neighbor_sampler=sampler,
            batch_size=5, seed=5,
        )  # fmt: skip
        (batch,) = loader
        check_nodes(data, batch, law, seed_type, limit)
        edges += check_edges(data, batch, law, seed_type, limit, fanouts)
    assert edges > 60


LINKS = torch.arange(10).view(2, 5)


@pytest.mark.pyg("time_attr", "input_time")
@pytest.mark.parametrize(
    ("loader", "arguments", "message"),
    [
        # A time that nothing would be compared with, or nothing to compare with it.
        (NeighborLoader, {"input_time": SEEDS}, "input_time is set, but time_attr is not"),
        (NeighborLoader, {"time_attr": "edge_time"}, "input_time is needed: the nodes"),
        (LinkNeighborLoader, {"time_attr": "node_time"}, "'edge_label_time' is not set"),
        (LinkNeighborLoader, {"edge_label_time": SEEDS}, "'time_attr' is not set"),
        # Two meanings of one name.
        (NeighborLoader, {"time_attr": "number"}, "attribute of nodes and of edges; rename one"),
        (NeighborLoader, {"weight_attr": "node_time"}, "'node_time' is not an attribute"),
        # A sampler says it all.
        (NeighborLoader, {"neighbor_sampler": "ready", "disjoint": True}, "disjoint"),
        (NeighborLoader, {"neighbor_sampler": "ready", "time_attr": "node_time"}, "time_attr"),
    ],
)  # fmt: skip
def test_no_meaning_is_refused(loader: type, arguments: dict[str, Any], message: str) -> None:
    data = heterogeneous()
    data["a", "is", "a"].number = torch.arange(RELATIONS["a", "is", "a"])
    if "neighbor_sampler" in arguments:
        arguments = {**arguments, "neighbor_sampler": NeighborSampler(data, [2])}
    if loader is LinkNeighborLoader:
        arguments = {"edge_label_index": (("a", "to", "b"), LINKS), **arguments}
    else:
        arguments = {"input_nodes": ("a", SEEDS), **arguments}
    with pytest.raises(ValueError, match=message):
        loader(data, [2], **arguments)


@pytest.mark.pyg("edge_label_time", "neg_sampling")
@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
@pytest.mark.parametrize(("time_attr", "strategy"), TIMES)
def test_links(
    each_backend: str, neg_sampling: str | None, subgraph_type: str, time_attr: str | None,
    strategy: str,
) -> None:  # fmt: skip
    """Both ends of a link and its negatives share a subgraph and a time."""
    data, edges = heterogeneous(), 0
    limit = torch.tensor([LATEST, 500, 400, 700, 100])
    for disjoint, replace, weight_attr in itertools.product((0, 1), (0, 1), (None, "weight")):
        law = Law(subgraph_type, bool(disjoint), bool(replace), time_attr, strategy, weight_attr,
                  "forward")  # fmt: skip
        arguments = {k: v for k, v in law._asdict().items() if k != "sample_direction"}
        (batch,) = LinkNeighborLoader(
            data, [2, 2], (("a", "to", "b"), LINKS), batch_size=5, seed=5, **arguments,
            edge_label_time=limit if law.temporal else None, neg_sampling=neg_sampling,
        )  # fmt: skip
        graphs, grouped = stores(data, law, "edge_number"), law.disjoint or law.temporal
        for key, store in stores(batch, law, "e_id").items():
            near, far = batch[store.near_type], batch[store.far_type]
            ends = torch.stack([near.n_id[store.near], far.n_id[store.far]])
            graph = graphs[key]
            assert torch.equal(ends, torch.stack([graph.near, graph.far])[:, store.id])
            edges += len(store.id)
            if grouped:
                assert torch.equal(near.batch[store.near], far.batch[store.far])
            if graph.time is not None:
                late = graph.time[store.id] > limit[near.batch[store.near]]
                assert not bool(late.any()), "from the future"
    assert edges > 100
