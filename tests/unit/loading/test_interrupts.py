"""Signal handlers that raise while a batch is waited for: no batch is lost or comes twice."""

from __future__ import annotations

import inspect
import itertools
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, Sampler
from torch_geometric.data import Data

from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.loading.base import DirectLoader
from pyg_direct.loading.epoch import Epoch

# A file that was opened when the interrupt came is closed by its destructor, which says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NEXT, ITER = Epoch.__next__.__code__, inspect.unwrap(DirectLoader.__iter__).__code__


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(60, (2, 600), generator=generator)
    return Data(x=torch.arange(60.0).view(-1, 1), edge_index=edge_index)


DATA = graph()


def build(**arguments: Any) -> NeighborLoader:
    arguments = {"batch_size": 10, "seed": 1, "shuffle": True} | arguments
    return NeighborLoader(DATA, [3, 3], **arguments)


def ids(batch: Any) -> tuple[list[int], list[int]]:
    return batch.input_id.tolist(), batch.e_id.tolist()


def all_ids(loader: Any) -> list[Any]:
    return [ids(batch) for batch in loader]


def stack(frame: FrameType | None, last: FrameType | None = None) -> Iterator[Any]:
    """Yield the code of a frame and of those that called it, up to the `last` one."""
    while frame is not last and frame is not None:
        yield frame.f_code
        frame = frame.f_back


class InterruptsAt:
    """A profile function that raises once, where a signal handler may: where functions are called.

    Not in Python's own `threading`, which does not allow for it: a lock may stay taken there.

    Args:
        event: which of the events inside of `code`.
        code: of the function to interrupt.
    """

    def __init__(self, event: int, code: Any) -> None:
        self.left, self.code, self.raised = event, code, False
        self.inside: FrameType | None = None  # of `code`

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is self.code:
            self.inside = self.inside or frame
        elif event == "return" and frame is self.inside:
            self.inside = None
        if self.inside is None or event not in ("call", "c_return"):
            return
        if any(c.co_filename == threading.__file__ for c in stack(frame, self.inside)):
            return
        self.left -= 1
        if self.left < 0:
            sys.setprofile(None)
            self.raised = True
            raise KeyboardInterrupt


@contextmanager
def interrupted_at(event: int, code: Any) -> Iterator[InterruptsAt]:
    profile = InterruptsAt(event, code)
    sys.setprofile(profile)
    try:
        yield profile
    finally:
        sys.setprofile(None)


LOADERS: dict[str, Callable[..., Any]] = {
    "in order": lambda **options: build(shuffle=False, **options),
    "shuffled": build,
    "no seed": lambda **options: build(seed=None, **options),
    "generator": lambda **options: build(
        seed=None, generator=torch.Generator().manual_seed(5), **options
    ),
    "filter in the consumer": lambda **options: build(filter_per_worker=False, **options),
    "sampler": lambda **options: build(
        shuffle=False, sampler=RandomSampler(range(60), num_samples=60), **options
    ),
    "links": lambda **options: LinkNeighborLoader(
        DATA, [3], edge_label_index=DATA.edge_index[:, :40], neg_sampling="binary", batch_size=10,
        shuffle=True, seed=1, **options,
    ),
}  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("case", LOADERS)
def test_an_interrupt_at_any_call_loses_no_batch(case: str, num_workers: int) -> None:
    """And the state that was saved behind it goes on with the batch that did not come."""
    torch.manual_seed(3)
    expected = all_ids(LOADERS[case](num_workers=num_workers))
    stride = 7 if case == "shuffled" else 23
    for event in itertools.count(0, stride):
        torch.manual_seed(3)
        loader = LOADERS[case](num_workers=num_workers)
        iterator, found = iter(loader), []
        with interrupted_at(event, NEXT) as profile, suppress(KeyboardInterrupt):
            for _ in range(2):
                found.append(ids(next(iterator)))
        state = loader.state_dict()
        assert state["batch"] == len(found), event
        found += [ids(batch) for batch in iterator]
        assert found == expected, event
        if event % 5 == 0:
            other = LOADERS[case](num_workers=num_workers)
            other.load_state_dict(state)
            assert all_ids(other) == expected[state["batch"] :]
        if not profile.raised:
            break
    assert event > 50, "the profile function saw the calls of two batches"


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_interrupt_of_iter_loses_no_epoch(num_workers: int, resumed: bool) -> None:
    state = None
    if resumed:
        loader = build()
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    expected = all_ids(build())[2 if resumed else 0 :]
    for event in itertools.count():
        loader = build(num_workers=num_workers)
        if state is not None:
            loader.load_state_dict(state)
        began = False
        with interrupted_at(event, ITER) as profile, suppress(KeyboardInterrupt):
            iter(loader)
            began = True  # also where a destructor was interrupted, which lets nothing out
        if not profile.raised:
            break
        assert began or all_ids(loader) == expected, event
    assert event > 20


def test_an_iterator_that_failed_loses_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system starts no more threads."""
    loader = build()
    next(iter(loader))
    other = build(num_workers=2)
    other.load_state_dict(loader.state_dict())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(RuntimeError, match="producer thread 1 of 2"):
            iter(other)
    assert all_ids(other) == all_ids(build())[1:]


def _no_thread(self: Any) -> None:
    raise RuntimeError("can't start new thread")


class Ours(Sampler[int]):
    """A sampler of the user's; it may give other positions when it is iterated anew."""

    def __iter__(self) -> Iterator[int]:
        yield from range(60)

    def __len__(self) -> int:
        return 60


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_interrupted_sampler_of_the_users_is_not_iterated_anew(num_workers: int) -> None:
    """Either the iterator goes on with the very batches, or it says that it cannot."""
    expected, refused = all_ids(build(sampler=Ours(), shuffle=False)), 0
    for event in itertools.count(0, 7):
        loader = build(sampler=Ours(), shuffle=False, num_workers=num_workers)
        iterator, found = iter(loader), []
        with interrupted_at(event, NEXT) as profile, suppress(KeyboardInterrupt):
            for _ in range(2):
                found.append(ids(next(iterator)))
        with suppress(RuntimeError):
            while batch := next(iterator, None):
                found.append(ids(batch))
        if not loader.state_dict()["finished"]:
            refused += 1
            with pytest.raises(RuntimeError, match="a Ours gave the seeds, and cannot continue"):
                next(iterator)
            loader.load_state_dict(loader.state_dict())
            found += all_ids(loader)
        assert found == expected
        if not profile.raised:
            break
    assert 0 < refused < event // 7


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such timers")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_signals_at_random_moments(num_workers: int) -> None:
    """Raised by a handler in the main thread, as Ctrl-C is, but only inside of ``next``."""
    raised = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if NEXT in stack(frame):
            raised += 1
            raise KeyboardInterrupt

    expected, draw = all_ids(build(batch_size=4)), random.Random(0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(30):
            loader = build(batch_size=4, num_workers=num_workers)
            iterator, found = iter(loader), []
            while True:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 2e-3))
                try:
                    batch = next(iterator, None)
                except KeyboardInterrupt:
                    assert loader.state_dict()["batch"] == len(found)
                    continue
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                if batch is None:
                    break
                found.append(ids(batch))
            assert found == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised > 5


def test_a_sampler_that_failed_ends_no_epoch() -> None:
    broken = True

    class Broken(RandomSampler):
        def __iter__(self) -> Iterator[int]:
            for i, position in enumerate(super().__iter__()):
                if broken and i == 25:
                    raise LookupError("planted")
                yield position

    loader = build(sampler=Broken(range(60)), shuffle=False)
    torch.manual_seed(1)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    with pytest.raises(LookupError, match="planted"):
        next(iterator)
    with pytest.raises(RuntimeError, match="while a Broken gave the seeds"):
        next(iterator)
    state, broken = loader.state_dict(), False
    assert (state["batch"], state["finished"]) == (2, False)
    loader.load_state_dict(state)
    torch.manual_seed(1)
    other = build(sampler=Broken(range(60)), shuffle=False)
    assert all_ids(loader) == all_ids(other)[2:]
