"""Drop-in loaders for PyTorch Geometric."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

from .link_loader import LinkNeighborLoader
from .loader import NeighborLoader
from .models.accelerate import accelerate
from .ops.placement import Placement
from .sampling.sampler import NeighborSampler
from .swap import swapped

try:
    __version__ = _version("pyg-direct")
except PackageNotFoundError:  # a bare checkout on sys.path
    __version__ = "0+unknown"

__all__ = [
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "Placement",
    "__version__",
    "accelerate",
    "swapped",
]
