"""Every argument of PyG's loaders and every name in `surface.py` has a test that always runs."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

from surface import BEHAVIOURS, SIGNATURES
from versions import LACKING

TESTS = Path(__file__).parents[1]
NOT_ALWAYS = {"skip", "xfail", "gpu", "slow"}


def arguments_of(module: str, name: str) -> set[str]:
    signature = inspect.signature(getattr(importlib.import_module(module), name).__init__)
    return set(signature.parameters) - {"self", "pin_memory_device"}


NAMES = set(BEHAVIOURS).union(*(arguments_of(*signature) for signature in SIGNATURES))


def marks(expression: ast.expr) -> set[str]:
    """Return X of every `pytest.mark.X` in an expression."""
    return {
        node.attr
        for node in ast.walk(expression)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark"
    }


def named_by(decorator: ast.expr) -> set[str]:
    """Return the arguments of a decorator `pytest.mark.pyg(...)`; nothing of others."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.pyg":
        return {ast.literal_eval(argument) for argument in decorator.args}
    return set()


def names_in(text: str) -> set[str]:
    """Return the names that the tests of a module carry, of those tests that always run."""
    everywhere: set[str] = set()
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            everywhere |= marks(node.value)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            own = everywhere.union(*map(marks, node.decorator_list))
            if not own & NOT_ALWAYS:
                found.update(*map(named_by, node.decorator_list))
    return found


def test_every_behaviour_has_a_test() -> None:
    tested = set().union(*(names_in(path.read_text()) for path in TESTS.rglob("test_*.py")))
    assert sorted(NAMES - tested) == [], "no test carries them and always runs"
    assert sorted(tested - NAMES - LACKING) == [], "what is unknown to PyG and surface.py"


def test_the_check_catches() -> None:
    test = "def test_x(): ..."
    assert names_in(f"@pytest.mark.pyg('a', 'b')\n{test}") == {"a", "b"}
    assert names_in(test) == set()
    assert names_in(f"@pytest.mark.slow\n@pytest.mark.pyg('a')\n{test}") == set()
    assert names_in(f"pytestmark = pytest.mark.gpu\n@pytest.mark.pyg('a')\n{test}") == set()
