"""On which batches a step on the needed rows pays."""

from __future__ import annotations

# What such a step costs more in Python, for a batch and for each operation of the forward. The unit
# is what the plain model spends on an entry of a message (edges times columns). From times of steps
# with one CPU thread, at the sizes where both ways take as long: docs/guides/training.md has them.
COST_OF_BATCH, COST_OF_CALL = 200_000, 12_000
PRODUCTS_PER_ENTRY = 1000  # products of two numbers in a dense matrix product that take as long


class StepCosts:
    """What the last step on the needed rows has shown of a model.

    Nothing but the time depends on it.
    """

    def __init__(self) -> None:
        self._columns: float | None = None  # entries for each edge
        self._calls = 0

    def learn(self, num_edges: int, entries: int, calls: int, products: int) -> None:
        """Take the numbers of a step.

        Args:
            num_edges: of the batch.
            entries: of all messages that its forward sums up.
            calls: operations of torch in its forward.
            products: of two numbers, in products of its rows with dense matrices.
        """
        if num_edges > 0:
            entries += products // PRODUCTS_PER_ENTRY
            self._columns, self._calls = entries / num_edges, calls

    def pay(self, num_edges: int) -> bool:
        """Whether a step on the needed rows is expected to be faster than one of the plain model.

        The first step is taken on the needed rows, as nothing is known before.
        """
        if self._columns is None:
            return True
        return self._columns * num_edges >= COST_OF_BATCH + COST_OF_CALL * self._calls
