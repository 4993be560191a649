"""Drop-in loaders for PyTorch Geometric."""

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # isort: off
    from torch_geometric.loader import (
        AffinityMixin as AffinityMixin,
        CachedLoader as CachedLoader,
        DataListLoader as DataListLoader,
        DataLoader as DataLoader,
        DenseDataLoader as DenseDataLoader,
        DynamicBatchSampler as DynamicBatchSampler,
        ImbalancedSampler as ImbalancedSampler,
        LinkLoader as LinkLoader,
        NodeLoader as NodeLoader,
        PrefetchLoader as PrefetchLoader,
        RandomNodeLoader as RandomNodeLoader,
        TemporalDataLoader as TemporalDataLoader,
        ZipLoader as ZipLoader,
    )
    # isort: on

    from .core.malloc import keep_memory
    from .core.placing import Gpu
    from .core.quantized import QuantizedTensor, quantize
    from .files.header import InvalidGraphFileError
    from .files.open import open_graph as open
    from .files.save import save
    from .loaders.cluster import ClusterData, ClusterLoader
    from .loaders.ego import PageRankLoader, ShaDowKHopSampler
    from .loaders.hgt import HGTLoader, HGTSampler
    from .loaders.link_loader import LinkNeighborLoader
    from .loaders.loader import NeighborLoader, expected_visits
    from .loaders.node2vec import Node2Vec
    from .loaders.saint import (
        GraphSAINTEdgeSampler,
        GraphSAINTNodeSampler,
        GraphSAINTRandomWalkSampler,
        GraphSAINTSampler,
    )
    from .loaders.swap import swapped
    from .loaders.walks import RandomWalker, metapath_walk, random_walk
    from .models.elsewhere.reuse import Reuse, ReusedRows
    from .models.ranking import LinkRanks, rank_links
    from .models.step.accelerate import accelerate, acceleration
    from .models.whole.inference import inference
    from .ops.placement import Placement
    from .ops.unified import unified
    from .ranks.share import share
    from .ranks.split import Ranks
    from .sampling.sampler import NeighborSampler
    from .tools.audit import Audit, audit
    from .tools.partition import partition

try:
    __version__ = _version("pyg-direct")
except PackageNotFoundError:  # a bare checkout on sys.path
    __version__ = "0+unknown"

__all__ = [
    "Audit",
    "ClusterData",
    "ClusterLoader",
    "Gpu",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphSAINTSampler",
    "HGTLoader",
    "HGTSampler",
    "InvalidGraphFileError",
    "LinkNeighborLoader",
    "LinkRanks",
    "NeighborLoader",
    "NeighborSampler",
    "Node2Vec",
    "PageRankLoader",
    "Placement",
    "QuantizedTensor",
    "RandomWalker",
    "Ranks",
    "Reuse",
    "ReusedRows",
    "ShaDowKHopSampler",
    "__version__",
    "accelerate",
    "acceleration",
    "audit",
    "expected_visits",
    "inference",
    "keep_memory",
    "metapath_walk",
    "open",
    "partition",
    "quantize",
    "random_walk",
    "rank_links",
    "save",
    "share",
    "swapped",
    "unified",
]

# What a script that only loads batches does not wait for: module -> its names.
_LATER = {
    ".loaders.cluster": ("ClusterData", "ClusterLoader"),
    ".loaders.hgt": ("HGTLoader", "HGTSampler"),
    ".loaders.node2vec": ("Node2Vec",),
    ".loaders.saint": (
        "GraphSAINTEdgeSampler",
        "GraphSAINTNodeSampler",
        "GraphSAINTRandomWalkSampler",
        "GraphSAINTSampler",
    ),
    ".loaders.ego": ("PageRankLoader", "ShaDowKHopSampler"),
    ".loaders.walks": ("RandomWalker", "metapath_walk", "random_walk"),
    ".files.header": ("InvalidGraphFileError",),
    ".files.open": ("open",),
    ".files.save": ("save",),
    ".loaders.link_loader": ("LinkNeighborLoader",),
    ".loaders.loader": ("NeighborLoader", "expected_visits"),
    ".models.step.accelerate": ("accelerate", "acceleration"),
    ".models.whole.inference": ("inference",),
    ".models.ranking": ("LinkRanks", "rank_links"),
    ".models.elsewhere.reuse": ("Reuse", "ReusedRows"),
    ".ops.placement": ("Placement",),
    ".ops.unified": ("unified",),
    ".tools.partition": ("partition",),
    ".ranks.share": ("share",),
    ".core.malloc": ("keep_memory",),
    ".core.placing": ("Gpu",),
    ".ranks.split": ("Ranks",),
    ".core.quantized": ("QuantizedTensor", "quantize"),
    ".sampling.sampler": ("NeighborSampler",),
    ".loaders.swap": ("swapped",),
    ".tools.audit": ("Audit", "audit"),
}
_NAMED_THERE = {"open": "open_graph"}


# PyG's own, which take our samplers or need no replacement: an import line of a program that names
# them beside loaders that are replaced can be changed as a whole.
_FROM_PYG = (
    "AffinityMixin",
    "CachedLoader",
    "DataListLoader",
    "DataLoader",
    "DenseDataLoader",
    "DynamicBatchSampler",
    "ImbalancedSampler",
    "LinkLoader",
    "NodeLoader",
    "PrefetchLoader",
    "RandomNodeLoader",
    "TemporalDataLoader",
    "ZipLoader",
)

if not TYPE_CHECKING:  # type checkers then know which names there are

    def __getattr__(name: str) -> Any:
        for module, names in _LATER.items():
            if name in names:
                home = _import_module(module, __name__)
                value = globals()[name] = getattr(home, _NAMED_THERE.get(name, name))
                return value
        if name in _FROM_PYG:
            return getattr(_import_module("torch_geometric.loader"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
