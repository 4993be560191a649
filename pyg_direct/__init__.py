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

    from .core.malloc import keep_memory as keep_memory
    from .core.placing import Gpu as Gpu
    from .core.quantized import QuantizedTensor as QuantizedTensor
    from .core.quantized import quantize as quantize
    from .files.header import InvalidGraphFileError as InvalidGraphFileError
    from .files.open import open_graph as _open_graph
    from .files.save import save as save
    from .loaders.cluster import ClusterData as ClusterData
    from .loaders.cluster import ClusterLoader as ClusterLoader
    from .loaders.ego import PageRankLoader as PageRankLoader
    from .loaders.ego import ShaDowKHopSampler as ShaDowKHopSampler
    from .loaders.hgt import HGTLoader as HGTLoader
    from .loaders.hgt import HGTSampler as HGTSampler
    from .loaders.link_loader import LinkNeighborLoader as LinkNeighborLoader
    from .loaders.loader import NeighborLoader as NeighborLoader
    from .loaders.loader import expected_visits as expected_visits
    from .loaders.node2vec import Node2Vec as Node2Vec
    from .loaders.saint import GraphSAINTEdgeSampler as GraphSAINTEdgeSampler
    from .loaders.saint import GraphSAINTNodeSampler as GraphSAINTNodeSampler
    from .loaders.saint import GraphSAINTRandomWalkSampler as GraphSAINTRandomWalkSampler
    from .loaders.saint import GraphSAINTSampler as GraphSAINTSampler
    from .loaders.swap import swapped as swapped
    from .loaders.walks import RandomWalker as RandomWalker
    from .loaders.walks import metapath_walk as metapath_walk
    from .loaders.walks import random_walk as random_walk
    from .models.inference.inference import inference as inference
    from .models.ranking import LinkRanks as LinkRanks
    from .models.ranking import rank_links as rank_links
    from .models.remote.reuse import Reuse as Reuse
    from .models.remote.reuse import ReusedRows as ReusedRows
    from .models.training.accelerate import accelerate as accelerate
    from .models.training.accelerate import acceleration as acceleration
    from .ops.placement import Placement as Placement
    from .ops.unified import unified as unified
    from .ranks.share import share as share
    from .ranks.split import Ranks as Ranks
    from .sampling.sampler import NeighborSampler as NeighborSampler
    from .tools.audit import Audit as Audit
    from .tools.audit import audit as audit
    from .tools.partition import partition as partition

    open = _open_graph

try:
    __version__ = _version("pyg-direct")
except PackageNotFoundError:  # a bare checkout on sys.path
    __version__ = "0+unknown"

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
    ".models.training.accelerate": ("accelerate", "acceleration"),
    ".models.inference.inference": ("inference",),
    ".models.ranking": ("LinkRanks", "rank_links"),
    ".models.remote.reuse": ("Reuse", "ReusedRows"),
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

__all__ = ["__version__", *(name for names in _LATER.values() for name in names)]

if not TYPE_CHECKING:  # type checkers then know which names there are

    def __getattr__(name: str) -> Any:
        for module, names in _LATER.items():
            if name in names:
                home = _import_module(module, __name__)
                value = globals()[name] = getattr(home, _NAMED_THERE.get(name, name))
                return value
        # PyG's own, which take our samplers or need no replacement: an import line of a program
        # that names them beside loaders that are replaced can be changed as a whole. They are
        # classes; for a module of this package, as `info`, PyG need not be imported.
        if name[0].isupper():
            theirs = _import_module("torch_geometric.loader")
            if name in theirs.__all__:
                return getattr(theirs, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
