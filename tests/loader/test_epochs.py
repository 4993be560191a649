"""What differs from epoch to epoch, and which states belong to which loader."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from graphs import citations
from torch.utils.data import RandomSampler
from torch_geometric.data import HeteroData

from pyg_direct import HGTLoader, HGTSampler, NeighborLoader
from pyg_direct.core.types import BatchKey
from pyg_direct.loading.site import _same_device
from pyg_direct.loading.stats import of_all_ranks
from pyg_direct.ops.host.budget import Budgets
from pyg_direct.sampling.sampler import keyed

CITATIONS, SEEDS = citations(), torch.arange(100)


def loader_of(**options: Any) -> Any:
    return NeighborLoader(CITATIONS, [4, 3], SEEDS, batch_size=12, **options)


def edges_of(loader: Any) -> list[list[int]]:
    return [batch.e_id.tolist() for batch in loader]


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"seed": 3, "rank": 1, "world_size": 2}])
def test_epochs_draw_other_neighbours(options: dict[str, int]) -> None:
    loader = loader_of(**options)
    epochs = [edges_of(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("seed", [None, 3])
def test_epochs_of_ranks_differ(seed: int | None, group: None) -> None:
    for options in ({}, {"shuffle": True}, {"sampler": RandomSampler(SEEDS)}):
        loader = loader_of(seed=seed, split_by_rank=True, **options)
        epochs = [[(b.input_id.tolist(), b.e_id.tolist()) for b in loader] for _ in range(3)]
        for one, other in pairwise(epochs):
            assert all(x[1] != y[1] for x, y in zip(one, other, strict=True))
            assert ([x[0] for x in one] != [y[0] for y in other]) == bool(options)


def test_a_state_behind_the_end_of_an_epoch_is_refused() -> None:
    loader = loader_of(seed=1)
    next(iter(loader))
    state = {**loader.state_dict(), "batch": 10}
    with pytest.raises(ValueError, match="10 batches were done, but an epoch has 9"):
        loader_of(seed=1).load_state_dict(state)


def test_a_state_is_compared_by_seeds_all_over() -> None:
    seeds = torch.arange(4000) % CITATIONS.num_nodes
    other = seeds.clone()
    other[2000:] = 0
    state = NeighborLoader(CITATIONS, [2], seeds, batch_size=500, seed=1).state_dict()
    with pytest.raises(ValueError, match="seeds"):
        NeighborLoader(CITATIONS, [2], other, batch_size=500, seed=1).load_state_dict(state)


def twins() -> HeteroData:
    """Return types b and c with the same neighbours."""
    data = HeteroData()
    for kind in "abc":
        data[kind].num_nodes = 200
    source = torch.randint(200, (2000,), generator=torch.Generator().manual_seed(0))
    for kind in "bc":
        data[kind, "to", "a"].edge_index = torch.stack([source, torch.arange(2000) % 200])
    return data


def test_a_state_names_another_sampler() -> None:
    data, seeds = twins(), ("a", torch.arange(10))
    state = HGTLoader(data, [4], seeds, batch_size=5, seed=1).state_dict()
    loader = NeighborLoader(data, [4], input_nodes=seeds, batch_size=5, seed=1)
    with pytest.raises(ValueError, match=r"neighbor_sampler= of class 'HGTSampler'"):
        loader.load_state_dict(state)


def test_hgt_draws_of_node_types_are_independent() -> None:
    loader = HGTLoader(twins(), [6], ("a", torch.arange(40)), batch_size=10, seed=0)
    same = [batch["b"].n_id.tolist() == batch["c"].n_id.tolist() for batch in loader]
    assert not any(same)


def test_budgets_of_a_batch_do_not_depend_on_the_one_before() -> None:
    csc = keyed(HGTSampler(twins(), [6])).graph.csc
    used, counts = Budgets(csc), np.array([[0, 6, 6]])
    for number in range(5):
        seeds, key = [torch.arange(10) + 10 * number, None, None], BatchKey(number, 1)
        drawn, expected = (b.draw(seeds, counts, key) for b in (used, Budgets(csc)))
        assert [t.tolist() for t in drawn] == [t.tolist() for t in expected]
        assert all(len(t) > 0 for t in drawn)


def test_a_loader_is_pickled_without_its_producers() -> None:
    loader = loader_of(seed=2, num_workers=1, persistent_workers=True)
    edges_of(loader)
    twin = pickle.loads(pickle.dumps(loader))
    assert edges_of(twin) == edges_of(loader)


def test_stats_of_ranks_have_the_epochs_of_each() -> None:
    ranks = []
    for epochs in (1, 2):
        loader = loader_of(seed=0)
        for _ in range(epochs):
            edges_of(loader)
        ranks.append(loader.stats())
    total = of_all_ranks(ranks)
    assert [epoch.batches for epoch in total.epochs] == [18, 9]
    assert total.batches == 27
    one, two = ranks
    assert any(one.gathered_bytes.values())
    for name, count in one.gathered_bytes.items():
        assert two.gathered_bytes[name] == sum(e.gathered_bytes[name] for e in two.epochs)
        assert total.gathered_bytes[name] == count + two.gathered_bytes[name]


@pytest.mark.parametrize(
    ("wanted", "here", "same"),
    [
        (None, "cuda:1", True), ("cpu", "cuda:1", False), ("cuda", "cuda:1", True),
        ("cuda:1", "cuda:1", True), ("cuda:0", "cuda:1", False), ("cuda:0", "cuda", True),
    ],
)  # fmt: skip
def test_same_device_compares_indices_only_where_both_are_given(
    wanted: str | None, here: str, same: bool
) -> None:
    named = None if wanted is None else torch.device(wanted)
    assert _same_device(named, torch.device(here)) is same
