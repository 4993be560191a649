"""Few instances of the kernels, of which each has something that the others lack."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from pyg_direct.ops.cuda.source import instances


def covering(text: str) -> Iterator[dict[str, str]]:
    """Yield instances in which every two values of two names meet; fewest first found greedily."""

    def meetings(types: Mapping[str, str]) -> set[Any]:
        return set(itertools.combinations(sorted(types.items()), 2)) or {tuple(types.items())}

    every = list(instances(text))
    missing = set().union(*map(meetings, every))
    while missing:
        best = max(every, key=lambda types: len(meetings(types) & missing))
        missing -= meetings(best)
        yield best


def extremes(text: str) -> list[dict[str, str]]:
    """Return two instances that differ in every value; one where there is nothing to choose."""
    first, *rest = instances(text)
    return [first, *rest[-1:]]
