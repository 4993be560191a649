"""Batches asked for by position, and samplers of the user's own."""

from typing import Any

import pytest
import torch
from graphs import assert_same_batch, example_graph

from pyg_direct import LinkNeighborLoader, NeighborLoader


def loader_of(**arguments: Any) -> NeighborLoader:
    return NeighborLoader(example_graph(), [-1, -1], **arguments)


def test_positions_of_any_shape() -> None:
    loader = loader_of(input_nodes=torch.tensor([5, 7, 9]))
    assert_same_batch(loader([[2, 0], [1, 1]]), loader([2, 0, 1, 1]))


def test_a_call_with_other_times() -> None:
    data = example_graph()
    data.time = torch.arange(12)
    loader = NeighborLoader(data, [-1, -1], time_attr="time")
    seeds, time = torch.tensor([0, 7]), torch.tensor([2, 3])
    batch = loader(seeds, time)
    assert torch.equal(batch.seed_time, time)
    assert batch.input_id.tolist() == [0, 7]
    reached = slice(2, None)  # the seeds come with any time
    assert bool((batch.time[reached] <= time[batch.batch[reached]]).all())
    assert batch.num_nodes > 2
    assert batch.e_id.tolist() != loader([0, 7]).e_id.tolist()
    with pytest.raises(ValueError, match="input_time must hold one integer for each of 2 seeds"):
        loader(seeds, time[:1])
    with pytest.raises(TypeError, match="input_time"):
        loader(seeds, [1, 2])
    with pytest.raises(ValueError, match="input_time is set, but time_attr is not"):
        loader_of()(seeds, time)


@pytest.mark.parametrize(
    ("kind", "name", "seeds"),
    [(NeighborLoader, "input_time", 12), (LinkNeighborLoader, "edge_label_time", 20)],
)
def test_times_of_seeds_that_are_written_to_later_change_nothing(
    kind: Any, name: str, seeds: int
) -> None:
    data, time = example_graph(), torch.full((seeds,), 5)
    data.time = torch.arange(12)
    loader = kind(data, [-1], time_attr="time", **{name: time})
    time += 5
    assert loader.input_data.time.tolist() == [5] * seeds


class Endless:
    """A sampler that does not know its length."""

    def __iter__(self) -> Any:
        yield from (3, 1, 4)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_without_length(num_workers: int) -> None:
    loader = loader_of(sampler=Endless(), batch_size=2, num_workers=num_workers)
    seeds = [batch.n_id[: batch.batch_size].tolist() for batch in loader]
    assert seeds == [[3, 1], [4]]
    with pytest.raises(TypeError, match="has no len"):
        len(iter(loader))
