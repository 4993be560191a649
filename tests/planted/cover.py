"""Which test functions notice which faults, and the fewest that notice all: a greedy set cover.

    python -m tests.planted.cover RESULTS...  # of --json; adds them to matrix.json
    python -m tests.planted.cover             # lists the functions outside of the cover

A function outside may still be the only one that names a promise, or that notices what no fault of
the matrix does: the list says where to look for tests that repeat others, and not what to delete.
By cross-validation in ten parts of 172 faults, half of them written and half generated, which some
of up to 100 tests notice, the cover of the other nine parts and of 395 earlier faults (267 of 2,802
functions) notices about 57 % of a part; that of half of the 172 alone (65 functions) about 38 % of
the other half. All functions that notice one of the other faults (1,030) notice 84 % at least.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from .fault import ROOT

MATRIX = Path(__file__).with_name("matrix.json")
Matrix = dict[str, Set[str]]
"""The test functions that notice a fault, by its name."""


def cover(matrix: Mapping[str, Set[str]]) -> list[str]:
    """Return few tests that notice all faults of a matrix, those that notice most first.

    Example: {"a": {"x", "y"}, "b": {"y"}, "c": {"z"}} is covered by y and z.
    """
    left, found = {fault for fault, tests in matrix.items() if tests}, list[str]()
    while left:
        count = Counter(test for fault in left for test in matrix[fault])
        best = min(count, key=lambda test: (-count[test], test))
        found.append(best)
        left = {fault for fault in left if best not in matrix[fault]}
    return found


def of_results(lines: Iterable[str]) -> Iterator[tuple[str, Set[str]]]:
    """Yield faults of `--json`, and the functions that noticed them."""
    for line in lines:
        result = json.loads(line)
        by = [name.partition("[")[0] for name in result["by"] if "::" in name]
        if by:
            name = result["name"].removeprefix(f"{result['file']}:").partition(": ")
            generated = name[0].isdigit() and name[2]
            short = f"{name[0]} {name[2].partition(':')[0]}" if generated else result["name"]
            yield f"{result['file']}: {short}", frozenset(by)


def load() -> Matrix:
    """Return the matrix that is kept: by file of the package, with tests by number."""
    if not MATRIX.exists():
        return {}
    data = json.loads(MATRIX.read_text(encoding="utf-8"))
    tests = [f"{file}::{name}" for file, names in data["tests"].items() for name in names]
    return {
        f"{file}: {fault}": frozenset(tests[i] for i in numbers)
        for file, faults in data["faults"].items()
        for fault, numbers in faults.items()
    }


def save(matrix: Mapping[str, Set[str]]) -> None:
    """Keep a matrix: a line for each file of tests, and for each fault."""
    tests = sorted({test for found in matrix.values() for test in found})
    number = {test: i for i, test in enumerate(tests)}
    by_file: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(name)
    faults: dict[str, dict[str, list[int]]] = {}
    for fault in sorted(matrix):
        file, _, name = fault.partition(": ")
        faults.setdefault(file, {})[name] = sorted(number[test] for test in matrix[fault])
    rows = [_lines(by_file), _lines(faults)]
    MATRIX.write_text(
        f'{{"tests": {{\n{rows[0]}\n}}, "faults": {{\n{rows[1]}\n}}}}\n', encoding="utf-8"
    )


def _lines(part: Mapping[str, object]) -> str:
    rows = (
        (json.dumps(file), json.dumps(rest, separators=(",", ":"))) for file, rest in part.items()
    )
    return ",\n".join(f"{file}: {rest}" for file, rest in rows)


def functions() -> Iterator[str]:
    """Yield all test functions of the tree."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            group = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            for function in inside:
                if isinstance(function, ast.FunctionDef) and function.name.startswith("test"):
                    yield f"{file}::{group}{function.name}"


def main(argv: Sequence[str]) -> int:
    """Add results to the matrix, or list what is outside of the cover."""
    matrix, there = load(), set(functions())
    for path in argv:
        matrix.update(of_results(Path(path).read_text(encoding="utf-8").splitlines()))
    matrix = {fault: tests & there for fault, tests in matrix.items() if tests & there}
    if argv:
        save(matrix)
        return 0
    covering, noticing = set(cover(matrix)), set[str]().union(*matrix.values())
    outside = [test for test in functions() if test not in covering]
    for test in outside:
        print(test, "" if test in noticing else "(notices none)")
    print(f"{len(matrix)} faults, noticed by {len(noticing)} functions, cover of {len(covering)}")
    folders = Counter(test.rpartition("/")[0] for test in outside)
    print("\n".join(f"{folder}: {count} outside" for folder, count in sorted(folders.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
