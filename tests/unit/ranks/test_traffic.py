"""What ranks exchanged: differences, and sums over times and ranks."""

from __future__ import annotations

from pyg_direct.ranks.traffic import ExchangeTraffic, of_ranks, sum_of

EARLY = ExchangeTraffic(collectives=2, sent_bytes=(0, 3), waiting_seconds=(1.0, 2.0), rows=4)
LATE = ExchangeTraffic(
    collectives=5, sent_bytes=(0, 9), waiting_seconds=(1.5, 2.0), rows=10, remote_rows=3
)


def test_an_epoch_is_the_difference() -> None:
    between = LATE.since(EARLY)
    assert (between.collectives, between.rows, between.remote_row_share) == (3, 6, 0.5)
    assert (between.sent_bytes, between.waiting_seconds) == ((0, 6), (0.5, 0.0))
    assert sum_of([EARLY, between]) == LATE
    assert LATE.since(ExchangeTraffic()) == LATE  # before ranks had met
    assert sum_of([]) is None


def test_what_each_waited_is_known_to_all() -> None:
    of_all = of_ranks([EARLY, LATE])
    assert of_all is not None
    assert (of_all.rows, of_all.sent_bytes) == (14, (0, 12))
    assert of_all.waiting_seconds == (1.5, 2.0)
    assert of_ranks([]) is None
    assert LATE.as_dict()["sent_bytes"] == [0, 9]
