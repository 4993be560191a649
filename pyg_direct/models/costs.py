"""How a layer of a trimmed model is called, and on which batches the calls pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

# How a layer is called, the cheapest first:
# * product: a sparse product on a prefix of the CSR matrix, with (source rows, destination rows);
# * square product: the same for a layer that takes one x for both ends;
# * gcn: a sparse product whose degrees are those of the whole batch;
# * pair: on trimmed edges with (source rows, destination rows);
# * square: on trimmed edges with the source rows for both ends;
# * whole: on the whole batch, as its rows depend on more than their own edges.
Form: TypeAlias = Literal["product", "square product", "gcn", "pair", "square", "whole"]

# What a trimmed step costs more in Python, and what it saves of each entry of a message (edges
# times columns). The unit is what the plain model spends on an entry. From times of steps with one
# CPU thread, at the sizes where both ways take as long: docs/guides/training.md has them.
COST_OF_BATCH, COST_OF_LAYER = 46_000, 2_000
SAVED: dict[Form, float] = {
    "product": 1.0, "square product": 1.0, "gcn": 3.0, "pair": 0.6, "square": 0.6, "whole": 0.0,
}  # fmt: skip


class StepCosts:
    """What the layers of a model cost and save in a step."""

    def __init__(self) -> None:
        self._cost = float(COST_OF_BATCH)
        self._saved: dict[Any, float] = {}  # by each edge of a type

    def add(self, edge_types: Sequence[Any], form: Form, columns: int) -> None:
        """Add a call of a layer on some edge types, with messages of so many columns."""
        self._cost += COST_OF_LAYER
        for key in edge_types:
            self._saved[key] = self._saved.get(key, 0.0) + SAVED[form] * columns

    def pay(self, num_edges: Callable[[Any], int]) -> bool:
        """Whether a step is faster than one of the plain model.

        Args:
            num_edges: called with an edge type, returns how many edges a batch has of it.
        """
        saved = sum(part * num_edges(key) for key, part in self._saved.items())
        return saved >= self._cost
