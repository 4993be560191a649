"""Models of all the kinds that users write, and small graphs to run them on."""

# Annotations are not postponed here: torch 2.4's fx cannot write those of a model that
# `to_hetero` gets.

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    PNA,
    EdgeCNN,
    GCNConv,
    GINEConv,
    GraphSAGE,
    HeteroConv,
    HeteroDictLinear,
    HGTConv,
    JumpingKnowledge,
    Linear,
    RGCNConv,
    SAGEConv,
    Sequential,
    to_hetero,
)

NODES, EDGES, WIDTH, EDGE_WIDTH, OUT = 60, 400, 12, 5, 4
NODE_COUNTS = {"paper": 40, "author": 30, "venue": 11}
NODE_WIDTHS = {"paper": 12, "author": 8, "venue": 5}
EDGE_TYPES = [
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "rev_writes", "author"),
    ("venue", "shows", "paper"),
    ("paper", "in", "venue"),
]
METADATA = (list(NODE_COUNTS), EDGE_TYPES)


def graph_inputs(*names: str, seed: int = 0) -> dict[str, Any]:
    """Return arguments of a homogeneous model; the last nodes have no in-edges, the first many."""
    draw = torch.Generator().manual_seed(seed)
    row = torch.randint(NODES, (EDGES,), generator=draw)
    col = (torch.rand(EDGES, generator=draw) ** 2 * (NODES - 4)).long()
    found = {
        "x": torch.randn(NODES, WIDTH, generator=draw),
        "edge_index": torch.stack([row, col]),
        "edge_weight": torch.rand(EDGES, generator=draw),
        "edge_attr": torch.randn(EDGES, EDGE_WIDTH, generator=draw),
        "edge_type": torch.randint(3, (EDGES,), generator=draw),
        "edge_label_index": torch.randint(NODES, (2, 9), generator=draw),
    }
    return {name: found[name] for name in ("x", "edge_index", *names)}


def hetero_inputs(seed: int = 0) -> dict[str, Any]:
    """Return arguments of a heterogeneous model."""
    draw = torch.Generator().manual_seed(seed)
    x = {t: torch.randn(n, NODE_WIDTHS[t], generator=draw) for t, n in NODE_COUNTS.items()}
    edges = {
        key: torch.stack([
            torch.randint(NODE_COUNTS[key[0]], (90,), generator=draw),
            torch.randint(NODE_COUNTS[key[2]], (90,), generator=draw),
        ])
        for key in EDGE_TYPES
    }  # fmt: skip
    return {"x_dict": x, "edge_index_dict": edges}


def hetero_data(seed: int = 0) -> HeteroData:
    """Return the graph of `hetero_inputs`."""
    inputs, data = hetero_inputs(seed), HeteroData()
    for key, x in inputs["x_dict"].items():
        data[key].x = x
    for key, edge_index in inputs["edge_index_dict"].items():
        data[key].edge_index = edge_index
    return data


class Residual(nn.Module):
    """Encoders of nodes and edges, skip connections over two layers, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.edge_encoder = nn.Linear(WIDTH, 16), nn.Linear(EDGE_WIDTH, 16)
        self.first, self.second = GINEConv(nn.Linear(16, 16)), SAGEConv(16, 16)
        self.gate = nn.Parameter(torch.zeros(1))
        self.out = nn.Linear(32 + WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        start = self.encoder(x).relu()
        h = start + self.gate.sigmoid() * self.first(
            start, edge_index, self.edge_encoder(edge_attr)
        )
        h = nn.functional.dropout(h, p=0.5, training=self.training)
        again = torch.cat([h, x.view(x.size(0), -1)], dim=-1)
        h = start + self.second(h, edge_index)
        return self.out(torch.cat([h, again], dim=-1)).log_softmax(dim=1)


class LinkPredictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = GraphSAGE(WIDTH, 16, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.encoder(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)


class Relations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = RGCNConv(WIDTH, 16, 3), RGCNConv(16, OUT, 3, num_bases=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)


class Hetero(nn.Module):
    """Two heterogeneous layers behind a linear layer for each type; results for papers."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.lin = HeteroDictLinear(NODE_WIDTHS, 16)
        self.convs = nn.ModuleList([layer(), layer()])
        self.out = nn.Linear(16, OUT)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        x_dict = self.lin(x_dict)
        for conv in self.convs:
            x_dict = {key: x.relu() for key, x in conv(x_dict, edge_index_dict).items()}
        return {"paper": self.out(x_dict["paper"])}


class HomogeneousSage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), OUT)
        self.lin = Linear(-1, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu() + self.lin(x)
        return self.second(x, edge_index)


def to_hetero_sage() -> nn.Module:
    """Return a model made by `to_hetero`, with its parameters initialised."""
    model = to_hetero(HomogeneousSage(), METADATA, aggr="mean")
    inputs = hetero_inputs()
    model(inputs["x_dict"], inputs["edge_index_dict"])
    return model


def sage_layer(aggr: str = "mean") -> HeteroConv:
    return HeteroConv({key: SAGEConv((16, 16), 16) for key in EDGE_TYPES}, aggr=aggr)


def sequential() -> nn.Module:
    return Sequential(
        "x, edge_index",
        [
            (GCNConv(WIDTH, 16), "x, edge_index -> x1"),
            nn.ReLU(inplace=True),
            (GCNConv(16, 16), "x1, edge_index -> x2"),
            (lambda x1, x2: [x1, x2], "x1, x2 -> xs"),
            (JumpingKnowledge("cat", 16, 2), "xs -> x"),
            nn.Linear(32, OUT),
        ],
    )


def pna(**kwargs: Any) -> nn.Module:
    degree = torch.bincount(torch.bincount(graph_inputs()["edge_index"][1], minlength=NODES))
    aggregators, scalers = ["mean", "max", "std"], ["identity", "amplification", "attenuation"]
    return PNA(WIDTH, 16, 2, OUT, aggregators=aggregators, scalers=scalers, deg=degree, **kwargs)


def basic(cls: Any, layers: int = 2, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: cls(WIDTH, 16, layers, OUT, **kwargs)


HOMOGENEOUS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    **{f"sage-{aggr}": (basic(GraphSAGE, aggr=aggr), ()) for aggr in ("mean", "max", "sum")},
    **{f"sage-jk-{jk}": (basic(GraphSAGE, 3, jk=jk), ()) for jk in ("last", "cat", "max", "lstm")},
    "sage-several": (basic(GraphSAGE, aggr=["mean", "std"]), ()),
    "sage-norm": (basic(GraphSAGE, norm="batch_norm", act_first=True, dropout=0.5), ()),
    "gcn": (basic(GCN, 3), ()),
    "gcn-weight": (basic(GCN, jk="cat"), ("edge_weight",)),
    "gat": (basic(GAT, heads=4, jk="max"), ()),
    "gat-attr": (basic(GAT, heads=2, edge_dim=EDGE_WIDTH), ("edge_attr",)),
    "gatv2": (basic(GAT, v2=True, heads=2, edge_dim=EDGE_WIDTH), ("edge_attr",)),
    "gin": (basic(GIN, norm="batch_norm"), ()),
    "pna": (pna, ()),
    "edge-cnn": (basic(EdgeCNN), ()),
    "residual": (Residual, ("edge_attr",)),
    "relations": (Relations, ("edge_type",)),
    "sequential": (sequential, ()),
    "one-conv": (lambda: SAGEConv(WIDTH, OUT), ()),
}
HETEROGENEOUS: dict[str, Callable[[], nn.Module]] = {
    "hetero-conv": lambda: Hetero(sage_layer),
    "hetero-conv-max": lambda: Hetero(lambda: sage_layer("max")),
    "hgt": lambda: Hetero(lambda: HGTConv(16, 16, METADATA, heads=2)),
}


def assert_close(found: Any, expected: Any, rtol: float = 1e-5) -> None:
    """Compare rows, or rows by node type, in parts of their largest value."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key], rtol)
    else:
        atol = rtol * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def forward(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """Return what a model returns for the whole graph in evaluation mode."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        return model(**copy.deepcopy(inputs))
