"""What happens to the operations of a forward: each is deferred, or runs on all rows.

The forward gets tensors of full shape (`TableTensor`) that compute nothing until rows are asked
for. An operation is deferred where a rule says that rows stay apart, or where it moves rows; others
run on whole tables, as torch runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.private_torch import in_backward, to_copy, tree_leaves, tree_map
from .calls import CallPlan, signature
from .forms import Forms
from .moves import MOVES, Move
from .operations import Operation, Pick
from .rules import OPERATORS, Operator, keeps_rows, operator
from .tensor import (
    PlainTensors,
    Run,
    TableTensor,
    join_views,
    plain_of,
    result_of,
    seen,
    seen_with_fills,
    tensor_of,
    written,
)
from .values import Box, Fill, Leaf, Value

aten = torch.ops.aten
KNOWN = 4096  # plans that are kept for an operation
NO_TENSORS = {int, float, bool, type(None)}


class LazyRun(Run):
    """One forward on tables.

    Attributes:
        device: of the tensors.
        forms: how it ran.
        numbers: of plain tensors that it reads.
        calls: how many operations there were.
        products: of the rows with dense matrices, in products of two numbers.
        deferred: what is tried before the rules, by the name of the operation.
        needs_unread: whether results that only a backward reads have to be there.
    """

    deferred: ClassVar[Mapping[str, Move]] = MOVES
    needs_unread = True

    def __init__(self, device: torch.device, saved: PlainTensors) -> None:
        self.device, self.forms = device, Forms()
        self.saved = saved
        self.calls = self.products = 0

    wrap = tensor_of

    def rows_of(self, table: TableTensor, rows: int) -> Tensor:
        """Return the first rows; not to be written to."""
        return self.whole(table)[:rows]

    def afford(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise ValueError for an operation on all rows that takes more memory than there is."""

    def operand(self, value: Tensor, row: int | None) -> Any:
        """Return the value of a tensor with rows in a dimension; without, the tensor."""
        if isinstance(value, TableTensor):
            node = value.node
            if row is not None and value.plain is None:
                if node.dim == row:
                    return node
                if isinstance(node, Fill):
                    return Fill(node.shape, node.dtype, self.device, row, node.value)
            if value.plain is not None:
                return (
                    value.plain.clone() if row is None else value.run.saved.leaf(value.plain, row)
                )
            value = self.whole(value)
            return value if row is None else self.saved.leaf(value, row)
        return self.saved.kept(value, True) if row is None else self.saved.table(value, row)

    # --- operations ---

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation, or remember that it is to be done on the rows that are asked for."""
        known = OPERATORS.get(id(func)) or operator(func)
        if known.is_composite and torch.is_inference_mode_enabled():
            return func.decompose(*args, **kwargs)
        self.calls += 1
        for value in args:
            kind = type(value)
            if kind is TableTensor or kind in NO_TENSORS:
                continue
            if kind is not list or not value or type(value[0]) not in NO_TENSORS:
                self.saved.leave_plain([value])
        if known.is_mutable:
            return self._change(known, args, kwargs)
        if known.name in ("detach", "alias"):
            same: Any = self.wrap(args[0].node)
            same.plain = args[0].plain
            join_views(func, args, kwargs, same)
            return same
        found = None
        if (
            not kwargs
            or kwargs.get("device") is None
            or torch.device(kwargs["device"]) == self.device
        ):
            special = self.deferred.get(known.name)
            if special is not None:
                found = special(self, known, args, kwargs)
            if found is None:
                found = self.row_wise(known, args, kwargs)
        if found is None:
            return self._on_whole(known, args, kwargs)
        if isinstance(found, Value):
            found = self.wrap(found)
        elif isinstance(found, (list, tuple)):
            found = type(found)([self.wrap(n) if isinstance(n, Value) else n for n in found])
        if known.is_view or known.name == "_unsafe_view":
            join_views(func, args, kwargs, found)
        return found

    def filled(self, call: Any, shape: tuple[int, ...], dim: int, value: Any) -> Fill:
        """Return a value that is one number, as a call (operation, args, kwargs) makes it."""
        _, args, kwargs = call
        return Fill(shape, kwargs.get("dtype") or args[0].dtype, self.device, dim, value)

    def row_wise(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Return the value of an operation with a rule, or several; None if no rule says so."""
        first: Any = args[0] if args else None
        if type(first) is TableTensor and first.node.shape and type(first.node) is not Fill:
            num_rows = first.node.num_rows
        else:
            num_rows = _num_rows(args) or _num_rows(kwargs.values())
        if num_rows < 2:  # which no rule is for
            return None
        key = signature(args, kwargs, num_rows, TableTensor)
        try:
            plan = known.plans[key]
        except KeyError:
            plan = planned(known, key, args, kwargs, num_rows)
        except TypeError:  # what cannot be a key
            plan = planned(known, None, args, kwargs, num_rows)
        if plan is None or (plan.unread and self.needs_unread):
            return None
        self.products += plan.products * num_rows
        new_args = list(args)
        values: list[Value] = []
        boxes: list[Box] = []
        new_kwargs = dict(kwargs) if kwargs else kwargs
        for position, place, row in plan.tables:
            given = new_args if type(position) is int else new_kwargs
            # The operation has the value and its rows; it must not keep the tensor as well.
            if place is None:
                table: Any = given[position]
                given[position] = None
            else:
                given[position] = [*given[position]]
                table, given[position][place] = given[position][place], None
            if type(table) is TableTensor and table.plain is None and table.node.dim == row:
                values.append(table.node)
                boxes.append(table.box)
            else:
                values.append(self._table(plan, table, row))
                boxes.append(values[-1].box())
        if plan.whole:
            self._keep_whole(plan, new_args, new_kwargs)
        made = Operation(
            plan, plan.first, num_rows, self.device, new_args, new_kwargs, values, boxes
        )
        if not plan.zero and made.dtype.is_floating_point and in_backward():
            self._count_lost(known, values)
        if plan.container is None:
            return made
        return plan.container(
            Pick(made, place)
            if out[2] is not None
            else torch.empty(0, dtype=out[1], device=self.device)
            for place, out in enumerate(plan.outs)
        )

    def _keep_whole(self, plan: CallPlan, args: list[Any], kwargs: Any) -> None:
        """Let arguments that are read for each row have their numbers when they are read."""
        for position, place in plan.whole:
            given = args if type(position) is int else kwargs
            if place is None:
                given[position] = self.operand(given[position], None)
            else:
                given[position] = [*given[position]]
                given[position][place] = self.operand(given[position][place], None)

    def _table(self, plan: CallPlan, value: Tensor, row: int) -> Value:
        """Return the value of an argument with rows.

        Backwards fill tensors of zeros that nothing of the step has made, as for a part of `split`
        that nobody used.
        """
        zeros = type(value) is Tensor and plan.zero == "all" and in_backward() and not value.any()
        if zeros:
            return Fill(tuple(value.shape), value.dtype, self.device, row, 0)
        found: Value = self.operand(value, row)
        return found

    def _count_lost(self, known: Operator, values: list[Value]) -> None:
        """Count an operation on a gradient of some rows, which gives one of all rows."""
        if any(v.support is not None and 0 < v.support.count < v.num_rows for v in values):
            self.forms.count(known)

    # --- on all rows ---

    def _on_whole(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operation on all rows, as torch does."""
        func, name = known.func, known.name
        self.forms.count(known)
        self.afford(func, args, kwargs)
        view = (known.is_view or name == "view") and isinstance(args[0], TableTensor)
        if name == "as_strided" and view:  # its numbers are places in memory
            args[0].make_plain()
        new = self._new(args, kwargs, view)
        new_args, new_kwargs = plain_of((args, kwargs))
        # They read memory whatever the strides, or have a backward that goes by those of a tensor.
        if name.startswith(("mkldnn_rnn", "_linalg")):
            new_args = tree_map(lambda v: v.contiguous() if isinstance(v, Tensor) else v, new_args)
        called = aten.reshape.default if func is aten.view.default else func  # for other strides
        found = tree_map(new, called(*new_args, **new_kwargs))
        if view:
            join_views(func, args, kwargs, found)
        return found

    def _new(self, args: Any, kwargs: Any, view: bool = False) -> Callable[[Any], Any]:
        """Return what makes a tensor of the run of one that has as many rows as the arguments.

        Args:
            args, kwargs: of the operation that computes it.
            view: whether it is one of the first argument, whose rows may be others.
        """
        tables = _tables_in((args, kwargs))
        counts = {table.node.num_rows for table in tables}
        made = self._leaves_of(tables)

        def wrapped(v: Any) -> Any:
            fits = isinstance(v, Tensor) and (view or self._is_table(v, counts))
            return self.wrap(made(v, 0)) if fits and v.layout == torch.strided else v

        return wrapped

    def _is_table(self, tensor: Tensor, counts: set[int]) -> bool:
        """Whether a tensor has rows, of one of some numbers."""
        return tensor.dim() > 0 and tensor.size(0) in counts

    def _leaves_of(self, tables: list[TableTensor]) -> Callable[[Tensor, int], Leaf]:
        """Return what makes the value of a plain tensor that was computed from some tables."""
        return self.saved.leaf

    # --- in place ---

    def _change(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Do an operation that writes to its arguments."""
        func = known.func
        target: Any = args[0] if args else None
        if type(target) is TableTensor and known.name.endswith("_"):  # it writes to nothing else
            node = self._changed(known, target, args, kwargs)
            if node is not None:
                target.hold(node)
                return target
        self.forms.count(known)
        changing = written(func, args, kwargs)
        made, new = self._leaves_of(_tables_in((args, kwargs))), self._new(args, kwargs)
        for tensor in changing:
            if isinstance(tensor, TableTensor):
                tensor.run.saved.protect(tensor.make_plain())
            else:
                self.saved.protect(tensor)
        self.afford(func, args, kwargs)
        new_args, new_kwargs = plain_of((args, kwargs))
        found = func(*new_args, **new_kwargs)
        for tensor in changing:
            for view in tensor.members() if isinstance(tensor, TableTensor) else ():
                view.hold_plain(made)
        return result_of(func, args, kwargs, found, new)

    def _changed(self, known: Operator, target: Any, args: Any, kwargs: Any) -> Value | None:
        """Return what a tensor holds after an operation in place; None if that is not deferred."""
        if target.plain is not None or len(target.members()) > 1:
            return None
        node, func, name = target.node, known.func, known.name
        if name == "zero_" or (name == "fill_" and not isinstance(args[1], Tensor)):
            value = args[1] if name == "fill_" else 0
            return Fill(node.shape, node.dtype, self.device, node.dim, value)
        elif name == "bernoulli_":  # dropout; others draw the numbers of the plain model
            return self._drawn(func, node, args[1:], kwargs)
        elif name == "copy_":
            found = self._copied(args[1], target)
        else:
            if known.pure is None:
                return None
            special = self.deferred.get(known.pure.name)
            found = None if special is None else special(self, known.pure, args, kwargs)
            found = self.row_wise(known.pure, args, kwargs) if found is None else found
        if not isinstance(found, Value) or (found.dim != node.dim and not isinstance(node, Fill)):
            return None
        if tuple(found.shape) != tuple(node.shape):
            return None
        return found if found.dtype == target.dtype else self._converted(self.wrap(found), target)

    def _drawn(self, func: Any, node: Value, args: Any, kwargs: Any) -> Value | None:
        """Return random numbers for the needed rows; None to draw those of the plain model."""
        return None

    def _copied(self, source: Any, target: Any) -> Any:
        if source.shape != target.shape or source.device != self.device:
            return None
        if not isinstance(source, TableTensor):
            return self.saved.table(source.to(target.dtype), target.node.dim)
        return self._converted(source, target)

    def _converted(self, source: TableTensor, target: Any) -> Any:
        return self.row_wise(operator(to_copy), (source,), {"dtype": target.dtype})


def _tables_in(value: Any) -> list[TableTensor]:
    return [v for v in tree_leaves(value) if isinstance(v, TableTensor)]


def _num_rows(values: Any) -> int:
    """Return the number of rows of the first tensor of a run; 0 if there is none."""
    filled = 0
    for value in values:
        if type(value) is TableTensor:
            rows: int = value.node.num_rows if value.node.shape else 0
            if rows and type(value.node) is not Fill:
                return rows
            filled = filled or rows
        elif type(value) is list or type(value) is tuple:
            found = _num_rows(value)
            if found:
                return found
    return filled


def planned(known: Operator, key: Any, args: Any, kwargs: Any, num_rows: int) -> CallPlan | None:
    """Ask the rules about calls of a signature.

    Args:
        known: the operation.
        key: their signature; None if what is found holds for this call alone.
        args, kwargs: of one of them.
        num_rows: of its tables.
    """
    plan, fixed = None, True
    apart = keeps_rows(known.func, args, kwargs, seen)
    apart = apart or keeps_rows(known.func, args, kwargs, seen_with_fills)
    if apart is not None and apart.num_rows == num_rows:
        plan = CallPlan(known, apart, args, kwargs)
        stated = [v for v in tree_leaves((args, kwargs)) if type(v) is int and v == num_rows]
        sizes = [_argument(args, kwargs, *place) for place in plan.sizes]  # -1: as is left
        fixed = plan.fixed and len(stated) == sizes.count(num_rows)  # no other is of rows
    if key is not None and fixed:
        if len(known.plans) >= KNOWN:
            known.plans.clear()
        known.plans[key] = plan
    return plan


def _argument(args: Any, kwargs: Any, position: Any, place: Any) -> Any:
    given = (args if type(position) is int else kwargs)[position]
    return given if place is None else given[place]
