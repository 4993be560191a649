"""The timeline of an epoch: what was recorded of it, and its picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.units import seconds_text

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
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of the epoch")
    headline(title, axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=4, frameon=False)


def headline(text: str, axes: Any) -> None:
    """Write a sentence above the picture, in as many lines as it takes."""
    axes.set_title("\n".join(textwrap.wrap(text, 90)), fontsize="medium", loc="left")
