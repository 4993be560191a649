"""Ordinary and odd code between two layers: what an accelerated model has to do as it is written.

Each function gets the module, its hidden rows h [n, 8], the features x [n, 12] and the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.utils import add_self_loops, degree, scatter, softmax, to_dense_adj

HIDDEN = 8
Forward = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


class Scaled(torch.autograd.Function):
    """The identity, with twice the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -2 * grad


def _changed(h: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    out = h * 1
    change(out)
    return out


def _half(net: Any, h: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return net.linear(h).float()


def _hooked(h: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    if h.requires_grad:
        h.register_hook(hook)
    return h


def _with_gradient(h: Tensor) -> Tensor:
    if not h.requires_grad:
        return h * 3
    return h + torch.autograd.grad(h.square().sum(), h, create_graph=True)[0]


def _rows(h: Tensor) -> Tensor:
    return torch.arange(h.size(0))


def _sum_of_sources(h: Tensor, values: Tensor, e: Tensor, reduce: str = "sum") -> Tensor:
    return scatter(values, e[1], 0, h.size(0), reduce=reduce)


TRACED = torch.jit.trace(lambda a: (a * 2).tanh(), (torch.randn(3, HIDDEN),))

NUMBERS: dict[str, Forward] = {
    "largest": lambda net, h, x, e: h / h.abs().max(),
    "mean of rows": lambda net, h, x, e: h - h.mean(0),
    "deviation of rows": lambda net, h, x, e: (h - h.mean(0)) / (h.std(0) + 1e-5),
    "deviation and mean": lambda net, h, x, e: h - torch.std_mean(h)[1],
    "median of rows": lambda net, h, x, e: h - h.median(0).values,
    "quantile of rows": lambda net, h, x, e: h - h.quantile(0.5, dim=0),
    "softmax of rows": lambda net, h, x, e: h.softmax(0) * 100,
    "softmax": lambda net, h, x, e: h.softmax(1),
    "running sum of rows": lambda net, h, x, e: h.cumsum(0) / 100,
    "running sum": lambda net, h, x, e: h.cumsum(1),
    "running logarithm": lambda net, h, x, e: h.logcumsumexp(1),
    "norm": lambda net, h, x, e: F.normalize(h, dim=1),
    "norm of rows": lambda net, h, x, e: F.normalize(h, dim=0) * 10,
    "layer norm": lambda net, h, x, e: F.layer_norm(h, (HIDDEN,)),
    "layer norm of all": lambda net, h, x, e: F.layer_norm(h, tuple(h.shape)),
    "group norm": lambda net, h, x, e: F.group_norm(h, 2),
    "branch by size": lambda net, h, x, e: h * 2 if h.size(0) > 100 else h,
    "branch by mean": lambda net, h, x, e: h * 2 if h.mean() > 0 else h - 1,
    "item": lambda net, h, x, e: h * h.sum().item() / 1000,
    "tolist": lambda net, h, x, e: h * len(h.tolist()) / 100,
    "numpy": lambda net, h, x, e: h + float(h.detach().numpy().mean()),
    "from numpy": lambda net, h, x, e: h + torch.as_tensor(h.detach().cpu().numpy()) / 2,
    "nonzero": lambda net, h, x, e: h + len((h > 0).nonzero()) / 1000,
    "unique": lambda net, h, x, e: h + len(h[:, 0].unique()) / 1000,
    "all features": lambda net, h, x, e: h + x.sum(0)[:HIDDEN],
    "double": lambda net, h, x, e: h.double().exp().log1p().float(),
    "half": lambda net, h, x, e: _half(net, h),
}
ROWS: dict[str, Forward] = {
    "flip": lambda net, h, x, e: h.flip(0),
    "roll": lambda net, h, x, e: h.roll(1, 0),
    "sorted rows": lambda net, h, x, e: h.sort(0).values,
    "sorted": lambda net, h, x, e: h.sort(1).values,
    "top": lambda net, h, x, e: F.pad(h.topk(4, 1).values, (0, 4)),
    "rows joined": lambda net, h, x, e: torch.cat([h, h])[: h.size(0)] * 2,
    "columns joined": lambda net, h, x, e: torch.cat([h[:, :4], h[:, 4:].sin()], 1),
    "stacked": lambda net, h, x, e: torch.stack([h, h * 2]).mean(0),
    "columns in chunks": lambda net, h, x, e: torch.cat([c.relu() for c in h.chunk(2, 1)], 1),
    "rows in chunks": lambda net, h, x, e: torch.cat(list(h.split(20, 0))),
    "columns one by one": lambda net, h, x, e: torch.stack(h.unbind(1), 1),
    "even and odd rows": lambda net, h, x, e: torch.cat([h[::2], h[1::2]]),
    "repeated": lambda net, h, x, e: h.repeat(2, 1)[h.size(0) :],
    "each row twice": lambda net, h, x, e: h.repeat_interleave(2, 0)[::2],
    "expanded": lambda net, h, x, e: h[:, None].expand(-1, 3, -1).mean(1),
    "view": lambda net, h, x, e: h.view(-1, 4).relu().view(-1, HIDDEN),
    "transposed": lambda net, h, x, e: h.t().relu().t(),
    "contiguous": lambda net, h, x, e: h.t().contiguous().t() + 1,
    "third row": lambda net, h, x, e: h + h[3],
    "last row": lambda net, h, x, e: h + h[-1],
    "rows by index": lambda net, h, x, e: h + h.index_select(0, _rows(h).flip(0)),
    "columns by index": lambda net, h, x, e: h.gather(1, torch.zeros_like(h, dtype=torch.long)),
    "rows by mask": lambda net, h, x, e: h + h[h[:, 0] > 0].sum(0) / 100,
    "numbers by mask": lambda net, h, x, e: h + h.masked_select(h > 0).mean(),
    "embedding": lambda net, h, x, e: F.embedding(_rows(h), h),
    "position": lambda net, h, x, e: h + torch.sin(_rows(h).float())[:, None],
    "where by row": lambda net, h, x, e: torch.where((_rows(h) % 2 == 0)[:, None], h, -h),
    "where": lambda net, h, x, e: torch.where(h > 0, h, h.exp() - 1),
    "masked fill": lambda net, h, x, e: h.masked_fill(h < 0, 0.1),
    "argmax": lambda net, h, x, e: h + h.argmax(1, keepdim=True),
    "argmax of rows": lambda net, h, x, e: h + h.argmax(0)[None] / 100,
    "new tensors": lambda net, h, x, e: h + torch.ones_like(h) + torch.zeros(h.shape),
    "of the size": lambda net, h, x, e: h + h.new_ones(h.size(0), 1),
    "features": lambda net, h, x, e: h + x[:, :HIDDEN],
}
IN_PLACE: dict[str, Forward] = {
    "view added to": lambda net, h, x, e: _changed(h, lambda o: o[:, :3].add_(1)),
    "rows multiplied": lambda net, h, x, e: _changed(h, lambda o: o[5:9].mul_(3)),
    "rows set": lambda net, h, x, e: _changed(h, lambda o: o.index_fill_(0, _rows(o)[:9], 7.0)),
    "mask set": lambda net, h, x, e: _changed(h, lambda o: o.masked_fill_(o > 0.5, 0.0)),
    "column set": lambda net, h, x, e: _changed(h, lambda o: o.select(1, 0).zero_()),
    "put": lambda net, h, x, e: (h * 1).index_put((_rows(h)[::3],), torch.tensor(0.0)),
    "index add": lambda net, h, x, e: h.index_add(0, torch.tensor([0, 1, 2]), torch.ones(3, 8)),
    "out": lambda net, h, x, e: torch.add(h.detach(), 1, out=torch.empty(h.shape)) + h,
    "copy": lambda net, h, x, e: torch.empty_like(h).copy_(h) * 2,
    "start": lambda net, h, x, e: h + _changed(h, lambda o: o.add_(1)),
}
PRODUCTS: dict[str, Forward] = {
    "of rows": lambda net, h, x, e: h @ (h.t() @ h) / 1000,
    "attention": lambda net, h, x, e: h + (h @ h.t()).softmax(-1) @ h,
    "fused attention": lambda net, h, x, e: F.scaled_dot_product_attention(*[h[None]] * 3)[0],
    "einsum": lambda net, h, x, e: torch.einsum("nf,gf->ng", h, net.linear.weight),
    "batches": lambda net, h, x, e: torch.bmm(
        h.view(-1, 2, 4), h.view(-1, 2, 4).transpose(1, 2)
    ).reshape(h.size(0), -1).repeat(1, 2),
    "convolution": lambda net, h, x, e: F.conv1d(h[:, None], torch.ones(1, 1, 3), padding=1)[:, 0],
    "pooled over rows": lambda net, h, x, e: F.avg_pool1d(h.t()[None], 3, 1, 1)[0].t(),
    "gated": lambda net, h, x, e: F.glu(h.repeat(1, 2)),
    "distances": lambda net, h, x, e: h + torch.cdist(h, h[:5]).mean(1, keepdim=True),
    "Fourier": lambda net, h, x, e: torch.fft.fft(h, dim=1).real,
    "Fourier over rows": lambda net, h, x, e: torch.fft.fft(h, dim=0).real / 50,
}  # fmt: skip
GRAPHS: dict[str, Forward] = {
    "degrees": lambda net, h, x, e: h / (1 + degree(e[1], h.size(0))[:, None]),
    "degrees of sources": lambda net, h, x, e: h / (1 + degree(e[0], h.size(0))[:, None]),
    "largest source": lambda net, h, x, e: h + _sum_of_sources(h, h[e[0]], e, "max"),
    "sum to sources": lambda net, h, x, e: h + scatter(h[e[1]], e[0], 0, h.size(0)),
    "own attention": lambda net, h, x, e: h + _sum_of_sources(
        h, h[e[0]] * softmax(h[e[0], 0], e[1], num_nodes=h.size(0))[:, None], e
    ),
    "own scatter": lambda net, h, x, e: h + torch.zeros(h.size(0), HIDDEN).scatter_add(
        0, e[1][:, None].expand(-1, HIDDEN), h[e[0]]
    ),
    "every other edge": lambda net, h, x, e: h + net.second(h, e[:, ::2]),
    "self-loops": lambda net, h, x, e: net.second(h, add_self_loops(e, num_nodes=h.size(0))[0]),
    "edges turned": lambda net, h, x, e: net.second(h, e.flip(0)),
    "edges from behind": lambda net, h, x, e: net.second(h, e.flip(1)),
    "adjacency": lambda net, h, x, e: to_dense_adj(e, max_num_nodes=h.size(0))[0].t() @ h,
    "sparse matrix": lambda net, h, x, e: torch.sparse.mm(
        torch.sparse_coo_tensor(e.flip(0), torch.ones(e.size(1)), (h.size(0),) * 2), h
    ),
}  # fmt: skip
AUTOGRAD: dict[str, Forward] = {
    "detached copy": lambda net, h, x, e: h + h.detach().clone(),
    "own backward": lambda net, h, x, e: Scaled.apply(h),
    "no gradient": lambda net, h, x, e: h + torch.no_grad()(torch.tanh)(h),
    "hook": lambda net, h, x, e: _hooked(h, lambda grad: grad * 3),
    "hook by norm": lambda net, h, x, e: _hooked(h, lambda grad: grad / (grad.norm() + 1)),
    "gradient in the forward": lambda net, h, x, e: _with_gradient(h),
    "checkpoint": lambda net, h, x, e: checkpoint(
        lambda a: net.linear(a).tanh(), h, use_reentrant=False
    ),
    "old checkpoint": lambda net, h, x, e: checkpoint(
        lambda a: net.linear(a).tanh(), h, use_reentrant=True
    ),
    "TorchScript": lambda net, h, x, e: TRACED(h),
    "vmap": lambda net, h, x, e: torch.vmap(lambda row: row * row.sum())(h),
    "gradient by row": lambda net, h, x, e: h + torch.vmap(
        torch.func.grad(lambda row: row.square().sum())
    )(h),
}  # fmt: skip
STATE: dict[str, Forward] = {
    "calls": lambda net, h, x, e: h * 2 if net.called() % 2 else h,
    "kept numbers": lambda net, h, x, e: (net.kept.append(float(h.sum())), h)[1],
    "auxiliary loss": lambda net, h, x, e: (setattr(net, "loss", h.square().mean()), h)[1],
    "counter": lambda net, h, x, e: (net.count.add_(1), h * net.count)[1],
    "running mean": lambda net, h, x, e: (
        net.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1), h - net.mean
    )[1],
}  # fmt: skip
FORWARDS: dict[str, Forward] = {
    f"{kind}: {name}": forward
    for kind, forwards in {
        "numbers": NUMBERS, "rows": ROWS, "in place": IN_PLACE, "products": PRODUCTS,
        "graphs": GRAPHS, "autograd": AUTOGRAD, "state": STATE,
    }.items()
    for name, forward in forwards.items()
}  # fmt: skip


class Between(nn.Module):
    """Two layers, and code between them or behind them.

    Args:
        layer: makes a layer of (in, out) columns.
        forward: of `FORWARDS`.
        behind: run it on the outputs, in place of the hidden rows.
    """

    def __init__(
        self, layer: Callable[[int, int], nn.Module], forward: Forward, behind: bool
    ) -> None:
        super().__init__()
        self.first, self.second = layer(12, HIDDEN), layer(HIDDEN, HIDDEN)
        self.linear = nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(HIDDEN))
        self.between, self.behind = forward, behind
        self.kept: list[float] = []
        self.calls, self.loss = 0, torch.zeros(())

    def called(self) -> int:
        self.calls += 1
        return self.calls

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index)
        if self.behind:
            h = self.second(h.relu(), edge_index)
            return self.between(self, h, x, edge_index)
        return self.second(self.between(self, h, x, edge_index), edge_index)
