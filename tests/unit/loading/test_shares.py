"""Which batches each rank takes, for all small numbers of batches and ranks."""

from __future__ import annotations

from itertools import product

import pytest

from pyg_direct.loading.progress import EpochShard

CASES = list(product(range(12), range(1, 6), range(12)))  # batches, ranks, batches done before


def taken(num_batches: int, ranks: EpochShard, done: int = 0) -> list[int]:
    """Return the batches that a rank makes, step by step."""
    found = []
    for first in range(done, num_batches + ranks.world_size, ranks.world_size):
        left = max(0, min(ranks.world_size, num_batches - first))
        whole = left == ranks.world_size
        batch = first + ranks.rank if whole else ranks.batch_of(first, left)
        if batch is None:
            break
        found.append(batch)
    return found


def of_all(num_batches: int, world_size: int, tail: str, done: int = 0) -> list[list[int]]:
    return [taken(num_batches, EpochShard(r, world_size, tail), done) for r in range(world_size)]


def test_the_example_of_the_docstring() -> None:
    assert of_all(5, 3, "pad") == [[0, 3], [1, 4], [2, 0]]
    assert of_all(5, 3, "drop") == [[0], [1], [2]]
    assert of_all(5, 3, "uneven") == [[0, 3], [1, 4], [2]]
    assert of_all(2, 4, "pad") == [[0], [1], [0], [1]]


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
def test_each_batch_once_but_for_the_rule(tail: str) -> None:
    for num_batches, world_size, done in CASES:
        shares = of_all(num_batches, world_size, tail, done)
        left = list(range(done, num_batches))
        steps = max(map(len, shares))
        in_order = [share[i] for i in range(steps) for share in shares if i < len(share)]
        whole = len(left) // world_size * world_size
        expected = {
            "uneven": left,
            "drop": left[:whole],
            "pad": left + [i % num_batches for i in range(-len(left) % world_size) if num_batches],
        }[tail]
        assert in_order == expected, (num_batches, world_size, done)


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
def test_the_number_of_steps(tail: str) -> None:
    for num_batches, world_size, _ in CASES:
        for rank in range(world_size):
            ranks = EpochShard(rank, world_size, tail)
            assert ranks.steps(num_batches) == len(taken(num_batches, ranks))
