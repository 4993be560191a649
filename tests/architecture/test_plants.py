"""What `python -m tests.driver` and `python -m tests.planted` leave out or replace is there."""

from pathlib import Path

import pytest
from driver.plants import PLANTS, Plant

from tests.planted.fault import Fault
from tests.planted.faults import FAULTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_a_plant_has_something_to_leave_out(plant: Plant) -> None:
    text = ROOT.joinpath(*plant.module.split(".")).with_suffix(".py").read_text()
    assert text.count(plant.old) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_has_something_to_replace(fault: Fault) -> None:
    """Where a file changed, its fault in `tests/planted/faults` gets the new text, or goes."""
    assert fault.problem() == ""
    for test in fault.near.split():
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 150
