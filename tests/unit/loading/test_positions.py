"""Positions of seeds come as arrays, in the order and with the random numbers of torch's lists."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.loading.order import ClusterOrder, PartOrder
from pyg_direct.loading.progress import positions_of


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 3, 10, 11])
@pytest.mark.parametrize(
    "kind",
    ["in order", "shuffled", "half", "thrice", "replacement", "weighted", "clusters", "parts"],
)
def test_as_torch_lists_them(kind: str, size: int, drop_last: bool) -> None:
    """Also the random state between two batches, and after the last, is the same."""
    seen: list[list[Any]] = []
    for iterate in (iter, positions_of):
        generator = torch.Generator().manual_seed(3)
        sampler: Any = SequentialSampler(range(10))
        if kind == "weighted":
            sampler = WeightedRandomSampler(range(1, 11), 10, generator=generator)
        elif kind in ("clusters", "parts"):
            sampler = ClusterOrder(generator) if kind == "clusters" else PartOrder(generator, 3)
            sampler.cluster = torch.arange(10) // 4
        elif kind != "in order":
            number = {"half": 5, "thrice": 30}.get(kind)
            replacement = kind == "replacement"
            sampler = RandomSampler(range(10), replacement, number, generator=generator)
        found: list[Any] = []
        for batch in iterate(BatchSampler(sampler, size, drop_last)):
            found.append((list(map(int, batch)), generator.get_state().tolist()))
        seen.append([*found, generator.get_state().tolist()])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler, "weighted", "clusters"])
def test_an_order_makes_no_list_of_python_integers(kind: Any) -> None:
    count = 50_000
    if kind == "weighted":
        sampler: Any = WeightedRandomSampler(torch.ones(count), count)
    elif kind == "clusters":
        sampler = ClusterOrder(None)
        sampler.cluster = torch.arange(count) // 8
    else:
        sampler = kind(range(count))
    tracemalloc.start()
    try:
        batches = sum(1 for _ in positions_of(BatchSampler(sampler, 100, False)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batches == count // 100
    assert peak_bytes < 4 * count  # a list alone takes 8 a seed; torch's tensors are not traced


def test_arrays_of_int64() -> None:
    for sampler in (SequentialSampler(range(5)), RandomSampler(range(5))):
        batches = list(positions_of(BatchSampler(sampler, 2, False)))
        assert [type(batch) for batch in batches] == [np.ndarray] * 3
        assert {batch.dtype for batch in batches} == {np.dtype(np.int64)}
        assert sorted(np.concatenate(batches).tolist()) == [0, 1, 2, 3, 4]


def test_a_sampler_of_the_users_is_passed_on() -> None:
    class Reversed(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4, -1, -1))

    assert list(positions_of(BatchSampler(Reversed(range(5)), 2, False))) == [[4, 3], [2, 1], [0]]
    assert list(positions_of([[3, 1], (2,)])) == [[3, 1], (2,)]


def test_an_array_that_is_used_again_changes_no_batch() -> None:
    class Reused:
        def __iter__(self) -> Iterator[Any]:
            positions = np.zeros(2, np.int64)
            for first in (0, 2):
                positions[:] = first, first + 1
                yield positions

    data = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
    batches = list(NeighborLoader(data, [1], batch_sampler=Reused()))
    assert [batch.input_id.tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_a_collate_fn_gets_a_list_of_ints() -> None:
    given: list[Any] = []

    class Loader(NeighborLoader):
        def collate_fn(self, index: Any) -> Any:
            given.append(index)
            return super().collate_fn(index)

    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    assert [batch.input_id.tolist() for batch in Loader(data, [1], batch_size=2)] == [[0, 1], [2]]
    assert given == [[0, 1], [2]]
    assert {type(index) for index in given} == {list}
    assert {type(i) for index in given for i in index} == {int}
