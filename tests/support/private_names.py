"""Checks of the names that another library may change without notice."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

Check = Callable[[], None]


class Checks(dict[str, Check]):
    """A check for each name of a module."""

    def of(self, *names: str) -> Callable[[Check], Check]:
        """Register a check of some names; a later one would replace it, so there is none."""

        def register(function: Check) -> Check:
            assert self.keys().isdisjoint(names), names
            self.update(dict.fromkeys(names, function))
            return function

        return register


def names_in(module: Any) -> set[str]:
    """Return what other modules may import from `module`."""
    found: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname for alias in node.names if alias.asname is not None}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found.add(ast.unparse(target))
    return found
