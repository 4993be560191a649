"""Which ATen operations keep rows apart, and where the rows are in the result.

A *table* is a tensor one of whose dimensions has the rows: ``row`` is its number. An operation
keeps rows apart if row r of its result depends on row r of its tables only. Then it can be run on
some rows, or on all of them block by block, with the same numbers.

`keeps_rows` says so for one call, from shapes and dtypes only; a `calls.CallPlan` makes the same
call on some rows. Operations that torch tags as pointwise follow one rule, about 80 others have one
in `RULES`. Whatever has no rule, or a rule that does not apply, must run on whole tables: a gap
costs memory or time, never a number.

Example: a bias is added to a table of 5 rows.

    >>> table, bias = torch.randn(5, 3), torch.randn(3)
    >>> seen = lambda t: (t.to("meta"), 0 if t is table else None)
    >>> add = torch.ops.aten.add.Tensor
    >>> found = keeps_rows(add, (table, bias), {}, seen)
    >>> found.rows, found.given["self"], found.given["other"]
    ((0,), 0, None)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.private_torch import (
    WITHOUT_BITS,
    is_composite,
    is_pointwise,
    overload_of,
    schema_of,
    tree_leaves,
    tree_map,
)
from .row_rules import RULES, Call, NotRowwise, RowwiseRule, Seen, listed, pointwise

aten = torch.ops.aten


class RowwiseCall(NamedTuple):
    """A row-wise call.

    Attributes:
        num_rows: number of rows, at least 2.
        out: the result, on meta tensors, as the operation returns it.
        rows: for each tensor in ``tree_leaves(out)`` the dimension of its rows; None for a tensor
            that only a backward in training mode reads.
        given: by name of the parameter, the dimension of the rows of a tensor argument (which need
            not be a table: a plain tensor may be added row by row, too), or None if all of it is
            read for every row. A list of them for a list of tensors.
        sizes: where an argument states the number of rows: (name, None), or (name, place in it).
    """

    num_rows: int
    out: Any
    rows: tuple[int | None, ...]
    given: dict[str, Any]
    sizes: tuple[tuple[str, int | None], ...]


def keeps_rows(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], seen: Seen
) -> RowwiseCall | None:
    """Return how an operation keeps the rows of its tables apart; None if no rule says so.

    Args:
        func: an overload of an ATen operation that writes to none of its arguments. For one that
            does, ask with the operation that does not.
        args, kwargs: of the call.
        seen: gives for a tensor argument a meta tensor of its shape and dtype, and the dimension of
            its rows; None for a tensor that is not a table.
    """
    given = bound(func, args, kwargs)
    call = Call(given, seen)
    if (
        func.namespace != "aten"
        or call.num_rows < 2
        or torch.Tag.nondeterministic_seeded in func.tags
    ):
        return None
    name = schema_of(func).name.split("::")[1]
    rule = pointwise if is_pointwise(func) else RULES.get(name)
    if rule is None:
        return None
    try:
        call.out = on_meta(func, args, kwargs, seen)
        return _checked(call, rule(call))
    except (NotRowwise, NotImplementedError):  # the latter: a result whose shape depends on values
        return None


def call_on_rows(apart: RowwiseCall, func: Any, args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Return the operation that gives some rows, and what it takes after the arguments."""
    if func is aten.squeeze.default:
        shape, row = args[0].shape, apart.given["self"]
        return aten.squeeze.dims, [[d for d, n in enumerate(shape) if d != row and n == 1]]
    return _OF_ROWS.get(func, func), []


_OF_ROWS = {
    aten.view.default: aten.reshape.default,  # for other strides
    aten._unsafe_view.default: aten.reshape.default,
    **WITHOUT_BITS,
}


def without_writing(func: Any) -> Any:
    """Return the operation with a rule that gives what another one writes to its first argument.

    None if there is none of the same arguments, as for `polygamma_`.
    """
    name = schema_of(func).name.split("::")[1].removesuffix("_")
    found = _NEW_TENSORS.get(func) or getattr(getattr(aten, name, None), overload_of(func), None)
    if found is None or found is func or not (is_pointwise(found) or name in RULES):
        return None
    same = _signature(found)[0] == _signature(func)[0]
    return found if same else None


# Where the operation that writes to no argument has another overload name.
_NEW_TENSORS = {aten.pow_.Scalar: aten.pow.Tensor_Scalar, aten.pow_.Tensor: aten.pow.Tensor_Tensor}


class Operator:
    """Cached properties of an ATen overload.

    Attributes:
        func: the overload of an ATen operation.
        name: its name, "" if it is none of ATen's.
        is_mutable, is_view: of its schema.
        is_composite: whether it is made of others.
        pure: the operation that gives what this one writes to its first argument, or None.
        names: of its arguments.
        plans: of calls by signature, each a `calls.CallPlan` or None.
    """

    __slots__ = (
        "func", "is_composite", "is_mutable", "is_view", "name", "names", "plans", "pure",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = schema_of(func)
        self.func = func
        self.name = schema.name[6:] if func.namespace == "aten" else ""
        self.is_mutable, self.is_view = schema.is_mutable, func.is_view
        self.is_composite = is_composite(func)
        pure = without_writing(func) if self.is_mutable else None
        self.pure: Operator | None = None if pure is None else operator(pure)
        self.names = [a.name for a in schema.arguments]
        self.plans: dict[Any, Any] = {}


OPERATORS: dict[int, Operator] = {}  # by id: their own hash takes longer, and each is kept


def operator(func: Any) -> Operator:
    """Return the cached properties of an overload."""
    found = OPERATORS.get(id(func))
    if found is None:
        found = OPERATORS[id(func)] = Operator(func)
    return found


def bound(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation by name, with those that were left out."""
    names, defaults = _signature(func)
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


@lru_cache(maxsize=1024)
def _signature(func: Any) -> tuple[list[str], dict[str, Any]]:
    arguments = schema_of(func).arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return [a.name for a in arguments], defaults


def on_meta(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], seen: Seen) -> Any:
    """Return the result of an operation on meta tensors.

    Raises:
        NotImplementedError: the shape of the result depends on values.
    """

    def meta(value: Any) -> Any:
        if isinstance(value, Tensor):
            return seen(value)[0]
        return torch.device("meta") if isinstance(value, torch.device) else value

    new_args, new_kwargs = tree_map(meta, (args, dict(kwargs)))
    return WITHOUT_BITS.get(func, func)(*new_args, **new_kwargs)


def _checked(call: Call, verdict: RowwiseRule) -> RowwiseCall:
    """Return what a rule says, with the rows of the tables, if the shapes agree with it."""
    values = [v for v in tree_leaves(call.out) if isinstance(v, Tensor)]
    known = verdict.out if isinstance(verdict.out, tuple) else (verdict.out,) * len(values)
    rows = []
    for value, row in zip(values, known, strict=True):
        fits = row is not None and 0 <= row < value.dim() and value.size(row) == call.num_rows
        if not fits and row is not None and value.numel() > 0:
            raise NotRowwise
        rows.append(row if fits else None)
    given = {**verdict.given, **call.rows}
    for name, row in given.items():
        for value, one in zip(listed(call[name]), listed(row), strict=True):
            if one is not None and value.size(one) != call.num_rows:
                raise NotRowwise
    if all(row is None for row in rows):
        raise NotRowwise
    return RowwiseCall(call.num_rows, call.out, tuple(rows), given, verdict.sizes)
