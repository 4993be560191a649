"""Layers of PyG on batches that ranks make together: equal to one process, or refused by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from batches import arguments
from cooperative_steps import SEEDS, Models, check, data_of, loaders_of, loss_of, model_of
from models import EDGE_TYPES, EDGE_WIDTH, METADATA, NODE_WIDTHS, OUT, WIDTH, Hetero
from rank_processes import run_ranks
from torch import Tensor, nn
from torch_geometric.utils import add_self_loops, degree, dropout_edge, scatter

from pyg_direct import accelerate

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")


class Layers(nn.Module):
    """Layers one after another, with what is between them."""

    def __init__(self, *layers: nn.Module, between: Any = torch.relu) -> None:
        super().__init__()
        self.layers, self.between = nn.ModuleList(layers), between

    def forward(self, x: Tensor, edge_index: Tensor, *extra: Tensor, **named: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = self.between(x) if place else x
            linear = isinstance(layer, nn.Linear)
            x = layer(x) if linear else layer(x, edge_index, *extra, *named.values())
        return x


def two(conv: Callable[..., nn.Module], *extra: str, **options: Any) -> Any:
    """Return how two layers of a kind are made, and what else they are given."""
    return lambda: Layers(conv(WIDTH, 16, **options), conv(16, OUT, **options)), extra


def behind(conv: Callable[..., nn.Module], *given: Any, width: int = 8, **options: Any) -> Any:
    """Return how layers are made that keep the number of columns."""

    def make() -> nn.Module:
        layers = [conv(*given, **options) for _ in range(2)]
        return Layers(nn.Linear(WIDTH, width), *layers, nn.Linear(width, OUT))

    return make, ()


class Beside(nn.Module):
    """Layers that read the first rows again."""

    def __init__(self, conv: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.begin, self.end = nn.Linear(WIDTH, 8), nn.Linear(8, OUT)
        self.layers = nn.ModuleList([conv(), conv()])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = first = self.begin(x).relu()
        for layer in self.layers:
            x = layer(x, first, edge_index)
        return self.end(x)


class Prepared(nn.Module):
    """Layers behind something that is made of the nodes and edges."""

    def __init__(self, prepare: Any, columns: int = WIDTH) -> None:
        super().__init__()
        self.prepare = prepare
        self.first, self.second = pyg.SAGEConv(columns, 16), pyg.GCNConv(16, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, edge_index = self.prepare(x, edge_index)
        return self.second(self.first(x, edge_index).relu(), edge_index)


def counted(by: int, count: Callable[..., Tensor], x: Tensor, edges: Tensor) -> Any:
    """Add the number of edges at a node to its row."""
    return torch.cat([x, count(edges[by], len(x))[:, None].to(x)], 1), edges


def bincount(index: Tensor, nodes: int) -> Tensor:
    return torch.bincount(index, minlength=nodes)


def gin_with_norm(_: Any) -> nn.Module:
    return pyg.GINConv(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()))


def typed(conv: Callable[[Any], nn.Module]) -> Any:
    layer = lambda: pyg.HeteroConv({key: conv(key) for key in EDGE_TYPES})  # noqa: E731
    return lambda: Hetero(layer), ()


def sage(_: Any, **options: Any) -> nn.Module:
    return pyg.SAGEConv((16, 16), 16, **options)


def nnconv(columns: int, out: int) -> nn.Module:
    return pyg.NNConv(columns, out, nn.Linear(EDGE_WIDTH, columns * out))


DEGREE = torch.tensor([3, 4, 5, 9])
NEAR: Models = {  # one of each way to sum, and what was wrong once
    "tag": two(pyg.TAGConv, K=2),
    "appnp": (lambda: Layers(nn.Linear(WIDTH, OUT), pyg.APPNP(2, 0.1)), ()),
    "nnconv": two(nnconv, "edge_attr"),
    "film": two(pyg.FiLMConv),
    "gatv2": two(pyg.GATv2Conv, "edge_attr", edge_dim=EDGE_WIDTH, heads=2, concat=False),
    "softmax": two(pyg.SAGEConv, aggr="softmax"),
    "degrees": (lambda: Prepared(partial(counted, 1, bincount), WIDTH + 1), ()),
    "hetero-norm": typed(gin_with_norm),  # of which the last ones for authors are not read
    "hetero-gat": typed(
        lambda key: pyg.GATConv((16, 16), 8, heads=2, add_self_loops=False)
    ),
}  # fmt: skip
LAYERS: Models = {
    **NEAR,
    "sg": (lambda: pyg.SGConv(WIDTH, OUT, K=2), ()),
    "ssg": (lambda: pyg.SSGConv(WIDTH, OUT, alpha=0.1, K=2), ()),
    "cluster-gcn": two(pyg.ClusterGCNConv),
    "gated-graph": (lambda: Layers(pyg.GatedGraphConv(16, 2), nn.Linear(16, OUT)), ()),
    "gine": (
        lambda: Layers(*(pyg.GINEConv(nn.Linear(WIDTH, WIDTH), edge_dim=EDGE_WIDTH),) * 2),
        ("edge_attr",),
    ),
    "cg": (lambda: Layers(pyg.CGConv(WIDTH, EDGE_WIDTH, batch_norm=True)), ("edge_attr",)),
    "fast-rgcn": two(pyg.FastRGCNConv, "edge_type", num_relations=3),
    "rgat": two(pyg.RGATConv, "edge_type", num_relations=3),
    "resgated": two(pyg.ResGatedGraphConv, "edge_attr", edge_dim=EDGE_WIDTH),
    "le": two(pyg.LEConv),
    "feast": two(pyg.FeaStConv, heads=2),
    "graph": two(pyg.GraphConv, "edge_weight"),
    "gcn-weight": two(pyg.GCNConv, "edge_weight", improved=True),
    "gcn2": (lambda: Beside(lambda: pyg.GCN2Conv(8, 0.1)), ()),
    "fa": (lambda: Beside(lambda: pyg.FAConv(8)), ()),
    "lg": behind(pyg.LGConv),
    "agnn": behind(pyg.AGNNConv),
    "simple": behind(pyg.SimpleConv, aggr="mean", combine_root="self_loop"),
    "wl": behind(pyg.WLConvContinuous),
    "antisymmetric": behind(pyg.AntiSymmetricConv, 8),
    "general": two(pyg.GeneralConv, attention=True),
    "egc": two(pyg.EGConv, aggregators=["sum", "mean", "max", "symnorm", "std"], num_heads=4),
    "pdn": two(pyg.PDNConv, "edge_attr", edge_dim=EDGE_WIDTH, hidden_channels=8),
    "gmm": two(pyg.GMMConv, "edge_attr", dim=EDGE_WIDTH, kernel_size=2),
    "pna-towers": two(
        pyg.PNAConv, aggregators=["mean", "std"], scalers=["linear", "inverse_linear"],
        deg=DEGREE, towers=2,
    ),
    "gen": two(pyg.GENConv, msg_norm=True, learn_msg_scale=True),
    "transformer": two(pyg.TransformerConv, heads=2, concat=False, beta=True),
    **{aggr: two(pyg.SAGEConv, aggr=aggr) for aggr in ("std", "mul", "min")},
    "normalized": two(pyg.SAGEConv, normalize=True, project=True),
    "loops": (lambda: Prepared(lambda x, e: (x, add_self_loops(e, num_nodes=len(x))[0])), ()),
    "edges kept": (lambda: Prepared(lambda x, e: (x, dropout_edge(e, p=0.0)[0])), ()),
    "no loops": (lambda: Prepared(lambda x, e: (x, e[:, e[0] != e[1]])), ()),
    "sums": (
        lambda: Prepared(lambda x, e: (scatter(x[e[0]], e[1], 0, len(x)), e)),
        (),
    ),
    "cumulative norm": (
        lambda: Layers(
            pyg.SAGEConv(WIDTH, 16), pyg.SAGEConv(16, OUT),
            between=nn.BatchNorm1d(16, momentum=0.3, affine=False),
        ),
        (),
    ),
    "group norms": (
        lambda: Layers(
            pyg.SAGEConv(WIDTH, 16), pyg.SAGEConv(16, OUT), between=pyg.DiffGroupNorm(16, 2)
        ),
        (),
    ),
    "hetero-mixed": typed(
        lambda key: pyg.GCNConv(16, 16) if key[0] == key[2] else pyg.GraphConv((16, 16), 16)
    ),
    "hetero-transformer": typed(lambda key: pyg.TransformerConv((16, 16), 16)),
}  # fmt: skip


def han() -> nn.Module:
    return pyg.HANConv(NODE_WIDTHS, OUT, METADATA, heads=2)


SUMMED = "messages are summed by other lists than the destinations"
MOVED = "joins, pads or reorders rows"
REFUSED: dict[str, tuple[Any, str]] = {
    "lstm": (two(pyg.SAGEConv, aggr="lstm"), MOVED),  # padded to the most neighbours of a node
    "gru": (two(pyg.SAGEConv, aggr=pyg.GRUAggregation(WIDTH, WIDTH)), MOVED),
    "hetero-lstm": (typed(partial(sage, aggr="lstm")), MOVED),
    "median": (two(pyg.SAGEConv, aggr="median"), "aten.sort.default needs all rows"),
    "arma": (two(pyg.ARMAConv), "rows of nodes are gathered by other means"),
    "mf": (two(pyg.MFConv, max_degree=4), "picked neither by"),
    "rgcn": (two(pyg.RGCNConv, "edge_type", num_relations=3), SUMMED),
    "film-relations": (two(pyg.FiLMConv, "edge_type", num_relations=3), "picked neither by"),
    "super-gat": (two(pyg.SuperGATConv), "picked neither by"),  # in training it draws other edges
    "hypergraph": (two(pyg.HypergraphConv), SUMMED),
    "cheb": (two(pyg.ChebConv, K=2), SUMMED),
    "both directions": ((lambda: Layers(pyg.DirGNNConv(pyg.SAGEConv(WIDTH, OUT))), ()), SUMMED),
    "backwards": (two(pyg.SAGEConv, flow="target_to_source"), SUMMED),
    "gps": (behind(pyg.GPSConv, 8, None, heads=2), "attention.* needs all rows"),
    "out-degrees": ((lambda: Prepared(partial(counted, 0, degree), WIDTH + 1), ()), SUMMED),
    "out-degrees, counted": (
        (lambda: Prepared(partial(counted, 0, bincount), WIDTH + 1), ()),
        "edges are counted by other lists than their destinations",
    ),
    "half of the edges": ((lambda: Prepared(lambda x, e: (x, e[:, ::2])), ()), SUMMED),
    "hetero-hgt": (
        (lambda: Hetero(lambda: pyg.HGTConv(16, 16, METADATA, heads=2)), ()), MOVED
    ),
    "hetero-han": ((han, ()), "softmax.* needs all rows"),
}  # fmt: skip


def test_layers_give_the_numbers_of_one_process(tmp_path) -> None:
    check(NEAR, 3, True, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("size", [2, 3])
def test_all_layers_give_the_numbers_of_one_process(size, training, tmp_path) -> None:
    check(LAYERS, size, training, tmp_path)
    (tmp_path / "deeper").mkdir()
    check(LAYERS, size, training, tmp_path / "deeper", hops=3)


def outcome(known: Any, loader: Any) -> str:
    """Return with what a step ends."""
    make, extra = known
    model = model_of(make, torch.float64, True)
    try:
        given = arguments(next(iter(loader)), extra)
        out = accelerate(model, loader)(*given.values())
        loss_of(out["paper"] if isinstance(out, dict) else out, SEEDS).backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_layers_that_mix_rows_are_refused_on_all_ranks(tmp_path) -> None:
    made = {name: loaders_of(data_of(name), 2)[1] for name in REFUSED}

    def ranks(rank: int) -> dict[str, str]:
        return {name: outcome(known, made[name]()) for name, (known, _) in REFUSED.items()}

    for found in run_ranks(2, ranks, tmp_path):
        others = {
            name: found[name]
            for name, (_, text) in REFUSED.items()
            if not re.search(f"cannot run on a cooperative batch.*{text}", found[name])
        }
        assert others == {}
