"""How large and how deep the package may be. Each number is what is there, and only goes down."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import LinkNeighborLoader, NeighborLoader

from .test_layers import PACKAGE, SOURCES, module_of, own_imports, room_of, tree_of
from .walk import Walk, walk
from .weight import lines_of_code, rooms

# Lines of code, by room and in all.
MOST_LINES = {
    "batch": 1036,
    "core": 1279,
    "exchange": 1324,
    "face": 132,
    "files": 4393,
    "graph": 1132,
    "kernels": 3436,
    "loaders": 1622,
    "loading": 3520,
    "models": 6526,
    "ops": 5516,
    "ranks": 1284,
    "sampling": 1097,
    "tools": 2750,
}
MOST_FILES = 252
LONGEST_CHAIN, LONGEST_CHAIN_IN_A_ROOM = 20, 11
# Files below 60 lines of code that one other file imports.
MOST_SMALL_FILES = 6
SMALL = 60
# Calls of functions of the package, files, returns; see `walk`.
MOST_CALLS = {
    "batch": Walk(59, 24, 17),
    "link batch": Walk(90, 30, 28),
    "second loader": Walk(224, 30, 72),
}
WIDEST = 20  # parameters of a function outside of kernels
# Uses of `Any`, which hides from mypy what an attribute is, by room.
MOST_ANY = {
    "batch": 124,
    "core": 114,
    "exchange": 69,
    "face": 1,
    "files": 96,
    "graph": 68,
    "kernels": 142,
    "loaders": 145,
    "loading": 286,
    "models": 667,
    "ops": 84,
    "ranks": 97,
    "sampling": 78,
    "tools": 117,
}


def test_rooms_have_no_more_code() -> None:
    found = {room: lines for room, (_, lines) in rooms().items()}
    assert {room: n for room, n in found.items() if n > MOST_LINES[room]} == {}


def test_there_are_no_more_files() -> None:
    assert sum(path.name != "__init__.py" for path in SOURCES) <= MOST_FILES


def chain(of: Callable[[str], bool] = lambda _: True) -> int:
    """Return how many files the longest chain of imports has, among some modules."""
    imports = own_imports()

    @functools.cache
    def depth(module: str) -> int:
        return 1 + max((depth(other) for other in imports.get(module, ()) if of(other)), default=0)

    return max(depth(module) for module in imports if of(module))


def test_chains_of_imports_are_no_longer() -> None:
    assert chain() <= LONGEST_CHAIN
    in_rooms = {
        room: chain(lambda module, room=room: room_of(module) == room)  # type: ignore[misc]
        for room in MOST_LINES
        if room != "face"
    }
    assert {room: n for room, n in in_rooms.items() if n > LONGEST_CHAIN_IN_A_ROOM} == {}


def test_small_files_with_one_importer_are_no_more() -> None:
    importers = Counter(other for others in own_imports().values() for other in others)
    small = [
        module_of(path)
        for path in SOURCES
        if path.name != "__init__.py"
        and importers[module_of(path)] == 1
        and lines_of_code(path.read_text()) < SMALL
    ]
    assert len(small) <= MOST_SMALL_FILES, small


def test_functions_take_no_more_parameters() -> None:
    wide = [
        f"{module_of(path)}.{node.name}"
        for path in SOURCES
        if room_of(module_of(path)) != "kernels"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
        and len(node.args.args) + len(node.args.kwonlyargs) > WIDEST
    ]
    assert wide == ["sampling.sampler.__init__"]


def test_any_is_used_no_more() -> None:
    found: Counter[str] = Counter()
    for path in SOURCES:
        names = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name))
        found[room_of(module_of(path))] += sum(name.id == "Any" for name in names)
    assert {room: n for room, n in found.items() if n > MOST_ANY[room]} == {}


@pytest.fixture(scope="module")
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(2000, 16, generator=generator),
        y=torch.randint(5, (2000,), generator=generator),
        edge_index=torch.randint(2000, (2, 20_000), generator=generator),
    )


def third_batch(loader: Any) -> Walk:
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    return walk(lambda: next(batches))[0]


def test_walks_are_no_longer(data: Data) -> None:
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 0}
    first = NeighborLoader(data, [10, 5], **options)
    links = LinkNeighborLoader(data, [10, 5], neg_sampling="binary", **options)
    found = {
        "batch": third_batch(first),
        "link batch": third_batch(links),
        "second loader": walk(lambda: NeighborLoader(data, [10, 5], **options))[0],
    }
    longer = {
        name: (counts, MOST_CALLS[name])
        for name, counts in found.items()
        if any(have > most for have, most in zip(counts, MOST_CALLS[name], strict=True))
    }
    assert longer == {}


def test_a_longer_walk_is_noticed() -> None:
    """The counts are of functions of the package alone."""
    counts, value = walk(lambda: module_of(PACKAGE / "core" / "units.py"))
    assert (counts.calls, value) == (0, "core.units")
    assert walk(lambda: repr(NeighborLoader))[0] == Walk(0, 0, 0)
