"""Every kind of loader, and where its graph and tables may lie."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import coalesce

import pyg_direct

# Nodes from NODES on have no edges: they make a table as large as those that are registered where
# they lie. Smaller ones are copied to pinned memory.
NODES, ALL_NODES, EDGES, FEATURES = 4000, 110_000, 30_000, 80
HALF_BYTES = 400_000  # of device memory: some arrays fit, others do not
SEEDS = 240
COMMON = {"batch_size": 48, "seed": 3}

Make = Callable[..., Any]
"""Makes a loader; called with arguments such as `device` and `features`."""

DEFAULT: dict[str, Any] = {}
HOST = {"features": "host", "topology": "host"}
PLACES: dict[str, dict[str, Any]] = {
    "default": DEFAULT,
    "host": HOST,
    "device": {"features": "device", "topology": "device"},
    "half": {"device_bytes": HALF_BYTES},
    "ids on the device": {"ids": "device", "features": "host", "topology": "device"},
    "cache": {"cache": 0.3, **HOST},
    "no prefetch": {"prefetch": 0},
    "2 workers": {"num_workers": 2, "prefetch": 3, **HOST},
    "persistent": {"num_workers": 2, "persistent_workers": True, "topology": "host"},
}
FEW = ("default", "host", "device")
ELSEWHERE = ("default", "no prefetch", "ids on the device")  # without the graph's own places


class Kind(NamedTuple):
    """A kind of loader, and the places that it is tried in."""

    make: Make
    places: tuple[str, ...]


@cache
def _features(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


def graph(nodes: int = ALL_NODES) -> Data:
    """Return a graph with a hub, and attributes of nodes and edges."""
    g = torch.Generator().manual_seed(1)
    edge_index = torch.randint(NODES, (2, EDGES), generator=g)
    edge_index[1, ::20] = 5
    return Data(
        x=_features(nodes, FEATURES).clone(),
        y=torch.randint(7, (nodes,), generator=g),
        edge_index=edge_index,
        edge_attr=torch.randn(EDGES, 3, generator=g),
        edge_weight=torch.rand(EDGES, generator=g),
        time=torch.randint(100, (nodes,), generator=g),
    )


def plain_graph() -> Data:
    """Return the graph without what only neighbour sampling knows."""
    found = graph(NODES)
    del found.time, found.edge_weight
    return found


def typed_graph() -> HeteroData:
    """Return a graph of three types of nodes and four of edges, one of them empty."""
    g = torch.Generator().manual_seed(2)
    nodes = {"paper": NODES, "author": 3000, "venue": 40}
    rows = nodes | {"paper": 90_000}
    relations = {
        ("author", "writes", "paper"): 15_000,
        ("paper", "cites", "paper"): 12_000,
        ("paper", "written_by", "author"): 15_000,
        ("venue", "prints", "paper"): 3000,
        ("author", "edits", "venue"): 0,
    }
    found = HeteroData()
    for name, size in rows.items():
        found[name].x = _features(size, 96).clone()
        found[name].time = torch.randint(100, (size,), generator=g)
    for (source, how, target), size in relations.items():
        ends = [torch.randint(nodes[end], (size,), generator=g) for end in (source, target)]
        found[source, how, target].edge_index = torch.stack(ends)
        found[source, how, target].edge_weight = torch.rand(size, generator=g)
    return found


def node(data: Callable[[], Any] = graph, **given: Any) -> Make:
    def make(**where: Any) -> Any:
        chosen = {"num_neighbors": [5, 3], "input_nodes": torch.arange(SEEDS) * 7} | COMMON
        return pyg_direct.NeighborLoader(data(), **(chosen | given | where))

    return make


def by_hop(**where: Any) -> Any:
    """Return a loader whose edges know their hops, as accelerated models want them."""
    made = node()(**where)
    pyg_direct.accelerate(GraphSAGE(FEATURES, 8, 2), made)
    return made


def typed(**given: Any) -> Make:
    seeds = ("paper", torch.arange(SEEDS))
    return node(typed_graph, num_neighbors=[4, 2], input_nodes=seeds, **given)


def link(**given: Any) -> Make:
    def make(**where: Any) -> Any:
        data = graph()
        pairs = data.edge_index[:, :SEEDS]
        chosen = {"num_neighbors": [4, 2], "edge_label_index": pairs} | COMMON
        return pyg_direct.LinkNeighborLoader(data, **(chosen | given | where))

    return make


def typed_link(**given: Any) -> Make:
    relation = ("author", "writes", "paper")

    def make(**where: Any) -> Any:
        data = typed_graph()
        pairs = (relation, data[relation].edge_index[:, :SEEDS])
        chosen = {"num_neighbors": [4, 2], "edge_label_index": pairs} | COMMON
        return pyg_direct.LinkNeighborLoader(data, **(chosen | given | where))

    return make


def quantized_graph() -> Data:
    """Return the graph with features of 8 bits."""
    found = graph()
    found.x = pyg_direct.quantize(found.x)
    return found


def simple_graph() -> Data:
    """Return the graph without parallel edges."""
    found = graph()
    merged, edge_attr = coalesce(found.edge_index, found.edge_attr, reduce="mean")
    found.edge_index, found.edge_attr = merged, edge_attr
    del found.edge_weight
    return found


def saved_graph() -> Any:
    """Return the graph as it is opened from files."""
    folder = Path(tempfile.mkdtemp()) / "graph"
    pyg_direct.save(graph(), folder)
    return pyg_direct.open(folder)


def hgt(**where: Any) -> Any:
    seeds = ("paper", torch.arange(SEEDS))
    return pyg_direct.HGTLoader(
        typed_graph(), num_samples=[24, 12], input_nodes=seeds, **(COMMON | where)
    )


def shadow(**where: Any) -> Any:
    return pyg_direct.ShaDowKHopSampler(
        graph(NODES),
        depth=2,
        num_neighbors=4,
        node_idx=torch.arange(SEEDS // 2),
        **(COMMON | where),
    )


def pagerank(**where: Any) -> Any:
    seeds = torch.arange(SEEDS // 2)
    return pyg_direct.PageRankLoader(graph(NODES), k=8, node_idx=seeds, **(COMMON | where))


def saint(name: str, **given: Any) -> Make:
    def make(**where: Any) -> Any:
        chosen = {"batch_size": 100, "num_steps": 4, "sample_coverage": 0, "seed": 3}
        return getattr(pyg_direct, name)(plain_graph(), **(chosen | given | where))

    return make


def cluster(**where: Any) -> Any:
    partition = torch.arange(NODES) * 7 % 20
    parts = pyg_direct.ClusterData(graph(NODES), num_parts=20, log=False, partition=partition)
    return pyg_direct.ClusterLoader(parts, batch_size=4, seed=3, **where)


def parted(folder: Path, **given: Any) -> Any:
    """Return a loader over parts, which other ranks hold as well."""
    return node(lambda: pyg_direct.open(folder))(**given)


def of_ranks(make: Make, **given: Any) -> Make:
    """Return what makes a loader in whose batches ranks share something."""
    return lambda folder, **where: make(**given, **where)


ALL = tuple(PLACES)
OF_RANKS: dict[str, Kind] = {  # made over a folder with parts of the graph
    "rows": Kind(of_ranks(node(), share_rows=True), (*ELSEWHERE, "2 workers")),
    "rows, quantized": Kind(of_ranks(node(quantized_graph), share_rows=True), ("default",)),
    "rows, from files": Kind(of_ranks(node(saved_graph), share_rows=True), ("default",)),
    "rows, typed": Kind(of_ranks(typed(), share_rows=True), ELSEWHERE),
    "rows, links": Kind(of_ranks(link(neg_sampling="binary"), share_rows=True), ("default",)),
    "rows, HGT": Kind(of_ranks(hgt, share_rows=True), ("default",)),
    "cooperative": Kind(of_ranks(node(), cooperative=True), (*ELSEWHERE, "2 workers")),
    "cooperative, typed": Kind(of_ranks(typed(), cooperative=True), ("default",)),
    "parts": Kind(parted, (*ELSEWHERE, "2 workers")),
}
KINDS: dict[str, Kind] = {
    "node": Kind(node(), ALL),
    "node, shuffled": Kind(node(shuffle=True), FEW),
    "node, all neighbours": Kind(node(num_neighbors=[-1, 2]), FEW),
    "node, fan-out of 40": Kind(node(num_neighbors=[40, 2], batch_size=80), ("default", "host")),
    "node, with replacement": Kind(node(replace=True), FEW),
    "node, disjoint": Kind(node(disjoint=True), FEW),
    "node, LABOR": Kind(node(simple_graph, sampling="labor", batch_dependency=2), FEW),
    "node, induced": Kind(node(subgraph_type="induced"), FEW),
    "node, bidirectional": Kind(node(subgraph_type="bidirectional"), FEW),
    "node, one shape": Kind(node(static_shapes=True), (*FEW, *ELSEWHERE[1:], "2 workers")),
    "node, disjoint, one shape, too small": Kind(
        node(disjoint=True, static_shapes={"nodes": 400, "edges": 400}), FEW
    ),
    "heterogeneous, one shape": Kind(typed(static_shapes=True), FEW),
    "link, one shape": Kind(link(neg_sampling="binary", static_shapes=True), FEW),
    "node, quantized": Kind(node(quantized_graph), (*FEW, "cache")),
    "node, edges by hop": Kind(by_hop, FEW),
    "node, from files": Kind(node(saved_graph), (*FEW, "cache")),
    "temporal": Kind(
        node(time_attr="time", input_time=torch.arange(SEEDS) % 90 + 10), ("half", *FEW)
    ),
    "temporal, last": Kind(node(time_attr="time", temporal_strategy="last"), FEW),
    "weighted": Kind(node(weight_attr="edge_weight"), ("half", *FEW)),
    "weighted, with replacement": Kind(node(weight_attr="edge_weight", replace=True), FEW),
    "heterogeneous": Kind(typed(), ALL),
    "heterogeneous, temporal": Kind(typed(time_attr="time"), FEW),
    "heterogeneous, adaptive": Kind(typed(sampling="adaptive"), FEW),
    "heterogeneous, adaptive, temporal": Kind(typed(sampling="adaptive", time_attr="time"), FEW),
    "heterogeneous, weighted": Kind(typed(weight_attr="edge_weight"), ("default", "host")),
    "link": Kind(link(), ALL),
    "link, binary negatives": Kind(link(neg_sampling="binary"), FEW),
    "link, triplets": Kind(link(neg_sampling="triplet"), FEW),
    "heterogeneous link": Kind(typed_link(neg_sampling="binary"), FEW),
    "HGT": Kind(hgt, ELSEWHERE),
    "ShaDow": Kind(shadow, ELSEWHERE),
    "PageRank": Kind(pagerank, ELSEWHERE),
    "SAINT, nodes": Kind(saint("GraphSAINTNodeSampler"), ELSEWHERE),
    "SAINT, edges": Kind(saint("GraphSAINTEdgeSampler"), ELSEWHERE),
    "SAINT, walks": Kind(saint("GraphSAINTRandomWalkSampler", walk_length=2), ELSEWHERE),
    "Cluster": Kind(cluster, ELSEWHERE),
}
APART = {"HGT", "ShaDow", "PageRank", "Cluster", "SAINT, nodes", "SAINT, edges", "SAINT, walks"}


def place_of_batches(place: str) -> dict[str, Any]:
    """Return the arguments of a place without those of the graph's and the tables' own."""
    return {k: v for k, v in PLACES[place].items() if k not in ("topology", "features")}


def loader(kind: str, place: str, **device: Any) -> Any:
    """Return a loader of a kind on a device, with its graph and tables in a place."""
    where = place_of_batches(place) if kind in APART else PLACES[place]
    return KINDS[kind].make(**device, **where)


on_cpu = partial(loader, place="default", device="cpu")
