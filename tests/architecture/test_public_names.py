"""The public names of what the package exports: PyG's, and those listed here."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch_geometric.loader
from graphs import example_graph

import pyg_direct
from pyg_direct import NeighborSampler

LOADER = {"load_state_dict", "placement", "record_events", "sampler", "state_dict", "stats"}
# Where PyG's class is a `DataLoader` alone, those of its `NodeLoader`.
SUBGRAPH_LOADER = LOADER | {
    "custom_cls", "filter_fn", "filter_per_worker", "input_data", "transform",
    "transform_sampler_output",
}  # fmt: skip
SETTINGS = {
    "disjoint", "is_hetero", "is_temporal", "num_neighbors", "replace", "sample_direction",
    "subgraph_type", "temporal_strategy",
}  # fmt: skip

ADDED: dict[str, set[str]] = {
    "Audit": {"batches", "ok"},
    "ClusterData": set(),
    "ClusterLoader": SUBGRAPH_LOADER,
    "Gpu": {
        "cache",
        "cache_policy",
        "device_bytes",
        "features",
        "gather_blocks",
        "ids",
        "topology",
    },
    "GraphSAINTEdgeSampler": SUBGRAPH_LOADER,
    "GraphSAINTNodeSampler": SUBGRAPH_LOADER,
    "GraphSAINTRandomWalkSampler": SUBGRAPH_LOADER,
    "GraphSAINTSampler": SUBGRAPH_LOADER,
    "HGTLoader": LOADER,
    "HGTSampler": SETTINGS | {"time_window"},
    "InvalidGraphFileError": set(),
    "LinkNeighborLoader": LOADER | {"static_shapes"},
    "LinkRanks": {"hits", "mrr"},
    "NeighborLoader": LOADER | {"replay", "static_shapes"},
    "NeighborSampler": SETTINGS | {"time_window"},
    "Node2Vec": set(),
    "PageRankLoader": SUBGRAPH_LOADER,
    "Placement": {"add", "budget_bytes", "gpu_arguments", "reason"},
    "QuantizedTensor": {"dense", "rows_at", "selected", "stored_parts"},
    "RandomWalker": {"num_nodes", "walk", "walk_along"},
    "Ranks": {"cooperative", "owners", "rank", "share_rows", "split", "tail", "world_size"},
    "Reuse": {"gradient", "hot", "refresh", "share", "staleness"},
    "ReusedRows": {
        "batches",
        "edges",
        "mean_steps",
        "oldest_steps",
        "reused_rows",
        "rows",
        "share",
    },
    "ShaDowKHopSampler": SUBGRAPH_LOADER,
}


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def added(cls: type) -> set[str]:
    """Return the public names that a class does not have from a class of another package."""
    others = [base for base in cls.__mro__ if base.__module__.split(".")[0] != "pyg_direct"]
    return public(dir(cls)) - {name for base in others for name in dir(base)} - {"collate_fn"}


def exported_classes() -> dict[str, type]:
    exported = {name: getattr(pyg_direct, name) for name in pyg_direct.__all__}
    return {name: value for name, value in exported.items() if inspect.isclass(value)}


def test_the_list_names_every_class() -> None:
    assert exported_classes().keys() == ADDED.keys()


@pytest.mark.parametrize("name", sorted(ADDED))
def test_names_of_a_class(name: str) -> None:
    assert added(exported_classes()[name]) == ADDED[name]


def test_attributes_of_a_sampler() -> None:
    """Those of PyG's, which has no types for a homogeneous graph, and counts of negatives."""
    attributes = {"data_type", "num_nodes", "node_types", "edge_types", "keep_orig_edges"}
    attributes |= {"negative_counts"}
    assert public(vars(NeighborSampler(example_graph(), [2]))) == attributes


def test_a_public_name_added_to_a_class_is_listed() -> None:
    class Larger(NeighborSampler):
        graph = None

    Larger.__module__ = "pyg_direct.larger"
    assert added(Larger) == ADDED["NeighborSampler"] | {"graph"}


def test_type_checkers_know_every_name() -> None:
    tree = ast.parse(Path(pyg_direct.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    names = {n.asname or n.name for node in imports for n in node.names if node.level > 0}
    assert names - {"_open_graph"} | {"open", "__version__"} == set(pyg_direct.__all__)
    theirs = {n.name for node in imports for n in node.names if node.level == 0}
    assert theirs == set(torch_geometric.loader.__all__) - set(pyg_direct.__all__)


def test_every_loader_of_pyg_can_be_imported_from_here() -> None:
    """Those that need no replacement are PyG's own, so that a whole import line can be changed."""
    for name in torch_geometric.loader.__all__:
        found, theirs = getattr(pyg_direct, name), getattr(torch_geometric.loader, name)
        assert (found is theirs) == (name not in pyg_direct.__all__), name
    with pytest.raises(AttributeError, match="no attribute 'acelerate'"):
        _ = pyg_direct.acelerate  # type: ignore[attr-defined]
