"""Attributes whose rows lie in the parts of a graph, which several ranks hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .lazy_tensor import LazyTensor
from .private_torch import wrapper_tensor

ROWS = "pyg_direct_rows"  # the attribute of a tensor of ids under which its rows are kept
MOST_PARTS = 1024  # of a graph, and of owners of its rows


class PartedTensor(LazyTensor):
    """An attribute [N, ...] of a partitioned graph. Only batches of loaders have rows of it."""

    key: str

    @staticmethod
    def __new__(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> PartedTensor:
        """Return the attribute `name` of a type."""
        self: PartedTensor = wrapper_tensor(cls, shape, dtype, torch.device("cpu"))
        self.key = name
        return self

    def dense(self) -> Tensor:
        """Refuse: no process holds all rows.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"{self.key!r} of shape {tuple(self.shape)} lies in the parts of a graph, each of "
            f"which one rank holds, so it cannot be computed with as a whole. Batches of "
            f"NeighborLoader and LinkNeighborLoader have its rows."
        )

    def rows_at(self, ids: Tensor) -> Tensor:
        """Return the rows of the ids of a batch, which came with them.

        Raises:
            RuntimeError: other ids than those that were sampled.
        """
        rows = rows_kept_with(ids).get(self.key)
        if rows is None:
            raise RuntimeError(
                f"{self.key!r} lies in the parts of a graph, and its rows come with the ids that "
                f"were sampled: others, such as a transform_sampler_output gives, have none."
            )
        return rows

    def __deepcopy__(self, memo: dict[int, Any]) -> PartedTensor:
        """Return itself, as it never changes."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle what it is called."""
        return PartedTensor, (self.key, tuple(self.shape), self.dtype)


def keep_rows(ids: Tensor, rows: dict[str, Tensor]) -> None:
    """Keep rows of attributes, by name, with the ids that they belong to."""
    setattr(ids, ROWS, rows)


def rows_kept_with(ids: Tensor) -> dict[str, Tensor]:
    """Return the rows that are kept with ids, by the name of the attribute; {} for none."""
    found: dict[str, Tensor] = getattr(ids, ROWS, {})
    return found
