"""Adds up, while an epoch runs, what `stats.Stats` tells; cheap enough to be always on."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..batch.gather import Gatherer
from ..batch.sparse import stored_bytes
from ..core.arguments import check_count, check_flag
from ..core.pyg import fields_of, stores_of
from ..core.threads import available_cores
from ..core.types import Ends, Traffic
from ..ops import clock
from ..ops.backend import Backend
from ..ops.devices import ends_in_call
from ..ranks.exchange import default_group, gathered
from ..ranks.split import Split
from ..ranks.traffic import ExchangeTraffic
from .stats import LOOP, Event, Stats, of_all_ranks, total_of

R = TypeVar("R")

# What a batch holds beside the attributes that were gathered.
MADE = {
    "edge_index", "n_id", "e_id", "input_id", "batch", "seed_time", "edge_label_index",
    "edge_label", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index",
    "_orig_edge_index", "num_sampled_nodes", "num_sampled_edges", "batch_size", "num_nodes",
    "ptr", "root_n_id", "num_real_nodes", "num_real_edges",
}  # fmt: skip


MOST_MADE, MOST_SPANS = 64, 256  # batches and spans of time that wait to be added up
KEPT_EPOCHS = 16  # whose sums are told one by one; those of earlier ones are added up


_Span = tuple[str, float, float]
"""What took time, and the instants (`clock.instant`) of its begin and end."""
Made = tuple[Traffic | None, tuple[int, ...], list[tuple[Any, str, int]]]
"""Of one batch: its traffic; batches, seeds, nodes and edges, and those of padding; type, name,
bytes of attributes."""


class _EpochSums:
    """The sums of one epoch."""

    def __init__(self) -> None:
        # Batches, made, seeds, nodes, edges, padded nodes, padded edges, and larger batches.
        self.counts = [0] * 8
        self.seconds: dict[str, float] = defaultdict(float)
        self.bytes: dict[str, int] = defaultdict(int)
        self.link = Traffic()
        self.found: dict[tuple[float, float], Tensor] = {}  # as in `Traffic`
        self.ready = 0.0
        self.spans: deque[_Span] = deque()  # that are not in the sums yet
        self.made: deque[Made] = deque()  # the same of batches
        self.events: list[Event] | None = None  # where they are asked for
        self.compiled = clock.compiled_seconds()  # before the epoch
        self.compiled_then: float | None = None  # the same when the next one began
        self.exchanged = ExchangeTraffic()  # before the epoch
        self.ended: ExchangeTraffic | None = None  # the same when the next one began

    def note(self, spans: Iterable[_Span], lane: str | None = None) -> None:
        """Record events, which were asked for; of this thread unless a lane is given."""
        if self.events is not None:  # appending needs no lock
            name = lane or threading.current_thread().name
            for stage, begin, end in spans:
                self.events.append(Event(name, stage, clock.at(begin), clock.at(end)))

    def add_up(self) -> None:
        """Add to the sums, many batches at a time, as one alone takes longer."""
        compiled = clock.compiled_until()
        while self.spans:  # which may grow meanwhile, as `made` may
            stage, begin, end = self.spans.popleft()
            if begin < compiled:
                begin, end = clock.at(begin), clock.at(end)
            self.seconds[stage] += end - begin
        while self.made:
            traffic, counts, sizes = self.made.popleft()
            if traffic is not None:
                self.link.requests += traffic.requests
                self.link.num_bytes += traffic.num_bytes
            for place, count in enumerate(counts, 1):  # in place: the consumer counts, too
                self.counts[place] += count
            for kind, name, size in sizes:
                self.bytes[name if kind is None else f"{kind}.{name}"] += size

    def stats(self) -> Stats:
        self.add_up()
        seconds = dict(self.seconds)
        waiting, working = seconds.pop("waiting", 0.0), seconds.pop("training", 0.0)
        batches, made, seeds, nodes, edges, padded_nodes, padded_edges, larger = self.counts
        since = self.compiled_then
        end = clock.compiled_seconds() if since is None else since
        requests, num_bytes, hits = self.link.requests, self.link.num_bytes, 0
        for (of_row, bytes_of_row), counter in list(self.found.items()):
            count = int(counter)  # waits for the device
            hits += count
            requests -= count * of_row
            num_bytes -= count * bytes_of_row
        return Stats(
            batches, made, seeds, nodes, edges, padded_nodes, padded_edges, larger,
            dict(self.bytes), seconds, waiting, working,
            ready_seconds=self.ready,
            compiling_seconds=end - self.compiled,
            pcie_requests=round(requests), pcie_bytes=round(num_bytes), cache_hits=hits,
            events=tuple(self.events or ()),
        )  # fmt: skip


class Recorder:
    """The sums of a loader, epoch by epoch; written by the producers and by the consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs = [_EpochSums()]
        self.found = self._epochs[-1].found  # counts rows of this epoch; see `Traffic`
        self._earlier = Stats()  # the sum of the epochs that are not kept
        self._finished: dict[int, float] = {}  # number of a batch -> when it was ready
        self._handed: float | None = None  # when the consumer got the last batch
        self.epochs_with_events = 0  # of those that begin from now on
        self.exchanged: Callable[[], ExchangeTraffic] | None = None  # with other ranks so far

    def __reduce__(self) -> Any:
        return Recorder, ()

    def stats(self) -> Stats:
        """Return what was added up so far."""
        with self._lock:
            self._add_up_the_earlier()
            epochs = [
                stats
                for stats in map(self._stats_of, self._epochs)
                if stats.made or stats.waiting_seconds
            ]
            return replace(total_of([self._earlier, *epochs]), epochs=tuple(epochs))

    def _stats_of(self, epoch: _EpochSums) -> Stats:
        stats = epoch.stats()
        if self.exchanged is None:
            return stats
        ended = self.exchanged() if epoch.ended is None else epoch.ended
        return replace(stats, exchange=ended.since(epoch.exchanged))

    def begin(self) -> None:
        """Note that an epoch begins."""
        with self._lock:
            epoch = _EpochSums()
            # What other ranks were answered before the first epoch counts with it.
            if self.exchanged is not None and len(self._epochs) > 1:
                epoch.exchanged = self.exchanged()
            self._epochs[-1].ended = epoch.exchanged
            self._epochs[-1].compiled_then = epoch.compiled
            self._epochs.append(epoch)
            self.found = epoch.found
            if self.epochs_with_events > 0:
                self.epochs_with_events -= 1
                epoch.events = []
            self._finished.clear()
            self._handed = None
            if len(self._epochs) > 2 * KEPT_EPOCHS:  # many at a time: short epochs are batches long
                self._add_up_the_earlier()

    def _add_up_the_earlier(self) -> None:
        """Keep the last epochs, and those whose events somebody asked for."""
        plain = [epoch for epoch in self._epochs if epoch.events is None]
        earlier = plain[:-KEPT_EPOCHS]
        self._earlier = total_of([self._earlier, *map(self._stats_of, earlier)])
        for epoch in earlier:
            self._epochs.remove(epoch)

    def starting(self, start: Callable[[], R]) -> R:
        """Return what ``iter(loader)`` returns; the consumer waits for it, too."""
        asked = clock.instant()
        started = start()
        self.add("waiting", asked, clock.instant(), LOOP)
        return started

    def add(self, stage: str, begin: float, end: float, lane: str | None = None) -> None:
        """Add the time between two instants to a stage; in any thread, without a lock."""
        epoch = self._epochs[-1]
        epoch.spans.append((stage, begin, end))
        if epoch.events is not None:
            epoch.note([(stage, begin, end)], lane)

    def timed(self, stage: str, function: Callable[[], R]) -> R:
        """Call a function, and add its time to a stage."""
        start = clock.instant()
        try:
            return function()
        finally:
            self.add(stage, start, clock.instant())

    def assembled(
        self, batch: Any, gatherer: Gatherer, own: Ends | None = None, late: bool = False
    ) -> Made:
        """Add what a batch holds, before it is transformed, and the times of making it.

        Args:
            batch: from `assemble`.
            gatherer: of its rows, made when assembling began.
            own: how many of its nodes and edges are not padding; None for all.
            late: that will be known later, when `settled` adds what is returned.
        """
        last, spans = gatherer.start, list[_Span]()
        for begin, end in gatherer.gathers:
            spans += ("assembling", last, begin), ("gathering", begin, end)
            last = end
        spans.append(("assembling", last, clock.instant()))
        epoch = self._epochs[-1]
        if epoch.events is not None:
            epoch.note(spans)
        epoch.spans += spans  # needs no lock, as below
        seeds, nodes, edges, sizes = 0, 0, 0, list[tuple[Any, str, int]]()
        in_memory = isinstance(batch, (Data, HeteroData))
        stores = gatherer.stores or (stores_of(batch) if in_memory else {})
        for kind, store in stores.items():
            fields = fields_of(store)
            for name, value in fields.items():
                if name not in MADE and isinstance(value, Tensor):
                    size = value.nbytes if value.layout is torch.strided else stored_bytes(value)
                    sizes.append((kind, name, size))
            if isinstance(ids := fields.get("n_id"), Tensor):
                nodes += ids.numel()
            elif kind is None:  # of a loader whose batches have no ids
                nodes += batch.num_nodes or 0
            if isinstance(ends := fields.get("edge_index"), Tensor):
                edges += ends.shape[-1]
            if isinstance(ids := fields.get("input_id", fields.get("root_n_id")), Tensor):
                seeds += ids.numel()
        made: Made = gatherer.traffic, (int(bool(stores)), seeds, nodes, edges), sizes
        if own is not None:
            self.settled(made, own)
        elif not late:
            epoch.made.append(made)
        if len(epoch.made) >= MOST_MADE:
            with self._lock:
                epoch.add_up()
        return made

    def settled(self, made: Made, own: Ends) -> None:
        """Add what a batch holds, of whose nodes and edges so many are not padding."""
        traffic, (*others, nodes, edges), sizes = made
        of_nodes, of_edges = sum(own.node.values()), sum(own.edge.values())
        counts = *others, of_nodes, of_edges, nodes - of_nodes, edges - of_edges
        self._epochs[-1].made.append((traffic, counts, sizes))  # needs no lock, as above

    def larger_batch(self) -> None:
        """Note that the consumer gets a batch that did not fit the shape of its epoch."""
        self._epochs[-1].counts[-1] += 1

    def ready(self, number: int) -> None:
        """Note that a batch is made; in any thread."""
        with self._lock:
            self._finished[number] = clock.instant()

    def hand_over(self, asked: float, number: int | None) -> None:
        """Note that the consumer gets a batch, or None at the end of the epoch.

        Args:
            asked: the instant when it asked for one.
            number: of the batch.
        """
        now, epoch = clock.instant(), self._epochs[-1]
        spans: list[_Span] = [("waiting", asked, now)]
        if self._handed is not None:
            spans.insert(0, ("training", self._handed, asked))
        epoch.spans += spans
        if epoch.events is not None:
            epoch.note(spans, LOOP)
        self._handed = None if number is None else now
        if number is not None:
            epoch.counts[0] += 1
            finished = self._finished.pop(number, None)
            if finished is not None:
                epoch.ready += max(0.0, clock.at(asked) - clock.at(finished))
        if len(epoch.spans) >= MOST_SPANS:
            with self._lock:
                epoch.add_up()


class Recorded:
    """The part of a loader that shows what was recorded."""

    _recorder: Recorder
    _hands_out_hops: bool
    _gives_whole_subgraphs: bool
    _split: Split
    num_workers: int

    @property
    def _backend(self) -> Backend:
        raise NotImplementedError

    def stats(self, all_ranks: bool = False) -> Stats:
        """Return what the batches so far held and cost, in all and in each of the last 16 epochs.

        Args:
            all_ranks: add up those of all ranks of the process group (that of `split_by_rank=`,
                else the default one). Collective: every rank must call it. False: of this process.

        Raises:
            RuntimeError: `all_ranks`, and there is no process group.

        Example: ``print(loader.stats())`` after an epoch ends with a sentence such as "training is
        the bottleneck: a faster loader could save at most 7 %".
        """
        stats, backend = self._recorder.stats(), self._backend
        whole = self._hands_out_hops or self._gives_whole_subgraphs
        may = not whole and ends_in_call(backend.device)
        spare = min(
            available_cores() - self.num_workers, max(0, backend.most_producers - self.num_workers)
        )
        epochs = tuple(replace(e, may_accelerate=may, spare_workers=spare) for e in stats.epochs)
        stats = replace(stats, may_accelerate=may, spare_workers=spare, epochs=epochs)
        if not check_flag("all_ranks", all_ranks):
            return stats
        group = self._split.group or default_group()
        return of_all_ranks(gathered(stats, group, backend.device))

    def record_events(self, epochs: int = 1) -> None:
        """Record when each stage of each batch begins and ends, for `stats().plot()`.

        Args:
            epochs: of the epochs that begin from now on; 0 for none. About 1 KB a batch.

        Raises:
            ValueError: `epochs` is negative or not an integer.
        """
        self._recorder.epochs_with_events = check_count("epochs", epochs, least=0)
