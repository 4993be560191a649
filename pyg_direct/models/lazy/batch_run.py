"""A training step on a sampled batch: the model's own forward, computed on the needed rows.

The forward gets tensors of full shape (`BatchTensor`) that compute nothing until rows are asked
for. Autograd records the forward's operations above them, as on any tensors, and its backward runs
on them, too: the gradient of the seeds' outputs is zero for all other rows, and what follows from
it is computed where it is not zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from ...core.private_torch import in_backward, to_copy, tree_leaves, tree_map
from .batch_moves import DEFERRED
from .calls import OPERATORS, CallPlan, Operation, Operator, Pick, operator, planned, signature
from .forms import Forms
from .lists import Lists
from .moves import named_rows
from .numbers_kept import Numbers
from .sums import Scatter
from .tensor import BatchTensor, enter, join_views, result_of, tensor_of, written
from .value_rows import Draw, First, NeededNorm, Take
from .values import Fill, Leaf, Rows, Value, compute_rows

aten = torch.ops.aten
DRAWS = {"bernoulli_"}  # dropout; others have the numbers of the plain model
NO_TENSORS = {int, float, bool, type(None)}


class BatchRun:
    """One step.

    Args:
        device: of the tensors.
        all_statistics: whether norms use all rows of the batch.
        draws_apart: whether dropout draws for the needed rows alone, and so other numbers than the
            plain model.

    Attributes:
        lists: the lists of rows that it has seen.
        forms: how it ran.
        calls: how many operations there were.
        entries: of the messages that are summed up.
        products: of the rows with dense matrices, in products of two numbers.
        norms: those of the needed rows, by where their means lie.
        exchanges: of rows with other places; None for none.
        numbers: of tensors that the forward may write to.
    """

    def __init__(
        self, device: torch.device, all_statistics: bool = True, draws_apart: bool = True
    ) -> None:
        self.device, self.lists = device, Lists()
        self.all_statistics, self.draws_apart = all_statistics, draws_apart
        self.forms = Forms()
        self.calls = self.entries = self.products = 0
        self.norms: dict[int, NeededNorm] = {}
        self.exchanges: Any = None
        self.numbers = Numbers()
        self._seed = torch.initial_seed()

    # --- tensors and values ---

    wrap = tensor_of

    def enter(self, x: Tensor) -> Tensor:
        """Return a plain tensor as one of the step."""
        if x.requires_grad and torch.is_grad_enabled():
            return enter(x, self)
        return self.wrap(Leaf(x.detach(), 0, watched=True))

    def all_rows(self, node: Value) -> Tensor:
        """Return all rows of a value; not to be written to."""
        return cast(Tensor, compute_rows(node, Rows(node.num_rows)))

    def rows_of(self, table: BatchTensor, rows: int) -> Tensor:
        """Return the first rows; not to be written to."""
        if table.plain is not None:
            return table.plain[:rows]
        if table.node.dim != 0:
            return self.whole(table)[:rows]
        return cast(Tensor, compute_rows(table.node, Rows(rows)))

    def whole(self, table: BatchTensor) -> Tensor:
        """Return all rows; not to be written to."""
        if table.plain is not None:
            return table.plain
        return self.all_rows(table.node)

    def operand(self, value: Tensor, row: int | None) -> Any:
        """Return the value of a tensor with rows in a dimension; without, the tensor."""
        if isinstance(value, BatchTensor):
            node = value.node
            if row is not None and value.plain is None:
                if node.dim == row:
                    return node
                if isinstance(node, Fill):
                    return Fill(node.shape, node.dtype, self.device, row, node.value)
            if value.plain is not None:
                return (
                    value.plain.clone() if row is None else value.run.numbers.leaf(value.plain, row)
                )
            value = self.whole(value)
        else:
            value = self.numbers.kept(value, row is None)
        return value if row is None else Leaf(value, row)

    # --- operations ---

    def filled(self, call: Any, shape: Any, dim: int, value: Any) -> Fill:
        """Return a value that is one number, as a call (operation, args, kwargs) makes it."""
        _, args, kwargs = call
        return Fill(shape, kwargs.get("dtype") or args[0].dtype, self.device, dim, value)

    def taken(self, table: Any, dim: int, index: Tensor) -> Take:
        """Return the rows of a table that a list names."""
        node = table.node
        if self.exchanges is not None:
            self.exchanges.check(node, index)
        index = self.lists.one(index)
        if named_rows(*self.lists.bounds(index), node.num_rows):
            index = self.lists.one(index % node.num_rows)
        return Take(self.lists, node, dim, index)

    def part(self, table: Any, dim: int, run: tuple[int, int], rows: int) -> Value | None:
        """Return a run (start, step) of rows."""
        start, step = run
        if step == 1:
            return First(table.node, start, rows)
        if self.exchanges is not None:
            return None
        index = torch.arange(start, start + step * rows, step, device=self.device)
        return Take(self.lists, table.node, dim, self.lists.one(index))

    def scattered(
        self, base: Tensor, source: Tensor, at: tuple[int, Tensor], reduce: str, include: bool
    ) -> Scatter | None:
        """Return rows that messages are reduced into, in a dimension and by a list."""
        dim, index = at
        order = self.lists.order(self.lists.one(index), base.size(dim))
        if order is None:
            return None
        values = self.operand(base, dim), self.operand(source, dim)
        made = Scatter(self.lists, *values, order, reduce, include)
        if self.exchanges is not None and not in_backward():
            self.exchanges.check_sum(index, base.size(dim))
            made.missing = self.exchanges.missing
        if len(made.shape) > 1:
            self.forms.sums.add("messages" if made.product is None else "products")
            self.entries += source.numel()
        return made

    def norm(self, func: Any, x: Value, rest: Any) -> NeededNorm:
        """Return what is normalised by the statistics of needed rows."""
        return NeededNorm(func, x, rest)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation, or remember that it is to be done on the rows that are needed."""
        known = OPERATORS.get(id(func)) or operator(func)
        if known.is_composite and torch.is_inference_mode_enabled():
            return func.decompose(*args, **kwargs)
        self.calls += 1
        for value in args:
            kind = type(value)
            if kind is BatchTensor or kind in NO_TENSORS:
                continue
            if kind is not list or not value or type(value[0]) not in NO_TENSORS:
                self.numbers.leave_plain([value])
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
            special = DEFERRED.get(known.name)
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

    def row_wise(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Return the value of an operation with a rule, or several; None if no rule says so."""
        first: Any = args[0] if args else None
        if type(first) is BatchTensor and first.node.shape and type(first.node) is not Fill:
            num_rows = first.node.num_rows
        else:
            num_rows = _num_rows(args) or _num_rows(kwargs.values())
        if num_rows < 2:  # which no rule is for
            return None
        key = signature(args, kwargs, num_rows, BatchTensor)
        try:
            plan = known.plans[key]
        except KeyError:
            plan = planned(known, key, args, kwargs, num_rows)
        except TypeError:  # what cannot be a key
            plan = planned(known, None, args, kwargs, num_rows)
        if plan is None:
            return None
        self.products += plan.products * num_rows
        new_args, values, boxes = list(args), [], []
        new_kwargs = dict(kwargs) if kwargs else kwargs
        for position, place, row in plan.tables:
            given = new_args if type(position) is int else new_kwargs
            if place is None:
                table: Any = given[position]
                given[position] = None
            else:
                table = given[position][place]
            if type(table) is BatchTensor and table.plain is None and table.node.dim == row:
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

    def _table(self, plan: CallPlan, value: Tensor, row: int) -> Any:
        """Return the value of an argument with rows.

        Backwards fill tensors of zeros that nothing of the step has made, as for a part of `split`
        that nobody used.
        """
        zeros = type(value) is Tensor and plan.zero == "all" and in_backward() and not value.any()
        if zeros:
            return Fill(tuple(value.shape), value.dtype, self.device, row, 0)
        return self.operand(value, row)

    def _count_lost(self, known: Operator, values: list[Value]) -> None:
        """Count an operation on a gradient of some rows, which gives one of all rows."""
        if any(v.support is not None and 0 < v.support.count < v.num_rows for v in values):
            self.forms.count(known)

    def _on_whole(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operation on all rows, as torch does."""
        func, name = known.func, known.name
        self.forms.count(known)
        view = (known.is_view or name == "view") and isinstance(args[0], BatchTensor)
        if name == "as_strided" and view:  # its numbers are places in memory
            args[0].make_plain()
        new = self._new(args, kwargs, view)
        new_args, new_kwargs = self._plain((args, kwargs))
        # They read memory whatever the strides, or have a backward that goes by those of a tensor.
        if name.startswith(("mkldnn_rnn", "_linalg")):
            new_args = tree_map(lambda v: v.contiguous() if isinstance(v, Tensor) else v, new_args)
        called = aten.reshape.default if func is aten.view.default else func  # for other strides
        found = tree_map(new, called(*new_args, **new_kwargs))
        if view:
            join_views(func, args, kwargs, found)
        return found

    def _new(self, args: Any, kwargs: Any, view: bool = False) -> Callable[[Any], Any]:
        """Return what makes a tensor of the step of one that has as many rows as the arguments.

        Args:
            args, kwargs: of the operation that computes it.
            view: whether it is one of the first argument, whose rows may be others.
        """
        counts = {
            v.node.num_rows for v in tree_leaves((args, kwargs)) if isinstance(v, BatchTensor)
        }
        made = self._leaves_of(args, kwargs)

        def wrapped(v: Any) -> Any:
            fits = isinstance(v, Tensor) and (view or (v.dim() > 0 and v.size(0) in counts))
            return self.wrap(made(v, 0)) if fits and v.layout == torch.strided else v

        return wrapped

    def _leaves_of(self, args: Any, kwargs: Any) -> Callable[[Tensor, int], Leaf]:
        """Return what makes the value of a plain tensor that was computed from some arguments."""
        tables = [v for v in tree_leaves((args, kwargs)) if isinstance(v, BatchTensor)]
        if self.exchanges is None or in_backward():
            return self.numbers.leaf
        layer = self.exchanges.layer_of([table.node for table in tables])

        def made(tensor: Tensor, dim: int) -> Leaf:
            return cast(Leaf, self.exchanges.at_layer(self.numbers.leaf(tensor, dim), layer))

        return made

    def _plain(self, value: Any) -> Any:
        return tree_map(lambda v: self.whole(v) if isinstance(v, BatchTensor) else v, value)

    # --- in place ---

    def _change(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Do an operation that writes to its arguments."""
        target: Any = args[0] if args else None
        if type(target) is BatchTensor and known.name.endswith("_"):  # it writes to nothing else
            node = self._changed(known, target, args, kwargs)
            if node is not None:
                target.hold(node)
                return target
        self.forms.count(known)
        changing = written(known.func, args, kwargs)
        made, new = self._leaves_of(args, kwargs), self._new(args, kwargs)
        for tensor in changing:
            if isinstance(tensor, BatchTensor):
                tensor.make_plain()
                tensor.run.numbers.protect(cast(Tensor, cast(Any, tensor).plain))
        new_args, new_kwargs = self._plain((args, kwargs))
        found = known.func(*new_args, **new_kwargs)
        for tensor in changing:
            for view in tensor.members() if isinstance(tensor, BatchTensor) else ():
                view.hold_plain(made)
        return result_of(known.func, args, kwargs, found, new)

    def _changed(self, known: Operator, target: Any, args: Any, kwargs: Any) -> Value | None:
        """Return what a tensor holds after an operation in place; None if that is not deferred."""
        if target.plain is not None or len(target.members()) > 1:
            return None
        node, func, name = target.node, known.func, known.name
        if name == "zero_" or (name == "fill_" and not isinstance(args[1], Tensor)):
            value = args[1] if name == "fill_" else 0
            return Fill(node.shape, node.dtype, self.device, node.dim, value)
        elif name in DRAWS:
            return self._drawn(func, node, args[1:], kwargs)
        elif name == "copy_":
            found = self._copied(args[1], target)
        else:
            if known.pure is None:
                return None
            special = DEFERRED.get(known.pure.name)
            found = None if special is None else special(self, known.pure, args, kwargs)
            found = self.row_wise(known.pure, args, kwargs) if found is None else found
        if not isinstance(found, Value) or (found.dim != node.dim and not isinstance(node, Fill)):
            return None
        if tuple(found.shape) != tuple(node.shape):
            return None
        return found if found.dtype == target.dtype else self._converted(self.wrap(found), target)

    def _drawn(self, func: Any, node: Value, args: Any, kwargs: Any) -> Value | None:
        """Return random numbers for the needed rows, unless the model wants certain ones."""
        seeded = torch.initial_seed() != self._seed or kwargs.get("generator") is not None
        if seeded or not self.draws_apart or any(isinstance(v, Tensor) for v in args):
            return None
        return Draw(node, func, args, kwargs)

    def _copied(self, source: Any, target: Any) -> Any:
        if source.shape != target.shape or source.device != self.device:
            return None
        if not isinstance(source, BatchTensor):
            return Leaf(self.numbers.kept(source.to(target.dtype)), target.node.dim)
        return self._converted(source, target)

    def _converted(self, source: BatchTensor, target: Any) -> Any:
        return self.row_wise(operator(to_copy), (source,), {"dtype": target.dtype})


def _num_rows(values: Any) -> int:
    """Return the number of rows of the first tensor of a step; 0 if there is none."""
    filled = 0
    for value in values:
        if type(value) is BatchTensor:
            rows: int = value.node.num_rows if value.node.shape else 0
            if rows and type(value.node) is not Fill:
                return rows
            filled = filled or rows
        elif type(value) is list or type(value) is tuple:
            found = _num_rows(value)
            if found:
                return found
    return filled
