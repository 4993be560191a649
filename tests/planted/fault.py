"""One fault, and what it replaces."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Fault(NamedTuple):
    """A mistake that somebody could make, as an exact replacement in one file.

    Its nearest tests are run first, then those of its room. A fault that no test can notice, as
    every result stays what it was, says why it is `equivalent`.
    """

    name: str  # what a user would suffer
    file: str  # from the root of the tree
    old: str  # stands there once
    new: str
    near: str  # what pytest is given for the nearest tests
    slow: bool = False  # whether the nearest tests are in the slow set
    equivalent: str = ""

    @property
    def room(self) -> str:
        """The room of the package, or "cuda"."""
        parts = self.file.split("/")
        if parts[0] == "cuda":
            return "cuda"
        return "/".join(parts[1:-1]) if parts[1] == "ops" else parts[1]

    def problem(self, root: Path = ROOT) -> str:
        """Return why the fault cannot be planted in a tree, "" if it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} is not there"
        if self.old == self.new:
            return "it changes nothing"
        count = path.read_text(encoding="utf-8").count(self.old)
        return "" if count == 1 else f"its text is {count} times in {self.file}"
