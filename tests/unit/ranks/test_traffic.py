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


def test_waiting_times_of_all_ranks_are_listed() -> None:
    of_all = of_ranks([EARLY, LATE])
    assert of_all is not None
    assert (of_all.rows, of_all.sent_bytes) == (14, (0, 12))
    assert of_all.waiting_seconds == (1.5, 2.0)
    assert of_ranks([]) is None
    assert LATE.as_dict()["sent_bytes"] == [0, 9]


def test_shares_are_of_rows_and_of_frontiers() -> None:
    found = ExchangeTraffic(rows=10, remote_rows=3, requests=4, remote_requests=2).as_dict()
    assert (found["remote_row_share"], found["remote_request_share"]) == (0.3, 0.5)
    assert ExchangeTraffic().as_dict()["remote_request_share"] == 0.0


def test_waiting_of_models_is_added_to_its_rank() -> None:
    models = ExchangeTraffic(collectives=3, sent_bytes=(8, 0), received_bytes=(4, 0))
    both = LATE.with_computing(1, models, 0.25)
    assert both.computing_waiting_seconds == (0.0, 0.25)
    assert (both.computing_collectives, both.computing_sent_bytes) == (3, (8, 0))
    assert both.sent_bytes == LATE.sent_bytes


def test_traffic_is_printed_line_by_line() -> None:
    traffic = ExchangeTraffic(collectives=3, sent_bytes=(0, 80))
    assert repr(traffic) == "ExchangeTraffic:\n  collectives: 3\n  sent_bytes: (0, 80)"
