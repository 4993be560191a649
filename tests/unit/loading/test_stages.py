"""Stages on streams of their own: the same values as in order, whatever is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from fake_streams import POISON, FakeStreams, FakeTensor

from pyg_direct.core.types import BatchKey
from pyg_direct.loading.prefetcher import Prefetcher
from pyg_direct.loading.stages import Handover, Stages, batch_keys
from pyg_direct.ops.streams import NoStreams

SLOW = 0.002
# What a batch with the key (5, 6) draws from that is asked for several times while it is made.
RECORDED_KEYS = [(5, 6), (2358171620, 1758344106), (3805315584, 3124158924)]
DELAYS = [{}, {"sample": SLOW}, {"gather": SLOW}, {"main": SLOW}, {"sample": SLOW, "main": SLOW}]


class Task(NamedTuple):
    number: int
    asked: Any


class Made:
    """A batch, or a sampled subgraph: some tensors."""

    def __init__(self, **tensors: FakeTensor) -> None:
        self.tensors = tensors


class Loader:
    """Makes numbers in two stages, ahead of who consumes them, over fake streams."""

    def __init__(
        self,
        streams: FakeStreams,
        batches: int,
        producers: int = 1,
        depth: int = 2,
        kind: type[Stages] = Stages,
    ) -> None:
        self.streams, self.table = streams, streams.empty()
        self.table.block.value = 0
        self.schedule = kind(streams, lambda made: made.tensors.values())
        self.prefetcher: Prefetcher = Prefetcher(self.work, producers, depth)
        self.prefetcher.begin(Task(i, self.schedule.ask()) for i in range(batches))

    def work(self, task: Task) -> Handover:
        return self.schedule.produce(task, lambda task: self.sample(task.number), self.gather)

    def sample(self, number: int) -> Made:
        ids, dropped = self.streams.empty(), self.streams.empty()
        self.streams.kernel(ids, lambda: number)
        self.streams.kernel(dropped, lambda: number)
        return Made(ids=ids, dropped=dropped)

    def gather(self, sampled: Made) -> Made:
        ids, rows, table = sampled.tensors["ids"], self.streams.empty(), self.table.block
        block = sampled.tensors["dropped"].block  # which the batch does not hold
        self.streams.kernel(rows, lambda: ("row", block.value, table.value))
        return Made(ids=ids, rows=rows)

    def __iter__(self) -> Iterator[Made]:
        while True:
            try:
                made = self.prefetcher.take()
                assert isinstance(made, Handover)
                yield self.schedule.take(made)
            except StopIteration:
                self.prefetcher.close()
                return


def train(streams: FakeStreams, loader: Loader, step: Callable[[int], None]) -> list[Any]:
    """Read every batch on the main stream, drop it, and return what was read."""
    read: list[Any] = []
    result = streams.empty()
    for number, batch in enumerate(loader):
        ids, rows = batch.tensors["ids"].block, batch.tensors["rows"].block
        streams.kernel(result, lambda ids=ids, rows=rows: read.append((ids.value, rows.value)))
        del batch
        step(number)
    streams.finish()
    return read


def run(
    delays: dict[str, float], batches: int, faults: tuple[str, ...] = (), **arguments: Any
) -> tuple[list[Any], FakeStreams]:
    streams = FakeStreams(delays, faults)
    try:
        return train(streams, Loader(streams, batches, **arguments), lambda _: None), streams
    finally:
        streams.stop()


def expected(batches: int) -> list[Any]:
    return [(i, ("row", i, 0)) for i in range(batches)]


@pytest.mark.parametrize("delays", DELAYS, ids=str)
@pytest.mark.parametrize(("producers", "depth"), [(1, 1), (1, 2), (2, 4)])
def test_overlapped_is_as_in_order(delays: dict[str, float], producers: int, depth: int) -> None:
    got, _ = run(delays, 1000 if not delays else 200, producers=producers, depth=depth)
    assert got == expected(len(got))
    assert len(got) in (200, 1000)


def receiving(waits: bool, keeps: bool, consumer: bool) -> type[Stages]:
    """Return a faulty schedule: its consumer (or its gather) does not wait, or does not keep."""

    class Faulty(Stages):
        def _receive(self, product: Any, ready: Any) -> None:
            here = (threading.current_thread() is threading.main_thread()) == consumer
            if waits or not here:
                self._streams.wait_event(ready)
            if keeps or not here:
                self._streams.record_stream(self._tensors_of(product))

    return Faulty


@pytest.mark.parametrize("consumer", [False, True])
def test_a_missing_wait_is_noticed(consumer: bool) -> None:
    """Of the gather for its sample, and of the consumer for its batch."""
    delays = {"gather" if consumer else "sample": SLOW}
    got, _ = run(delays, 50, kind=receiving(waits=False, keeps=True, consumer=consumer))
    assert got != expected(50)
    assert POISON in str(got) or len(set(map(str, got))) < 50


@pytest.mark.parametrize("consumer", [False, True])
def test_memory_that_is_not_kept_is_noticed(consumer: bool) -> None:
    """Who reads a product is slow, and its memory is written again before it is read."""
    delays = {"main" if consumer else "gather": SLOW}
    kind = receiving(waits=True, keeps=False, consumer=consumer)
    got, _ = run(delays, 200, ("synchronize",), producers=2, depth=4, kind=kind)
    assert got != expected(200)


def test_the_host_does_not_run_ahead() -> None:
    """With a slow consumer memory stays bounded; without `synchronize` it grows."""
    got, streams = run({"main": SLOW}, 300)
    assert got == expected(300)
    assert streams.blocks < 30
    _, runaway = run({"main": SLOW}, 300, faults=("synchronize",))
    assert runaway.blocks > 2 * streams.blocks


def test_writes_of_the_consumer_are_read_by_later_batches() -> None:
    """A table that training changes: a batch sees what was queued when it was asked for."""
    streams = FakeStreams({"main": SLOW})
    try:
        loader = Loader(streams, 100, depth=2)

        def update(number: int) -> None:
            streams.kernel(loader.table, lambda: number + 1)

        read = train(streams, loader, update)
    finally:
        streams.stop()
    assert [ids for ids, _ in read] == list(range(100))
    for number, (_, (_, row, version)) in enumerate(read):
        assert row == number
        # Batch i is asked for when batch i-2 is handed out, behind update i-3, which writes i-2.
        assert version >= number - 2


def test_a_batch_that_is_kept_stays_as_it_is() -> None:
    streams = FakeStreams({"gather": SLOW / 4})
    try:
        kept = list(Loader(streams, 200))
        streams.finish()
        assert [batch.tensors["ids"].block.value for batch in kept] == list(range(200))
        assert [b.tensors["rows"].block.value for b in kept] == [("row", i, 0) for i in range(200)]
        assert len({id(t.block) for batch in kept for t in batch.tensors.values()}) == 400
    finally:
        streams.stop()


def test_the_consumer_may_gather_itself() -> None:
    streams = FakeStreams({"sample": SLOW})
    try:
        schedule: Stages = Stages(streams, lambda made: made.tensors.values())
        loader = Loader(streams, 0)
        for i in range(50):
            task = Task(i, schedule.ask())
            handover = schedule.produce(task, lambda task: loader.sample(task.number), None)
            batch = loader.gather(schedule.take(handover))
            streams.finish()
            assert batch.tensors["rows"].block.value == ("row", i, 0)
        loader.prefetcher.close()
    finally:
        streams.stop()


def test_in_order_is_a_plain_call() -> None:
    def tensors_of(made: Any) -> Iterator[Any]:
        yield pytest.fail("nothing has to be kept, so nothing is looked through")

    schedule = Stages(NoStreams(), tensors_of)
    assert schedule.ask is None
    handover = schedule.produce(Task(1, None), lambda task: [task.number], lambda made: [*made, 2])
    assert schedule.take(handover) == [1, 2]
    assert NoStreams().stream_id() == 0


def test_an_error_of_a_stage_is_raised_to_the_consumer() -> None:
    streams = FakeStreams({})
    try:
        loader = Loader(streams, 3)
        loader.gather = lambda sampled: 1 / 0  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            loader.prefetcher.take().raise_once()  # type: ignore[union-attr]
        loader.prefetcher.close()
    finally:
        streams.stop()


def test_keys_of_a_batch_that_is_asked_for_several_times_are_the_recorded_ones() -> None:
    for _ in range(2):
        with batch_keys.of(BatchKey(5, 6)):
            assert [batch_keys.next() for _ in RECORDED_KEYS] == RECORDED_KEYS
        assert batch_keys.next() is None
