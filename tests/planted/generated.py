"""Faults made by a program from the lines that a commit changed: operators, numbers, calls.

    python -m tests.planted --since COMMIT   # needs: pip install --group mutation

cosmic-ray finds and makes those that change an operator, a number or a constant. Dropped calls and
swapped arguments, which it does not have, are made here. No text is kept: a fault is made anew from
the tree. Those that are known to change no result are in `equivalent.toml`, by what they replace.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .fault import FAULTS, ROOT, Fault, known_equivalent
from .rooms import ROOMS

OPERATORS = tuple(
    f"core/{name}"
    for name in (
        "AddNot",
        "NumberReplacer",
        "ReplaceAndWithOr",
        "ReplaceOrWithAnd",
        "ReplaceBinaryOperator_Add_Sub",
        "ReplaceBinaryOperator_Sub_Add",
        "ReplaceBinaryOperator_Mul_FloorDiv",
        "ReplaceBinaryOperator_FloorDiv_Mul",
        "ReplaceBinaryOperator_Mod_FloorDiv",
        "ReplaceComparisonOperator_Eq_NotEq",
        "ReplaceComparisonOperator_NotEq_Eq",
        "ReplaceComparisonOperator_Lt_LtE",
        "ReplaceComparisonOperator_LtE_Lt",
        "ReplaceComparisonOperator_Gt_GtE",
        "ReplaceComparisonOperator_GtE_Gt",
        "ReplaceComparisonOperator_Is_IsNot",
        "ReplaceComparisonOperator_IsNot_Is",
        "ReplaceFalseWithTrue",
        "ReplaceTrueWithFalse",
        "ReplaceUnaryOperator_Delete_Not",
        "ReplaceUnaryOperator_Delete_USub",
        "ReplaceBreakWithContinue",
        "ReplaceContinueWithBreak",
        "ZeroIterationForLoop",
    )
)
Change = tuple[int, str, str]
"""A line, the operator, and the text of the file with the fault."""


def changed_lines(diff: str) -> dict[str, set[int]]:
    """Return the numbers of the lines that are new or changed, by file.

    Args:
        diff: of ``git diff --unified=0``.

    Example: after ``+++ b/a.py`` the hunk ``@@ -3 +4,2 @@`` says that lines 4 and 5 of a.py are.
    """
    lines: dict[str, set[int]] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line[6:] if line.startswith("+++ b/") else ""
        elif file and (hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + count))
    return {file: found for file, found in lines.items() if found}


def since(commit: str, root: Path = ROOT) -> dict[str, set[int]]:
    """Return the lines of the package that differ from a commit, by file."""
    command = ["git", "diff", "--unified=0", "--no-ext-diff", commit, "--", "pyg_direct"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git knows no commit {commit!r}: {done.stderr.strip()}")
    found = changed_lines(done.stdout)
    return {file: lines for file, lines in found.items() if file.endswith(".py")}


def mutants(text: str, lines: set[int]) -> Iterator[Change]:
    """Yield the faults that can be made in some lines of a file, each of which still compiles."""
    as_it_is = ast.dump(ast.parse(text))
    for line, operator, changed in (*_of_operators(text, lines), *calls_changed(text, lines)):
        try:
            compiles = ast.dump(ast.parse(changed)) != as_it_is
        except SyntaxError:
            continue
        if compiles:
            yield line, operator, changed


def _of_operators(text: str, lines: set[int]) -> Iterator[Change]:
    try:
        from cosmic_ray.ast import Visitor, get_ast
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator
    except ImportError:
        raise SystemExit(
            "--since needs cosmic-ray, which makes the faults: pip install --group mutation"
        ) from None

    class Places(Visitor):  # type: ignore[misc]
        """Lists the lines at which an operator can change something."""

        def __init__(self, operator: object) -> None:
            self.operator: object = operator
            self.lines: list[int] = []

        def visit(self, node: object) -> object:
            found = self.operator.mutation_positions(node)  # type: ignore[attr-defined]
            self.lines += [begin[0] for begin, _ in found]
            return node

    for name in OPERATORS:
        operator = get_operator(name)()
        places = Places(operator)
        places.walk(get_ast(text))
        for occurrence, line in enumerate(places.lines):
            if line in lines:
                yield line, name.partition("/")[2], mutate_code(text, operator, occurrence)


def calls_changed(text: str, lines: set[int]) -> Iterator[Change]:
    """Yield files without one call that stands alone, and with two arguments swapped."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno in lines:
            yield node.lineno, "DroppedCall", _replaced(text, {_span(text, node): "..."})
        if not isinstance(node, ast.Call) or node.lineno not in lines or len(node.args) < 2:
            continue
        first, second = node.args[:2]
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            (a, b), (c, d) = _span(text, first), _span(text, second)
            swapped = {(a, b): text[c:d], (c, d): text[a:b]}
            yield node.lineno, "SwappedArguments", _replaced(text, swapped)


def _span(text: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Return where a node begins and ends, in characters."""
    rows = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, rows))]
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    before = rows[node.lineno - 1].encode()[: node.col_offset].decode()
    until = rows[node.end_lineno - 1].encode()[: node.end_col_offset].decode()
    return starts[node.lineno - 1] + len(before), starts[node.end_lineno - 1] + len(until)


def _replaced(text: str, new: Mapping[tuple[int, int], str]) -> str:
    for (begin, end), piece in sorted(new.items(), reverse=True):
        text = text[:begin] + piece + text[end:]
    return text


def generated(lines_by_file: Mapping[str, Iterable[int]], root: Path = ROOT) -> list[Fault]:
    """Return the faults that can be made in some lines, with the nearest tests of their files."""
    nearest = {fault.file: fault.near_file for fault in reversed(FAULTS)}
    found = []
    for file, lines in sorted(lines_by_file.items()):
        text = (root / file).read_text(encoding="utf-8")
        kept = text.splitlines()
        for line, operator, changed in mutants(text, set(lines)):
            was, now = kept[line - 1].strip(), changed.splitlines()[line - 1].strip()
            name = f"{operator}: {was} -> {now}" if was != now else f"{operator}: {was}"
            fault = Fault(f"{file}:{line}: {name}", file, text, changed, "")
            near = nearest.get(file) or " ".join(ROOMS[fault.room])
            reason = known_equivalent(file, was, operator)
            found.append(fault._replace(near=near, equivalent=reason))
    return found


if __name__ == "__main__":
    for one in generated(since(sys.argv[1])):
        print(one.name)
