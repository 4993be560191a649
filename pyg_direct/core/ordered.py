"""Attributes of nodes whose rows are stored in another order than that of the nodes' ids."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .lazy_tensor import RowTensor, rows_of
from .private_torch import wrapper_tensor


class OrderedTensor(RowTensor):
    """An attribute [N, ...] whose row i lies at ``stored[positions[i]]``.

    The loaders look up the positions of a batch's nodes, and gather the rows there. Rows selected
    by ``x[ids]`` are read the same way; any other computation brings all rows into the order of the
    ids first, and forgets them afterwards.

    Args:
        stored: [N, ...], a plain tensor or a `QuantizedTensor`.
        positions: int64 [N], in [0, N).

    Example: rows that were stored as those of the nodes 2, 0, 1:
        >>> from pyg_direct.core.ordered import OrderedTensor
        >>> stored = torch.tensor([[20.0], [0.0], [10.0]])
        >>> OrderedTensor(stored, torch.tensor([1, 2, 0])).dense()
        tensor([[ 0.],
                [10.],
                [20.]])
    """

    stored: Tensor
    positions: Tensor

    @staticmethod
    def __new__(cls, stored: Tensor, positions: Tensor) -> OrderedTensor:
        """Return the attribute; it keeps both."""
        self: OrderedTensor = wrapper_tensor(cls, stored.shape, stored.dtype, stored.device)
        self.stored, self.positions = stored, positions
        return self

    def dense(self) -> Tensor:
        """Return all rows in the order of the ids."""
        return rows_of(self.stored, self.positions)

    def rows_at(self, index: Any) -> Tensor:
        """Return the rows that an index of the first dimension selects."""
        return rows_of(self.stored, self.positions[index])

    def stored_parts(self) -> dict[str, Tensor | None]:
        """Return what is stored."""
        return {"stored": self.stored, "positions": self.positions}
