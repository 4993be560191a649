"""One epoch on any number of ranks: each batch has the bits that it has in a single process.

Ranks stand side by side in one process here, with `rank=` and `world_size=`. What they do in
processes of their own, over gloo, is in `tests/integration/test_ranks.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from graphs import assert_same_batch, citations, papers_and_authors
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

from pyg_direct import LinkNeighborLoader, NeighborLoader

TAILS = ("pad", "drop", "uneven")


torch.manual_seed(0)  # the graphs are drawn from torch's generator
CITATIONS, PAPERS = citations(), papers_and_authors()
TIMED = citations()
TIMED.time = torch.arange(TIMED.num_nodes)


def node(**arguments: Any) -> Any:
    nodes = torch.arange(100)
    return NeighborLoader(CITATIONS, [4, 3], nodes, **{"batch_size": 12, **arguments})


def link(**arguments: Any) -> Any:
    return LinkNeighborLoader(
        CITATIONS,
        [3, 2],
        CITATIONS.edge_index[:, :90],
        neg_sampling="binary",
        batch_size=10,
        **arguments,
    )


def hetero(**arguments: Any) -> Any:
    return NeighborLoader(PAPERS, [3, 2], "paper", batch_size=20, **arguments)


def temporal(**arguments: Any) -> Any:
    return NeighborLoader(
        TIMED, [3, 2], torch.arange(80), time_attr="time", batch_size=9, **arguments
    )


KINDS: dict[str, Callable[..., Any]] = {
    "node": node,
    "link": link,
    "hetero": hetero,
    "temporal": temporal,
}


def ranks_of(build: Callable[..., Any], world_size: int, **arguments: Any) -> list[Any]:
    return [build(rank=r, world_size=world_size, **arguments) for r in range(world_size)]


def in_order(shares: list[list[Any]]) -> list[Any]:
    """Return the batches of all ranks, step by step."""
    steps = max(map(len, shares))
    return [share[i] for i in range(steps) for share in shares if i < len(share)]


def expected(batches: list[Any], world_size: int, tail: str) -> list[Any]:
    """Return what the ranks make of the batches of an epoch, step by step."""
    lacking = -len(batches) % world_size
    if tail == "drop" and lacking:
        return batches[: lacking - world_size]
    return batches + list(islice(cycle(batches), lacking if tail == "pad" else 0))


def assert_same(made: list[Any], batches: list[Any]) -> None:
    assert len(made) == len(batches)
    for one, other in zip(made, batches, strict=True):
        assert_same_batch(one, other)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_a_single_process(kind: str, tail: str) -> None:
    build, options = KINDS[kind], {"seed": 5, "shuffle": True}
    single = build(**options)
    epochs = [list(single), list(single)]
    for world_size in (1, 2, 3, 4):
        loaders = ranks_of(build, world_size, tail=tail, **options)
        for batches in epochs:
            shares = [list(loader) for loader in loaders]
            assert_same(in_order(shares), expected(batches, world_size, tail))
            assert [len(share) for share in shares] == [len(loader) for loader in loaders]
            if tail != "uneven":
                assert len({len(share) for share in shares}) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "filter_per_worker": False},
        {"num_workers": 1, "prefetch": 4, "batch_size": 7},
        {"drop_last": True, "num_workers": 0, "batch_size": 11},
        {"batch_size": 25},  # which divides the seeds
        {"batch_size": 60},  # fewer batches than ranks
    ],
)
def test_options_of_the_loader(options: dict[str, Any]) -> None:
    common = {"seed": 1, "shuffle": True, "batch_size": 12, **options}
    single = node(**common)
    loaders = ranks_of(node, 3, **common)
    for _ in range(2):
        batches = list(single)
        assert_same(in_order([list(loader) for loader in loaders]), expected(batches, 3, "pad"))


def edges(loader: Any) -> list[Any]:
    return [batch.e_id.tolist() for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("tail", TAILS)
def test_a_state_at_the_end_of_an_epoch(tail: str, num_workers: int) -> None:
    """Of 9 batches on 2 ranks, of which one lacks a batch in the last step."""
    options = {"seed": 5, "shuffle": True, "tail": tail, "num_workers": num_workers}
    for loader, other in zip(
        ranks_of(node, 2, **options), ranks_of(node, 2, **options), strict=True
    ):
        list(loader)
        state = loader.state_dict()
        assert state["batch"] <= 9
        other.load_state_dict(state)
        assert edges(other) == edges(loader)  # of the next epoch


@pytest.mark.parametrize("tail", TAILS)
def test_the_number_of_ranks_changes_in_the_middle_of_an_epoch(tail: str) -> None:
    """4 -> 2 -> 1 -> 3 ranks, of 25 batches: each once, and the next epoch follows."""
    options = {"seed": 5, "shuffle": True, "batch_size": 4, "tail": tail}
    single = node(seed=5, shuffle=True, batch_size=4)
    first, second = edges(single), edges(single)
    done: list[Any] = []
    state: dict[str, Any] | None = None
    for world_size, steps in ((4, 2), (2, 3), (1, 4)):
        loaders = ranks_of(node, world_size, **options)
        iterators = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            iterators.append(iter(loader))
            assert len(iterators[-1]) >= steps
        for _ in range(steps):
            done += [next(iterator).e_id.tolist() for iterator in iterators]
        states = [loader.state_dict() for loader in loaders]
        assert {s["batch"] for s in states} == {len(done)}
        assert not {"rank", "world_size"} & states[0].keys()
        state = states[-1]
    loaders = ranks_of(node, 3, **options)
    for loader in loaders:
        loader.load_state_dict(state)
    rest = in_order([edges(loader) for loader in loaders])
    left = first[len(done) :]
    repeated = expected(left, 3, tail)[: len(left)] + first[: -len(left) % 3] * (tail == "pad")
    assert len(left) == 7
    assert done == first[: len(done)]
    assert rest == repeated
    assert in_order([edges(loader) for loader in loaders])[:24] == second[:24]


def test_a_state_of_a_single_process_goes_on_on_ranks_and_back() -> None:
    single = node(seed=5, shuffle=True)
    iterator = iter(single)
    next(iterator)
    state = single.state_dict()
    left = [batch.e_id.tolist() for batch in iterator]
    loaders = ranks_of(node, 4, seed=5, shuffle=True)
    for loader in loaders:
        loader.load_state_dict(state)
    iterators = [iter(loader) for loader in loaders]
    assert [next(it).e_id.tolist() for it in iterators] == left[:4]
    back = node(seed=5, shuffle=True)
    back.load_state_dict(loaders[1].state_dict())
    assert edges(back) == left[4:]


def test_the_last_step_that_lacks_batches_counts_as_done() -> None:
    loaders = ranks_of(node, 4, seed=5)  # 9 batches
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        for _ in range(3):
            next(iterator)
    assert {loader.state_dict()["batch"] for loader in loaders} == {9}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samplers_of_the_users_give_one_order(num_workers: int) -> None:
    """Whatever torch's default generator did on each rank."""
    for sampling in (
        {"sampler": WeightedRandomSampler(torch.ones(100), 100)},
        {"batch_sampler": BatchSampler(RandomSampler(range(100)), 9, False), "batch_size": 1},
    ):
        shares = []
        for rank in range(3):
            torch.manual_seed(rank)
            loader = node(
                seed=2, rank=rank, world_size=3, tail="uneven", num_workers=num_workers, **sampling
            )
            shares.append([batch.input_id.tolist() for batch in loader])
        torch.manual_seed(7)
        alone = node(seed=2, rank=0, world_size=1, **sampling)
        assert in_order(shares) == [batch.input_id.tolist() for batch in alone]


def test_no_two_ranks_share_random_numbers() -> None:
    """Seeds that are all one node: what differs between batches is what was drawn for them."""
    hub = int(CITATIONS.edge_index[1].bincount().argmax())
    nodes = torch.full((40,), hub)
    loaders = ranks_of(
        lambda **kw: NeighborLoader(CITATIONS, [3], nodes, batch_size=1, seed=3, **kw), 2
    )
    shares = [edges(loader) for loader in loaders]
    equal = sum(one == other for one, other in zip(*shares, strict=True))
    assert equal < 5, "of 20 steps"


class Broken:
    """A sampler that fails once, at some position."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Any:
        for position in range(100):
            if position == self.at:
                self.at = -1
                raise ZeroDivisionError("planted")
            yield position


def test_a_failing_sampler_loses_no_batch_and_the_epoch_resumes() -> None:
    """The batches before are lost for no rank, and a loaded state goes on."""
    loader = node(seed=1, rank=1, world_size=2, sampler=Broken(50))
    seen = []
    iterator = iter(loader)
    with pytest.raises(ZeroDivisionError, match="planted"):
        seen.extend(batch.input_id.tolist() for batch in iterator)
    loader.load_state_dict(loader.state_dict())
    seen = [batch.input_id.tolist() for batch in loader]
    assert seen[0] == list(range(60, 72))
    assert len(seen) == 3


def test_an_error_on_one_rank_is_raised_there() -> None:
    def fail(batch: Any) -> Any:
        if 30 in batch.input_id:
            raise ZeroDivisionError("planted")
        return batch

    for num_workers in (0, 2):
        loaders = ranks_of(node, 3, seed=1, transform=fail, num_workers=num_workers)
        assert [len(edges(loader)) for loader in loaders[:2]] == [3, 3]
        with pytest.raises(ZeroDivisionError, match="planted"):
            edges(loaders[2])
