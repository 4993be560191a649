"""Tensors that a forward, an optimizer or a program may write to before deferred operations run.

Rows of a step are computed when they are read, from the numbers that the inputs had at the call of
the operation.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch
from torch import Tensor

from ...core.private_torch import storage_of, writes_to
from ...ops.products import on_host
from .tensor import TableTensor, leave
from .values import Box, Leaf, Rows

COPIED_NUMBERS = 1 << 12  # a plain tensor with more is not copied, but watched for writes
COPIED_WEIGHTS = 1 << 20  # likewise of parameters, which optimizers write to before rows are read


PLAIN = (Tensor, torch.nn.Parameter)


def _plain_gradient(grad: Tensor) -> Tensor | None:
    if not isinstance(grad, TableTensor):
        return None
    return leave(grad, grad.size(0) if grad.dim() else 0)


class SavedTensors:
    """Tensors that values of a step read, with the numbers that they had at the call."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Tensor, Tensor]] = {}
        self._watched: list[tuple[Tensor, int]] = []
        self._readers: dict[int, weakref.WeakSet[Box]] = {}  # of memory to write to, by storage
        # Tensors whose gradients are plain, by id, and what takes their hooks away.
        self._learning: dict[int, tuple[weakref.ref[Tensor], Any]] = {}

    def kept(self, tensor: Tensor, whole: bool = False) -> Tensor:
        """Return a plain tensor that will have its numbers when they are read.

        Args:
            tensor: the tensor.
            whole: whether all of it is read for each row, as of a weight.
        """
        if tensor.is_inference():  # torch counts no writes to it
            return tensor.clone()
        if whole and tensor.requires_grad and tensor.numel() <= COPIED_WEIGHTS:
            return tensor.detach().clone()
        if tensor.numel() > COPIED_NUMBERS or tensor.layout != torch.strided:
            self._watched.append((tensor, writes_to(tensor)))
            return tensor.detach()
        place = tensor.data_ptr(), writes_to(tensor), tensor.dtype, tensor.shape, tensor.stride()
        known = self._kept.get(place)
        # Both live on, at these addresses. Writes by `.data` are not counted.
        if known is None or (on_host(tensor) and not torch.equal(known[1], tensor)):
            known = self._kept[place] = tensor, tensor.detach().clone()
        return known[1]

    def table(self, tensor: Tensor, dim: int) -> Leaf:
        """Return the value of a plain tensor with rows in a dimension, with its present numbers."""
        return Leaf(self.kept(tensor), dim)

    def leave_plain(self, values: Any) -> None:
        """Let the gradients of plain tensors among some values be plain, as others read them."""
        for value in values:
            if isinstance(value, (list, tuple)):
                self.leave_plain(value)
            elif type(value) in PLAIN and value.requires_grad:
                known = self._learning.get(id(value))
                if known is None or known[0]() is not value:
                    handle = value.register_hook(_plain_gradient)
                    self._learning[id(value)] = weakref.ref(value), handle

    def __del__(self) -> None:
        """Take the hooks away that parameters have of this step."""
        for _, handle in self._learning.values():
            handle.remove()

    def check(self) -> None:
        """Raise a RuntimeError if a tensor that is not copied was written to after it was used."""
        for tensor, count in self._watched:
            if writes_to(tensor) != count:
                raise RuntimeError(
                    f"a tensor of shape {tuple(tensor.shape)} was modified in place after it "
                    f"was used"
                )

    def leaf(self, tensor: Tensor, dim: int) -> Leaf:
        """Return the value of memory that the forward may write to, with its present numbers."""
        made = Leaf(tensor, dim)
        self._readers.setdefault(storage_of(tensor), weakref.WeakSet()).add(made.kept)
        return made

    def protect(self, memory: Tensor) -> None:
        """Let values that were made of memory keep their numbers, before it is written to."""
        for box in self._readers.pop(storage_of(memory), ()):
            box.fill(box.data.clone(), cast(Rows, box.have))
