"""`input_start_time` and `input_end_time`: no neighbour lies outside its seed's own window."""

from typing import Any

import numpy as np
import pytest
import torch
from laws import THRESHOLD, chi_square
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PygNeighborLoader

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

SEEDS, NODES, EDGES = 30, 60, 900
TIME = torch.full((SEEDS,), 90)
START = torch.arange(SEEDS) * 2
END = START + torch.arange(SEEDS) % 5 * 7


def graph(by_edge: bool = True) -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        edge_index=torch.randint(NODES, (2, EDGES), generator=generator),
        num_nodes=NODES,
        time=torch.randint(100, (EDGES if by_edge else NODES,), generator=generator),
        weight=torch.rand(EDGES, generator=generator),
    )


def windowed(data: Data, fanouts: list[int], **options: Any) -> NeighborLoader:
    given = {"input_start_time": START, "input_end_time": END, "batch_size": 8, **options}
    return NeighborLoader(data, fanouts, torch.arange(SEEDS), TIME, time_attr="time", **given)


def seeds_of_edges(batch: Any) -> torch.Tensor:
    """Return the position of the seed whose subgraph each edge is in."""
    return batch.input_id[batch.batch[batch.edge_index[1]]]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_one_width_is_time_window(strategy: str) -> None:
    """The same batches, bit for bit."""
    data, width = graph(), 25
    options = {"temporal_strategy": strategy, "seed": 3, "replace": True, "weight_attr": "weight"}
    one = windowed(data, [3, 2], input_start_time=TIME - width, input_end_time=None, **options)
    other = windowed(
        data, [3, 2], time_window=width, input_start_time=None, input_end_time=None, **options
    )
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine.e_id, theirs.e_id)
        assert torch.equal(mine.edge_index, theirs.edge_index)


def test_draws_are_uniform_within_each_window() -> None:
    """12 neighbours of times 0 to 11; seed i of 4,000 sees those from i % 3 to 7 + i % 3."""
    hubs = 4_000
    leaf, hub = torch.arange(12).repeat(hubs), 12 + torch.arange(hubs).repeat_interleave(12)
    data = Data(edge_index=torch.stack([leaf, hub]), num_nodes=12 + hubs, time=leaf)
    first = torch.arange(hubs) % 3
    loader = NeighborLoader(
        data, [2], 12 + torch.arange(hubs), torch.full((hubs,), 11), time_attr="time", seed=1,
        input_start_time=first, input_end_time=first + 7, batch_size=hubs,
    )  # fmt: skip
    batch = next(iter(loader))
    place = (data.time[batch.e_id] - first[seeds_of_edges(batch)]).numpy()
    seen = np.bincount(place, minlength=8)
    assert len(seen) == 8
    assert chi_square(seen, np.full(8, 2 * hubs / 8)) > THRESHOLD
    # Negative control: the window of another seed.
    assert len(np.bincount(place + (first[seeds_of_edges(batch)].numpy() == 0))) > 8


def test_a_call_with_other_times_keeps_the_windows() -> None:
    loader = windowed(graph(), [-1])
    batch = loader(torch.tensor([23, 24, 28]), torch.full((3,), 60))
    time, seed = graph().time[batch.e_id], seeds_of_edges(batch)
    assert len(time) > 0
    assert bool(((time >= START[seed]) & (time <= END[seed].clamp(max=60))).all())


def test_windows_changed_later_change_no_batch() -> None:
    start = START.clone()
    loader = windowed(graph(), [3], input_start_time=start, seed=0)
    before = [batch.e_id for batch in loader]
    start += 30
    loader._progress.epoch = 0
    assert torch.equal(next(iter(windowed(graph(), [3], seed=0))).e_id, before[0])
    assert torch.equal(loader.input_data.bounds.start, START)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"input_start_time": START[1:]}, ValueError, "one integer for each of 30"),
        ({"input_end_time": END.float()}, ValueError, "one integer for each of 30"),
        ({"input_start_time": 3}, TypeError, "input_start_time"),
        ({"input_end_time": TIME + 1}, ValueError, r"input_end_time\[0\] is 91, later"),
        ({"input_start_time": TIME + 1}, ValueError, "no seed would have a neighbour"),
        ({"input_start_time": END + 1}, ValueError, "no seed would have a neighbour"),
        ({"time_window": 3}, ValueError, "pass one of them"),
    ],
)
def test_wrong_windows_of_seeds_are_refused(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        windowed(graph(), [2], **wrong)


def test_empty_windows_are_taken_for_no_seeds() -> None:
    none = torch.empty(0, dtype=torch.int64)
    loader = NeighborLoader(
        graph(), [2], none, none, time_attr="time", input_start_time=none, input_end_time=none
    )
    assert list(loader) == []


def test_windows_of_links_are_those_of_both_ends() -> None:
    """A sampler with times of nodes gives each end its own."""
    data = HeteroData()
    for kind, time in (("a", 50), ("b", 10)):
        data[kind].time, data[kind].num_nodes = torch.full((4,), time), 4
    data["a", "to", "b"].edge_index = torch.arange(4).repeat(2, 1)
    with pytest.raises(ValueError, match=r"input_end_time\[0\] is 20, later than the seed itself"):
        LinkNeighborLoader(
            data, [2], ("a", "to", "b"), input_end_time=torch.full((4,), 20),
            neighbor_sampler=NeighborSampler(data, [2], time_attr="time"),
        )  # fmt: skip


def test_windows_without_time_attr_are_refused() -> None:
    with pytest.raises(ValueError, match="pass time_attr"):
        NeighborLoader(graph(), [2], input_start_time=torch.zeros(NODES, dtype=int))
    sampler = NeighborSampler(graph(), [2])
    with pytest.raises(ValueError, match="pass time_attr"):
        LinkNeighborLoader(
            graph(), [2], neighbor_sampler=sampler, input_end_time=torch.zeros(EDGES, dtype=int)
        )


def test_the_newest_loader_of_pyg_has_no_such_arguments() -> None:
    """If it has them one day, ours must mean the same."""
    with pytest.raises(TypeError, match="input_start_time"):
        PygNeighborLoader(graph(), [2], input_start_time=START)
