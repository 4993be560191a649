"""Drop-in loaders for PyTorch Geometric."""

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from .files.header import InvalidGraphFileError
    from .files.open import open_graph as open
    from .files.save import save
    from .link_loader import LinkNeighborLoader
    from .loader import NeighborLoader
    from .models.accelerate import accelerate
    from .models.inference import inference
    from .ops.placement import Placement
    from .quantized import QuantizedTensor, quantize
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
    "InvalidGraphFileError",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "Node2Vec",
    "Placement",
    "QuantizedTensor",
    "RandomWalker",
    "ShaDowKHopSampler",
    "__version__",
    "accelerate",
    "inference",
    "metapath_walk",
    "open",
    "quantize",
    "random_walk",
    "save",
    "swapped",
]

# What a script that only loads batches does not wait for: module -> its names.
_LATER = {
    ".family.cluster": ("ClusterData", "ClusterLoader"),
    ".family.hgt": ("HGTLoader", "HGTSampler"),
    ".family.node2vec": ("Node2Vec",),
    ".family.saint": (
        "GraphSAINTEdgeSampler",
        "GraphSAINTNodeSampler",
        "GraphSAINTRandomWalkSampler",
        "GraphSAINTSampler",
    ),
    ".family.shadow": ("ShaDowKHopSampler",),
    ".family.walks": ("RandomWalker", "metapath_walk", "random_walk"),
    ".files.header": ("InvalidGraphFileError",),
    ".files.open": ("open",),
    ".files.save": ("save",),
    ".link_loader": ("LinkNeighborLoader",),
    ".loader": ("NeighborLoader",),
    ".models.accelerate": ("accelerate",),
    ".models.inference": ("inference",),
    ".ops.placement": ("Placement",),
    ".quantized": ("QuantizedTensor", "quantize"),
    ".sampling.sampler": ("NeighborSampler",),
    ".swap": ("swapped",),
}
_NAMED_THERE = {"open": "open_graph"}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            home = _import_module(module, __name__)
            value = globals()[name] = getattr(home, _NAMED_THERE.get(name, name))
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
