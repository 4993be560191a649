"""`temporal_strategy="last"` with weights: the last neighbours that can be drawn."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader

NODES, EDGES, SEEDS, LIMIT = 12, 150, 6, 110
PALETTES = {
    "some zeros": torch.tensor([0.0, 0.5, 0.0, 2.0]),
    "mostly zeros": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
    "all zeros": torch.tensor([0.0]),
    "far apart": torch.tensor([0.0, 1e30, 1.0]),
}
AB = ("a", "to", "b")


def graph(palette: Tensor) -> Data:
    generator = torch.Generator().manual_seed(3)
    edge_index = torch.randint(NODES, (2, EDGES), generator=generator)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    return Data(
        num_nodes=NODES,
        edge_index=edge_index,
        time=torch.randperm(EDGES, generator=generator),
        weight=palette[torch.randint(len(palette), (EDGES,), generator=generator)].double(),
    )


def typed(data: Data) -> HeteroData:
    out = HeteroData()
    out["a"].num_nodes = out["b"].num_nodes = NODES
    for name in ("edge_index", "time", "weight"):
        out[AB][name] = data[name]
    return out


def expected(data: Data, node: int, k: int, since: int = 0, without: Any = ()) -> list[int]:
    """Return the times of the last k edges to a node that can be drawn."""
    edges = (data.edge_index[1] == node) & (data.weight > 0)
    edges &= (data.time <= LIMIT) & (data.time >= since)
    times = sorted(set(data.time[edges].tolist()) - set(without))
    return times[len(times) - k :] if k < len(times) else times


def check(times: Tensor, col: Tensor, wanted: list[list[int]], k: int, replace: bool) -> None:
    """Compare the times of the edges to each seed with those that are wanted."""
    for seed, of_seed in enumerate(wanted):
        found = times[col == seed].tolist()
        if replace:
            assert len(found) == (k if of_seed else 0)
            assert set(found) <= set(of_seed)
        else:
            assert sorted(found) == of_seed


SEEN = {"time_attr": "time", "weight_attr": "weight", "temporal_strategy": "last", "seed": 1}
AT = torch.full((SEEDS,), LIMIT)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("palette", list(PALETTES))
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("window", [None, 60])
def test_the_last_of_positive_weight_are_taken(
    palette: str, replace: bool, window: int | None
) -> None:
    data = graph(PALETTES[palette])
    for k in (0, 1, 3, 50):
        loader = NeighborLoader(
            data, [k], torch.arange(SEEDS), AT, replace=replace, time_window=window,
            batch_size=SEEDS, **SEEN,
        )  # fmt: skip
        (batch,) = loader
        since = 0 if window is None else LIMIT - window
        wanted = [expected(data, node, k, since) for node in range(SEEDS)]
        check(data.time[batch.e_id], batch.edge_index[1], wanted, k, replace)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("replace", [False, True])
def test_the_last_of_positive_weight_beside_excluded_links(replace: bool) -> None:
    data = graph(PALETTES["some zeros"])
    reached = [expected(data, node, 2)[-1] for node in range(SEEDS)]
    links = torch.stack([(data.time == time).nonzero().squeeze() for time in reached])
    loader = LinkNeighborLoader(
        data, [2], data.edge_index[:, links], edge_label_time=data.time[links], replace=replace,
        exclude_seed_edges=True, batch_size=SEEDS, **SEEN,
    )  # fmt: skip
    (batch,) = loader
    sources, destinations = batch.edge_label_index
    times = data.time[batch.e_id]
    for link, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
        for end in {int(source), int(destination)}:
            node, mine = int(batch.n_id[end]), batch.edge_index[1] == end
            edges = (data.edge_index[1] == node) & (data.weight > 0)
            edges &= data.time <= reached[link]
            wanted = set(data.time[edges].tolist()) - {reached[link]}
            latest = sorted(wanted)[-2:]
            found = times[mine].tolist()
            if replace:
                assert set(found) <= set(latest)
            else:
                assert sorted(found) == latest


@pytest.mark.usefixtures("each_backend")
def test_the_last_of_positive_weight_in_a_typed_graph_and_in_the_second_hop() -> None:
    data = graph(PALETTES["some zeros"])
    (batch,) = NeighborLoader(
        typed(data), [2], ("b", torch.arange(SEEDS)), AT, batch_size=SEEDS, **SEEN
    )
    wanted = [expected(data, node, 2) for node in range(SEEDS)]
    check(data.time[batch[AB].e_id], batch[AB].edge_index[1], wanted, 2, False)
    (batch,) = NeighborLoader(data, [1, 3], torch.arange(1), AT[:1], batch_size=1, **SEEN)
    nodes = batch.n_id.tolist()
    second = batch.edge_index[:, batch.num_sampled_edges[0] :]
    times = data.time[batch.e_id[batch.num_sampled_edges[0] :]]
    for local in range(1, 1 + batch.num_sampled_nodes[1]):
        assert sorted(times[second[1] == local].tolist()) == expected(data, nodes[local], 3)


@pytest.mark.parametrize("prepared", [False, True])
def test_the_last_of_positive_weight_in_a_saved_graph(prepared: bool, tmp_path: Any) -> None:
    data = graph(PALETTES["mostly zeros"])
    names = {"time_attr": "time", "weight_attr": "weight"} if prepared else {}
    pyg_direct.save(data, tmp_path / "graph", **names)
    back = pyg_direct.open(tmp_path / "graph")
    (batch,) = NeighborLoader(back, [2], torch.arange(SEEDS), AT, batch_size=SEEDS, **SEEN)
    wanted = [expected(data, node, 2) for node in range(SEEDS)]
    check(batch.time, batch.edge_index[1], wanted, 2, False)


def test_a_share_of_the_last_follows_the_weights() -> None:
    """Weights 9, 1, 0, 3, 0 and the last 2 with replacement: the 1 and the 3."""
    hubs = 4000
    edge_index = torch.stack([torch.arange(5).repeat(hubs), 5 + torch.arange(hubs * 5) // 5])
    data = Data(
        num_nodes=5 + hubs, edge_index=edge_index, time=torch.arange(5).repeat(hubs),
        weight=torch.tensor([9.0, 1.0, 0.0, 3.0, 0.0]).repeat(hubs),
    )  # fmt: skip
    (batch,) = NeighborLoader(
        data, [2], torch.arange(5, 5 + hubs), torch.full((hubs,), 9), replace=True,
        batch_size=hubs, **SEEN,
    )  # fmt: skip
    counts = torch.bincount(data.time[batch.e_id], minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(float(counts[3]) / (2 * hubs) - 0.75) < 0.02
