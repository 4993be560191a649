"""Rounds in which all ranks make the same step, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from .channel import CLOSED, Channel, RankWord
from .rounds import Rounds, _Request

STEP_BITS = 32
NOTHING = -1  # the step of a rank that asks for none


class StepRounds(Rounds):
    """Makes a step when the loops of all ranks ask for it.

    Where several threads ask, the earliest step is what a rank asks for. What an iterator asked for
    that is gone is dropped. A rank that asks for a step longer than the channel's timeout, while
    not all others do, ends the rounds on all ranks, as does one that ends or has no loader any
    more while another asks.

    Args:
        channel: to the other ranks.
        make: makes the batch of a step; see `Rounds`.
    """

    def __init__(self, channel: Channel, make: Callable[[list[Any]], list[Any]]) -> None:
        super().__init__(channel, make, window=1)
        self._asked_since: tuple[int, float] | None = None  # a step, and when it was asked for
        self._heard: Sequence[RankWord] = ()  # what the ranks said last
        self._linger_seconds = 0.0  # nobody can make a step without this rank

    def _fill(self, window: list[_Request], pause: float) -> None:
        """Put the earliest step that is asked for into the window; nothing if there is none."""
        held = self._held
        held += window
        # A round with a step in the window came to nothing, so others are waited for.
        seconds = 0.0 if held and not window else pause
        while (request := self._next_request(seconds)) is not None:
            held.append(request)
            seconds = 0.0
        for request in [request for request in held if self._is_stale(request.asked.key.ticket)]:
            held.remove(request)
            request.done.put((None, "Another iteration of this loader has begun."))
        window[:] = [min(held, key=_number)] if held else []
        for request in window:
            held.remove(request)
        self._watch(self._step(window))

    def _step(self, window: list[_Request]) -> int:
        """Return the number of a step, over all epochs."""
        return _number(window[0]) if window else NOTHING

    def _watch(self, step: int) -> None:
        """Fail if this rank has asked for one step for too long."""
        if step == NOTHING:
            self._asked_since = None
        elif self._asked_since is None or self._asked_since[0] != step:
            self._asked_since = step, monotonic()
        elif monotonic() > self._asked_since[1] + self._channel.timeout_seconds:
            others = [
                f"rank {p} asks for {_named(word.step)}"
                for p, word in enumerate(self._heard)
                if word.step != step
            ]
            self._failure = self._failure or (
                f"It has asked for {_named(step)} for {self._channel.timeout_seconds:g} s, which "
                f"all ranks make together, and {', '.join(others) or 'others did not answer'}. "
                f"Each rank must take the same steps; timeout= sets how long they wait."
            )

    def _end(self, every: Sequence[RankWord]) -> str | None:
        """Return why no rank can go on, which all ranks find alike."""
        self._heard = every
        statuses = [word.status for word in every]
        asks = any(word.step != NOTHING for word in every)
        if CLOSED in statuses and asks:
            return f"Rank {statuses.index(CLOSED)} has no such loader any more, and others ask it."
        return super()._end(every)


def _number(request: _Request) -> int:
    key = request.asked.key
    return int(key.epoch << STEP_BITS | key.step)


def _named(step: int) -> str:
    if step == NOTHING:
        return "none"
    return f"step {step & (1 << STEP_BITS) - 1} of epoch {step >> STEP_BITS}"
