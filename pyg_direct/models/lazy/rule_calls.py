"""What a rule of `row_rules` reads, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ...core.private_torch import tree_leaves

Seen = Callable[[Tensor], tuple[Tensor, "int | None"]]


class Mixes(Exception):  # noqa: N818 (not an error: the operation runs on whole tables)
    """Rows are not known to stay apart."""


class Verdict(NamedTuple):
    """What a rule says.

    Attributes:
        out: dimension of the rows in every tensor of the result, or one for each.
        given: as in `Apart`, of what is not a table. `rules.keeps_rows` adds the tables.
        sizes: as in `Apart`.
    """

    out: int | tuple[int | None, ...]
    given: Mapping[str, Any] = {}
    sizes: tuple[tuple[str, int | None], ...] = ()


class Call:
    """The arguments of a call by name, tensors as meta tensors.

    Attributes:
        rows: of the arguments with tables, the dimension of the rows; of a list, one for each.
        num_rows: their number of rows; 0 if there are none, or several different numbers.
        out: the result.
    """

    out: Any

    def __init__(self, given: Mapping[str, Any], seen: Seen) -> None:
        self.given: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}
        counts: set[int] = set()
        for name, value in given.items():
            many = isinstance(value, (list, tuple))
            found = [seen(v) if isinstance(v, Tensor) else (v, None) for v in listed(value)]
            counts.update(meta.size(row) for meta, row in found if row is not None)
            metas, rows = [meta for meta, _ in found], [row for _, row in found]
            self.given[name] = metas if many else metas[0]
            if any(row is not None for row in rows):
                self.rows[name] = rows if many else rows[0]
        self.num_rows = counts.pop() if len(counts) == 1 else 0

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name)

    @property
    def first(self) -> Tensor:
        """The first tensor of the result."""
        return next(v for v in tree_leaves(self.out) if isinstance(v, Tensor))

    def only(self) -> tuple[Tensor, int]:
        """Return the one table, and the dimension of its rows."""
        if len(self.rows) != 1:
            raise Mixes
        ((name, row),) = self.rows.items()
        if isinstance(row, list):
            raise Mixes
        return self.given[name], row

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensor arguments that are not in lists."""
        yield from ((n, v) for n, v in self.given.items() if isinstance(v, Tensor))


def listed(value: Any) -> Any:
    """Return a list of what a parameter takes: one value, or several."""
    return value if isinstance(value, (list, tuple)) else [value]
