"""Bidirectional subgraphs with all other arguments; combinations without a meaning are refused.

Those of directional and induced subgraphs are drawn in `tests/reference`.
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


class Law(NamedTuple):
    """The arguments of a sampler."""

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


def times_of_edges(data: Any, law: Law) -> dict[Any, Tensor | None]:
    """Return the times that `law` goes by: those of edges, or of their neighbours."""
    nodes, edges = parts(data)
    far, found = int(law.sample_direction == "backward"), dict[Any, Tensor | None]()
    for key, store in edges.items():
        neighbours = nodes[key[2 * far]]
        found[key] = store.get("edge_time") if law.time_attr == "edge_time" else None
        if law.time_attr == "node_time" and "node_time" in neighbours:
            found[key] = neighbours.node_time[store.edge_index[far]]
    return found


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


def check_edges(data: Any, batch: Any, law: Law, limit: Tensor) -> int:
    """Check the edges of each type against the definition; return how many there are."""
    nodes, total = parts(batch)[0], 0
    for key, store in parts(batch)[1].items():
        grouped = law.disjoint or law.temporal
        row, col = store.edge_index
        total += len(row)
        source, target = nodes[key[0]], nodes[key[2]]
        group = target.batch[col] if grouped else torch.zeros_like(col)
        assert not grouped or torch.equal(group, source.batch[row])
        assert "num_sampled_edges" not in store
        check_both_ways(data, batch, key, law, group, limit)
    return total


def check_both_ways(
    data: Any, batch: Any, key: Any, law: Law, group: Tensor, limit: Tensor
) -> None:
    """Every pair is an edge of the graph in this or in the reverse direction, in time."""
    nodes, edges = parts(batch)[0], parts(data)[1]
    row, col = parts(batch)[1][key].edge_index
    ends = nodes[key[0]].n_id[row].tolist(), nodes[key[2]].n_id[col].tolist()
    known: dict[tuple[int, int], list[int]] = {}
    times = times_of_edges(data, law)
    for other, store in edges.items():
        if other[0] == key[0] and other[2] == key[2] and other != key:
            continue
        flips = ([False] if other == key else []) + ([True] if other[::2] == key[::2][::-1] else [])
        time = times[other]
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
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("time_attr", "strategy"), TIMES)
@pytest.mark.parametrize("rest", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_bidirectional_subgraphs_hold_edges_of_the_graph_in_time(
    each_backend: str, hetero: bool, direction: str, time_attr: str | None, strategy: str, rest: int
) -> None:
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
        law = Law(bool(disjoint), bool(replace), time_attr, strategy, weight_attr, direction)
        sampler = NeighborSampler(
            data, fanouts, seed=5, subgraph_type="bidirectional", **law._asdict()
        )
        loader = NeighborLoader(
            data, [], seeds, input_time if law.temporal else None, neighbor_sampler=sampler,
            batch_size=5, seed=5,
        )  # fmt: skip
        (batch,) = loader
        check_nodes(data, batch, law, seed_type, limit)
        edges += check_edges(data, batch, law, limit)
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
