"""Our classes in place of PyG's, for programs that build PyG's inside installed code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch_geometric.loader
import torch_geometric.nn.models
import torch_geometric.sampler

from ..core.pyg import DATA_MODULES
from ..sampling.sampler import NeighborSampler
from .cluster import ClusterData, ClusterLoader
from .hgt import HGTLoader, HGTSampler
from .link_loader import LinkNeighborLoader
from .loader import NeighborLoader
from .node2vec import Node2Vec
from .saint import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    GraphSAINTSampler,
)
from .shadow import ShaDowKHopSampler

# Ours by the package of PyG that has the class of the same name.
LOADERS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        NeighborLoader, LinkNeighborLoader, HGTLoader, ShaDowKHopSampler, ClusterData,
        ClusterLoader, GraphSAINTSampler, GraphSAINTNodeSampler, GraphSAINTEdgeSampler,
        GraphSAINTRandomWalkSampler,
    )
}  # fmt: skip
SAMPLERS: dict[str, type] = {"NeighborSampler": NeighborSampler, "HGTSampler": HGTSampler}
MODELS: dict[str, type] = {"Node2Vec": Node2Vec}


def _places() -> Iterator[tuple[str, str, type]]:
    """Yield (module, name, our class) for the names of PyG's that programs import.

    Loaders and models are found in their packages and in the modules that define them, samplers in
    their package alone: what defines them builds others of PyG's from their private parts.
    """
    for package, classes in (
        (torch_geometric.loader, LOADERS),
        (torch_geometric.nn.models, MODELS),
    ):
        for name, ours in classes.items():
            yield package.__name__, name, ours
            yield getattr(package, name).__module__, name, ours
    yield "torch_geometric.nn", "Node2Vec", Node2Vec
    for name, ours in SAMPLERS.items():
        yield "torch_geometric.sampler", name, ours
    yield DATA_MODULES, "NeighborSampler", NeighborSampler  # builds the sampler by this name


PLACES = list(_places())
PYG = {ours: getattr(sys.modules[module], name) for module, name, ours in PLACES[:-1]}


class _Swap:
    """How many contexts are open, and what stood where before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before: list[tuple[Any, str, Any]] = []
        self._imported: set[str] = set()

    def begin(self) -> None:
        with self._lock:
            if self._open == 0:
                self._imported = set(sys.modules)
                self._before = [
                    (sys.modules[place], name, getattr(sys.modules[place], name))
                    for place, name, _ in PLACES
                    if place in self._imported
                ]
            self._open += 1
            for place, name, ours in PLACES:
                if place in sys.modules:
                    setattr(sys.modules[place], name, ours)

    def end(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open > 0:
                return
            for module, name, value in self._before:
                setattr(module, name, value)
            for imported in set(sys.modules) - self._imported:
                if imported.startswith("torch_geometric."):
                    _give_back(sys.modules[imported])


def _give_back(module: Any) -> None:
    """Give a module of PyG's that was imported inside a context PyG's classes."""
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value in PYG:
            setattr(module, name, PYG[value])


_swap = _Swap()


@contextmanager
def swapped() -> Iterator[None]:
    """Let PyG's modules name our classes in place of PyG's while the context lasts.

    For code that cannot be edited and looks the names up when it runs
    (``torch_geometric.loader.NeighborLoader(...)``), or that is imported inside the context
    (``from torch_geometric.loader import NeighborLoader``, which binds the name). Loaders
    that were built inside go on working after it. What was imported before keeps PyG's classes, and
    objects of PyG's classes that exist already can be used, but not pickled, inside. The names are
    replaced for all threads of the process; contexts may be nested, and overlap between threads.

    Replaced are, in `torch_geometric.loader`: `NeighborLoader`, `LinkNeighborLoader`, `HGTLoader`,
    `ShaDowKHopSampler`, `ClusterData`, `ClusterLoader` and the GraphSAINT samplers; in
    `torch_geometric.sampler`: `NeighborSampler` and `HGTSampler`, also for Lightning's data modules
    with ``loader="neighbor"``; in `torch_geometric.nn`: `Node2Vec`.

    Example:
        >>> import torch_geometric.loader
        >>> with pyg_direct.swapped():  # run there what builds PyG's loaders
        ...     loader = torch_geometric.loader.NeighborLoader(data, [5], batch_size=10)
        >>> isinstance(loader, pyg_direct.NeighborLoader)
        True
    """
    _swap.begin()
    try:
        yield
    finally:
        _swap.end()
