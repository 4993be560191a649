"""One in ten of the planted faults that are cheap to find is noticed by its nearest tests."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.generated import mutants

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_tenth_of_the_faults_is_noticed() -> None:
    """PYG_DIRECT_PLANTED_SEED repeats a choice."""
    seed = os.environ.get("PYG_DIRECT_PLANTED_SEED") or str(random.randrange(10**6))
    command = ["-m", "tests.planted", "--cheap", "--share", "10", "--seed", seed]
    done = subprocess.run(
        [sys.executable, *command, "--stages", "near"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}:\n{done.stdout}\n{done.stderr[-2000:]}"


@pytest.mark.slow
def test_faults_are_made_of_every_operator() -> None:
    """Of a file with one line for each, by the library that CI installs."""
    pytest.importorskip("cosmic_ray", reason="pip install --group mutation")
    text = """\
for i in range(3):
    if not i == 1 and -i < 2 or i + 1 is None:
        continue
    found = True
    note(i, 2)
"""
    made = {(line, operator) for line, operator, _ in mutants(text, {2, 3, 4, 5})}
    assert {operator for _, operator in made} == {
        "AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd",
        "ReplaceBinaryOperator_Add_Sub", "ReplaceComparisonOperator_Eq_NotEq",
        "ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_Is_IsNot",
        "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub",
        "ReplaceContinueWithBreak", "ReplaceTrueWithFalse", "DroppedCall", "SwappedArguments",
    }  # fmt: skip
    assert {line for line, _ in made} == {2, 3, 4, 5}
