"""Faults made by a program from the lines that a commit changed: operators, numbers, calls.

    python -m tests.planted --since COMMIT   # needs: pip install --group mutation

cosmic-ray finds and makes those that change an operator, a number or a constant. Dropped calls and
swapped arguments, which it does not have, are made here. No text is kept: a fault is made anew from
the tree. Those that are known to change no result are in `equivalent.toml`, by what they replace.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
# Calls whose first two arguments have no order.
SYMMETRIC = {"min", "max", "minimum", "maximum", "gcd", "equal", "array_equal"}
Span = tuple[int, int]
"""Where a piece of a text begins and ends, in characters."""
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


def mutants(text: str, lines: set[int]) -> list[Change]:
    """Return the faults that can be made in some lines of a file, each of which still compiles."""
    made = [(place.line, place.operator, place.make(text)) for place in places(text, lines)]
    return [change for change in made if _differs(text, change[2])]


class Place(NamedTuple):
    """Where a fault can be made in a file."""

    line: int
    operator: str
    make: Callable[[str], str]  # from the text of the file to that with the fault


def places(text: str, lines: set[int]) -> list[Place]:
    """Return where faults can be made in some lines of a file."""
    return [*_of_operators(text, lines), *calls(text, lines)]


def _of_operators(text: str, lines: set[int]) -> Iterator[Place]:
    try:
        from cosmic_ray.ast import Visitor, get_ast
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator
    except ImportError:
        raise SystemExit(
            "--since needs cosmic-ray, which makes the faults: pip install --group mutation"
        ) from None
    operators = {name: get_operator(name)() for name in OPERATORS}
    met: dict[str, list[int]] = {name: [] for name in OPERATORS}

    class Places(Visitor):  # type: ignore[misc]
        """Notes the lines at which each operator can change something."""

        def visit(self, node: object) -> object:
            for name, operator in operators.items():
                met[name] += [begin[0] for begin, _ in operator.mutation_positions(node)]
            return node

    Places().walk(get_ast(text))
    for name, at in met.items():
        for occurrence, line in enumerate(at):
            if line in lines:
                make = partial(mutate_code, operator=operators[name], occurrence=occurrence)
                yield Place(line, name.partition("/")[2], make)


def calls(text: str, lines: set[int]) -> Iterator[Place]:
    """Yield where a call that stands alone can be dropped, or two arguments swapped."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno in lines:
            yield Place(
                node.lineno, "DroppedCall", partial(_replaced, new={_span(text, node): "..."})
            )
        if not isinstance(node, ast.Call) or node.lineno not in lines or len(node.args) < 2:
            continue
        first, second = node.args[:2]
        if getattr(node.func, "attr", getattr(node.func, "id", "")) in SYMMETRIC:
            continue
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            (a, b), (c, d) = _span(text, first), _span(text, second)
            swapped = {(a, b): text[c:d], (c, d): text[a:b]}
            yield Place(node.lineno, "SwappedArguments", partial(_replaced, new=swapped))


def _span(text: str, node: ast.expr | ast.stmt) -> Span:
    """Return where a node begins and ends, in characters."""
    rows = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, rows))]
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    before = rows[node.lineno - 1].encode()[: node.col_offset].decode()
    until = rows[node.end_lineno - 1].encode()[: node.end_col_offset].decode()
    return starts[node.lineno - 1] + len(before), starts[node.end_lineno - 1] + len(until)


def _replaced(text: str, new: Mapping[Span, str]) -> str:
    for (begin, end), piece in sorted(new.items(), reverse=True):
        text = text[:begin] + piece + text[end:]
    return text


def generated(
    lines_by_file: Mapping[str, set[int]], share: int = 1, seed: int = 0, root: Path = ROOT
) -> list[Fault]:
    """Return one in `share` of the faults that can be made in some lines, drawn at random.

    Their nearest tests are those of their files in the list, else those of their rooms.
    """
    nearest = {fault.file: fault.near_file for fault in reversed(FAULTS)}
    texts = {file: (root / file).read_text(encoding="utf-8") for file in sorted(lines_by_file)}
    every = [(file, p) for file, text in texts.items() for p in places(text, lines_by_file[file])]
    drawn = random.Random(seed).sample(range(len(every)), -(-len(every) // share))
    found = []
    for file, place in (every[i] for i in sorted(drawn)):
        text = texts[file]
        changed = place.make(text)
        if not _differs(text, changed):
            continue
        line, operator, _ = place
        was, now = text.splitlines()[line - 1].strip(), changed.splitlines()[line - 1].strip()
        name = f"{file}:{line}: {operator}: {was} -> {now}"
        fault = Fault(name, file, text, changed, "")
        near = nearest.get(file) or " ".join(ROOMS[fault.room])
        found.append(fault._replace(near=near, equivalent=known_equivalent(file, was, operator)))
    return found


def _differs(text: str, changed: str) -> bool:
    """Whether a changed file still compiles, to something else."""
    try:
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False
