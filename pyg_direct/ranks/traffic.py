"""What ranks exchanged, as `loader.stats()` tells it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, repr=False)
class ExchangeTraffic:
    """What one rank exchanged with the others for batches: its own, and theirs.

    Of the ranks' lists, entry p is about rank p; a rank exchanges nothing with itself.

    Example:
        >>> traffic = ExchangeTraffic(rows=200, remote_rows=50, sent_bytes=(0, 80))
        >>> traffic.remote_row_share, sum(traffic.sent_bytes)
        (0.25, 80)
    """

    collectives: int = 0  # that this rank took part in
    sent_bytes: Sequence[int] = ()
    received_bytes: Sequence[int] = ()
    messages: Sequence[int] = ()  # sent
    waiting_seconds: Sequence[float] = ()
    """How long each rank was blocked in collectives, as it said at the begin of its last window.
    The rank that waits least is the one that the others wait for."""
    requests: int = 0  # frontier nodes of this rank's batches
    remote_requests: int = 0  # of these, whose lists other ranks have
    rows: int = 0  # nodes of this rank's batches whose attributes lie in parts
    remote_rows: int = 0  # of these, whose rows other ranks have
    fetched_rows: int = 0  # that came: once for the batches that are made together
    loaded_rows: int = 0  # that this rank read of its tables, for its own batches and for others
    rows_alone: int = 0
    """Of a cooperative loader: rows that batches of the rank's own would have in the same steps, by
    the first one, which is sampled for that."""
    # What models exchange that are accelerated over cooperative batches of the loader:
    computing_collectives: int = 0
    computing_sent_bytes: Sequence[int] = ()
    computing_received_bytes: Sequence[int] = ()
    computing_waiting_seconds: Sequence[float] = ()
    """How long this rank was blocked in them, and 0 for the others, which do not tell; of all ranks
    in ``stats(all_ranks=True)``."""

    @property
    def remote_row_share(self) -> float:
        """Part of the rows of batches that other ranks have, in [0, 1]."""
        return self.remote_rows / self.rows if self.rows else 0.0

    @property
    def remote_request_share(self) -> float:
        """Part of the frontier nodes whose lists other ranks have, in [0, 1]."""
        return self.remote_requests / self.requests if self.requests else 0.0

    def __repr__(self) -> str:
        """Name what was counted, each in a line of its own."""
        counted = {name: value for name, value in asdict(self).items() if value}
        return "\n".join([f"{type(self).__name__}:", *(f"  {n}: {v}" for n, v in counted.items())])

    def line(self, batches: int) -> str:
        """Return what so many batches exchanged, in one line."""
        each = max(1, batches)
        frontiers = (
            f" and {self.remote_request_share:.0%} of the frontiers" if self.requests else ""
        )
        computing = ""
        if self.computing_collectives:
            waited = ", ".join(f"{seconds:.2f}" for seconds in self.computing_waiting_seconds)
            computing = (
                f"; models received {sum(self.computing_received_bytes) / each / 1e6:.3f} MB a "
                f"batch in {self.computing_collectives / each:.1f} collectives, and waited "
                f"{waited} s"
            )
        needed = (
            f"batches of its own would have {self.rows_alone:,}"
            if self.rows_alone
            else f"{self.rows:,} were needed"
        )
        return (
            f"{sum(self.received_bytes) / each / 1e6:.3f} MB a batch from other ranks in "
            f"{self.collectives / each:.1f} collectives, which have {self.remote_row_share:.0%} "
            f"of the rows{frontiers}; {self.loaded_rows:,} rows loaded where {needed}; "
            f"ranks waited "
            f"{', '.join(f'{seconds:.2f}' for seconds in self.waiting_seconds)} s{computing}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers and lists, for JSON."""
        found = {name: _plain(value) for name, value in asdict(self).items()}
        shares = self.remote_row_share, self.remote_request_share
        return found | dict(zip(("remote_row_share", "remote_request_share"), shares, strict=True))

    def since(self, earlier: ExchangeTraffic) -> ExchangeTraffic:
        """Return what came after `earlier`."""
        return _combined(self, earlier, lambda a, b: a - b)

    def with_computing(
        self, rank: int, traffic: ExchangeTraffic, waited_seconds: float
    ) -> ExchangeTraffic:
        """Return this with what the models of a rank exchanged, and how long it waited there."""
        waiting = [waited_seconds if p == rank else 0.0 for p in range(len(traffic.sent_bytes))]
        return replace(
            self,
            computing_collectives=traffic.collectives,
            computing_sent_bytes=traffic.sent_bytes,
            computing_received_bytes=traffic.received_bytes,
            computing_waiting_seconds=tuple(waiting),
        )

    def plus(self, other: ExchangeTraffic) -> ExchangeTraffic:
        """Return the sum of two times of one rank."""
        return _combined(self, other, lambda a, b: a + b)


def sum_of(every: Sequence[ExchangeTraffic]) -> ExchangeTraffic | None:
    """Return the sum of some times of one rank; None if there are none."""
    return functools.reduce(ExchangeTraffic.plus, every) if every else None


def of_ranks(every: Sequence[ExchangeTraffic]) -> ExchangeTraffic | None:
    """Return the sum of what several ranks counted in the same time.

    What is sent to rank p is then what all have sent to it. Each rank knows how long all waited, so
    that is not added up.
    """
    total = sum_of(every)
    if total is None:
        return None
    waiting = zip(*(traffic.waiting_seconds for traffic in every), strict=True)
    return replace(total, waiting_seconds=tuple(map(max, waiting)))


def _combined(
    one: ExchangeTraffic, other: ExchangeTraffic, change: Callable[[Any, Any], Any]
) -> ExchangeTraffic:
    made: dict[str, Any] = {}
    for name in (field.name for field in fields(ExchangeTraffic)):
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, int):
            made[name] = change(a, b)
        else:
            size = max(len(a), len(b))
            a, b = ([*numbers, *[0] * (size - len(numbers))] for numbers in (a, b))
            made[name] = tuple(map(change, a, b))
    return ExchangeTraffic(**made)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
