"""`time_window`: no neighbour is older than its seed allows, at any hop."""

from typing import Any

import numpy as np
import pytest
import torch
from laws import THRESHOLD, chi_square, single_inclusion
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.sampling.time_bounds import NO_BOUNDS

NODES, EDGES = 40, 500


def graph(by_edge: bool) -> Data:
    generator = torch.Generator().manual_seed(0)
    data = Data(
        edge_index=torch.randint(NODES, (2, EDGES), generator=generator),
        num_nodes=NODES,
        time=torch.randint(100, (EDGES if by_edge else NODES,), generator=generator),
        weight=torch.rand(EDGES, generator=generator),
    )
    data.weight[::3] = 0.0
    return data


def test_the_latest_of_a_window() -> None:
    """Times 0 to 9; a window of 3 below 7 leaves 4 to 7, of which the latest two are 6 and 7."""
    data = Data(
        edge_index=torch.stack([torch.arange(1, 11), torch.zeros(10, dtype=int)]), num_nodes=11,
        time=torch.arange(10),
    )  # fmt: skip
    options: Any = {"time_attr": "time", "time_window": 3, "temporal_strategy": "last"}
    for fanout, expected in ((2, [6, 7]), (9, [4, 5, 6, 7])):
        loader = NeighborLoader(data, [fanout], torch.tensor([0]), torch.tensor([7]), **options)
        assert sorted(next(iter(loader)).e_id.tolist()) == expected


def picks_of(weighted: bool, replace: bool, k: int) -> np.ndarray:
    """Draw k of 12 neighbours with the times 0 to 11, seen at 9 with a window of 6: 3 to 9."""
    hubs = 4_000
    leaf, hub = torch.arange(12).repeat(hubs), 12 + torch.arange(hubs).repeat_interleave(12)
    data = Data(edge_index=torch.stack([leaf, hub]), num_nodes=12 + hubs)
    data.time, data.weight = leaf, (1.0 + leaf % 4)
    sampler = NeighborSampler(
        data, [k], time_attr="time", time_window=6, seed=1, replace=replace,
        weight_attr="weight" if weighted else None,
    )  # fmt: skip
    seeds = NodeSamplerInput(None, 12 + torch.arange(hubs), torch.full((hubs,), 9))
    return data.time[sampler.sample_from_nodes(seeds).edge].view(hubs, k).numpy() - 3


def test_draws_from_a_window_are_uniform() -> None:
    picks = picks_of(False, False, 3)
    assert single_inclusion(picks, 7) > THRESHOLD
    assert single_inclusion(np.minimum(picks, 5), 6) < THRESHOLD


def test_draws_from_a_window_go_by_weight() -> None:
    picks = picks_of(True, True, 3).ravel()
    weight = 1.0 + np.arange(3, 10) % 4
    seen = np.bincount(picks, minlength=7)
    assert chi_square(seen, weight / weight.sum() * len(picks)) > THRESHOLD
    assert chi_square(seen, np.full(7, len(picks) / 7)) < THRESHOLD
    once = np.bincount(picks_of(True, False, 1).ravel(), minlength=7)
    assert chi_square(once, weight / weight.sum() * once.sum()) > THRESHOLD


def test_the_least_times_do_not_wrap() -> None:
    least = torch.iinfo(torch.int64).min
    times = torch.tensor([10, least, least + 3, least + 4])
    end, start = NO_BOUNDS.cut(times, 3)
    assert torch.equal(end, times)
    assert start.tolist() == [7, least, least, least + 1]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("by_edge", [False, True])
@pytest.mark.parametrize("window", [3, 30, 1000])
def test_times_from_the_least_one_on_give_the_batches_of_later_ones(
    by_edge: bool, window: int
) -> None:
    """The least is NumPy's "not a time"; windows that reach beyond it are without a begin."""
    data, seeds, batches = graph(by_edge), torch.arange(NODES), []
    own = data.time
    for shift in (torch.iinfo(torch.int64).min, 1000):
        data.time = own + shift
        loader = NeighborLoader(
            data, [5, -1], seeds, 3 * seeds + shift, time_attr="time", time_window=window, seed=0,
            batch_size=NODES,
        )  # fmt: skip
        batches += [(batch.e_id.tolist(), batch.n_id.tolist()) for batch in loader]
    assert batches[0] == batches[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"time_window": -1}, "time_window"),
        ({"time_window": 1.5}, "time_window"),
        ({"time_window": 1 << 62}, "below"),
        ({"time_window": 3, "time_attr": None}, "without time_attr"),
    ],
)
def test_wrong_time_windows_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(graph(False), [2], **{"time_attr": "time", **wrong})
