"""Count the lines of code of the package, by room.

    python tests/architecture/weight.py

A line of code has a token other than a comment, and does not belong to a string that is a statement
of its own, such as a docstring.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pyg_direct"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def lines_of_code(text: str) -> int:
    """Return how many lines of a Python file are code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None) if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            lines.difference_update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return len(lines)


def rooms(package: Path = PACKAGE) -> dict[str, tuple[int, int]]:
    """Return files and lines of code of each room; modules beside the folders are the face."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else "face"
        files[room] += 1
        lines[room] += lines_of_code(path.read_text())
    return {room: (files[room], lines[room]) for room in sorted(files)}


def main() -> None:
    """Print a line for each room, and the sum."""
    found = rooms()
    for room, (files, lines) in found.items():
        print(f"{room:<10}{files:>5} files{lines:>8,} lines")
    print(f"{'all':<10}{sum(f for f, _ in found.values()):>5} files", end="")
    print(f"{sum(n for _, n in found.values()):>8,} lines")


if __name__ == "__main__":
    main()
