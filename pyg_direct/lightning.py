"""The documented path of `LoaderStats`, which needs PyTorch Lightning."""

from .loaders.lightning import LoaderStats as LoaderStats
