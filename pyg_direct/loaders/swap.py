"""Our classes in place of PyG's, for programs that build PyG's inside installed code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch_geometric.loader
import torch_geometric.nn.models
import torch_geometric.sampler

from ..core.pyg import DATA_MODULES
from ..sampling.sampler import NeighborSampler
from .cluster import ClusterData, ClusterLoader
from .ego import ShaDowKHopSampler
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


def _is_plain(sampler: Any) -> bool:
    """Whether a sampler is one that `NeighborLoader` builds."""
    return isinstance(sampler, NeighborSampler) and not isinstance(sampler, HGTSampler)


def node_loader(data: Any, node_sampler: Any, **options: Any) -> Any:
    """Stand for PyG's `NodeLoader` in Lightning's data modules: ours where the sampler is ours."""
    if not _is_plain(node_sampler):
        return PYG[node_loader](data, node_sampler=node_sampler, **options)
    fanouts = node_sampler.num_neighbors
    return NeighborLoader(data, fanouts, neighbor_sampler=node_sampler, **options)


def link_loader(data: Any, link_sampler: Any, **options: Any) -> Any:
    """Stand for PyG's `LinkLoader` in Lightning's data modules: ours where the sampler is ours."""
    if not _is_plain(link_sampler):
        return PYG[link_loader](data, link_sampler=link_sampler, **options)
    fanouts = link_sampler.num_neighbors
    return LinkNeighborLoader(data, fanouts, neighbor_sampler=link_sampler, **options)


def _places() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Yield (module, name, what of ours) for the names of PyG's that programs import.

    Loaders and models are found in their packages and in the modules that define them, samplers in
    their package only: what defines them builds others of PyG's from their private parts.
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
    # Lightning's data modules build sampler and loaders by these names.
    yield DATA_MODULES, "NeighborSampler", NeighborSampler
    yield DATA_MODULES, "NodeLoader", node_loader
    yield DATA_MODULES, "LinkLoader", link_loader


PLACES = list(_places())
PYG: dict[Any, Any] = {
    ours: getattr(sys.modules[module], name)
    for module, name, ours in PLACES
    if module != DATA_MODULES
}
PYG[node_loader] = torch_geometric.loader.NodeLoader
PYG[link_loader] = torch_geometric.loader.LinkLoader


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
        if isinstance(value, (type, FunctionType)) and value in PYG:
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
    `torch_geometric.sampler`: `NeighborSampler` and `HGTSampler`; in `torch_geometric.nn`:
    `Node2Vec`. `LightningNodeData` and `LightningLinkData` build our sampler and, around it, our
    loaders: where ``trainer.fit`` runs inside as well, and they were imported before the context.
    Otherwise their loaders are PyG's, around our sampler.

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
