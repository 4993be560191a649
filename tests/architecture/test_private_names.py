"""Private names of PyG and torch stand in `core/pyg.py` and `core/private_torch.py` only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pyg_direct"
SOURCES = sorted(PACKAGE.rglob("*.py"))
HOMES = {PACKAGE / "core" / "pyg.py", PACKAGE / "core" / "private_torch.py"}

# What PyG documents: packages, and of `typing` the types of nodes and edges.
PUBLIC = {
    "torch_geometric",
    "torch_geometric.data",
    "torch_geometric.loader",
    "torch_geometric.nn",
    "torch_geometric.nn.models",
    "torch_geometric.sampler",
    "torch_geometric.utils",
}
PUBLIC_TYPES = {"EdgeType", "NodeType"}
# Methods and fields of named tuples, which Python documents.
DOCUMENTED = {"_asdict", "_replace", "_fields", "_field_defaults"}
# Of other packages, or to be moved with the work that is being done on these files.
EXEMPT = {
    "kernels/jit.py": {"_load_overload", "_cache_file"},
    "models/lazy/rules.py": {"_unsafe_view"},
}


def own_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines: functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@cache
def names_of_the_package() -> frozenset[str]:
    found = (own_names(ast.parse(p.read_text())) for p in SOURCES if p not in HOMES)
    return frozenset(name for names in found for name in names)


def private_names(text: str, known: frozenset[str]) -> Iterator[str]:
    """Yield the modules and attributes of others that `text` names, and that are not public."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            special = node.attr.startswith("__")
            if not special and node.attr not in known | DOCUMENTED:
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            owner, *rest = node.module.split(".")
            if owner == "torch" and any(part.startswith("_") for part in rest):
                yield node.module
            typed = node.module == "torch_geometric.typing"
            public = typed and {alias.name for alias in node.names} <= PUBLIC_TYPES
            if owner == "torch_geometric" and node.module not in PUBLIC and not public:
                yield node.module


def test_private_names_are_at_home() -> None:
    known = names_of_the_package()
    found = {
        path.relative_to(PACKAGE).as_posix(): set(private_names(path.read_text(), known))
        for path in SOURCES
        if path not in HOMES
    }
    assert {name: names for name, names in found.items() if names} == EXEMPT, "see core/pyg.py"


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils._pytree import tree_map",
        "from torch_geometric.sampler.base import SubgraphType",
        "from torch_geometric.typing import EdgeType, SparseTensor",
        "fields = store._mapping",
        "pointers = torch._convert_indices_from_coo_to_csr(ids, 3)",
    ],
)
def test_the_check_catches(line: str) -> None:
    assert list(private_names(line, frozenset({"_known"}))) != []
    assert (
        list(private_names("a._known, b._replace(c=1), c.__class__", frozenset({"_known"}))) == []
    )
