"""The order of the seeds in an epoch, over PyG's class and ours."""

import pytest
import torch
from graphs import example_graph
from loaders import make, seeds_of
from torch.utils.data import BatchSampler, SequentialSampler

from pyg_direct import NeighborLoader


@pytest.mark.pyg("loader.len")
def test_in_order_by_default(loader_class: type) -> None:
    loader = make(loader_class)
    assert seeds_of(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert len(loader) == 3
    assert seeds_of(loader) == seeds_of(loader)


@pytest.mark.pyg("drop_last")
def test_drop_last_leaves_out_the_smaller_batch(loader_class: type) -> None:
    loader = make(loader_class, drop_last=True)
    assert len(loader) == 2
    assert seeds_of(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.pyg("batch_size")
def test_default_batch_size_is_one(loader_class: type) -> None:
    loader = loader_class(example_graph(), [-1])
    assert len(loader) == 12
    assert seeds_of(loader)[:3] == [[0], [1], [2]]


@pytest.mark.pyg("shuffle")
def test_shuffle_is_a_permutation_of_its_own_each_epoch(loader_class: type) -> None:
    loader = make(loader_class, shuffle=True)
    first, second = ([v for seeds in seeds_of(loader) for v in seeds] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert list(range(12)) not in (first, second)


@pytest.mark.pyg("shuffle")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffle_follows_pyg_under_the_same_seed(pyg_loader: type, num_workers: int) -> None:
    ours = make(NeighborLoader, shuffle=True, num_workers=num_workers)
    theirs = make(pyg_loader, shuffle=True)
    orders = []
    for loader in (ours, theirs):
        torch.manual_seed(5)
        orders.append([seeds_of(loader), seeds_of(loader)])
    assert orders[0] == orders[1]


@pytest.mark.pyg("generator")
def test_generator_decides_the_order(loader_class: type) -> None:
    def order(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return seeds_of(make(loader_class, shuffle=True, generator=generator))

    assert order(3) == order(3)
    assert order(3) != order(4)


def test_a_generator_decides_the_order_beside_a_seed() -> None:
    orders = [
        seeds_of(make(NeighborLoader, shuffle=True, seed=seed, generator=generator))
        for seed, generator in [(s, torch.Generator().manual_seed(5)) for s in (3, 4)]
    ]
    assert orders[0] == orders[1]


@pytest.mark.pyg("sampler", "batch_sampler")
def test_sampler_and_batch_sampler(loader_class: type) -> None:
    nodes = torch.tensor([9, 8, 7, 6])
    loader = make(loader_class, input_nodes=nodes, sampler=[3, 3, 0], batch_size=2)
    assert seeds_of(loader) == [[6, 6], [9]]
    batches = BatchSampler(SequentialSampler(range(4)), 3, drop_last=False)
    loader = loader_class(example_graph(), [-1], input_nodes=nodes, batch_sampler=batches)
    assert seeds_of(loader) == [[9, 8, 7], [6]]
    assert len(loader) == 2
