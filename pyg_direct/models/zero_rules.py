"""Where rows of a result are zero because rows of its arguments are.

The gradient of the outputs of a step is zero but in the rows of the seeds. What a backward makes
of it is computed where it is not zero, so each operation in a backward needs to be known here; one
that is not costs time, never a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor


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
