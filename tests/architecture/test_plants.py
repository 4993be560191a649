"""What `python -m tests.driver` leaves out in turn is still in the package."""

from pathlib import Path

import pytest
from driver.plants import PLANTS, Plant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_a_plant_has_something_to_leave_out(plant: Plant) -> None:
    text = ROOT.joinpath(*plant.module.split(".")).with_suffix(".py").read_text()
    assert text.count(plant.old) == 1
