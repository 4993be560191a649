"""Our loaders in place of PyG's, for programs that build PyG's inside installed code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch_geometric.loader

from .link_loader import LinkNeighborLoader
from .loader import NeighborLoader

LOADERS = {"NeighborLoader": NeighborLoader, "LinkNeighborLoader": LinkNeighborLoader}


@contextmanager
def swapped() -> Iterator[None]:
    """Let `torch_geometric.loader` name our two loaders while the context lasts.

    For code that cannot be edited and looks the names up when it runs
    (``torch_geometric.loader.NeighborLoader(...)``), or that is imported inside the context
    (``from torch_geometric.loader import NeighborLoader``, which binds the name for good). Loaders
    that were built inside go on working after it. What was imported before keeps PyG's classes.
    The names are replaced for all threads of the process; contexts may be nested.

    Example::

        with pyg_direct.swapped():
            import their_project.train  # imports PyG's loaders, and gets ours

            their_project.train.main()
    """
    before = {name: getattr(torch_geometric.loader, name) for name in LOADERS}
    try:
        for name, loader in LOADERS.items():
            setattr(torch_geometric.loader, name, loader)
        yield
    finally:
        for name, loader in before.items():
            setattr(torch_geometric.loader, name, loader)
