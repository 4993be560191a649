"""What the batches of a loader cost and held: `loader.stats()`, and the timeline of an epoch."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..core.units import seconds_text
from ..ranks.traffic import ExchangeTraffic, of_ranks, sum_of

STAGES = ("sampling", "gathering", "assembling", "transform", "copying")
ACCELERATE = "pyg_direct.accelerate(model, loader) makes steps faster"
TINY_BATCH_SECONDS = 0.002  # of a whole step; below, Python's overhead a batch is what counts
EVEN = 0.5  # share of waiting from which on the loader is the bottleneck


@dataclass(frozen=True)
class Stats:
    """Counts and times of some epochs, all from the side of the host.

    Times are wall times in seconds, without those in which kernels were compiled, once in an
    installation, or loaded from disk, once in a process, which are counted by themselves. Those of
    the stages are summed over the producer threads, and on a GPU they are what launching takes.
    `waiting_seconds` and `working_seconds` add
    up to the time from ``iter(loader)`` to the last batch that was asked for.

    `pcie_requests` and `pcie_bytes` are computed from the sizes and addresses of the tables, not
    measured, and are those of attributes in host memory whose batches are on a GPU; what sampling
    reads of the edges is not among them. Rows that a cache in GPU memory had (`cache=`) are counted
    by the kernels that found them, as `cache_hits`, and their requests and bytes are taken off.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [5], batch_size=100)
        >>> for batch in loader:
        ...     pass
        >>> loader.stats().batches, loader.stats().seeds
        (3, 300)
    """

    batches: int = 0  # that the consumer got
    made: int = 0  # that were made, also ahead of a loop that still runs or was broken off
    seeds: int = 0  # in all batches made, as nodes, edges, bytes and the producers' seconds are
    nodes: int = 0  # unique in each batch
    edges: int = 0
    padded_nodes: int = 0  # more than these in all batches made, by `static_shapes=`
    padded_edges: int = 0
    larger_batches: int = 0  # of those the consumer got, that did not fit the shape of their epoch
    gathered_bytes: Mapping[str, int] = field(default_factory=dict)  # by attribute
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage, of the producers
    waiting_seconds: float = 0.0  # the consumer for the loader
    working_seconds: float = 0.0  # the consumer, between two batches
    ready_seconds: float = 0.0  # finished batches for the consumer
    pcie_requests: int = 0  # reads of a GPU from host memory to gather attributes, of 128 bytes
    pcie_bytes: int = 0  # that came with them
    cache_hits: int = 0  # rows of attributes on the host that were read from a cache on the GPU
    compiling_seconds: float = 0.0  # and loading kernels, in any thread; no part of the others
    exchange: ExchangeTraffic | None = None  # with other ranks, over a graph in parts
    may_accelerate: bool = False  # whether `accelerate` takes the loader, and was not given it
    spare_workers: int = 1  # that `num_workers=` can be raised by; below 0: it is above the cores
    epochs: Sequence[Stats] = ()
    """The same for each of the last 16 epochs and for those with events; empty in these."""
    events: Sequence[Event] = ()  # of an epoch that `loader.record_events()` asked them for

    @property
    def waiting_share(self) -> float:
        """Part of the consumer's time that it waited, in [0, 1]."""
        total = self.waiting_seconds + self.working_seconds
        return self.waiting_seconds / total if total else 0.0

    @property
    def verdict(self) -> str:
        """Where the time went, and what would help, in one sentence."""
        if self.batches == 0:
            return "no batch was asked for yet"
        total = self.waiting_seconds + self.working_seconds
        a_batch = total / self.batches
        if a_batch < TINY_BATCH_SECONDS:
            return (
                f"a step takes {1e3 * a_batch:.2f} ms, of which much is Python's overhead: use a "
                f"larger batch_size, or train on the whole graph at once"
            )
        share = 100 * self.waiting_share
        if self.waiting_share < EVEN:
            gain = f"training is the bottleneck: a faster loader could save at most {share:.0f} %"
            return f"{gain}; {ACCELERATE}" if self.may_accelerate else gain
        made = sum(self.seconds.values())
        stage = max(STAGES, key=lambda name: self.seconds.get(name, 0.0))
        part = 100 * self.seconds.get(stage, 0.0) / made if made else 0.0
        *some, last = (r for r in _REMEDIES[stage] if r != _RAISE or self.spare_workers > 0)
        remedy = f"{', '.join(some)}, or {last}" if some else last
        if self.spare_workers < 0:
            too_many = f"lower num_workers= by {-self.spare_workers}, there are no more cores"
            remedy = f"{too_many}; {remedy}"
        return (
            f"the loader is the bottleneck: {share:.0f} % of the time went on waiting for it, and "
            f"{part:.0f} % of its own time on {stage}; {remedy}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers, texts, dicts and lists, for JSON."""
        return {
            **{name: getattr(self, name) for name in _SUMMED},
            "gathered_bytes": dict(self.gathered_bytes),
            "seconds": dict(self.seconds),
            "exchange": None if self.exchange is None else self.exchange.as_dict(),
            "verdict": self.verdict,
            "epochs": [epoch.as_dict() for epoch in self.epochs],
            "events": [event._asdict() for event in self.events],
        }

    def postfix(self) -> dict[str, str]:
        """Return a few numbers for a tqdm bar: ``bar.set_postfix(loader.stats().postfix())``.

        Before the second batch is asked for it is not known what a step takes, so the share of
        waiting is left out.
        """
        total = self.waiting_seconds + self.working_seconds
        received = self.seeds * self.batches / max(1, self.made)
        rate = received / total if total else 0.0
        shown = {"seeds/s": f"{rate:,.0f}"}
        if self.working_seconds > 0:
            shown["waiting"] = f"{100 * self.waiting_share:.0f} %"
        return shown

    def plot(self, axes: Any = None) -> Any:
        """Draw where the time went; needs matplotlib.

        After `loader.record_events()` and an epoch: the timeline of the last epoch with events, one
        lane for the loop and one for each producer; `axes.set_xlim(0, 1)` shows its first second.
        Without events: a bar for each epoch. The title is the `verdict` on what is shown.

        Args:
            axes: matplotlib axes to draw on; None for new ones.

        Returns:
            The axes.

        Raises:
            ImportError: matplotlib is not installed.
        """
        epochs = list(self.epochs) or [self]
        recorded = next((epoch for epoch in reversed(epochs) if epoch.events), None)
        if axes is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                raise ImportError(
                    "stats().plot() needs matplotlib: pip install matplotlib"
                ) from error
            height = 3.5 if recorded is None else 2.0 + 0.5 * len(lanes_of(recorded.events))
            axes = pyplot.subplots(figsize=(9, height), layout="constrained")[1]
        if recorded is not None:
            draw(recorded.events, recorded.verdict, axes)
        else:
            _draw_bars(epochs, self.verdict, axes)
        return axes

    def __repr__(self) -> str:
        if self.made == 0:
            return "no batch was made yet: iterate the loader first"
        each, names = self.made, [*STAGES, *self.gathered_bytes]
        width = max(12, *(len(name) + 1 for name in names))
        ahead = f"{self.batches:,} batches received, " if self.batches != self.made else ""
        lines = [
            f"{ahead}{self.made:,} batches {'made ' if ahead else ''}with {self.seeds:,} seeds; of "
            f"each on average {self.nodes / each:,.0f} nodes and {self.edges / each:,.0f} edges",
            *(
                [
                    f"  padding of {self.padded_nodes / each:,.0f} nodes and "
                    f"{self.padded_edges / each:,.0f} edges a batch; {self.larger_batches:,} "
                    f"batches did not fit static_shapes"
                ]
                if self.padded_nodes
                else []
            ),
            *(
                f"  {name:<{width}}{1e3 * self.seconds.get(name, 0.0) / each:10.3f} ms a batch"
                for name in STAGES
                if name not in ("transform", "copying") or self.seconds.get(name, 0.0) > 0
            ),
            *(
                f"  {name:<{width}}{size / each / 1e6:10.3f} MB a batch"
                for name, size in self.gathered_bytes.items()
            ),
            *(
                [
                    f"  over PCIe {self.pcie_bytes / each / 1e6:.3f} MB in "
                    f"{self.pcie_requests / each:,.0f} reads a batch (computed)"
                ]
                if self.pcie_requests
                else []
            ),
            *(
                [f"  {self.cache_hits / each:,.0f} rows a batch from the cache (counted)"]
                if self.cache_hits
                else []
            ),
            *([] if self.exchange is None else [f"  {self.exchange.line(self.made)}"]),
            f"  waiting for the loader {self.waiting_seconds:.2f} s, training "
            f"{self.working_seconds:.2f} s; a finished batch waited "
            f"{1e3 * self.ready_seconds / max(1, self.batches):,.1f} ms for the loop",
            *(
                [f"  kernels took {self.compiling_seconds:.1f} s to compile or load, beside these"]
                if self.compiling_seconds >= 0.05
                else []
            ),
            f"  {self.verdict}",
        ]
        return "\n".join(lines)


# What epochs and ranks add up: counts, bytes and seconds.
_SUMMED = (
    "batches", "made", "seeds", "nodes", "edges", "padded_nodes", "padded_edges", "larger_batches",
    "waiting_seconds", "working_seconds", "ready_seconds", "compiling_seconds",
    "pcie_requests", "pcie_bytes", "cache_hits",
)  # fmt: skip

_RAISE = "raise num_workers="
_REMEDIES = {
    "sampling": (_RAISE, "use a smaller num_neighbors"),
    "gathering": (_RAISE, "store features in a narrower dtype"),
    "assembling": (_RAISE, "drop attributes that the model does not use"),
    "transform": ("make the transform cheaper", "apply it to the whole graph once", _RAISE),
    "copying": (_RAISE, "leave out pin_memory=True"),
}


def _draw_bars(epochs: Sequence[Stats], title: str, axes: Any) -> None:
    """Draw two bars for each epoch: the time of the loop, and that of the producers."""
    for side, stages in enumerate((("waiting", "training"), STAGES)):
        bottom = [0.0] * len(epochs)
        places = [number + 0.4 * side - 0.2 for number in range(1, len(epochs) + 1)]
        for stage in stages:
            own = {"waiting": "waiting_seconds", "training": "working_seconds"}.get(stage)
            heights = [getattr(e, own) if own else e.seconds.get(stage, 0.0) for e in epochs]
            label = f"{'producers' if side else 'loop'}: {stage}"
            axes.bar(places, heights, 0.38, bottom=bottom, label=label, color=COLOURS[stage])
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(1, len(epochs) + 1))
    axes.set(xlabel="epoch", ylabel="seconds")
    headline(title, axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def total_of(epochs: Sequence[Stats]) -> Stats:
    """Return the sum of some epochs."""

    def added(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for epoch in epochs:
            for key, value in getattr(epoch, name).items():
                found[key] = found.get(key, 0) + value
        return found

    return Stats(
        **{name: sum(getattr(e, name) for e in epochs) for name in _SUMMED},
        gathered_bytes=added("gathered_bytes"),
        seconds=added("seconds"),
        may_accelerate=any(e.may_accelerate for e in epochs),
        spare_workers=min((e.spare_workers for e in epochs), default=1),
        exchange=sum_of([e.exchange for e in epochs if e.exchange is not None]),
    )


def of_all_ranks(every: Sequence[Stats]) -> Stats:
    """Return the sum of what the ranks counted, and of each epoch; times are added up as well."""
    longest = max(len(stats.epochs) for stats in every)
    by_epoch = [[s.epochs[i] for s in every if i < len(s.epochs)] for i in range(longest)]
    return replace(_of_ranks(every), epochs=tuple(map(_of_ranks, by_epoch)))


def _of_ranks(every: Sequence[Stats]) -> Stats:
    exchanged = [stats.exchange for stats in every if stats.exchange is not None]
    return replace(total_of(every), exchange=of_ranks(exchanged))


LOOP = "loop"
PRODUCER = "pyg_direct-producer-"  # names of the producers' threads begin with it
COLOURS = {
    "waiting": "#d1242f",
    "training": "#8c959f",
    "sampling": "#0969da",
    "assembling": "#54aeff",
    "gathering": "#2da44e",
    "transform": "#bf8700",
    "copying": "#8250df",
}


class Event(NamedTuple):
    """A piece of an epoch, in seconds of `time.perf_counter`."""

    lane: str  # `LOOP` for the consumer, else the name of the thread
    stage: str  # one of `COLOURS`
    begin: float
    end: float


def lanes_of(events: Sequence[Event]) -> dict[str, str]:
    """Return the title of each lane, from the top: the loop, then who makes the batches."""
    names = sorted({event.lane for event in events} - {LOOP})
    titles = {
        name: name.replace(PRODUCER, "producer ") if name.startswith(PRODUCER) else "in the loop"
        for name in names
    }
    return {LOOP: "training loop", **titles}


def draw(events: Sequence[Event], title: str, axes: Any) -> None:
    """Draw a lane for the loop and for each producer, with the time from the first event on.

    Args:
        events: of one epoch.
        title: above the picture.
        axes: of matplotlib.
    """
    lanes, origin = lanes_of(events), min(event.begin for event in events)
    for stage, colour in COLOURS.items():
        shown = [event for event in events if event.stage == stage]
        seconds = sum(event.end - event.begin for event in shown)
        label = f"{stage}, {seconds_text(seconds)}"
        for row, lane in enumerate(lanes):
            spans = [(e.begin - origin, e.end - e.begin) for e in shown if e.lane == lane]
            if spans:
                axes.broken_barh(spans, (row - 0.4, 0.8), color=colour, linewidth=0, label=label)
                label = "_"  # which a legend leaves out
    axes.set_yticks(range(len(lanes)), lanes.values())
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of the epoch")
    headline(title, axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=4, frameon=False)


def headline(text: str, axes: Any) -> None:
    """Write a sentence above the picture, in as many lines as it takes."""
    axes.set_title("\n".join(textwrap.wrap(text, 90)), fontsize="medium", loc="left")
