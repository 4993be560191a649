"""Operations of a training step that keep rows apart: their rules are read once by signature.

`rules.keeps_rows` reads shapes and dtypes alone, so its answer holds for each call whose arguments
are of the same *signature*: the same numbers, texts and dtypes, and the same shapes but for the
number of rows. A `CallPlan` holds what is the same for all calls of a signature. The gradient of
the outputs of a step is zero but in the rows of the seeds; a table by operation tells where a
result is zero because its arguments are. An operation that the table lacks costs time, never a
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.private_torch import overload_of, tree_leaves
from .rules import Operator, RowwiseCall, call_on_rows
from .values import Fill, Rows, Value, union

aten = torch.ops.aten
ROWS = "rows"  # in a signature in place of their number
# That may overwrite their first operand if nothing else reads it.
IN_PLACE = {"add", "sub", "mul", "div", "relu", "leaky_relu", "exp", "neg", "clamp"}


Out = tuple[tuple[int, ...], torch.dtype, Any, Any]


class CallPlan:
    """How calls of one signature are made on some rows.

    Attributes:
        known, func: the operation, and the one that is called on some rows.
        tables: (position, place in a list there or None, dimension of the rows) of arguments whose
            rows are taken.
        whole: positions, likewise, of tensors that are read in full.
        sizes: (position, place in a list there or None) of numbers of rows.
        outs: of each result shape, dtype, dimension of the rows, and kind.
        container: of several results; None if there is one.
        unread: whether only a backward reads some of the results.
        products: of two numbers for each row, by a matrix that is read in full.
        zero: results are zero where "all" or "one" of `zero_of` are; "" if that is not known.
        zero_of: places in `tables`.

    Example: a bias is added to rows 1 and 2 of a table.

        >>> from pyg_direct.models.lazy.rules import operator
        >>> table, bias = torch.randn(5, 3), torch.randn(3)
        >>> add, given = torch.ops.aten.add.Tensor, (table, bias)
        >>> apart = keeps_rows(add, given, {}, lambda t: (t.to("meta"), 0 if t is table else None))
        >>> plan = CallPlan(operator(add), apart, given, {})
        >>> args, kwargs = plan.arguments(given, {}, [table[1:3]], 2)
        >>> torch.equal(plan.func(*args, *plan.more, **kwargs), (table + bias)[1:3])
        True
    """

    def __init__(self, known: Operator, apart: RowwiseCall, args: Any, kwargs: Any) -> None:
        self.known = known
        self.func, more = call_on_rows(apart, known.func, args)
        self.more = more
        self.tables: list[tuple[Any, Any, int]] = []
        self.whole: list[tuple[Any, Any]] = []
        given = [*zip(range(len(args)), known.names, args, strict=False)]
        given += [(name, name, value) for name, value in kwargs.items()]
        places = {name: position for position, name, _ in given}
        for position, name, value in given:
            rows = apart.given.get(name)
            if isinstance(value, (list, tuple)):
                each = rows if isinstance(rows, list) else [rows] * len(value)
                for place, (v, row) in enumerate(zip(value, each, strict=True)):
                    self._see(position, place, v, row)
            else:
                self._see(position, None, value, rows)
        self.sizes = [(places[name], place) for name, place in apart.sizes if name in places]
        metas = [v for v in tree_leaves(apart.out) if isinstance(v, Tensor)]
        self.container = None if isinstance(apart.out, Tensor) else type(apart.out)
        self.outs: list[Out] = []
        self.fixed = True
        for meta, row in zip(metas, apart.rows, strict=True):
            shape = tuple(meta.shape)
            if row is None:
                self.outs.append((shape, meta.dtype, None, None))
                self.fixed &= apart.num_rows not in shape
                continue
            before, after = shape[:row], shape[row + 1 :]
            self.fixed &= apart.num_rows not in before + after
            kind = row, meta.dtype, before, after
            self.outs.append((shape, meta.dtype, row, kind))
        # Results that only a backward reads. The norm has a rule for evaluation only.
        self.unread = None in [o[2] for o in self.outs] and known.name != "native_batch_norm"
        self.first = next((out for out in self.outs if out[2] is not None), None)
        self.zero, self.zero_of = self._zero(known.name, given)
        self.may_share = known.is_view or self.func is not known.func
        self.in_place = self._in_place(known)
        weights = [args[p].numel() for p, place in self.whole if type(p) is int and place is None]
        self.products = max(weights, default=0) if known.name in ("mm", "addmm") else 0
        self.contiguous = known.func is aten.mkldnn_rnn_layer.default

    def arguments(
        self, args: Any, kwargs: Any, parts: Iterable[Any], count: int
    ) -> tuple[list[Any], Any]:
        """Return the arguments of a call on some rows.

        Args:
            args, kwargs: of the call.
            parts: the rows of its tables.
            count: how many they are.
        """
        new, named = [*args], dict(kwargs) if kwargs else kwargs
        for (position, place, _), part in zip(self.tables, parts, strict=True):
            given = new if type(position) is int else named
            one = part.contiguous() if self.contiguous else part
            if place is None:
                given[position] = one
            else:
                given[position] = [*given[position]]
                given[position][place] = one
        for position, place in self.sizes:
            given = new if type(position) is int else named
            if place is None:
                given[position] = count
            else:
                given[position] = [*given[position]]
                given[position][place] = count
        return new, named

    def _in_place(self, known: Operator) -> Any:
        """Return the operation that writes to its first argument, if it may be used."""
        if known.name not in IN_PLACE or not self.tables or self.tables[0][:2] != (0, None):
            return None
        return getattr(getattr(aten, known.name + "_"), overload_of(known.func), None)

    def _see(self, position: Any, place: Any, value: Any, row: Any) -> None:
        if isinstance(value, Tensor):
            if row is None:
                self.whole.append((position, place))
            else:
                self.tables.append((position, place, row))

    def _zero(self, name: str, given: list[Any]) -> tuple[str, list[int]]:
        known = zero_where(name, {name: value for _, name, value in given})
        if known is None:
            return "", []
        counts = {p for p, name, _ in given if known.names is None or name in known.names}
        chosen = [place for place, (p, *_) in enumerate(self.tables) if p in counts]
        if not chosen or (not known.one and any(p in counts for p, _ in self.whole)):
            return "", []
        return "one" if known.one else "all", chosen

    def support(self, values: list[Value]) -> Rows | None:
        """Return outside of which rows the results are zero."""
        one, found = self.zero == "one", values[self.zero_of[0]].support
        for place in self.zero_of[1:]:
            rows = values[place].support
            if not one:
                found = None if found is None else union(found, rows, values[place].num_rows)
            elif found is None or (rows is not None and rows.count < found.count):
                found = rows
        return found


def signature(args: Any, kwargs: Any, num_rows: int, table: type) -> tuple[Any, ...]:
    """Return what calls have in common that do the same with rows.

    Args:
        args, kwargs: of a call.
        num_rows: of its tables.
        table: the class of the tensors that have values.
    """
    found: list[Any] = [torch.get_default_dtype()]  # of sums with numbers, for example
    add = found.append
    ahead = args if not kwargs else [*args, *kwargs, *kwargs.values()]
    for value in ahead:
        kind = type(value)
        if kind is table:
            node = value.node
            if type(node) is Fill:
                add((Fill, node.dtype, _normal(node.shape, num_rows)))
            else:
                add(node.kind if node.num_rows == num_rows else (node.kind, node.num_rows))
        elif kind is int:
            add(ROWS if value == num_rows else value)
        elif kind is float:  # no rule depends on it, but `_zero` on whether it is 0
            add((kind, value == 0))
        elif kind is list or kind is tuple:
            add(signature(value, None, num_rows, table))
        elif isinstance(value, Tensor):
            add((value.dtype, _normal(value.shape, num_rows)))
        else:
            add((kind, value))
    return tuple(found)


def _normal(shape: Any, num_rows: int) -> Any:
    return tuple([ROWS if s == num_rows else s for s in shape]) if num_rows in shape else shape


class Zero(NamedTuple):
    """Rows are zero where those of all of some tensor arguments are, or where those of one is.

    Attributes:
        names: of the arguments; None for all tensors.
        one: whether it takes one.
    """

    names: tuple[str, ...] | None = None
    one: bool = False


# Zero where all tensors are: sums, copies, and what is zero for zero.
_ALL = {
    "add", "sub", "cat", "stack", "neg", "view", "expand", "permute", "transpose", "t", "unsqueeze",
    "squeeze", "select", "slice", "alias", "detach", "_to_copy", "clone", "_unsafe_view", "split",
    "split_with_sizes", "unbind", "sum", "nansum", "mean", "lift_fresh", "flip", "roll", "cumsum",
    "repeat", "diagonal", "unfold", "constant_pad_nd", "view_as_real", "view_as_complex", "_conj",
    "_neg_view", "conj_physical", "abs", "sgn", "sign", "relu", "leaky_relu", "sin", "tanh", "asin",
    "atan", "sinh", "erf", "expm1", "log1p", "sqrt", "nan_to_num", "_fft_r2c", "_fft_c2c",
    "_fft_c2r",
}  # fmt: skip
# Where all of these are.
_ALL_OF = {
    "index_select": ("self",), "gather": ("self",), "index": ("self",), "masked_fill": ("self",),
    "index_fill": ("self",), "div": ("self",), "xlogy": ("self",), "special_xlog1py": ("self",),
    "scatter": ("self", "src"), "scatter_add": ("self", "src"), "index_add": ("self", "source"),
    "index_put": ("self", "values"), "where": ("self", "other"), "lerp": ("self", "end"),
}  # fmt: skip
# Where one of them is: products.
_ONE = {"mul", "mm", "bmm", "linalg_cross", "_trilinear"}


def zero_where(name: str, given: Mapping[str, Any]) -> Zero | None:
    """Return where the rows of a result are zero; None if that is not known.

    Args:
        name: of an ATen operation that keeps rows apart.
        given: its arguments by name.
    """
    if name in _ONE:
        return Zero(one=True)
    if name in _ALL or name in _ALL_OF:
        number = given.get("value", 0 if name == "div" else given.get("other", 0))
        filled = number != 0 if not isinstance(number, Tensor) else "value" in given
        return None if filled else Zero(_ALL_OF.get(name))
    first = next(iter(given), "")
    if "backward" in name and first.startswith("grad"):  # each is linear in it
        return Zero((first,))
    return None
