"""One fault, and what it replaces; the list of all, which `faults/*.toml` hold by room.

A table is about one file of the tree, and names its nearest tests. Each other entry is a fault:
what stands in the file once, what comes in its place, and, where it has some, its own nearest tests
(`near`), whether they are in the slow set (`slow`), and why no test notices it (`equivalent`)::

    ['pyg_direct/batch/sampled.py']
    near = 'tests/unit/batch/test_ids.py'
    'ids of an empty batch are those of all nodes' = [
        'if len(ids) == 0:',
        'if False:']
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest needs there as well

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
    near_file: str = ""  # the nearest tests of all faults of its file

    @property
    def room(self) -> str:
        """The room of the package, "face" of its outermost modules, or "cuda"."""
        parts = self.file.split("/")
        if len(parts) == 2 and parts[0] != "cuda":
            return "face"
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


FOLDER = Path(__file__).parent


def is_of(name: str, given: str) -> bool:
    """Whether a test is among those that pytest is given: a folder, a file, a function, a case."""
    return name.startswith(given) and (len(name) == len(given) or name[len(given)] in "/:[")


@functools.cache
def equivalents() -> dict[str, list[list[str]]]:
    """Return the generated faults that change no result, by file: operator, line, why."""
    text = (FOLDER / "equivalent.toml").read_text(encoding="utf-8")
    found: dict[str, list[list[str]]] = tomllib.loads(text)["equivalent"]
    return found


def known_equivalent(file: str, line: str, operator: str) -> str:
    """Return why a generated fault in a line of a file changes no result; "" if it may."""
    rows = equivalents().get(file, [])
    return next((why for how, text, why in rows if (how, text) == (operator, line)), "")


def read(folder: Path = FOLDER / "faults") -> list[Fault]:
    """Return the faults of all rooms, those of a file together."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for file, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
            near = {"near": entries["near"], "near_file": entries.pop("near")}
            for name, (old, new, *more) in entries.items():
                found.append(Fault(name, file, old, new, **(near | dict(*more))))
    return found


FAULTS = read()
