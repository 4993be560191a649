"""Tensors that exist only when something computes with them: reordered rows, rows in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .private_torch import tree_map_only, wrapper_tensor


class LazyTensor(Tensor):
    """A tensor in another form, which the loaders know how to read.

    Any other computation makes a plain tensor of it first, and forgets that afterwards. It is never
    written to.
    """

    def dense(self) -> Tensor:
        """Return a plain tensor with its elements."""
        raise NotImplementedError

    def selected(self, func: Callable[..., Any], args: Sequence[Any]) -> Tensor | None:
        """Return the result of an operation that does not need all elements, else None."""
        return None

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute on plain tensors."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten.alias.default:  # such as x[:], for which torch refuses x itself
            return _again(args[0])
        if args and isinstance(args[0], LazyTensor):
            result = args[0].selected(func, args[1:])
            if result is not None:
                return result
        plain: Any = tree_map_only(LazyTensor, lambda lazy: lazy.dense(), (args, kwargs or {}))
        return func(*plain[0], **plain[1])

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Say what it is, without making it."""
        return f"{type(self).__name__}(size={tuple(self.shape)})"

    def numpy(self, *, force: bool = False) -> Any:
        """Return its elements as an array."""
        return self.dense().numpy()

    def tolist(self) -> Any:
        """Return its elements as lists."""
        return self.dense().tolist()


def _again(lazy: LazyTensor) -> LazyTensor:
    """Return another object that is made of the same."""
    other: LazyTensor = wrapper_tensor(type(lazy), tuple(lazy.shape), lazy.dtype, lazy.device)
    other.__dict__.update(lazy.__dict__)
    return other


class RowTensor(LazyTensor):
    """A `LazyTensor` of which some rows can be made without the others, from what it stores."""

    def stored_parts(self) -> dict[str, Tensor | None]:
        """Return what it is made of: the arguments of its class, by name."""
        raise NotImplementedError

    def rows_at(self, index: Any) -> Tensor:
        """Return the rows that an index of the first dimension selects."""
        raise NotImplementedError

    def selected(self, func: Callable[..., Any], args: Sequence[Any]) -> Tensor | None:
        """Return the rows that an index or a slice selects; None for other operations."""
        aten = torch.ops.aten
        if func is aten.index.Tensor and len(args[0]) == 1 and args[0][0] is not None:
            return self.rows_at(args[0][0])
        if func is aten.index_select.default and args[0] in (0, -self.dim()):
            return self.rows_at(args[1])
        if func is aten.slice.Tensor and (not args or args[0] == 0):
            return self.rows_at(slice(*(list(args[1:]) + [None] * 3)[:3]))
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> RowTensor:
        """Return a copy of its own."""
        return type(self)(*copy.deepcopy(list(self.stored_parts().values()), memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle what is stored."""
        return type(self), tuple(self.stored_parts().values())

    def share_memory_(self) -> RowTensor:
        """Move what is stored to shared memory."""
        for part in self.stored_parts().values():
            if part is not None:
                part.share_memory_()  # type: ignore[no-untyped-call]
        return self


def rows_of(table: Tensor, index: Tensor | slice) -> Tensor:
    """Return rows of a table, also of a `RowTensor`; in inference mode, too."""
    return table.rows_at(index) if isinstance(table, RowTensor) else table[index]


class OrderedTensor(RowTensor):
    """An attribute [N, ...] whose row i is ``stored[positions[i]]``.

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


KEPT_ROWS = "pyg_direct_rows"  # the attribute of a tensor of ids under which its rows are kept
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
            f"{self.key!r} of shape {tuple(self.shape)} is stored in the parts of a graph, each of "
            f"which one rank holds, so it cannot be computed with as a whole. Batches of "
            f"NeighborLoader and LinkNeighborLoader have its rows."
        )

    def rows_at(self, ids: Tensor) -> Tensor:
        """Return the rows of the ids of a batch, which came with them.

        Raises:
            RuntimeError: other ids than those that were sampled.
        """
        rows: Tensor | None = getattr(ids, KEPT_ROWS, {}).get(self.key)
        if rows is None:
            raise RuntimeError(
                f"{self.key!r} is stored in the parts of a graph, and its rows come with the ids "
                f"that were sampled: others, such as a transform_sampler_output gives, have none."
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
    setattr(ids, KEPT_ROWS, rows)


def with_rows_of(ids: Tensor, copy: Tensor) -> Tensor:
    """Return a copy of ids, with which the rows are kept that are with the ids."""
    if hasattr(ids, KEPT_ROWS):
        keep_rows(copy, getattr(ids, KEPT_ROWS))
    return copy
