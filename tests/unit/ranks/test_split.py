"""Arguments about ranks that are refused, and what they are taken for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import example_graph
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from pyg_direct import NeighborLoader
from pyg_direct.ranks.split import Split, take_split


def loader_of(**arguments: Any) -> NeighborLoader:
    return NeighborLoader(example_graph(), [2], batch_size=2, **arguments)


def test_a_split_without_ranks_is_not_given_and_takes_its_options() -> None:
    options = {"batch_size": 2, "split_by_rank": False, "rank": None, "world_size": None}
    split = take_split(options, None)
    assert split == Split(None, None, "pad")
    assert (split.is_given, split.group, split.place()) == (False, None, (0, 1))
    assert options == {"batch_size": 2}


def test_numbers_of_ranks() -> None:
    split = take_split({"rank": 2, "world_size": 3, "tail": "drop"}, 1)
    assert (split.is_given, split.group, split.place()) == (True, None, (2, 3))


SEEDED = {"seed": 0, "rank": 0, "world_size": 2}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split_by_rank": 1}, TypeError, "split_by_rank must be True, False or a torch"),
        ({"split_by_rank": "gloo"}, TypeError, "ProcessGroup, got 'gloo'"),
        ({"rank": 1, "seed": 0}, ValueError, "rank=1 and world_size=None need each other"),
        ({"world_size": 2, "seed": 0}, ValueError, "rank=None and world_size=2 need each other"),
        ({**SEEDED, "split_by_rank": True}, ValueError, "either split_by_rank=, or rank="),
        ({**SEEDED, "rank": 2}, ValueError, "rank must be below world_size=2, got 2"),
        ({**SEEDED, "rank": -1}, ValueError, "rank must be"),
        ({**SEEDED, "world_size": 0}, ValueError, "world_size must be"),
        ({**SEEDED, "rank": 0.5}, ValueError, "rank must be"),
        ({**SEEDED, "seed": None}, ValueError, "need a seed=, the same one on all ranks"),
        ({**SEEDED, "tail": "wrap"}, ValueError, "tail must be one of"),
        ({"tail": "drop"}, ValueError, "tail='drop' has no meaning without ranks"),
        ({**SEEDED, "generator": torch.Generator()}, ValueError, "generator= would need the same"),
        (
            {**SEEDED, "sampler": DistributedSampler(range(12), 2, 0)},
            ValueError,
            "would both split the seeds",
        ),
        (
            {
                "split_by_rank": True,
                "batch_sampler": BatchSampler(DistributedSampler(range(12), 2, 0), 2, False),
                "batch_size": 1,
            },
            ValueError,
            "would both split the seeds",
        ),
        ({"split_by_ranks": True}, TypeError, "split_by_rank="),
        ({**SEEDED, "share_rows": True}, ValueError, "share_rows=True needs the other ranks"),
        ({**SEEDED, "cooperative": True}, ValueError, "cooperative=True needs the other ranks"),
        ({"split_by_rank": True, "owners": "hash"}, ValueError, "owners= has no meaning without"),
        (
            {"split_by_rank": True, "cooperative": True, "share_rows": True},
            ValueError,
            "loads each row once for all ranks already",
        ),
        (
            {"split_by_rank": True, "cooperative": True, "tail": "uneven"},
            ValueError,
            "tail='uneven' cannot be used with cooperative=True",
        ),
    ],
)
def test_wrong_arguments_of_a_split_are_refused(
    arguments: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        NeighborLoader(example_graph(), [2], **{"batch_size": 2, **arguments})


@pytest.mark.parametrize("use", [len, iter])
def test_without_a_process_group(use: Any) -> None:
    loader = loader_of(split_by_rank=True)  # Lightning makes the group after it was given loaders
    with pytest.raises(RuntimeError, match=r"no default process group\. Call torch\.distributed"):
        use(loader)
    with pytest.raises(RuntimeError, match="no default process group"):
        loader.stats(all_ranks=True)


def test_the_sampler_of_a_split_loader() -> None:
    """Lightning leaves a DistributedSampler as it is, and calls its `set_epoch`."""
    loader = loader_of(**SEEDED, shuffle=True)
    assert isinstance(loader.sampler, DistributedSampler)
    assert len(loader.sampler) == 12
    assert sorted(loader.sampler) == list(range(12))
    epochs = [[batch.input_id.tolist() for batch in loader] for _ in range(3)]
    again = loader_of(**SEEDED, shuffle=True)
    for epoch in (2, 0):
        again.sampler.set_epoch(epoch)
        assert [batch.input_id.tolist() for batch in again] == epochs[epoch]
    assert [batch.input_id.tolist() for batch in again] == epochs[1]
    assert isinstance(loader_of(shuffle=True).sampler, RandomSampler)


def test_set_epoch_in_the_middle_of_a_loaded_epoch() -> None:
    loader = loader_of(**SEEDED)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.sampler.set_epoch(3)
    with pytest.raises(ValueError, match="from the middle of epoch 0, but set_epoch\\(3\\)"):
        iter(loader)
    loader.sampler.set_epoch(0)
    assert len(list(loader)) == 2
