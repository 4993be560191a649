"""Every behaviour of PyG's loaders has a test, and that test is there: `surface.py` cannot rot."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

import pytest
from surface import NOT_OFFERED, OTHERS, SIGNATURES, Table

import pyg_direct

TESTS = Path(__file__).parents[1]
TABLES = {f"{module}.{name}": table for (module, name), table in SIGNATURES.items()} | OTHERS


@cache
def marks_by_test(module: str) -> dict[str, set[str]]:
    """Return the marks of every test function of a module; those of the module itself are added."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob(f"test_{module}.py"):
        found |= marks_in(path)
    return found


def marks_in(path: Path) -> dict[str, set[str]]:
    everywhere: set[str] = set()
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            everywhere |= marks(node.value)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found[node.name] = set().union(*map(marks, node.decorator_list), set())
    return {name: own | everywhere for name, own in found.items()}


def marks(expression: ast.expr) -> set[str]:
    """Return X of every `pytest.mark.X` in an expression."""
    return {
        node.attr
        for node in ast.walk(expression)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark"
    }


def problems(table: Table) -> list[str]:
    """Return what is wrong with the tests that a table names."""
    found = []
    for behaviour, tests in table.items():
        if not tests:
            found.append(f"{behaviour}: no test")
        for test in tests:
            module, _, name = test.partition("::")
            known = marks_by_test(module)
            if f"test_{name}" not in known:
                found.append(f"{behaviour}: there is no {test}")
            elif known[f"test_{name}"] & {"skip", "xfail", "gpu", "slow"}:
                found.append(f"{behaviour}: {test} does not always run")
    return found


@pytest.mark.parametrize("table", TABLES)
def test_every_behaviour_has_its_tests(table: str) -> None:
    assert problems(TABLES[table]) == []


@pytest.mark.parametrize(("module", "name"), SIGNATURES)
def test_every_argument_of_pyg_has_a_row(module: str, name: str) -> None:
    theirs = inspect.signature(getattr(importlib.import_module(module), name).__init__)
    missing = set(theirs.parameters) - {"self", "pin_memory_device"} - set(SIGNATURES[module, name])
    assert missing == set()


@pytest.mark.parametrize("name", ["NeighborLoader", "LinkNeighborLoader", "NeighborSampler"])
def test_our_signatures_begin_as_pygs(name: str) -> None:
    """Same names, order and defaults; what we add must be named."""
    module = "sampler" if name == "NeighborSampler" else "loader"
    pyg = getattr(importlib.import_module(f"torch_geometric.{module}"), name)
    theirs = list(inspect.signature(pyg.__init__).parameters.values())
    ours = list(inspect.signature(getattr(pyg_direct, name).__init__).parameters.values())
    positional = [p for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    expected = [p for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == [p.name for p in expected]
    for mine, other in zip(positional, expected, strict=True):
        assert mine.default == getattr(other.default, "value", other.default), mine.name
    added = {p.name for p in ours} - {p.name for p in theirs}
    assert all(p.kind is p.KEYWORD_ONLY for p in ours if p.name in added)


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_is_not_offered_is_not_there(name: str) -> None:
    assert not hasattr(pyg_direct, name)
    assert NOT_OFFERED[name]


def test_the_check_catches() -> None:
    assert problems({"a": ()}) == ["a: no test"]
    assert problems({"a": ("surface::nothing",)}) == ["a: there is no surface::nothing"]
    assert problems({"a": ("nowhere::at_all",)}) == ["a: there is no nowhere::at_all"]
    never = {"a": ("conformance::any_graph",)}
    assert problems(never) == ["a: conformance::any_graph does not always run"]
    assert problems({"a": ("surface::the_check_catches",)}) == []
