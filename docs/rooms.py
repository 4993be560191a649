"""The picture of the package's rooms, drawn from the table that the architecture test holds."""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

TABLE = Path("tests", "architecture", "test_layers.py")
WIDTH, MARGIN, GAP, PADDING = 920, 8, 6, 8  # pixels
LINE, LETTER = 15, 6.1  # height of a line, mean width of a letter of 11 pixels
ROOM_HEIGHT, LABEL_WIDTH = 2 * PADDING + 3 * LINE, 24
COLUMNS = 4


def floors_of(root: Path) -> list[list[str]]:
    """Return the rooms of each floor, from the bottom up."""
    for node in ast.parse((root / TABLE).read_text()).body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "FLOORS":
            assert node.value is not None
            elements = node.value.elts  # type: ignore[attr-defined]
            return [[key.value for key in floor.keys] for floor in elements]
    raise ValueError(f"{TABLE} has no table FLOORS.")


def purpose(root: Path, room: str) -> str:
    """Return the first line of a room's docstring."""
    folder = root / "pyg_direct" / room
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.splitlines()[0].replace("`", "").rstrip(".")


def draw_rooms(root: Path) -> str:
    """Return an SVG: one row of boxes, or several, for each floor; the highest on top."""
    parts, y = [], MARGIN
    floors = [floor for floor in floors_of(root) if floor != ["face"]]
    for number, floor in reversed(list(enumerate(floors, start=1))):
        rows = [floor[i : i + COLUMNS] for i in range(0, len(floor), COLUMNS)]
        height = len(rows) * (ROOM_HEIGHT + GAP) + GAP
        parts.append(_box(MARGIN, y, WIDTH - 2 * MARGIN, height, "floor"))
        parts.append(_text(MARGIN + PADDING, y + height / 2 + 4, str(number), "name"))
        for across, row in enumerate(rows):
            wide = (WIDTH - 2 * MARGIN - LABEL_WIDTH - GAP) / len(row) - GAP
            for i, room in enumerate(row):
                x = MARGIN + LABEL_WIDTH + GAP + i * (wide + GAP)
                parts.append(
                    _room(
                        x, y + GAP + across * (ROOM_HEIGHT + GAP), wide, room, purpose(root, room)
                    )
                )
        y += height + GAP
    style = (
        "<style>text{font:11px sans-serif;fill:#222}.name{font-weight:bold}"
        ".floor{fill:#eef2f6;stroke:#b8c4d0}.room{fill:#fff;stroke:#5a7fa5}</style>"
    )
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>\n'


def _room(x: float, y: float, width: float, name: str, text: str) -> str:
    lines = _wrapped(text, int((width - 2 * PADDING) / LETTER))[:2]
    parts = [_box(x, y, width, ROOM_HEIGHT, "room"), _text(x + PADDING, y + LINE + 2, name, "name")]
    parts += [
        _text(x + PADDING, y + LINE * (i + 2) + 4, line, "line") for i, line in enumerate(lines)
    ]
    return "".join(parts)


def _wrapped(text: str, letters: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" rx="4"/>'
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'
