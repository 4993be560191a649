"""Batches of one seed are the same in every version: see `data/record_batches.py`."""

from __future__ import annotations

import json

import pytest
from data import record_batches as recorded

EXPECTED = json.loads(recorded.TARGET.read_text())


def test_every_case_is_recorded() -> None:
    assert sorted(EXPECTED) == sorted(recorded.cases() + recorded.family_cases())


@pytest.mark.parametrize("case", recorded.cases())
def test_batches_are_those_recorded(case: str, each_backend: str) -> None:
    assert recorded.recorded(case) == EXPECTED[case]


@pytest.mark.parametrize("case", recorded.family_cases())
def test_batches_of_other_loaders_are_those_recorded(case: str) -> None:
    assert recorded.recorded(case) == EXPECTED[case]


def test_every_case_has_batches_of_its_own() -> None:
    assert len(set(EXPECTED.values())) == len(EXPECTED)
