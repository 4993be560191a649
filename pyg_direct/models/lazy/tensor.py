"""The tensors of a user's forward: of full shape, with rows that are computed when they are read.

A wrapper subclass with `__torch_dispatch__` sees every ATen operation, whoever calls it (Python,
TorchScript, C++, a custom autograd Function), after autograd and autocast. `LazyRun` defers rowwise
operations (`rules`), gathers and scatters; all others run on full tables.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor
from ...core.private_torch import (
    TorchDispatchMode,
    WithoutDispatch,
    new_wrapper,
    no_torch_function,
    schema_of,
    tree_leaves,
    tree_map,
    wrapper_tensor,
)
from .forms import Forms
from .rules import Operator, bound
from .values import Box, Leaf, Value


class PlainTensors(Protocol):
    """Plain tensors that deferred operations read as they were when they were called."""

    def kept(self, tensor: Tensor, whole: bool = False) -> Tensor:
        """Return a tensor with the same numbers when they are read; `whole`: all for each row."""

    def table(self, tensor: Tensor, dim: int) -> Leaf:
        """Return the value of a tensor with rows in a dimension, with its present numbers."""

    def leaf(self, tensor: Tensor, dim: int) -> Leaf:
        """Return the value of memory that the run itself has made, with its present numbers."""

    def protect(self, memory: Tensor) -> None:
        """Let values keep their numbers, before memory that they read is written to."""

    def leave_plain(self, values: Any) -> None:
        """Let the gradients of plain tensors among some values be plain."""


class Run(Protocol):
    """A forward on tables, in a training step or in `inference`."""

    device: torch.device
    forms: Forms
    saved: PlainTensors

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation, or remember that it is to be done on the rows that are asked for."""

    def row_wise(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Return the value of an operation with a rule, or several; None if no rule says so."""

    def wrap(self, node: Value) -> TableTensor:
        """Return a tensor of a value."""

    def whole(self, table: TableTensor) -> Tensor:
        """Return all rows; not to be written to."""

    def rows_of(self, table: TableTensor, rows: int) -> Tensor:
        """Return the first rows; not to be written to."""

    def operand(self, value: Tensor, row: int | None) -> Any:
        """Return the value of a tensor with rows in a dimension; without, the tensor."""

    def filled(self, call: Any, shape: tuple[int, ...], dim: int, value: Any) -> Value:
        """Return a value that is one number, as a call (operation, args, kwargs) makes it."""

    def taken(self, table: TableTensor, dim: int, index: Tensor) -> Value:
        """Return the rows of a table that a list names."""

    def part(self, table: TableTensor, dim: int, run: tuple[int, int], rows: int) -> Value | None:
        """Return a run (start, step) of rows."""

    def scattered(
        self, base: Tensor, source: Tensor, at: tuple[int, Tensor], reduce: str, include: bool
    ) -> Value | None:
        """Return rows that messages are reduced into, in a dimension and by a list."""


class TableMemory:
    """A placeholder for the memory of a table; to free it does nothing.

    Args:
        storage: of the table, which has no numbers.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def resize_(self, size: int) -> TableMemory:
        """Do nothing."""
        return self


class TableTensor(Tensor):
    """A tensor whose elements are those of a `Value`. Its own strides are those of any shape.

    Attributes:
        node: what it holds now.
        box: the rows of `node` that are computed.
        run: the run that it belongs to.
        group: the tensors that share memory with it: what is written to one is seen by all; None
            if there are no others.
        origin: (tensor, function): it is a view that the function makes of the tensor; or None.
        plain: memory of its own, after a write that is not deferred; or None.
    """

    node: Value
    box: Box
    run: Run
    group: list[weakref.ref[TableTensor]] | None = None
    origin: tuple[TableTensor, Callable[[Tensor], Tensor]] | None = None
    plain: Tensor | None = None
    __torch_function__ = no_torch_function

    def hold(self, node: Value) -> None:
        """Hold another value from now on."""
        self.node, self.box = node, node.box()

    def whole(self) -> Tensor:
        """Return all rows as a plain tensor, which must not be written to."""
        return self.run.whole(self)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Defer the operation, or run it on whole tables."""
        for a in args:
            if type(a) is TableTensor:
                return a.run.call(func, args, kwargs or {})
        run = next(a.run for a in tree_leaves((args, kwargs)) if isinstance(a, TableTensor))
        return run.call(func, args, kwargs or {})

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """Return it, or a copy where torch makes one."""
        if self.origin is None or self._layout().is_contiguous(memory_format=memory_format):
            return super().contiguous(memory_format=memory_format)
        return self.clone(memory_format=memory_format)

    def _layout(self) -> Tensor:
        """Return a meta tensor with the strides that torch gives to it."""
        if self.origin is None:
            return torch.empty(self.shape, dtype=self.dtype, device="meta")
        parent, function = self.origin
        return function(parent._layout())

    @property
    def data(self) -> Tensor:
        """The tensor without its history."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise ValueError(
                f"Cannot set .data of a table of {tuple(self.shape)} {self.dtype} to "
                f"{tuple(value.shape)} {value.dtype}. Give the new tensor a name of its own."
            )
        with torch.no_grad():
            self.copy_(value)

    def untyped_storage(self) -> Any:
        """Return a placeholder for its memory."""
        return TableMemory(super().untyped_storage())

    def tolist(self) -> Any:
        """Return its elements as lists."""
        return self.whole().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return its elements as an array."""
        return self.whole().numpy(force=force)

    def __array__(self, dtype: Any = None) -> Any:
        """Return its elements as an array."""
        return np.asarray(self.whole().numpy(), dtype)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Show its elements."""
        return repr(self.whole())

    def __deepcopy__(self, memo: Any) -> Tensor:
        """Return a copy, as torch does of tensors that no operation has made."""
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol."
            )
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a plain tensor."""
        return self.whole().clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def members(self) -> list[TableTensor]:
        """Return the tensors that share memory with it."""
        if self.group is None:
            return [self]
        return [t for t in [ref() for ref in self.group] if t is not None]

    def make_plain(self) -> Tensor:
        """Give it, and the tensors that share memory with it, memory to write to; return it."""
        root = self
        while root.origin is not None:
            root = root.origin[0]
        if root.plain is None:
            root.plain = root.whole().clone()
        for view in root.members():
            view.made_plain()
        return self.made_plain()

    def made_plain(self) -> Tensor:
        """Return its memory, as a view of the memory of what it is a view of."""
        if self.plain is None:
            assert self.origin is not None
            parent, function = self.origin
            self.plain = function(parent.made_plain())
        if self.plain.is_conj() or self.plain.is_neg():  # operations of a step do not see the bits
            raise NotImplementedError("an in-place operation on a conjugated or negated view")
        return self.plain

    def hold_plain(self, made: Callable[[Tensor, int], Leaf]) -> None:
        """Hold what its memory has now, in the shape that it has now.

        Args:
            made: returns the value of a tensor with rows in a dimension.
        """
        plain = self.made_plain()
        if plain.shape != self.shape:
            with WithoutDispatch():
                self.resize_(plain.shape).as_strided_(plain.shape, plain.stride(), 0)
        self.hold(made(plain, min(self.node.dim, max(0, plain.dim() - 1))))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations on plain tensors in a forward.

    What is deferred reads tensors as they are when it is called. So a plain tensor that is about to
    change is copied for it; and new plain tensors are counted.
    """

    def __init__(
        self, protect: Callable[[list[Tensor]], None], count: Callable[[Any], None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._protect, self._count = protect, count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        kwargs = kwargs or {}
        if schema_of(func).is_mutable:
            self._protect(written(func, args, kwargs))
        found = func(*args, **kwargs)
        if not schema_of(func).is_mutable and not func.is_view:
            self._count(found)
        return found


def written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the arguments that an operation writes to."""
    given = bound(func, args, kwargs)
    found = []
    for argument in schema_of(func).arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tree_leaves(given.get(argument.name))
    return [value for value in found if isinstance(value, Tensor)]


def result_of(func: Any, args: Any, kwargs: Any, found: Any, made: Callable[[Any], Any]) -> Any:
    """Return the result of an operation that writes to arguments: those that it returns, or others.

    Args:
        func, args, kwargs: the call.
        found: what it gave for the memory of the arguments.
        made: returns what stands for a new tensor, which shares no memory with what is written to.
    """
    given, schema = bound(func, args, kwargs), schema_of(func)
    sets = {_alias_set(argument): argument.name for argument in schema.arguments}
    sets.pop(None, None)

    def one(declared: Any, value: Any) -> Any:
        name = sets.get(_alias_set(declared))
        return tree_map(made, value) if name is None else given[name]

    if len(schema.returns) == 1:
        return one(schema.returns[0], found)
    values = zip(schema.returns, found or (), strict=True)
    return found and tuple(one(declared, value) for declared, value in values)


def _alias_set(declared: Any) -> Any:
    """Return which memory a schema says that an argument or a result has; None for its own."""
    known = declared.alias_info
    return frozenset(known.before_set) or None if known is not None and known.is_write else None


def meta_of(tensor: Tensor) -> Tensor:
    """Return a meta tensor like a tensor."""
    if tensor.layout != torch.strided or isinstance(tensor, RowTensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def seen(value: Tensor) -> tuple[Tensor, int | None]:
    """Return a meta tensor, and the dimension of its rows; those of one number follow others."""
    if isinstance(value, TableTensor):
        follows = value.node.is_fill or value.dim() == 0
        return value.node.meta, None if follows else value.node.dim
    return meta_of(value), None


def seen_with_fills(value: Tensor) -> tuple[Tensor, int | None]:
    """Return a meta tensor, and the dimension of its rows."""
    if isinstance(value, TableTensor):
        return value.node.meta, None if value.dim() == 0 else value.node.dim
    return meta_of(value), None


def join_views(func: Any, args: Any, kwargs: Any, found: Any) -> None:
    """Remember that the results of an operation share memory with its first argument."""
    base, many = args[0], isinstance(found, (list, tuple))
    for place, view in enumerate(found if many else (found,)):
        if isinstance(base, TableTensor) and isinstance(view, TableTensor):
            if base.group is None:
                base.group = [weakref.ref(base)]
            function = partial(_view_of, func, args[1:], kwargs, place if many else None)
            view.origin, view.group = (base, function), base.group
            base.group.append(weakref.ref(view))


def _view_of(func: Any, rest: Any, kwargs: Any, place: int | None, parent: Tensor) -> Tensor:
    args, kwargs = plain_of((rest, kwargs))
    found = func(parent, *args, **kwargs)
    return cast(Tensor, found if place is None else found[place])


def plain_of(value: Any) -> Any:
    """Return arguments with whole tables in place of tables."""
    return tree_map(lambda v: v.whole() if isinstance(v, TableTensor) else v, value)


class Enter(torch.autograd.Function):
    """Makes a plain tensor one of the step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Run, num_rows: int | None) -> Tensor:  # noqa: D102
        ctx.run, ctx.rows = run, len(x)
        return run.wrap(Leaf(x.detach(), 0, num_rows, watched=num_rows is None))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: D102
        grad = grads[0]
        if isinstance(grad, TableTensor):
            grad = _leave(grad, ctx.rows)
        return grad[: ctx.rows], None, None


class Leave(torch.autograd.Function):
    """Returns the first rows as a plain tensor."""

    @staticmethod
    def forward(ctx: Any, x: TableTensor, rows: int) -> Tensor:  # noqa: D102
        ctx.run, ctx.size = x.run, x.size(0) if x.dim() else None
        if ctx.size is None:
            return x.whole().clone()
        return x.run.rows_of(x, rows).clone()  # to which its user may write

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: D102
        return grads[0] if ctx.size is None else _enter(grads[0], ctx.run, ctx.size), None


# The classes' `apply` has no types.
_enter: Callable[[Tensor, Run, int | None], TableTensor] = Enter.apply
_leave: Callable[[Tensor, int], Tensor] = Leave.apply


def enter(x: Tensor, run: Run) -> TableTensor:
    """Return a plain tensor with a gradient as one of the step."""
    return _enter(x, run, None)


def tensor_of(run: Run, node: Value) -> TableTensor:
    """Return a tensor of a run that holds a value."""
    made: Any
    if torch.is_inference_mode_enabled():
        made = wrapper_tensor(TableTensor, node.shape, node.dtype, run.device)
    else:
        made = new_wrapper(TableTensor, node.shape, dtype=node.dtype, device=run.device)
    box = None if node.ref is None else node.ref()
    if box is None:
        box = Box()
        node.ref = weakref.ref(box)
    made.run, made.node, made.box = run, node, box
    return cast(TableTensor, made)


def leave(value: Tensor, rows: int) -> Tensor:
    """Return the first rows of a tensor of a step as a plain tensor."""
    if isinstance(value, TableTensor):
        return _leave(value, rows)
    return value[:rows] if value.dim() else value
