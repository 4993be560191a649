"""Batches of a loader that was given to `accelerate` are plain ones to all functions of PyG."""

import copy
import inspect
import random

import numpy as np
import pytest
import torch
import torch_geometric
from torch_geometric import transforms, utils
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct.batch.edges import SampledEdges

NODES = 60


def batches() -> tuple[Data, Data]:
    """Return the same batch of a loader that was given to `accelerate`, and of another one."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.rand(NODES, 4, generator=draw),
        edge_index=torch.randint(NODES, (2, 400), generator=draw),
        edge_attr=torch.rand(400, generator=draw),
        pos=torch.rand(NODES, 3, generator=draw),
        y=torch.randint(3, (NODES,), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) > 0.5,
    )
    found = []
    for _ in range(2):
        loader = pyg_direct.NeighborLoader(data, [4, 3], batch_size=8, seed=0)
        if not found:
            pyg_direct.accelerate(GraphSAGE(4, 4, 2, 3), loader)
        found.append(next(iter(loader)))
    assert isinstance(found[0].edge_index, SampledEdges)
    assert type(found[1].edge_index) is torch.Tensor
    return found[0], found[1]


def plain(value):
    """Return a result as lists of plain tensors and texts."""
    if isinstance(value, Data):
        value = value.to_dict()
    if isinstance(value, dict):
        return [[str(key), plain(entry)] for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, SampledEdges):  # of a batch whose edges a function left as they are
        return value.as_tensor()
    if hasattr(value, "to_dense"):  # sparse tensors and those of torch_sparse, too
        return value.to_dense()
    if hasattr(value, "toarray"):
        value = value.toarray()
    if isinstance(value, (np.ndarray, float)):
        return torch.as_tensor(value)
    return str(value)


def outcome(function, batch):
    """Return what a function gives for a batch, or the error that it raises."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    try:
        return plain(function(batch))
    except Exception as error:  # of those that such a batch is not for
        return f"{type(error).__name__}: {error}"


def same(ours, theirs) -> bool:
    """Compare two results; some are computed from a start that is drawn."""
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.allclose(
            ours, theirs, rtol=1e-4, equal_nan=True
        )
    return ours == theirs


def of_edges(name):
    """Return a call of a function with arguments of the names that it has."""
    function = getattr(utils, name)
    parameters = inspect.signature(function).parameters

    def call(batch):
        count = batch.num_nodes
        given = {
            "edge_index": batch.edge_index, "num_nodes": count, "batch": torch.arange(count) // 20,
            "edge_attr": batch.edge_attr, "edge_weight": batch.edge_attr, "y": batch.y,
            "subset": torch.arange(0, count, 2), "node_idx": 3, "num_hops": 2,
            "size": (count, count),
        }  # fmt: skip
        if name == "bipartite_subgraph":
            given |= {"subset": (torch.arange(5), torch.arange(7)), "size": (count, count)}
        if name in ("to_dense_adj", "unbatch_edge_index"):
            given["batch"] = torch.zeros(count, dtype=torch.long)
        return function(**{key: given[key] for key in parameters if key in given})

    return call


FUNCTIONS = sorted(
    name
    for name, function in vars(utils).items()
    if callable(function)
    and not isinstance(function, type)
    and not name.startswith("_")
    and "edge_index" in inspect.signature(function).parameters
    and name != "trim_to_layer"  # below
)
WITHOUT_DEFAULTS = {
    "SVDFeatureReduction": {"out_channels": 2}, "RemoveTrainingClasses": {"classes": [0]},
    "NodePropertySplit": {"property_name": "popularity", "ratios": [0.3, 0.1, 0.1, 0.2, 0.3]},
    "Pad": {"max_num_nodes": 100, "max_num_edges": 400}, "OneHotDegree": {"max_degree": 60},
    "RadiusGraph": {"r": 0.3}, "SIGN": {"K": 2}, "RootedEgoNets": {"num_hops": 1},
    "RootedRWSubgraph": {"walk_length": 3}, "AddLaplacianEigenvectorPE": {"k": 2},
    "AddRandomWalkPE": {"walk_length": 3}, "LinearTransformation": {"matrix": torch.eye(3)},
    "RandomJitter": {"translate": 0.1}, "RandomFlip": {"axis": 0}, "RandomShear": {"shear": 0.2},
    "RandomRotate": {"degrees": 30}, "RandomScale": {"scales": (0.5, 1.5)},
    "SamplePoints": {"num": 10}, "FixedPoints": {"num": 20}, "GridSampling": {"size": 0.5},
    "ToDevice": {"device": "cpu"},
}  # fmt: skip
# Of several graphs or types, of other transforms, or with a model that is downloaded.
OTHERS = {
    "BaseTransform", "Compose", "ComposeFilters", "AddMetaPaths", "AddRandomMetaPaths", "AddGPSE",
    "ToSLIC", "RandomLinkSplit",
}  # fmt: skip
TRANSFORMS = sorted(set(transforms.__all__) - OTHERS)


def transformed(name):
    def call(batch):
        options, batch = dict(WITHOUT_DEFAULTS.get(name, {})), copy.copy(batch)
        if name in ("FaceToEdge", "GenerateMeshNormals", "SamplePoints"):
            batch.face = torch.arange(24).view(3, 8)
        elif name == "FeaturePropagation":
            options["missing_mask"] = batch.x > 0.5
        elif name == "PointPairFeatures":
            batch.norm = batch.pos
        elif name == "Polar":
            batch.pos = batch.pos[:, :2]
        elif name == "HalfHop":
            del batch.edge_attr
        return getattr(transforms, name)(**options)(batch)

    return call


def split(batch):
    return list(transforms.RandomLinkSplit()(copy.copy(batch)))


def sizes(batch):
    edges = batch.edge_index
    return [batch.is_sorted(), batch.is_coalesced(), edges.numpy(), str(edges.data_ptr() > 0)]


METHODS = {
    "coalesce": Data.coalesce, "is_coalesced": Data.is_coalesced, "sort": Data.sort,
    "is_sorted": Data.is_sorted, "is_undirected": Data.is_undirected, "validate": Data.validate,
    "isolated": Data.has_isolated_nodes, "loops": Data.has_self_loops,
    "subgraph": lambda b: b.subgraph(torch.arange(9)),
    "edge_subgraph": lambda b: b.edge_subgraph(torch.arange(9)),
    "heterogeneous": lambda b: b.to_heterogeneous().to_dict(),
    "joined": lambda b: torch_geometric.data.Batch.from_data_list([b, b]),
    "networkx": lambda b: sorted(utils.to_networkx(b).edges), "split": split,
    "trimmed": lambda b: utils.trim_to_layer(
        1, b.num_sampled_nodes, b.num_sampled_edges, b.x, b.edge_index, b.edge_attr
    ),
    "sizes": sizes,
}  # fmt: skip


CASES = {
    **{f"utils.{name}": of_edges(name) for name in FUNCTIONS},
    **{f"transforms.{name}": transformed(name) for name in TRANSFORMS},
    **{f"Data.{name}": function for name, function in METHODS.items()},
}


# Of functions of PyG that need a package which is not installed.
FAIL = {"transforms.FeaturePropagation"}  # where the last nodes have no edges
NOT_INSTALLED = ("ImportError", "ModuleNotFoundError", "AttributeError: '_OpNamespace' 'pyg'")


@pytest.fixture(scope="module")
def pair() -> tuple[Data, Data]:
    return batches()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    # The first of these compiles for seconds.
    [pytest.param(n, marks=[pytest.mark.slow] * (n == "utils.get_ppr")) for n in CASES],
)
def test_results_are_those_of_a_plain_batch(name, pair) -> None:
    ours, theirs = (outcome(CASES[name], copy.copy(batch)) for batch in pair)
    assert same(ours, theirs), (ours, theirs)
    failed = isinstance(theirs, str) and "Error: " in theirs
    assert not failed or theirs.startswith(NOT_INSTALLED) or name in FAIL, theirs


def test_all_functions_are_looked_at() -> None:
    assert len(FUNCTIONS) > 35
    assert len(TRANSFORMS) > 50
