"""Tensors that exist only when something computes with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .private_torch import tree_map_only


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
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return args[0]
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
