"""Restoring a model after a forward that failed or was run for a comparison."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ...batch.edges import SampledEdges
from ...core.private_torch import TorchDispatchMode, storage_of, tree_leaves
from ..lazy.modes import Generators
from ..lazy.rules import operator
from ..lazy.tensor import TableTensor, written
from .batch_sizes import BatchSizes
from .model_state import ModelState, copied, is_large

logger = logging.getLogger("pyg_direct")

# Of elements that are copied before the forward. Others are when an operation writes to them, which
# takes 5 us for each operation; so long takes a copy of 50 kB.
COPIED_BYTES = 1 << 20


class NotComparable(Exception):  # noqa: N818 (no error of the user's)
    """A model whose copies cannot run beside it."""


class Undo:
    """Restores all that can be reached from some objects.

    Of tensors of `LARGE_BYTES` and more that are rows that an operation names, and parts that are
    not as large; the log says what stays as it was written.

    Args:
        roots: the model, and what else a forward may change.
        for_copies: of the model, which share large tensors with it: what writes to them is refused.
    """

    def __init__(self, *roots: Any, for_copies: bool = False) -> None:
        self.state = ModelState(*roots)
        aliases = sorted([alias for _, alias in self.state.tensors], key=attrgetter("nbytes"))
        self._generators = Generators(aliases)
        self._elements: list[tuple[Tensor, Tensor]] = []
        self._found: dict[int, list[Tensor]] = {}
        left = COPIED_BYTES
        for alias in aliases:
            left -= alias.nbytes
            if left >= 0:
                self._elements.append((alias, alias.clone()))
            else:
                self._found.setdefault(storage_of(alias), []).append(alias)
        self._for_copies = for_copies
        self._large: dict[int, Tensor] = {}
        self._parts: list[
            tuple[Tensor, Any, Tensor]
        ] = []  # of large ones: where, and what was there
        self._lasting: set[tuple[int, ...]] = set()

    def copy_of(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a copy of the model.

        Raises:
            NotComparable: there can be none.
        """
        try:
            return copied(model, self.state.shared)
        except Exception as error:  # of whatever the model holds
            why = f"it cannot be copied ({type(error).__name__}: {error})"
            raise NotComparable(why) from None

    def watching(self) -> AbstractContextManager[Any]:
        """Return a context that records the writes of a forward."""
        found = (t for t in self.state.shared if type(t) in (Tensor, torch.nn.Parameter))
        self._large = {storage_of(t): t.detach() for t in found}
        return _Writes(self) if self._found or self._large else nullcontext()

    def before_write(self, tensor: Tensor, rows: Any) -> None:
        """Copy elements that will be written to; `rows` says which, None is all.

        Raises:
            NotComparable: they are of a large tensor, which copies of the model share.
        """
        storage = storage_of(tensor)
        self._elements += [(alias, alias.clone()) for alias in self._found.pop(storage, ())]
        if storage not in self._large:
            return
        if self._for_copies:
            raise NotComparable("it writes to a large tensor of its own")
        if rows is not None or not is_large(tensor):
            rows = ... if rows is None else rows
            self._parts.append((tensor.detach(), rows, tensor[rows].clone()))
        else:
            self._lasting.add(tuple(tensor.shape))

    def restore(self) -> None:
        """Restore everything."""
        self.state.restore()
        if self._lasting:
            logger.warning("What was written to tensors of shapes %s stays", self._lasting)
        with torch.no_grad():
            while self._parts:
                tensor, rows, elements = self._parts.pop()
                tensor[rows] = elements
            for alias, elements in self._elements:
                if not torch.equal(alias, elements):  # batch norm changes no version
                    with torch.inference_mode(alias.is_inference()):
                        alias.copy_(elements)
        self._generators.restore()


def undo_of(model: torch.nn.Module, sizes: BatchSizes, arguments: Any) -> Undo:
    """Return an `Undo` of a model and of the arguments that its forward gets unchanged.

    Rows are written to at the end of a step only, and a batch is lost whose edges are written to.
    """
    given = (leaf for leaf in tree_leaves(arguments) if not isinstance(leaf, SampledEdges))
    return Undo(model, *[v for v in given if type(v) is not Tensor or not sizes.has_rows(v)])


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which tensors are written to."""

    def __init__(self, undo: Undo) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._undo = undo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operator(func).is_mutable:
            for tensor in written(func, args, kwargs):
                own = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
                if not own and tensor.layout == torch.strided:
                    self._undo.before_write(tensor, _rows_written(operator(func).name, args))
        return func(*args, **kwargs)


def _rows_written(name: str, args: Any) -> Any:
    """Return which rows of its first argument an operation writes to; None if it does not say."""
    rows = None
    if name in ("index_put_", "_index_put_impl_") and len(args[1]) == 1:
        rows = args[1][0]
    elif name in ("index_copy_", "index_add_", "index_fill_") and args[1] == 0:
        rows = args[2]
    return rows.whole() if isinstance(rows, TableTensor) else rows
