"""The tensor that a user's forward gets in a training step, and how rows enter and leave."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from ..core.private_torch import tree_leaves, wrapper_tensor
from .needed import Leaf
from .table_tensor import TableTensor


class BatchTensor(TableTensor):
    """A tensor of a step; see `TableTensor` for its attributes.

    Attributes:
        box: the rows of `node` that are computed.
    """

    node: Any
    origin: Any = None
    plain = None
    group: Any = None

    @staticmethod
    def __new__(cls, run: Any, node: Any) -> BatchTensor:
        """Return a tensor that holds a value."""
        self: Any = wrapper_tensor(cls, node.shape, node.dtype, run.device)
        self.run, self.node, self.box = run, node, node.box()
        return cast(BatchTensor, self)

    def __deepcopy__(self, memo: Any) -> Tensor:
        """Return a copy, as torch does of tensors that no operation has made."""
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol."
            )
        return self.clone()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let the step do an operation."""
        for a in args:
            if type(a) is BatchTensor:
                return a.run.call(func, args, kwargs or {})
        run = next(a.run for a in tree_leaves((args, kwargs)) if isinstance(a, BatchTensor))
        return run.call(func, args, kwargs or {})

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """Return it, or a copy where torch makes one; its own strides are those of any shape."""
        if self.origin is None or self._layout().is_contiguous(memory_format=memory_format):
            return super().contiguous(memory_format=memory_format)
        return self.clone(memory_format=memory_format)

    def _layout(self) -> Tensor:
        """Return a meta tensor with the strides that torch gives to it."""
        if self.origin is None:
            return torch.empty(self.shape, dtype=self.dtype, device="meta")
        parent, function = self.origin
        return cast(Tensor, function(parent._layout()))

    def hold(self, node: Any) -> None:
        """Hold another value from now on."""
        self.node, self.box = node, node.box()

    def joined(self) -> Any:
        """Return the group of tensors that share memory with it."""
        if self.group is None:
            self.group = [weakref.ref(self)]
        return self.group

    def members(self) -> list[TableTensor]:
        """Return the tensors that share memory with it."""
        if self.group is None:
            return [self]
        return [t for t in [ref() for ref in self.group] if t is not None]


class Enter(torch.autograd.Function):
    """Makes a plain tensor one of the step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Any, num_rows: int | None) -> Any:  # noqa: D102
        ctx.run, ctx.rows = run, len(x)
        return run.wrap(Leaf(x.detach(), 0, num_rows, watched=num_rows is None))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: D102
        grad = grads[0]
        if isinstance(grad, BatchTensor):
            grad = _leave(grad, ctx.rows)
        return grad[: ctx.rows], None, None


class Leave(torch.autograd.Function):
    """Returns the first rows as a plain tensor."""

    @staticmethod
    def forward(ctx: Any, x: BatchTensor, rows: int) -> Any:  # noqa: D102
        ctx.run, ctx.size = x.run, x.size(0) if x.dim() else None
        if ctx.size is None:
            return x.whole().clone()
        return x.run.rows_of(x, rows).clone()  # to which its user may write

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: D102
        return grads[0] if ctx.size is None else _enter(grads[0], ctx.run, ctx.size), None


# The classes' `apply` has no types.
_enter: Callable[[Tensor, Any, int | None], Any] = Enter.apply
_leave: Callable[[Any, int], Any] = Leave.apply


def enter(x: Tensor, run: Any) -> Tensor:
    """Return a plain tensor with a gradient as one of the step."""
    return cast(Tensor, _enter(x, run, None))


def leave(value: Any, rows: int) -> Any:
    """Return the first rows of a tensor of a step as a plain tensor."""
    if isinstance(value, BatchTensor):
        return _leave(value, rows)
    return value[:rows] if value.dim() else value
