"""What the draws depend on: seeds and generators, not workers or prefetch."""

import warnings
from typing import Any

import pytest
import torch
from graphs import assert_same_epoch, citations, example_graph
from loaders import edges_of, make
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.core.threads import available_cores


def epoch_of(**arguments: Any) -> list[Data]:
    torch.manual_seed(7)
    return list(make(NeighborLoader, [2, 2], batch_size=2, **arguments))


def test_more_producers_than_cores_are_no_reason_to_warn() -> None:
    """torch's DataLoader warns of too many worker *processes*; there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(NeighborLoader, num_workers=available_cores() + 1)


@pytest.mark.pyg("prefetch_factor")
def test_prefetch_factor_is_prefetch() -> None:
    assert make(NeighborLoader, num_workers=1, prefetch_factor=4).prefetch == 4
    assert_same_epoch(epoch_of(num_workers=1, prefetch_factor=4), epoch_of())


@pytest.mark.pyg("batch.manual_seed", "loader.pickle")
def test_manual_seed_governs(loader_class: type) -> None:
    loader = make(loader_class, [2, 2])
    torch.manual_seed(1)
    first, second = edges_of(loader), edges_of(loader)
    torch.manual_seed(1)
    assert edges_of(loader) == first
    assert second != first
    torch.manual_seed(2)
    assert edges_of(loader) != first


@pytest.mark.pyg("batch.manual_seed")
def test_a_new_loader_follows_manual_seed(loader_class: type) -> None:
    def first_epoch(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return edges_of(make(loader_class, [2, 2]))

    assert first_epoch(1) == first_epoch(1)
    assert len({str(first_epoch(seed)) for seed in range(5)}) == 5


def test_batches_of_the_same_seeds_draw_anew(loader_class: type) -> None:
    hub = [[0]] * 30
    loader = loader_class(example_graph(), [2], input_nodes=[0], batch_sampler=hub)
    assert len({tuple(sorted(edges)) for edges in edges_of(loader)}) > 8


@pytest.mark.pyg("loader.call")
def test_calls_draw_anew(loader_class: type) -> None:
    loader = make(loader_class, [2], input_nodes=[0])
    assert len({tuple(sorted(loader([0]).e_id.tolist())) for _ in range(30)}) > 8


@pytest.mark.parametrize("key", [(1,), (1, 2, 3), (1, -1), (1, 1 << 32), (1.0, 2), 5, "12"])
def test_a_key_other_than_two_integers_is_refused(key: Any) -> None:
    sampler = NeighborSampler(citations(), [2])
    seeds = NodeSamplerInput(None, torch.arange(3))
    with pytest.raises(ValueError, match="key must be two integers"):
        sampler.sample_from_nodes(seeds, key=key)


def test_a_key_is_any_two_words() -> None:
    sampler = NeighborSampler(citations(), [2])
    seeds = NodeSamplerInput(None, torch.arange(30))
    first, again, other = (
        sampler.sample_from_nodes(seeds, key=key) for key in ((1, 2), [1, 2], (2, 1))
    )
    assert torch.equal(first.node, again.node)
    assert not torch.equal(first.edge, other.edge)


def test_processes_of_pygs_loader_draw_on_their_own() -> None:
    """In all workers and epochs, also with a seed."""
    star = torch.stack([torch.arange(60), torch.zeros(60, dtype=torch.int64)])
    data = Data(edge_index=star, num_nodes=60)
    sampler, nodes = NeighborSampler(data, [5], seed=7), torch.zeros(8, dtype=torch.int64)
    loader = NodeLoader(data, sampler, input_nodes=nodes, batch_size=1, num_workers=2)
    drawn = [tuple(sorted(batch.e_id.tolist())) for _ in range(2) for batch in loader]
    assert len(set(drawn)) == 16
