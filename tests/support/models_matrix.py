"""Small models of every kind: PyG's layers and norms, and code that is hard for an engine.

`LAYERS` are used in a model of two layers with something between; `FORWARDS` are bodies of a
forward with two layers `first` and `second`. All take ``x, edge_index`` and what `EXTRA` names.
"""

# ruff: noqa: E501  (a table: one model a line)

import copy
import dataclasses
import random
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as gnn
from models import EDGE_WIDTH, NODES, OUT, WIDTH
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric import utils
from torch_geometric.nn import aggr

H = 8


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, H), nn.ReLU(), nn.Linear(H, H))


def rgat() -> nn.Module:
    """Return PyG's layer, which leaves one parameter as the memory was, and does not use it."""
    layer = gnn.RGATConv(WIDTH, H, 3)
    nn.init.zeros_(layer.l2)
    return layer


DEGREES = torch.tensor([4, 10, 20, 10, 8, 4, 2, 1, 1])

# Each maps rows of WIDTH to rows of H.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "SAGE": (lambda: gnn.SAGEConv(WIDTH, H), ()),
    "SAGE-max": (lambda: gnn.SAGEConv(WIDTH, H, aggr="max", normalize=True), ()),
    "SAGE-lstm": (lambda: gnn.SAGEConv(WIDTH, H, aggr="lstm"), ("sorted",)),
    "SAGE-project": (lambda: gnn.SAGEConv(WIDTH, H, project=True), ()),
    "GCN": (lambda: gnn.GCNConv(WIDTH, H), ()),
    "GCN-weight": (lambda: gnn.GCNConv(WIDTH, H, improved=True), ("edge_weight",)),
    "GCN-cached": (lambda: gnn.GCNConv(WIDTH, H, cached=True), ()),
    "Cheb": (lambda: gnn.ChebConv(WIDTH, H, K=3), ()),
    "CuGraphless-Graph": (lambda: gnn.GraphConv(WIDTH, H, aggr="mean"), ("edge_weight",)),
    "GAT": (lambda: gnn.GATConv(WIDTH, 4, heads=2), ()),
    "GAT-attr": (lambda: gnn.GATConv(WIDTH, 4, heads=2, edge_dim=EDGE_WIDTH), ("edge_attr",)),
    "GAT-mean": (lambda: gnn.GATConv(WIDTH, H, heads=3, concat=False, dropout=0.3), ()),
    "GATv2": (lambda: gnn.GATv2Conv(WIDTH, 4, heads=2, edge_dim=EDGE_WIDTH), ("edge_attr",)),
    "Transformer": (lambda: gnn.TransformerConv(WIDTH, 4, heads=2, beta=True), ()),
    "Transformer-attr": (
        lambda: gnn.TransformerConv(WIDTH, H, edge_dim=EDGE_WIDTH), ("edge_attr",),
    ),
    "AGNN": (lambda: nn.ModuleList([gnn.AGNNConv(), nn.Linear(WIDTH, H)]), ()),
    "TAG": (lambda: gnn.TAGConv(WIDTH, H), ("edge_weight",)),
    "GIN": (lambda: gnn.GINConv(mlp(WIDTH), train_eps=True), ()),
    "GINE": (lambda: gnn.GINEConv(mlp(WIDTH), edge_dim=EDGE_WIDTH), ("edge_attr",)),
    "ARMA": (lambda: gnn.ARMAConv(WIDTH, H, num_stacks=2, num_layers=2), ()),
    "SG": (lambda: gnn.SGConv(WIDTH, H, K=2), ()),
    "SSG": (lambda: gnn.SSGConv(WIDTH, H, alpha=0.2, K=2), ()),
    "MF": (lambda: gnn.MFConv(WIDTH, H), ()),
    "CG": (lambda: nn.ModuleList([gnn.CGConv(WIDTH, EDGE_WIDTH), nn.Linear(WIDTH, H)]), ("edge_attr",)),
    "NN": (lambda: gnn.NNConv(WIDTH, H, nn.Linear(EDGE_WIDTH, WIDTH * H)), ("edge_attr",)),
    "GMM": (lambda: gnn.GMMConv(WIDTH, H, EDGE_WIDTH, 3), ("edge_attr",)),
    "Edge": (lambda: gnn.EdgeConv(mlp(2 * WIDTH)), ()),
    "PNA": (
        lambda: gnn.PNAConv(WIDTH, H, ["mean", "max", "std"], ["identity", "amplification"], DEGREES),
        (),
    ),
    "Cluster": (lambda: gnn.ClusterGCNConv(WIDTH, H, diag_lambda=0.1), ()),
    "GEN": (lambda: gnn.GENConv(WIDTH, H, learn_t=True), ()),
    "GEN-power": (lambda: gnn.GENConv(WIDTH, H, aggr="powermean"), ()),
    "LE": (lambda: gnn.LEConv(WIDTH, H), ("edge_weight",)),
    "Film": (lambda: gnn.FiLMConv(WIDTH, H), ()),
    "SuperGAT": (lambda: gnn.SuperGATConv(WIDTH, 4, heads=2), ()),
    "FA": (lambda: None, ()),
    "EG": (lambda: gnn.EGConv(WIDTH, H, ["mean", "symnorm", "std"], num_heads=4), ()),
    "General": (lambda: gnn.GeneralConv(WIDTH, H, attention=True), ()),
    "MixHop": (lambda: nn.ModuleList([gnn.MixHopConv(WIDTH, 3), nn.Linear(9, H)]), ()),
    "AntiSymmetric": (lambda: nn.ModuleList([gnn.AntiSymmetricConv(WIDTH), nn.Linear(WIDTH, H)]), ()),
    "Dir": (lambda: gnn.DirGNNConv(gnn.SAGEConv(WIDTH, H)), ()),
    "PDN": (lambda: gnn.PDNConv(WIDTH, H, EDGE_WIDTH, 6), ("edge_attr",)),
    "WL": (lambda: gnn.WLConvContinuous(), ("edge_weight",)),
    "ResGated": (lambda: gnn.ResGatedGraphConv(WIDTH, H, edge_dim=EDGE_WIDTH), ("edge_attr",)),
    "LG": (lambda: nn.ModuleList([gnn.LGConv(), nn.Linear(WIDTH, H)]), ()),
    "APPNP": (lambda: nn.ModuleList([gnn.APPNP(2, 0.1), nn.Linear(WIDTH, H)]), ()),
    "Gated": (lambda: nn.ModuleList([gnn.GatedGraphConv(WIDTH, 2), nn.Linear(WIDTH, H)]), ()),
    "Feast": (lambda: gnn.FeaStConv(WIDTH, H, heads=2), ()),
    "Simple": (lambda: nn.ModuleList([gnn.SimpleConv("mean", "cat"), nn.Linear(2 * WIDTH, H)]), ()),
    "RGCN": (lambda: gnn.RGCNConv(WIDTH, H, 3), ("edge_type",)),
    "FastRGCN": (lambda: gnn.FastRGCNConv(WIDTH, H, 3), ("edge_type",)),
    "RGAT": (rgat, ("edge_type",)),
    "GPS": (lambda: nn.ModuleList([gnn.GPSConv(WIDTH, gnn.SAGEConv(WIDTH, WIDTH), heads=2), nn.Linear(WIDTH, H)]), ()),
    "several": (lambda: gnn.SAGEConv(WIDTH, H, aggr=["mean", "std", "max", "median"]), ("sorted",)),
    "softmax-aggr": (lambda: gnn.SAGEConv(WIDTH, H, aggr=aggr.SoftmaxAggregation(learn=True)), ()),
    "quantile": (lambda: gnn.SAGEConv(WIDTH, H, aggr=aggr.QuantileAggregation(0.3)), ("sorted",)),
    "mul": (lambda: gnn.SAGEConv(WIDTH, H, aggr="mul"), ()),
    "min": (lambda: gnn.SAGEConv(WIDTH, H, aggr="min"), ()),
    "var": (lambda: gnn.SAGEConv(WIDTH, H, aggr="var"), ()),
    "sort-aggr": (lambda: gnn.SAGEConv(WIDTH, H, aggr=aggr.PowerMeanAggregation()), ()),
}  # fmt: skip
del LAYERS["FA"], LAYERS["WL"]

NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: gnn.BatchNorm(H),
    "instance": lambda: gnn.InstanceNorm(H),
    "layer-graph": lambda: gnn.LayerNorm(H),
    "layer-node": lambda: gnn.LayerNorm(H, mode="node"),
    "graph": lambda: gnn.GraphNorm(H),
    "graph-size": gnn.GraphSizeNorm,
    "pair": gnn.PairNorm,
    "pair-individually": lambda: gnn.PairNorm(scale_individually=True),
    "mean-subtraction": gnn.MeanSubtractionNorm,
    "message": gnn.MessageNorm,
    "diff-group": lambda: gnn.DiffGroupNorm(H, 3),
    "torch-layer": lambda: nn.LayerNorm(H),
    "torch-group": lambda: nn.GroupNorm(2, H),
    "torch-batch-no-statistics": lambda: nn.BatchNorm1d(H, track_running_stats=False),
    "rms": lambda: nn.RMSNorm(H),
}


class OfLayers(nn.Module):
    """A layer, an activation, and another layer."""

    def __init__(self, make: Callable[[], nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.norm = make(), norm
        self.back, self.second, self.out = nn.Linear(H, WIDTH), make(), nn.Linear(H, OUT)

    def apply_layer(self, layer: Any, x: Tensor, edge_index: Tensor, extra: Any) -> Tensor:
        if isinstance(layer, nn.ModuleList):
            return layer[1](layer[0](x, edge_index, **extra))
        return layer(x, edge_index, **extra)

    def forward(self, x: Tensor, edge_index: Tensor, **extra: Any) -> Tensor:
        h = self.apply_layer(self.first, x, edge_index, extra)
        if isinstance(self.norm, gnn.MessageNorm):
            h = self.norm(h, h * 0.5)
        elif self.norm is not None:
            h = self.norm(h)
        h = self.back(h.relu())
        return self.out(self.apply_layer(self.second, h, edge_index, extra).tanh())


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    if x.size(0) > 3:
        return x * 2 + x.size(0)
    return x


Pair = namedtuple("Pair", ["out", "hidden"])


@dataclasses.dataclass
class Record:
    out: Tensor
    hidden: Tensor


class Net(nn.Module):
    """Two layers, and a forward that a test gives."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = gnn.SAGEConv(WIDTH, H), gnn.GCNConv(H, OUT)
        self.lin, self.bias = nn.Linear(H, H), nn.Parameter(torch.randn(H))
        self.embedding = nn.Embedding(NODES, H)
        self.register_buffer("table", torch.randn(NODES, H))
        self.register_buffer("counter", torch.zeros(1))
        self.norm, self.attention = nn.BatchNorm1d(H), nn.MultiheadAttention(H, 2)
        self.gru, self.lstm = nn.GRUCell(H, H), nn.LSTM(H, H, batch_first=True)
        self.conv1d, self.body = nn.Conv1d(1, 2, 3, padding=1), body
        self.losses: list[Any] = []
        self.scale, self.flag = 2.0, True

    def forward(self, x: Tensor, edge_index: Tensor, **extra: Any) -> Any:
        return self.body(self, x, edge_index, **extra)


def inner(change: Callable[[Net, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return a forward with something between its two layers."""

    def body(net: Net, x: Tensor, edge_index: Tensor) -> Tensor:
        return net.second(change(net, net.first(x, edge_index)), edge_index)

    return body


def in_context(context: Callable[[], Any]) -> Callable[[Net, Tensor], Tensor]:
    def change(net: Net, h: Tensor) -> Tensor:
        with context():
            g = net.lin(h).float()
        return h + g

    return change


def add_in_place(net: Net, h: Tensor) -> Tensor:
    part = h[:, :3]
    part += 1
    start = h
    h += 1
    return h + start


def write_rows(net: Net, h: Tensor) -> Tensor:
    h[0] = 0
    h[3:9, 1] = 7
    h[h[:, 0] > 0.5] = 2
    return h


def write_one(net: Net, h: Tensor) -> Tensor:
    row = h[2]
    row[1] = 9.0
    h[4, 2] += 3
    return h


def remember(net: Net, h: Tensor) -> Tensor:
    net.kept = h
    net.losses.append(h.pow(2).mean())
    net.counter += 1
    return net.kept * net.counter


def counted(net: Net, x: Tensor, edge_index: Tensor) -> Tensor:
    out = net.second(net.first(x, edge_index).relu(), edge_index)
    net.count = getattr(net, "count", 0) + 1
    return out * net.count


def old_values(net: Net, h: Tensor) -> Tensor:
    """Read a plain tensor that changes afterwards."""
    scale = torch.ones(h.size(0), 1)
    index = torch.arange(h.size(0)).flip(0)
    g, picked = h * scale, h[index]
    scale += 5
    index.zero_()
    return g + picked + h * scale


def own_messages(net: Net, x: Tensor, edge_index: Tensor) -> Tensor:
    row, col = edge_index
    h = net.first(x, edge_index)
    message = h[row] * torch.sigmoid(h[col]) / (h[row].abs().max() + 1)
    out = torch.zeros_like(h).index_add_(0, col, message)
    plain = torch.zeros(h.size(0), H).scatter_reduce_(
        0, col.view(-1, 1).expand_as(message), message, "amax", include_self=False
    )
    degree = utils.degree(col, h.size(0)).clamp(min=1).view(-1, 1)
    return net.second(out / degree + plain, edge_index)


def dropped_edges(net: Net, x: Tensor, edge_index: Tensor) -> Tensor:
    kept = edge_index[:, edge_index[0] != edge_index[1] + 1]
    kept, _ = utils.add_self_loops(utils.remove_self_loops(kept)[0], num_nodes=x.size(0))
    h = net.first(x, kept).relu()
    strong = (h[kept[0]] * h[kept[1]]).sum(-1) > 0.1
    return net.second(h, kept[:, strong])


def attention_weights(net: Net, x: Tensor, edge_index: Tensor) -> Any:
    h = net.first(x, edge_index)
    out = utils.softmax(
        (h[edge_index[0]] * h[edge_index[1]]).sum(-1), edge_index[1], num_nodes=len(x)
    )
    return utils.scatter(h[edge_index[0]] * out.view(-1, 1), edge_index[1], 0, len(x)), out


def score(net: Net, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
    z = net.second(net.first(x, edge_index).relu(), edge_index)
    return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


def structured(kind: Callable[..., Any]) -> Callable[..., Any]:
    def body(net: Net, x: Tensor, edge_index: Tensor) -> Any:
        h = net.first(x, edge_index).relu()
        return kind(net.second(h, edge_index), h)

    return body


def of_numpy(net: Net, h: Tensor) -> Tensor:
    array = np.asarray(h.detach().cpu().numpy())
    return h * float(np.abs(array).max()) + torch.from_numpy(array.mean(0))


def set_data(net: Net, h: Tensor) -> Tensor:
    h.data = h.data * 2
    return h


def seeded(net: Net, h: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    noise = torch.rand(h.shape, generator=generator)
    torch.manual_seed(5)
    random.seed(2)
    return functional.dropout(h, 0.3) * noise * random.random() * (2 if torch.rand(()) < 0.5 else 1)


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda h: h / h.max(), "min": lambda h: h - h.min(), "sum": lambda h: h / (1 + h.abs().sum()),
    "mean0": lambda h: h - h.mean(0), "std0": lambda h: h / (h.std(0) + 1), "amax0": lambda h: h / (1 + h.abs().amax(0)),
    "softmax0": lambda h: h.softmax(0), "cumsum0": lambda h: h.cumsum(0) * 0.1, "norm": lambda h: h / h.norm(),
    "norm0": lambda h: h / h.norm(dim=0), "median0": lambda h: h - h.median(0).values, "sort0": lambda h: h.sort(0).values,
    "argmax0": lambda h: h + h.argmax(0), "any": lambda h: h * (h > 3).any(), "all0": lambda h: h * (h > -9).all(0),
    "logsumexp0": lambda h: h - h.logsumexp(0), "topk0": lambda h: h + h.topk(3, 0).values.sum(0), "count": lambda h: h * (h > 0).sum(),
    "flip0": lambda h: h.flip(0), "roll0": lambda h: h.roll(1, 0), "gram": lambda h: h @ (h.t() @ h) * 0.01, "outer": lambda h: (h @ h.t()).softmax(1) @ h,
    "prod0": lambda h: h + h.tanh().prod(0), "unique": lambda h: h + h.round().unique().numel(), "sortperm": lambda h: h[h[:, 0].argsort()],
    "mean-all": lambda h: h - h.mean(), "minmax": lambda h: (h - h.amin((0, 1))) / (h.amax() - h.amin()), "var": lambda h: h / (1 + h.var()),
}  # fmt: skip

ROWWISE: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "relu": lambda net, h: h.relu(), "prelu": lambda net, h: functional.prelu(h, net.bias[:1].abs()), "gelu": lambda net, h: functional.gelu(h),
    "layer-norm": lambda net, h: functional.layer_norm(h, (H,), net.bias), "normalize": lambda net, h: functional.normalize(h),
    "heads": lambda net, h: h.view(-1, 2, H // 2).transpose(1, 2).reshape(-1, H), "squeeze": lambda net, h: h[:, :1].squeeze() .view(-1, 1) + h,
    "chunks": lambda net, h: torch.cat(h.chunk(2, 1)[::-1], 1), "stack": lambda net, h: torch.stack([h, h * 2], 1).amax(1), "einsum": lambda net, h: torch.einsum("nc,cd->nd", h, net.lin.weight),
    "bmm": lambda net, h: torch.bmm(h.view(-1, 2, 4), h.view(-1, 4, 2)).reshape(-1, 4).repeat(1, 2), "where": lambda net, h: torch.where(h > 0, h, -h), "mask": lambda net, h: h.masked_fill(h < 0, 0.5),
    "gather": lambda net, h: h + h.gather(1, h.argmax(1, keepdim=True)), "one-hot": lambda net, h: h + functional.one_hot(h.argmax(1), H), "embedding": lambda net, h: h + net.embedding(h.argmax(1)),
    "own-table": lambda net, h: h + net.table, "all-embeddings": lambda net, h: h * net.embedding.weight, "gru": lambda net, h: net.gru(h, net.lin(h)), "lstm": lambda net, h: net.lstm(torch.stack([h, -h], 1))[0][:, -1],
    "conv1d": lambda net, h: net.conv1d(h.unsqueeze(1)).mean(1), "glu": lambda net, h: functional.glu(torch.cat([h, h], 1)), "complex": lambda net, h: torch.fft.ifft(torch.fft.fft(h, dim=1)).real,
    "batch-norm": lambda net, h: net.norm(h), "pad": lambda net, h: functional.pad(h, (1, 0))[:, :H], "double": lambda net, h: (h.double() ** 2).float(), "expand": lambda net, h: h.unsqueeze(1).expand(-1, 3, -1).mean(1),
    "size": lambda net, h: h / h.size(0) if h.size(0) > 40 else -h, "len": lambda net, h: h * len(h), "shape": lambda net, h: h.view(*h.shape[:-1], 2, -1).flatten(1), "new": lambda net, h: h + h.new_ones(h.size(0), H) + torch.zeros_like(h),
    "arange": lambda net, h: h + torch.arange(len(h)).view(-1, 1), "own-degree": lambda net, h: h * torch.linspace(0, 1, len(h)).unsqueeze(1), "cross": lambda net, h: torch.cat([torch.linalg.cross(h[:, :3], h[:, 3:6]), h[:, 3:]], 1),
    "flat": lambda net, h: h.reshape(-1).sin().view(-1, H), "transposed": lambda net, h: (net.lin.weight @ h.t()).t(), "slices": lambda net, h: torch.cat([h[:20], h[20:] * 2]), "steps": lambda net, h: h.index_add(0, torch.arange(0, len(h), 2), h[::2]),
    "iterated": lambda net, h: torch.stack([row * 2 for row in h]), "item": lambda net, h: h * h[0, 0].item(), "tolist": lambda net, h: h + sum(h[:, 0].tolist()), "numpy": of_numpy, "scripted": lambda net, h: scripted(h),
    "vmap": lambda net, h: torch.vmap(lambda row: row.softmax(0))(h), "checkpoint": lambda net, h: checkpoint(net.lin, h, use_reentrant=False), "deepcopy": lambda net, h: copy.deepcopy(h) * 2, "tensor": lambda net, h: h + torch.tensor(h.tolist()).mean(),
    "attention": lambda net, h: net.attention(h, h, h)[0], "reverse": lambda net, h: Reverse.apply(h), "straight": lambda net, h: StraightThrough.apply(h) + h, "compiled-off": lambda net, h: torch.compiler.disable(net.lin)(h),
    "no-grad": in_context(torch.no_grad), "enable-grad": in_context(torch.enable_grad), "inference-mode": in_context(torch.no_grad), "autocast": in_context(lambda: torch.autocast("cpu", torch.bfloat16)), "autocast-off": in_context(lambda: torch.autocast("cpu", enabled=False)),
    "is-grad-enabled": lambda net, h: h if torch.is_grad_enabled() else -h, "decide": lambda net, h: h if h.sum() > 0 else h - 1, "training": lambda net, h: h - h.mean(0) if net.training else h, "flag": lambda net, h: h * net.scale if net.flag else h,
    "in-place": add_in_place, "write-rows": write_rows, "write-one": write_one, "remember": remember, "old-values": old_values, "set-data": set_data, "seeded": seeded, "relu_": lambda net, h: h.relu_().mul_(2).add_(h),
    "fill": lambda net, h: h.clone().fill_(2) + h.zero_(), "views": lambda net, h: h.t().mul_(2).t() + h, "data": lambda net, h: h + h.data.abs(), "detach": lambda net, h: h - h.detach() + h.detach().sin(), "out": lambda net, h: torch.add(h, 1, out=torch.empty(NODES, H)),
    "parts": lambda net, h: torch.split(h, [20, NODES - 20])[1].mean() + h, "unbind": lambda net, h: sum(h.unbind(1)).view(-1, 1) + h, "scatter-dim1": lambda net, h: torch.zeros_like(h).scatter_(1, h.argmax(1, True), 1.0) + h, "bilinear": lambda net, h: functional.bilinear(h, h, net.table[:H].view(H, H, 1).expand(-1, -1, H)),
    "bincount": lambda net, h: h + h.argmax(1).bincount(minlength=H), "searchsorted": lambda net, h: h + torch.bucketize(h, torch.tensor([0.0, 0.5])), "nonzero": lambda net, h: h.index_fill(0, (h[:, 0] > 0).nonzero().view(-1), 0.5), "cdist": lambda net, h: torch.cdist(h, h[:H]), "swap": lambda net, h: h.index_select(0, torch.randperm(len(h), generator=torch.Generator().manual_seed(1))),
}  # fmt: skip
del ROWWISE["out"]

FORWARDS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    **{f"reduce-{k}": (inner(lambda net, h, f=f: f(h)), ()) for k, f in REDUCTIONS.items()},
    **{f"between-{k}": (inner(f), ()) for k, f in ROWWISE.items()},
    "counted": (counted, ()),
    "own-messages": (own_messages, ()),
    "dropped-edges": (dropped_edges, ()),
    "attention-weights": (attention_weights, ()),
    "score": (score, ("edge_label_index",)),
    "tuple": (structured(lambda a, b: (a, b)), ()),
    "list": (structured(lambda a, b: [a, [b]]), ()),
    "dict": (structured(lambda a, b: {"a": a, "more": {"b": b}}), ()),
    "named-tuple": (structured(Pair), ()),
    "dataclass": (structured(Record), ()),
    "scalar": (structured(lambda a, b: (a.sum(), b.size(0), "text", None)), ()),
    "input": (lambda net, x, edge_index: (x, x.relu()), ()),
    "pooled": (lambda net, x, e: gnn.global_mean_pool(net.first(x, e), torch.arange(len(x)) // 20), ()),
    "prefix": (lambda net, x, e: net.second(net.first(x, e), e)[:10], ()),
    "top-k": (lambda net, x, e: net.first(x, e)[net.first(x, e).norm(dim=1).topk(7).indices], ()),
    "laplacian": (lambda net, x, e: net.second(net.first(x, utils.to_undirected(e)), e), ()),
    "dense": (lambda net, x, e: utils.to_dense_adj(e, max_num_nodes=len(x))[0] @ net.first(x, e), ()),
    "sparse": (lambda net, x, e: torch.sparse_coo_tensor(e, torch.ones(e.size(1)), (len(x), len(x))) @ net.first(x, e), ()),
    "twice": (lambda net, x, e: net.first(x, e) + net.first(x * 2, e), ()),
    "edge-features": (lambda net, x, e, edge_attr: (edge_attr * 2, net.first(x, e) + utils.scatter(edge_attr, e[1], 0, len(x), "max").mean(1, keepdim=True)), ("edge_attr",)),
}  # fmt: skip

NEEDS_SORTED = {"SAGE-lstm", "several", "quantile"}


def matrix() -> dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]]:
    """Return all models: name -> (how it is made, its arguments beside x and edge_index)."""
    found: dict[str, Any] = {}
    for name, (make, extra) in LAYERS.items():
        found[f"layer-{name}"] = (lambda make=make: OfLayers(make), extra)
    for name, norm in NORMS.items():
        found[f"norm-{name}"] = (
            lambda norm=norm: OfLayers(LAYERS["SAGE"][0], norm()), (),
        )  # fmt: skip
    for name, (body, extra) in FORWARDS.items():
        found[name] = (lambda body=body: Net(body), extra)
    return found
