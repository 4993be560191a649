"""Small graphs, strategies that make more of them, and how two batches are compared."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore
from torch_geometric.transforms import ToUndirected
from torch_geometric.typing import SparseTensor

from examples.support.debian import FILE, typed_packages

HOP_COUNTS = {"num_sampled_nodes", "num_sampled_edges"}  # PyG has them with pyg-lib only

# More real graphs, for those who have them; `debian` is in the repository.
DATA_FOLDER = Path(
    os.environ.get("PYG_DIRECT_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")
)
REAL_GRAPHS = (
    "cora",
    "citeseer",
    "coauthor_cs",
    "amazon_photo",
    "dblp_citation",
    "debian",
    "collegemsg",
    "bitcoin_otc",
)


def load_real_graph(name: str, work: Path) -> Any:
    """Load one of `REAL_GRAPHS` or `debian_hetero`, with everything PyG writes going to `work`.

    Skips the test if the graph is not here.
    """
    if name == "debian_hetero":
        return typed_packages()
    if name == "debian":
        return _debian()
    if not DATA_FOLDER.is_dir():
        pytest.skip(f"{name} is not in the repository; PYG_DIRECT_TEST_DATA may name its folder")
    spec = importlib.util.spec_from_file_location("load_graphs", DATA_FOLDER / "load_graphs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(name, work=str(work))


def _debian() -> Data:
    """Return the packages of Debian with the edges in the direction of the index."""
    typed = typed_packages()
    store = typed["package"]
    with np.load(FILE) as arrays:
        count, relation = arrays["dependencies_of"], arrays["relation"]
        row, col = np.repeat(np.arange(len(count)), count), arrays["needed"].astype(np.int64)
        weight, source = arrays["edge_weight"].astype(np.float32), arrays["source"]
    return Data(
        x=store.x,
        y=store.y,
        edge_index=torch.from_numpy(np.stack([row, col])),
        edge_type=torch.from_numpy(relation.astype(np.int64)),
        edge_weight=torch.from_numpy(weight),
        split=store.split,
        source=torch.from_numpy(source.astype(np.int64)),
        installed_size_kb=store.installed_size_kb,
        arch_all=store.arch_all,
    )


def with_attributes(edge_index: Tensor, num_nodes: int) -> Data:
    """Attach attributes whose every entry tells the node or edge it belongs to."""
    num_edges = edge_index.size(1)
    return Data(
        x=torch.arange(num_nodes * 3, dtype=torch.float32).view(num_nodes, 3),
        y=torch.arange(num_nodes) + 1000,
        train_mask=torch.arange(num_nodes) % 3 == 0,
        edge_index=edge_index,
        edge_attr=torch.arange(num_edges * 2, dtype=torch.float64).view(num_edges, 2),
        name="a graph-level attribute",
    )


def example_graph() -> Data:
    """Return 12 nodes and 20 edges with a hub (0), parallel edges, self loops and isolated nodes.

    In-neighbours in the order of the edges: 0: 1 2 3 4 5 6 1; 1: 2 2 0; 2: 2 7; 3: 0; 4: 8; 5: 4;
    7: 9 1 3; 8: 7; 9: 9. Nothing points to 6, 10 and 11, and 10 and 11 point to nothing.
    """
    edges = [
        (1, 0), (2, 1), (2, 0), (9, 7), (2, 1), (3, 0), (0, 3), (2, 2), (4, 0), (8, 4),
        (5, 0), (7, 2), (0, 1), (6, 0), (4, 5), (1, 7), (7, 8), (3, 7), (9, 9), (1, 0),
    ]  # fmt: skip
    return with_attributes(torch.tensor(edges).t().contiguous(), 12)


def citations(num_nodes: int = 300) -> Data:
    """Return an undirected graph with features, labels in four classes, and masks."""
    edge_index = torch.randint(num_nodes, (2, 900))
    data = Data(
        x=torch.randn(num_nodes, 16), edge_index=edge_index, y=torch.randint(4, (num_nodes,))
    )
    data.train_mask = torch.arange(num_nodes) < 200
    data.val_mask = data.test_mask = ~data.train_mask
    return ToUndirected()(data)


def papers_and_authors() -> HeteroData:
    """Return papers, authors and institutions, with reverse edges of every type."""
    data, sizes = HeteroData(), {"paper": 200, "author": 120, "institution": 10}
    for name, size in sizes.items():
        data[name].x = torch.randn(size, 8)
    data["paper"].y = torch.randint(4, (200,))
    data["paper"].train_mask = torch.arange(200) < 150
    for key in (
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("author", "affiliated_with", "institution"),
    ):
        data[key].edge_index = torch.stack([torch.randint(sizes[k], (500,)) for k in key[::2]])
    return ToUndirected()(data)


@st.composite
def edge_lists(draw: st.DrawFn, max_nodes: int = 10, max_edges: int = 30) -> tuple[Tensor, int]:
    """Draw (edge_index [2, E], N): loops, parallel edges, hubs, isolated nodes, E = 0 or N."""
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    hub = st.just(draw(node))
    edge = st.one_of(st.tuples(node, node), st.tuples(node, hub), st.tuples(hub, node))
    # As many edges as nodes is a case of its own: then PyG goes by the names of the attributes.
    exactly = draw(st.sampled_from([None, None, None, num_nodes, 0]))
    size = {"max_size": max_edges} if exactly is None else {"min_size": exactly}
    if exactly is not None:
        size["max_size"] = exactly
    edges = draw(st.lists(edge, **size))
    if draw(st.booleans()):
        edges = sorted(edges, key=lambda pair: pair[1])
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous(), num_nodes


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 10, max_edges: int = 30) -> Data:
    """Draw a graph with attributes."""
    return with_attributes(*draw(edge_lists(max_nodes, max_edges)))


@st.composite
def graphs_and_seeds(draw: st.DrawFn) -> tuple[Data, list[int]]:
    """Draw a graph and one to six seeds, perhaps with duplicates; none that look like a mask."""
    data = draw(graphs())
    seeds = draw(st.lists(st.integers(0, data.num_nodes - 1), min_size=1, max_size=6))
    hypothesis.assume(len(seeds) != data.num_nodes or max(seeds) > 1)
    return data, seeds


def assert_same_value(ours: Any, theirs: Any, what: str) -> None:
    """Assert the same type, dtype, shape and elements; nothing is rounded or broadcast."""
    assert type(ours) is type(theirs), f"{what}: {type(ours)} is not {type(theirs)}"
    if isinstance(theirs, SparseTensor):
        assert ours.sizes() == theirs.sizes(), what
        assert_same_value(list(ours.coo()), list(theirs.coo()), what)
    elif isinstance(theirs, Tensor):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{what}: {text}"
        )
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), what
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same_value(a, b, f"{what}[{i}]")
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, what)
    else:
        assert ours == theirs, what


def fields(batch: Data | HeteroData) -> dict[str, Any]:
    """Return everything in a batch by name; with types, by "type.name" or "from.to.type.name"."""
    if isinstance(batch, Data):
        return batch.to_dict()
    found = dict(batch._global_store.to_dict())
    for key, store in (*batch.node_items(), *batch.edge_items()):
        start = key if isinstance(key, str) else ".".join(key)
        found.update({f"{start}.{name}": value for name, value in store.to_dict().items()})
    return found


def is_hop_count(key: str) -> bool:
    """Tell whether a name from `fields` is one of those that PyG has with pyg-lib only."""
    return key.split(".")[-1] in HOP_COUNTS


def assert_same_batch(ours: Data | HeteroData, theirs: Data | HeteroData) -> None:
    """Assert that two batches have the same class, the same keys and equal values."""
    assert type(ours) is type(theirs)
    assert ours.metadata() == theirs.metadata() if isinstance(ours, HeteroData) else True
    mine, expected = fields(ours), fields(theirs)
    names = ({key for key in keys if not is_hop_count(key)} for keys in (mine, expected))
    assert next(names) == next(names)
    for key, value in expected.items():
        assert_same_value(mine[key], value, key)


def assert_same_epoch(ours: Any, theirs: Any) -> int:
    """Assert that two loaders give the same batches, and return how many."""
    mine, expected = list(ours), list(theirs)
    assert len(mine) == len(expected)
    for a, b in zip(mine, expected, strict=True):
        assert_same_batch(a, b)
    return len(mine)


def assert_maps_to(batch: Data, data: Data) -> None:
    """Assert the identity that ties a batch to its graph, for edges and for attributes."""
    local = batch.edge_index.long()
    assert torch.equal(batch.n_id[local], data.edge_index[:, batch.e_id].long())
    for key in ("x", "y", "train_mask"):
        if key in data:
            assert torch.equal(batch[key], data[key][batch.n_id]), key
    if "edge_attr" in data:
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


def remote_stores(data: HeteroData) -> tuple[FeatureStore, GraphStore]:
    """Return stores that hold the features and the edges of a graph."""
    features, edges = MyFeatureStore(), MyGraphStore()
    for name in data.node_types:
        features.put_tensor(data[name].x, group_name=name, attr_name="x", index=None)
    for key in data.edge_types:
        size = (data[key[0]].num_nodes, data[key[2]].num_nodes)
        edges.put_edge_index(data[key].edge_index, edge_type=key, layout="coo", size=size)
    return features, edges
