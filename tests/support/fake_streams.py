"""Streams that run, late and beside one another, as on a GPU: threads behind `ops.streams.Streams`.

Work is put on the current stream and runs whenever its thread comes to it, so a wait that is
missing shows as a value read before it was written. Memory comes from a caching allocator as
torch's: a freed block goes back to the stream that it came from, which may write to it at once,
though another stream has yet to read it, unless `keep` was called.
"""

from __future__ import annotations

import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

POISON = "never written"


class Stream:
    """A queue of work, and the thread that does it. `delay_seconds` is the longest pause before."""

    def __init__(self, name: str, delay_seconds: float) -> None:
        self.name, self._delay = name, delay_seconds
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._random = random.Random(name)
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

    def launch(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def pause(self) -> None:
        if self._delay:
            time.sleep(self._random.random() * self._delay)

    def finish(self) -> None:
        done = threading.Event()
        self.launch(done.set)
        assert done.wait(60), f"stream {self.name} hangs"

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()


class Block:
    """Device memory: one value."""

    def __init__(self, home: Stream) -> None:
        self.home, self.value = home, POISON


class FakeTensor:
    """Refers to a block, which is free for others when the tensor has no references left."""

    def __init__(self, memory: FakeStreams, block: Block) -> None:
        self.block = block
        self.users: set[Stream] = set()
        weakref.finalize(self, memory.release, block, self.users).atexit = False


class FakeStreams:
    """See `ops.streams.Streams`.

    Args:
        delays: longest pause in seconds before each piece of work, by name of the stream: 'sample',
            'gather', 'main'.
        faults: names of methods that do nothing: what a test must notice.
    """

    in_order = False

    def __init__(self, delays: dict[str, float], faults: Iterable[str] = ()) -> None:
        names = ("sample", "gather", "main")
        self.streams = {name: Stream(name, delays.get(name, 0.0)) for name in names}
        self.faults = set(faults)
        self.blocks = 0  # that were ever needed
        self._free: dict[Stream, list[Block]] = {s: [] for s in self.streams.values()}
        self._current = threading.local()
        self._lock = threading.Lock()

    @property
    def current(self) -> Stream:
        return getattr(self._current, "stream", self.streams["main"])

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        before, self._current.stream = self.current, self.streams[stage]
        try:
            yield
        finally:
            self._current.stream = before

    def record_event(self) -> threading.Event:
        event = threading.Event()
        self.current.launch(event.set)
        return event

    def wait_event(self, event: threading.Event) -> None:
        if "wait_event" not in self.faults:
            self.current.launch(lambda: _pass(event))

    def synchronize(self, event: threading.Event) -> None:
        if "synchronize" not in self.faults:
            _pass(event)

    def record_stream(self, tensors: Iterable[FakeTensor]) -> None:
        if "record_stream" not in self.faults:
            for tensor in tensors:
                tensor.users.add(self.current)

    def stream_id(self) -> int:
        return id(self.current)

    def empty(self) -> FakeTensor:
        """Return memory of the current stream."""
        with self._lock:
            free = self._free[self.current]
            block = free.pop() if free else None
            self.blocks += block is None
        return FakeTensor(self, block or Block(self.current))

    def release(self, block: Block, users: set[Stream]) -> None:
        """Take memory back when all streams that were named to `record_stream` have come so far."""
        waiting = [stream for stream in users if stream is not block.home]
        left, lock = len(waiting), threading.Lock()

        def one_is_done() -> None:
            nonlocal left
            with lock:
                left -= 1
                if left > 0:
                    return
            self._free[block.home].append(block)

        for stream in waiting:
            stream.launch(one_is_done)
        if not waiting:
            self._free[block.home].append(block)

    def kernel(self, target: FakeTensor, compute: Callable[[], Any]) -> None:
        """Write `compute()` to `target` on the current stream; both hold blocks, not tensors."""
        block, stream = target.block, self.current

        def run() -> None:
            stream.pause()
            block.value = compute()

        stream.launch(run)

    def finish(self) -> None:
        """Wait for all streams, and raise what went wrong on them."""
        for stream in self.streams.values():
            stream.finish()
            assert not stream.errors, stream.errors

    def stop(self) -> None:
        for stream in self.streams.values():
            stream.stop()


def _pass(event: threading.Event) -> None:
    assert event.wait(60), "an event never came"
