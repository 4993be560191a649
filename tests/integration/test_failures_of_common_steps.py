"""Ranks that compute batches together, of which one fails or does something else within a step.

PYG_DIRECT_FAILURES=20 tries each event 20 times in place of once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from pyg_direct import NeighborLoader, accelerate  # before forks
from pyg_direct.ranks.channel import Channel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and sends signals")

TIMES = int(os.environ.get("PYG_DIRECT_FAILURES", "1"))
SECONDS = 3.0  # of the timeout
SLACK_SECONDS = 5.0
MOST_SECONDS = 120.0 + 20.0 * TIMES
NODES, STEPS = 240, 15
GENERATOR = torch.Generator().manual_seed(0)
DATA = Data(
    x=torch.randn(NODES, 8, generator=GENERATOR),
    edge_index=torch.randint(NODES, (2, 6 * NODES), generator=GENERATOR),
)
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
FIRST = "kill", "between"  # of the default tests


class Fault:
    """Something that happens on one rank when its program comes to a place for the n-th time."""

    def __init__(self, happens: bool, place: str, event: str, number: int) -> None:
        self.happens, self.place, self.event, self.left = happens, place, event, number

    def at(self, place: str) -> None:
        if not self.happens or place != self.place:
            return
        self.left -= 1
        if self.left == 0:
            if self.event in SIGNALS:
                os.kill(os.getpid(), SIGNALS[self.event])
                time.sleep(60.0)  # another thread may take the signal, and this one not stop yet
            raise ZeroDivisionError(f"planted in {place}")


class Net(torch.nn.Module):
    """Two layers, between which, and in whose backward, something may happen."""

    def __init__(self, come_to: Callable[[str], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = SAGEConv(8, 8), SAGEConv(8, 4)
        self.come_to = come_to
        # Behind the exchange of the outputs' gradients, and before that of the first layer's.
        self.second.lin_l.weight.register_hook(lambda _: come_to("backward"))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        self.come_to("forward")
        out: Tensor = self.second(x, edge_index)
        return out


def loader_of(seconds: float = SECONDS, **options: Any) -> Any:
    options = {"batch_size": 8, "shuffle": True, "num_workers": 1, **options}
    return NeighborLoader(
        DATA, [4, 3], seed=4, split_by_rank=True, cooperative=True, timeout=seconds, **options
    )


def train(fault: Fault) -> None:
    """Train until an error comes."""

    def transform(batch: Data) -> Data:
        fault.at("loading")
        return batch

    loader = loader_of(transform=transform)
    model = accelerate(Net(fault.at), loader)
    all_to_all = Channel._all_to_all

    def exchange(*args: Any) -> None:
        fault.at("exchange")
        all_to_all(*args)

    with mock.patch.object(Channel, "_all_to_all", exchange):
        for _ in range(100):
            for batch in loader:
                out = model(batch.x, batch.edge_index)
                fault.at("between")
                out.square().mean().backward()


def be_a_rank(rank: int, folder: Path, fault: Fault) -> None:
    """Train in a process of its own; write what was raised and when, and wait for the other."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    text = "no error"
    try:
        train(fault)
    except (RuntimeError, ZeroDivisionError) as error:
        text = f"{type(error).__name__}: {error}"
    (folder / f"part {rank}").write_text(f"{time.time()} {text}")
    (folder / f"part {rank}").rename(folder / f"told by {rank}")
    end = time.monotonic() + 4 * SLACK_SECONDS
    while time.monotonic() < end and not (folder / "told by 0").exists():
        time.sleep(0.01)  # a process that is there, and does nothing
    os._exit(0)


@pytest.mark.parametrize(
    ("event", "place"),
    [
        pytest.param(event, place, marks=[pytest.mark.slow] * ((event, place) != FIRST))
        for event in ("kill", "stop", "raise")
        for place in ("loading", "forward", "between", "backward", "exchange")
        if (event, place) != ("raise", "exchange")
    ],
)
def test_a_rank_that_fails_within_a_step_is_noticed(event: str, place: str, tmp_path: Path) -> None:
    moments = random.Random(f"{event} {place}")
    for trial in range(TIMES):
        folder = tmp_path / str(trial)
        folder.mkdir()
        most = 30 * STEPS if place == "exchange" else 2 * STEPS
        number = moments.randrange(1, most)
        if place == "exchange":
            number += 20  # the ranks have met
        pids = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    be_a_rank(rank, folder, Fault(rank == 1, place, event, number))
                finally:
                    os._exit(1)
            pids.append(pid)
        ended = _wait(pids[0], 60.0)
        time_of_death = time.time()
        if event == "stop" or not ended:
            os.kill(pids[1], signal.SIGKILL)
        if not ended:
            os.kill(pids[0], signal.SIGKILL)
            os.waitpid(pids[0], 0)
        assert _wait(pids[1], 4 * SLACK_SECONDS), "the rank that failed hangs"
        assert ended, f"a rank hangs behind {event} in {place} ({number})"
        for pid in pids:  # with whatever they started
            with pytest.raises(ProcessLookupError):
                os.killpg(pid, 0)
        when, text = (folder / "told by 0").read_text().split(" ", 1)
        assert time_of_death - float(when) < SLACK_SECONDS
        if event == "kill":
            assert "connection to another rank is lost" in text
        elif event == "stop":
            assert f"within {SECONDS:g} s" in text or f"for {SECONDS:g} s" in text
        else:
            assert "planted in" in (folder / "told by 1").read_text()
            assert f"planted in {place}" in text or f"within {SECONDS:g} s" in text
            assert place != "forward" or "planted" in text


def _wait(pid: int, seconds: float) -> bool:
    """Return whether a process has ended in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    return False


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda out: out.square().sum(),
    "nothing": lambda out: out[:0].square().sum(),
    "zero": lambda out: 0.0 * out.square().sum(),
    "part": lambda out: out[:1].square().sum(),
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["nothing", "zero", "part"])
def test_ranks_whose_losses_differ_compute_the_same_gradient(loss: str, tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[tuple[list[Tensor], list[Tensor]]]:
        moments, found = random.Random(loss), []
        loader = loader_of(60.0)
        alone = NeighborLoader(DATA, [4, 3], seed=4, batch_size=24, shuffle=True)
        model, plain = accelerate(Net(lambda place: None), loader), Net(lambda _: None)
        while len(found) < TIMES:
            for batch, whole in zip(loader, alone, strict=True):
                culprit = moments.randrange(3)
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                expected = plain(whole.x, whole.edge_index)[: whole.batch_size]
                total = torch.zeros(())
                for p, seeds in enumerate(expected.split(8)):
                    total = total + LOSSES[loss if p == culprit else "all"](seeds)
                LOSSES[loss if rank == culprit else "all"](out).backward()
                total.backward()
                grads = [p.grad for p in model.parameters()]
                for grad in grads:
                    dist.all_reduce(grad)
                found.append((grads, [p.grad for p in plain.parameters()]))
                model.zero_grad()
                plain.zero_grad()
        return found

    for of_rank in run_ranks(3, on_rank, tmp_path, MOST_SECONDS):
        for together, alone in of_rank:
            for found, expected in zip(together, alone, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "event",
    ["break"]
    + [
        pytest.param(event, marks=pytest.mark.slow)
        for event in ("no backward", "another loss", "raise")
    ],
)
def test_a_rank_that_leaves_a_step_early_fails_all_of_them(event: str, tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[tuple[str, float, bool]]:
        moments, found = random.Random(event), []
        for _ in range(TIMES):
            culprit, at = moments.randrange(3), moments.randrange(STEPS // 2)
            loader = loader_of()
            model = accelerate(Net(lambda place: None), loader)
            text, last = "", time.monotonic()
            try:
                for number, batch in enumerate(loader):
                    out = model(batch.x, batch.edge_index)
                    last = time.monotonic()
                    if (rank, number) != (culprit, at):
                        out.sum().backward()
                    elif event == "another loss":
                        sum(p.sum() for p in model.parameters()).backward()
                    elif event == "break":
                        break
                    elif event == "raise":
                        raise ZeroDivisionError("between")
            except (RuntimeError, ZeroDivisionError) as error:
                text = f"{type(error).__name__}: {error}"
            seconds = time.monotonic() - last
            dist.barrier()  # all have their errors
            # In the same processes, over the same group.
            loader = loader_of(20.0)
            model = accelerate(Net(lambda place: None), loader)
            for batch in loader:
                model(batch.x, batch.edge_index).sum().backward()
            found.append((text, seconds, rank == culprit))
        return found

    for of_rank in run_ranks(3, on_rank, tmp_path, MOST_SECONDS):
        assert len(of_rank) == TIMES
        for text, seconds, is_culprit in of_rank:
            assert seconds < SECONDS + SLACK_SECONDS
            if is_culprit and event in ("break", "raise"):
                assert text == ("" if event == "break" else "ZeroDivisionError: between")
            else:
                assert "ExchangeError: " in text
