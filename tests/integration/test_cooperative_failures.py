"""Loops over batches that ranks make together, of which one ends, fails or differs."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import NeighborLoader

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")

NODES, STEPS = 240, 15
SECONDS = 1.5  # of the timeout
GENERATOR = torch.Generator().manual_seed(0)
DATA = Data(
    x=torch.randn(NODES, 8, generator=GENERATOR),
    edge_index=torch.randint(NODES, (2, 6 * NODES), generator=GENERATOR),
)


def loader_of(seconds: float = SECONDS, **options: Any) -> Any:
    options = {"batch_size": 8, "shuffle": True, **options}
    return NeighborLoader(
        DATA, [4, 3], seed=4, split_by_rank=True, cooperative=True, timeout=seconds, **options
    )


def until_an_error(loader: Any) -> tuple[str, float]:
    """Return the text of the error that ends a loop, and how long it waited for it."""
    last = time.monotonic()
    try:
        for _ in range(100):
            for _ in loader:
                last = time.monotonic()
    except (RuntimeError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - last
    return "", 0.0


def test_ranks_that_end_at_the_same_step_go_on(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[Any]:
        loaders = [loader_of(num_workers=workers) for workers in (0, 2)]
        whole = [batch.n_id for batch in loader_of()]
        for at in (2, 5):
            for loader in loaders:
                for made, _ in enumerate(loader):
                    if made == at:
                        break
            time.sleep(1.5 * SECONDS if rank == at % 2 else SECONDS)
        for loader in loaders:
            loader.load_state_dict(loader_of().state_dict())  # the first epoch again
        return [whole, *([batch.n_id for batch in loader] for loader in loaders)]

    for whole, *others in run_ranks(2, on_rank, tmp_path):
        assert len(whole) == STEPS
        for again in others:
            assert len(again) == STEPS
            assert all(map(torch.equal, whole, again))


def test_a_rank_that_pauses_makes_the_others_wait(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[Any]:
        loader, made = loader_of(5 * SECONDS), 0
        for _ in loader:
            made += 1
            if made == 3 and rank == 1:
                time.sleep(SECONDS)
        paused = made
        loader, made = loader_of(), 0
        text = ""
        try:
            for _ in loader:
                made += 1
                if made == 3 and rank == 1:
                    time.sleep(2.5 * SECONDS)
        except RuntimeError as error:
            text = str(error)
        return [paused, made, text]

    for paused, made, text in run_ranks(2, on_rank, tmp_path):
        assert paused == STEPS
        assert 3 <= made < STEPS
        assert "did not answer within 1.5 s: it was stopped, it pauses or takes other steps" in text


@pytest.mark.parametrize("event", ["break", "lengths", "delete", "raise"])
def test_ranks_that_differ_get_an_error(event: str, tmp_path: Path) -> None:
    def on_rank(rank: int) -> tuple[str, float]:
        culprit = rank == 1

        def transform(batch: Data) -> Data:
            if event == "raise" and culprit and (batch.input_id == 100).any():
                raise ZeroDivisionError("planted in a transform")
            return batch

        options: dict[str, Any] = {"transform": transform}
        if event == "lengths":
            batches = torch.arange(NODES).view(-1, 8).tolist()[: 20 if culprit else 30]
            options |= {"batch_sampler": batches, "batch_size": 1, "shuffle": False}
        loader = loader_of(**options)
        if event in ("break", "delete") and culprit:
            for made, _ in enumerate(loader):
                if made == 3:
                    break
            if event == "delete":
                del loader
                for _ in range(10):  # a producer holds it until its batch is dropped
                    time.sleep(0.05)
                    gc.collect()
                return "", 0.0
        return until_an_error(loader)

    told = run_ranks(2, on_rank, tmp_path)
    for rank, (text, seconds) in enumerate(told):
        assert seconds < SECONDS + 5.0
        if event == "raise":
            assert "planted in a transform" in text
        elif event == "delete":
            assert rank == 1 or "Rank 1 has no such loader any more" in text
        else:
            left = "Rank 1 has left its loop and is at step 0 of epoch 1"
            assert ("did not answer within 1.5 s" if rank == 1 else left) in text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_a_rank_that_is_gone_is_noticed(number: int, tmp_path: Path) -> None:
    def on_rank(rank: int) -> None:
        loader = loader_of()
        if rank == 1:
            next(iter(loader))
            (tmp_path / "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), number)
            time.sleep(60.0)  # this thread may go on until another one takes the signal
        text, seconds = until_an_error(loader)
        (tmp_path / "told").write_text(f"{seconds} {text}")
        if number == signal.SIGSTOP:  # nobody has to wait for it any longer
            os.kill(int((tmp_path / "stopped").read_text()), signal.SIGKILL)
        os._exit(0)  # in place of meeting the other

    with pytest.raises(AssertionError, match="rank 1 ended with"):
        run_ranks(2, on_rank, tmp_path, seconds=8.0)
    seconds, text = (tmp_path / "told").read_text().split(" ", 1)
    assert float(seconds) < SECONDS + 5.0
    lost = "connection to another rank is lost", "did not answer within 1.5 s"
    assert lost[number == signal.SIGSTOP] in text


@pytest.mark.slow
def test_any_interleaving_of_producers_makes_the_same_batches(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[list[torch.Tensor]]:
        moments, made = random.Random(rank), []

        def pause(batch: Data) -> Data:
            time.sleep(moments.choice([0.0, 0.0, 0.001, 0.01]))
            return batch

        for options in ({"prefetch": 0}, {"num_workers": 2, "prefetch": 4, "transform": pause}):
            loader, found = loader_of(60.0, **options), []
            for _ in range(14):
                for batch in loader:
                    found.append(batch.n_id)
                    time.sleep(moments.choice([0.0, 0.002, 0.01]))
            made.append(found)
        dist.barrier()
        return made

    for alone, together in run_ranks(2, on_rank, tmp_path):
        assert len(alone) == 14 * STEPS
        assert all(map(torch.equal, alone, together))


@pytest.mark.slow
def test_loaders_that_take_turns_make_the_batches_of_one_process(tmp_path: Path) -> None:
    kinds = {"train": (8, True), "validate": (5, False)}  # sizes, and whether they are shuffled

    def on_rank(rank: int) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        moments, turns = random.Random(rank), random.Random(0)

        def pause(batch: Data) -> Data:
            time.sleep(moments.choice([0.0, 0.0, 0.001, 0.01]))
            return batch

        common = {"num_workers": 2, "prefetch": 3, "transform": pause}
        loaders = {
            kind: loader_of(60.0, batch_size=size, shuffle=shuffle, **common)
            for kind, (size, shuffle) in kinds.items()
        }
        epochs = {kind: iter(loader) for kind, loader in loaders.items()}
        model = pyg_direct.accelerate(GraphSAGE(8, 8, 2, 4), *loaders.values())
        found = []
        while len(found) < 200:
            kind = turns.choice(list(kinds))
            batch = next(epochs[kind], None)
            if batch is None:
                epochs[kind] = iter(loaders[kind])
                continue
            found.append((kind, batch.input_id, batch.e_id))
            out = model(batch.x, batch.edge_index)
            if kind == "train":
                out.sum().backward()
            time.sleep(moments.choice([0.0, 0.002, 0.01]))
        return found

    alone = {
        kind: NeighborLoader(DATA, [4, 3], seed=4, shuffle=shuffle, batch_size=2 * size)
        for kind, (size, shuffle) in kinds.items()
    }
    epochs = {kind: iter(loader) for kind, loader in alone.items()}
    for (kind, *one), (_, *other) in zip(*run_ranks(2, on_rank, tmp_path), strict=True):
        batch = next(epochs[kind], None)
        if batch is None:
            epochs[kind] = iter(alone[kind])
            batch = next(epochs[kind])
        seeds, edges = (torch.cat(pair) for pair in zip(one, other, strict=True))
        assert torch.equal(seeds, batch.input_id)
        assert torch.equal(edges.sort().values, batch.e_id.sort().values)
