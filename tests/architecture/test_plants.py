"""What `python -m tests.driver` and `python -m tests.planted` leave out or replace is there."""

from pathlib import Path

from driver.plants import PLANTS, Plant

from tests.planted.fault import FAULTS

ROOT = Path(__file__).parents[2]


def test_a_plant_has_something_to_leave_out() -> None:
    assert [name for name, plant in PLANTS.items() if times_there(plant) != 1] == []


def times_there(plant: Plant) -> int:
    """Return how often what a plant leaves out stands in its module."""
    return ROOT.joinpath(*plant.module.split(".")).with_suffix(".py").read_text().count(plant.old)


def test_a_fault_has_something_to_replace() -> None:
    """Where a file changed, its fault in `planted/faults/*.toml` gets the new text, or goes."""
    problems = {fault.name: fault.problem() for fault in FAULTS}
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_the_nearest_tests_of_a_fault_are_there() -> None:
    near = {test for fault in FAULTS for test in fault.near.split()}
    assert [test for test in sorted(near) if not is_there(test)] == []


def is_there(test: str) -> bool:
    """Return whether a file has a test, whose parameters are left aside."""
    file, _, name = test.partition("::")
    path, function = ROOT / file, name.partition("[")[0].split("::")[-1]
    return path.exists() and (not function or f"def {function}(" in path.read_text("utf-8"))


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 150
