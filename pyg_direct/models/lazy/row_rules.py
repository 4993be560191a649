"""The rules of `rules`: for each ATen operation, when rows stay apart, and where they are then.

A rule reads the arguments and the result of a call on meta tensors, and raises `NotRowwise` unless
it is sure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.private_torch import tree_leaves

Seen = Callable[[Tensor], tuple[Tensor, "int | None"]]


class NotRowwise(Exception):  # noqa: N818 (not an error: the operation runs on whole tables)
    """The operation is not known to be row-wise."""


class RowwiseRule(NamedTuple):
    """How a call is row-wise.

    Attributes:
        out: dimension of the rows in every tensor of the result, or one for each.
        given: as in `RowwiseCall`, of what is not a table. `rules.keeps_rows` adds the tables.
        sizes: as in `RowwiseCall`.
    """

    out: int | tuple[int | None, ...]
    given: Mapping[str, Any] = {}
    sizes: tuple[tuple[str, int | None], ...] = ()


class Call:
    """The arguments of a call by name, tensors as meta tensors.

    Attributes:
        rows: of the arguments with tables, the dimension of the rows; of a list, one for each.
        num_rows: their number of rows; 0 if there are none, or several different numbers.
        out: the result.
    """

    out: Any

    def __init__(self, given: Mapping[str, Any], seen: Seen) -> None:
        self.given: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}
        counts: set[int] = set()
        for name, value in given.items():
            many = isinstance(value, (list, tuple))
            found = [seen(v) if isinstance(v, Tensor) else (v, None) for v in listed(value)]
            counts.update(meta.size(row) for meta, row in found if row is not None)
            metas, rows = [meta for meta, _ in found], [row for _, row in found]
            self.given[name] = metas if many else metas[0]
            if any(row is not None for row in rows):
                self.rows[name] = rows if many else rows[0]
        self.num_rows = counts.pop() if len(counts) == 1 else 0

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name)

    @property
    def first(self) -> Tensor:
        """The first tensor of the result."""
        return next(v for v in tree_leaves(self.out) if isinstance(v, Tensor))

    def only(self) -> tuple[Tensor, int]:
        """Return the one table, and the dimension of its rows."""
        if len(self.rows) != 1:
            raise NotRowwise
        ((name, row),) = self.rows.items()
        if isinstance(row, list):
            raise NotRowwise
        return self.given[name], row

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensor arguments that are not in lists."""
        yield from ((n, v) for n, v in self.given.items() if isinstance(v, Tensor))


def listed(value: Any) -> Any:
    """Return a list of what a parameter takes: one value, or several."""
    return value if isinstance(value, (list, tuple)) else [value]


def _dims(value: Any, rank: int) -> list[int]:
    """Return dimensions from the front; None and [] are all of them."""
    if value is None or value == []:
        return list(range(rank))
    return [v % rank for v in listed(value)]


def pointwise(call: Call) -> RowwiseRule:
    """Follow broadcasting, by which dimensions count from the last one."""
    out = call.first.dim()
    from_end = {call[n].dim() - r if isinstance(r, int) else -1 for n, r in call.rows.items()}
    row = out - from_end.pop()
    if from_end or not 0 <= row < out:  # not all their rows are along one dimension of it
        raise NotRowwise
    return RowwiseRule(row, _broadcast(call, row, [n for n, _ in call.tensors()]))


def _broadcast(call: Call, row: int, names: list[str]) -> dict[str, int | None]:
    """Return where arguments that are broadcast have the dimension `row` of the result."""
    out, given = call.first.dim(), {}
    for name in names:
        value = call[name]
        if isinstance(value, Tensor):
            own = row - (out - value.dim())
            given[name] = own if own >= 0 and value.size(own) == call.num_rows else None
            if name in call.rows and given[name] != call.rows[name]:
                raise NotRowwise
    return given


def _reduced(call: Call, name: str = "dim") -> RowwiseRule:
    """Reduce other dimensions, which go away unless keepdim is set."""
    table, row = call.only()
    gone = _dims(call[name], table.dim())
    if row in gone:
        raise NotRowwise
    return RowwiseRule(row if call["keepdim"] else row - sum(d < row for d in gone))


def _within(call: Call, name: str = "dim") -> RowwiseRule:
    """Compute along other dimensions, which stay."""
    table, row = call.only()
    if row in _dims(call[name], table.dim()):
        raise NotRowwise
    return RowwiseRule(row)


def _reshaped(call: Call) -> RowwiseRule:
    """Give the same elements another shape: as many stand before a row as did."""
    table, row = call.only()
    before, size = prod(table.shape[:row]), call.first.shape
    if table.numel() == 0:
        raise NotRowwise
    for place, entry in enumerate(size):
        if entry == call.num_rows and prod(size[:place]) == before:
            return RowwiseRule(place, sizes=(("size", place),) if "size" in call.given else ())
    raise NotRowwise


def _expanded(call: Call) -> RowwiseRule:
    table, row = call.only()
    row += len(call["size"]) - table.dim()
    return RowwiseRule(row, sizes=(("size", row),))


def _repeated(call: Call) -> RowwiseRule:
    table, row = call.only()
    row += len(call["repeats"]) - table.dim()
    if call["repeats"][row] != 1:
        raise NotRowwise
    return RowwiseRule(row)


def _permuted(call: Call) -> RowwiseRule:
    table, row = call.only()
    return RowwiseRule(_dims(call["dims"], table.dim()).index(row))


def _transposed(call: Call) -> RowwiseRule:
    table, row = call.only()
    rank = table.dim()
    first, second = (
        call[n] % rank if n in call.given else d for n, d in (("dim0", 0), ("dim1", 1))
    )
    if rank == 1:
        return RowwiseRule(row)
    return RowwiseRule({first: second, second: first}.get(row, row))


def _unsqueezed(call: Call) -> RowwiseRule:
    table, row = call.only()
    return RowwiseRule(row + (call["dim"] % (table.dim() + 1) <= row))


def _squeezed(call: Call) -> RowwiseRule:
    table, row = call.only()
    gone = [d for d in _dims(call["dim"], table.dim()) if table.size(d) == 1]
    return RowwiseRule(row - sum(d < row for d in gone))


def _diagonal(call: Call) -> RowwiseRule:
    table, row = call.only()
    pair = [call["dim1"] % table.dim(), call["dim2"] % table.dim()]
    if row in pair:
        raise NotRowwise
    return RowwiseRule(row - sum(d < row for d in pair))


def _joined(call: Call, new: bool) -> RowwiseRule:
    """Join tensors along another dimension; `new`: one that they do not have."""
    rows = {row for row in call.rows["tensors"] if row is not None}
    if len(rows) != 1:
        raise NotRowwise
    row, dim = rows.pop(), call["dim"] % call.first.dim()
    if not new and dim == row:
        raise NotRowwise
    tables = call["tensors"]
    if any(t.dim() <= row or t.size(row) != call.num_rows for t in tables):
        raise NotRowwise  # among them the empty tensors that `cat` passes over
    call.rows["tensors"] = [row] * len(tables)
    return RowwiseRule(row + (new and dim <= row))


def _matmul(call: Call, left: str, right: str, added: str | None = None) -> RowwiseRule:
    """Multiply matrices: rows are those of the left, columns of the right, or a batch of both."""
    a, b = call.rows.get(left), call.rows.get(right)
    rank, out = call[left].dim(), call.first.dim()
    given: dict[str, int | None]
    if rank == 3 and {a, b} <= {0, None} and (a, b) != (None, None):
        row, given = 0, {left: 0, right: 0}
    elif b is None and a == rank - 2:
        row, given = a, {right: None}
    elif a is None and b is not None and b == call[right].dim() - 1 == out - 1:
        row, given = out - 1, {left: None}
    else:
        raise NotRowwise
    return RowwiseRule(row, {**given, **(_broadcast(call, row, [added]) if added else {})})


def _distances(call: Call) -> RowwiseRule:
    """Compute the distances of each row from those of another tensor, or its gradient."""
    ranks = {value.dim() for _, value in call.tensors()}
    if "x2" in call.rows or set(call.rows.values()) != {0} or ranks != {2}:
        raise NotRowwise
    return RowwiseRule(0, {name: 0 for name, _ in call.tensors() if name != "x2"})


def _layer_norm(call: Call) -> RowwiseRule:
    table, row = call.only()
    if "input" not in call.rows or row >= table.dim() - len(call["normalized_shape"]):
        raise NotRowwise
    return RowwiseRule(row)


def _batch_norm(call: Call) -> RowwiseRule:
    """Normalise by the running statistics."""
    _, row = call.only()
    if "input" not in call.rows or row == 1 or call["training"] or call["running_mean"] is None:
        raise NotRowwise
    return RowwiseRule((row, *[None] * (len(call.out) - 1)))


def _group_norm(call: Call) -> RowwiseRule:
    _, row = call.only()
    if "input" not in call.rows or row != 0:
        raise NotRowwise
    return RowwiseRule(0, sizes=(("N", None),))


def _convolution(call: Call) -> RowwiseRule:
    table, row = call.only()
    if "input" not in call.rows or row != 0 or table.dim() != call["weight"].dim():
        raise NotRowwise
    return RowwiseRule(0)


def _padded(call: Call) -> RowwiseRule:
    table, row = call.only()
    at = 2 * (table.dim() - 1 - row)
    if any(call["pad"][at : at + 2]):
        raise NotRowwise
    return RowwiseRule(row)


def _looked_up(call: Call, name: str) -> RowwiseRule:
    """Look each element up in another tensor."""
    if set(call.rows) != {name}:
        raise NotRowwise
    return RowwiseRule(call.rows[name])


def _gathered(call: Call) -> RowwiseRule:
    """Read or write along another dimension, at indices of the same rows."""
    rows = set(call.rows.values())
    row = rows.pop()
    if rows or call["dim"] % call["self"].dim() == row:
        raise NotRowwise
    return RowwiseRule(row, {n: row for n, _ in call.tensors()})


def _added(call: Call) -> RowwiseRule:
    """Add or write at places along another dimension, which are the same for all rows."""
    rows = set(call.rows.values())
    row = rows.pop()
    if rows or "index" in call.rows or call["dim"] % call.first.dim() == row:
        raise NotRowwise
    return RowwiseRule(row, {"self": row, "source": row})


def _indexed(call: Call) -> RowwiseRule:
    """Read by one list of indices: along another dimension, or of each row one element."""
    used = [(d, v) for d, v in enumerate(call["indices"]) if v is not None]
    if len(call.rows) != 1 or len(used) != 1 or used[0][1].dtype in (torch.bool, torch.uint8):
        raise NotRowwise
    dim, index = used[0]
    if "indices" in call.rows:
        return RowwiseRule(dim + call.rows["indices"][dim])
    row = call.rows["self"]
    if dim == row:
        raise NotRowwise
    return RowwiseRule(row + (index.dim() - 1 if dim < row else 0))


def _selected(call: Call) -> RowwiseRule:
    if set(call.rows) != {"self"}:
        raise NotRowwise
    return _within(call)


def _crossed(call: Call) -> RowwiseRule:
    verdict = pointwise(call)
    if call["dim"] % call.first.dim() == verdict.out:
        raise NotRowwise
    return verdict


def _trilinear(call: Call) -> RowwiseRule:
    """Multiply three tensors, broadcast by new dimensions, and sum over some (`nn.Bilinear`)."""
    rank = call["i1"].dim() + len(call["expand1"])
    places, given = {}, {}
    for name in ("i1", "i2", "i3"):
        new = [d % rank for d in call[f"expand{name[1]}"]]
        places[name] = [d for d in range(rank) if d not in new]
    rows = {places[name][row] for name, row in call.rows.items()}
    if len(rows) != 1:
        raise NotRowwise
    row = rows.pop()
    gone = [d % rank for d in call["sumdim"]]
    if row in gone:
        raise NotRowwise
    for name, kept in places.items():
        own = kept.index(row) if row in kept else None
        given[name] = own if own is not None and call[name].size(own) == call.num_rows else None
    return RowwiseRule(row - sum(d < row for d in gone), given)


def _cell(call: Call) -> RowwiseRule:
    """Compute one step of a recurrent cell."""
    if any(row != 0 for row in call.rows.values()) or {"input_bias", "hidden_bias"} & set(
        call.rows
    ):
        raise NotRowwise
    return RowwiseRule(
        0, dict.fromkeys({"input_gates", "hidden_gates", "hx", "cx"} & set(call.given), 0)
    )


def _recurrent(call: Call) -> RowwiseRule:
    """Run a recurrent layer over a sequence of rows, [time, rows, width]."""
    given = {name: call[name].dim() - 2 for name in ("input", "hx_", "cx_")}
    if call["batch_first"] or call["train"] or call["batch_sizes"]:
        raise NotRowwise
    if any(given.get(name) != row for name, row in call.rows.items()):
        raise NotRowwise
    states = [v.dim() - 2 for v in call.out[1:3]]
    return RowwiseRule((given["input"], *states, None), given)


def _along(call: Call) -> RowwiseRule:
    """Compute along another dimension of tensors that have the same dimensions."""
    rows = set(call.rows.values())
    row = rows.pop()
    if rows or row == call["dim"] % call.first.dim():
        raise NotRowwise
    return RowwiseRule(row, {name: row for name, _ in call.tensors()})


def _into(call: Call) -> RowwiseRule:
    """Put rows into a part of another dimension."""
    table, row = call.only()
    rank = len(call["input_sizes"])
    dim = call["dim"] % rank
    row += rank > table.dim() and dim <= row
    if dim == row or row >= rank:  # the latter: the windows of `unfold`
        raise NotRowwise
    return RowwiseRule(row, sizes=(("input_sizes", row),))


def _onto_diagonal(call: Call) -> RowwiseRule:
    """Put rows onto a diagonal of two other dimensions, which is their last dimension."""
    table, row = call.only()
    rank = len(call["input_sizes"])
    pair = [call["dim1"] % rank, call["dim2"] % rank]
    if row == table.dim() - 1:
        raise NotRowwise
    row = [d for d in range(rank) if d not in pair][row]
    return RowwiseRule(row, sizes=(("input_sizes", row),))


def _put(call: Call) -> RowwiseRule:
    """Write by one list of indices along another dimension."""
    if not set(call.rows) <= {"self", "values"}:
        raise NotRowwise
    used = [(d, v) for d, v in enumerate(call["indices"]) if v is not None]
    if len(used) != 1 or used[0][1].dtype in (torch.bool, torch.uint8):
        raise NotRowwise
    dim, rank = used[0][0], used[0][1].dim()
    others = [d for d in range(call["self"].dim()) if d != dim]
    places = {d: d if d < dim else d + rank - 1 for d in others}  # in the values
    rows = [d for d in others if call.rows.get("values", places[d]) == places[d]]
    row = call.rows.get("self", rows[0] if rows else dim)
    if row not in rows or call["values"].dim() != call["self"].dim() + rank - 1:
        raise NotRowwise
    return RowwiseRule(row, {"self": row, "values": places[row]})


def _unreduced(call: Call) -> RowwiseRule:
    """Compute a loss of each element."""
    if call["reduction"] != 0:
        raise NotRowwise
    return pointwise(call)


def _same(call: Call) -> RowwiseRule:
    return RowwiseRule(call.only()[1])


def _with(rule: Callable[..., RowwiseRule], names: str, **options: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), partial(rule, **options) if options else rule)


# By the name of the operation, for all its overloads.
RULES: dict[str, Callable[[Call], RowwiseRule]] = {
    **_with(_reduced, "sum mean amax amin max min argmax argmin var std var_mean std_mean prod"),
    **_with(_reduced, "linalg_vector_norm norm logsumexp any all median nanmedian mode kthvalue"),
    **_with(_reduced, "count_nonzero nansum aminmax unbind select"),
    **_with(_within, "_softmax _log_softmax _safe_softmax cumsum cumprod cummax cummin"),
    **_with(_within, "logcumsumexp slice split split_with_sizes unsafe_split glu"),
    **_with(_within, "sort topk _fft_r2c _fft_c2c _fft_c2r"),
    **_with(_within, "flip roll", name="dims"),
    **_with(_within, "unfold", name="dimension"),
    **_with(_selected, "index_select index_fill"),
    **_with(_reshaped, "view _unsafe_view"),
    **_with(_expanded, "expand"),
    **_with(_repeated, "repeat"),
    **_with(_permuted, "permute"),
    **_with(_transposed, "transpose t"),
    **_with(_unsqueezed, "unsqueeze"),
    **_with(_squeezed, "squeeze"),
    **_with(_diagonal, "diagonal"),
    **_with(_joined, "cat", new=False),
    **_with(_joined, "stack", new=True),
    **_with(_matmul, "mm bmm", left="self", right="mat2"),
    **_with(_matmul, "addmm", left="mat1", right="mat2", added="self"),
    **_with(_matmul, "baddbmm", left="batch1", right="batch2", added="self"),
    **_with(_matmul, "mv", left="self", right="vec"),
    **_with(_matmul, "addmv", left="mat", right="vec", added="self"),
    **_with(_distances, "_euclidean_dist _cdist_forward _cdist_backward"),
    **_with(_layer_norm, "native_layer_norm _fused_rms_norm"),
    **_with(_batch_norm, "native_batch_norm cudnn_batch_norm"),
    **_with(_group_norm, "native_group_norm"),
    **_with(_convolution, "convolution"),
    **_with(_padded, "constant_pad_nd"),
    **_with(_looked_up, "embedding", name="indices"),
    **_with(_looked_up, "isin", name="elements"),
    **_with(_looked_up, "bucketize", name="self"),
    **_with(_gathered, "gather scatter scatter_add scatter_reduce"),
    **_with(_added, "index_add index_copy index_reduce"),
    **_with(_indexed, "index"),
    **_with(_crossed, "linalg_cross"),
    **_with(_trilinear, "_trilinear"),
    **_with(_cell, "_thnn_fused_gru_cell _thnn_fused_lstm_cell"),
    **_with(_recurrent, "mkldnn_rnn_layer"),
    **_with(_same, "alias detach lift_fresh _to_copy view_as_complex view_as_real"),
    **_with(_same, "_conj _neg_view"),
    **_with(
        pointwise, "_prelu_kernel hardswish log_sigmoid_forward polar complex floor_divide rsub"
    ),
    **_with(pointwise, "leaky_relu_backward softplus_backward hardtanh_backward"),
    **_with(pointwise, "softshrink_backward log_sigmoid_backward rrelu_with_noise_backward"),
    **_with(pointwise, "elu_backward hardshrink_backward hardsigmoid_backward hardswish_backward"),
    **_with(pointwise, "mish_backward _prelu_kernel_backward"),
    **_with(_along, "_softmax_backward_data _log_softmax_backward_data glu_backward"),
    **_with(_into, "slice_backward select_backward unfold_backward"),
    **_with(_onto_diagonal, "diagonal_backward"),
    **_with(_put, "index_put"),
    **_with(_unreduced, "mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy"),
    **_with(_unreduced, "mse_loss_backward smooth_l1_loss_backward huber_loss_backward"),
    **_with(_unreduced, "soft_margin_loss_backward binary_cross_entropy_backward"),
}
