"""A drop-in NeighborLoader for PyTorch Geometric."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

from .loader import NeighborLoader
from .sampler import NeighborSampler

try:
    __version__ = _version("pyg-direct")
except PackageNotFoundError:  # a bare checkout on sys.path
    __version__ = "0+unknown"

__all__ = ["NeighborLoader", "NeighborSampler", "__version__"]
