"""What is done of a conversion, on disk, so that it can go on after any interruption."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..directory import sync_directory

STATE = "state.json"
VERSION = 1


class Journal:
    """Values of finished steps, kept in a file that is replaced as a whole.

    Args:
        folder: where the file is.
        inputs: what the conversion depends on: nested dicts and lists of what JSON can hold.

    Raises:
        ValueError: the folder holds a conversion of other inputs; the difference is named.
    """

    def __init__(self, folder: Path, inputs: Any) -> None:
        self._path = folder / STATE
        self._content: dict[str, Any] = {"version": VERSION, "inputs": inputs, "steps": {}}
        if not self._path.exists():
            self._write()
            return
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            known = {name: found[name] for name in ("version", "inputs")}
            dict(found["steps"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged ({error}). {_remedy(folder)}") from None
        other = difference({"version": VERSION, "inputs": inputs}, known)
        if other:
            raise ValueError(
                f"{folder} holds an unfinished conversion of something else: {other}. "
                f"{_remedy(folder)}"
            )
        self._content = found

    def get(self, step: str) -> Any:
        """Return what was recorded for a step, None if nothing was."""
        return self._content["steps"].get(step)

    def record(self, step: str, value: Any) -> None:
        """Have `value` on disk as that of `step`.

        Raises:
            OSError: it cannot be written; what was recorded before is still there.
        """
        self._content["steps"][step] = value
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(self._content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
        sync_directory(self._path.parent)


def _remedy(folder: Path) -> str:
    return f"Give the same files and options again, or remove {folder} to start anew."


def difference(now: Any, before: Any, name: str = "") -> str:
    """Say where two values differ first, "" if they do not."""
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        for key in [*now, *before]:
            path = f"{name}.{key}" if name else str(key)
            if key not in now or key not in before:
                return f"{path} was {'not ' if key not in before else ''}given then"
            if found := difference(now[key], before[key], path):
                return found
        return ""
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = enumerate(zip(now, before, strict=True))
        return next((d for i, (a, b) in pairs if (d := difference(a, b, f"{name}[{i}]"))), "")
    return "" if now == before else f"{name} is {now!r}, and was {before!r}"
