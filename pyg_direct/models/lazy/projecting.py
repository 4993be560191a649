"""Products with a matrix that come before a sum over neighbours, where rows get shorter by them.

Sums and means of rows commute with a product of the rows with a matrix, ``(A X) W = A (X W)``, and
A has many more entries than rows. DGL's SAGEConv and GraphConv do the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .reducing import ScatterNode
from .tables import ConstantTensor, FillNode, Node, OperationNode, TakeNode
from .tensor import TableTensor

aten = torch.ops.aten


def projected_first(run: Any, args: Any, kwargs: Any) -> Any:
    """Return the node of ``[bias +] (A X / d) W`` as ``[bias +] (A (X W)) / d``.

    Args:
        run: the forward.
        args, kwargs: of `mm` or `addmm`.

    Returns:
        None where the rows are no such sums or means, or where W makes them longer.
    """
    *bias, table, weight = args
    if kwargs or not isinstance(table, TableTensor) or table.plain is not None:
        return None
    if isinstance(weight, TableTensor) or any(isinstance(v, TableTensor) for v in bias):
        return None
    sums, divisor = _sums_and_divisor(table.node)
    if sums is None or weight.size(1) >= weight.size(0):
        return None
    take: Any = sums.inputs[1]
    product = run.wrap(run.row_wise(aten.mm.default, (run.wrap(take.inputs[0]), weight), {}))
    run.computer.complete(product.node, narrow=True)

    def rows_like(node: Node) -> Tensor:
        size = node.num_rows, weight.size(1)
        return torch.empty(size, dtype=product.dtype, device="meta")

    messages = TakeNode(rows_like(take), 0, product.node, take.index)
    found = run.wrap(
        ScatterNode(
            FillNode(rows_like(sums), 0, 0), messages, sums.order, sums.reduce, sums.include
        )
    )
    if divisor is not None:
        found = run.wrap(run.row_wise(aten.div.Tensor, (found, run.wrap(divisor)), {}))
    return run.row_wise(aten.add.Tensor, (found, *bias), {}) if bias else found.node


def _sums_and_divisor(node: Node) -> tuple[ScatterNode | None, Node | None]:
    """Return the sums of gathered rows that a node is, and the column that it is divided by."""
    divisor = None
    if isinstance(node, OperationNode) and node.is_call_of(aten.div.Tensor):
        sums, spread = node.call[2]
        if not isinstance(spread, OperationNode) or not spread.is_call_of(aten.expand.default):
            return None, None
        node, divisor = sums, spread.inputs[0]
        if tuple(divisor.meta.shape) != (spread.num_rows, 1):
            return None, None
    if not isinstance(node, ScatterNode) or node.table is not None or node.meta.dim() != 2:
        return None, None
    base, take = node.inputs
    zero = isinstance(base, FillNode) and base.value == 0 and base.dim == 0
    gathered = isinstance(take, TakeNode) and isinstance(take.index, ConstantTensor)
    wide = node.meta.dtype in (torch.float32, torch.float64)
    fits = zero and gathered and wide and node.reduce == "sum" and node.include
    return (node, divisor) if fits else (None, None)
