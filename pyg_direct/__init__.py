"""Drop-in loaders for PyTorch Geometric."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

from .family.cluster import ClusterData, ClusterLoader
from .family.hgt import HGTLoader, HGTSampler
from .family.node2vec import Node2Vec
from .family.saint import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    GraphSAINTSampler,
)
from .family.shadow import ShaDowKHopSampler
from .family.walks import RandomWalker, metapath_walk, random_walk
from .link_loader import LinkNeighborLoader
from .loader import NeighborLoader
from .models.accelerate import accelerate
from .models.inference import inference
from .ops.placement import Placement
from .sampling.sampler import NeighborSampler
from .swap import swapped

try:
    __version__ = _version("pyg-direct")
except PackageNotFoundError:  # a bare checkout on sys.path
    __version__ = "0+unknown"

__all__ = [
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphSAINTSampler",
    "HGTLoader",
    "HGTSampler",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "Node2Vec",
    "Placement",
    "RandomWalker",
    "ShaDowKHopSampler",
    "__version__",
    "accelerate",
    "inference",
    "metapath_walk",
    "random_walk",
    "swapped",
]
