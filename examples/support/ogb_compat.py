"""Lets ogb 1.3.6 read the files it has written itself, under a current torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

# The classes that a processed ogb graph, ``torch.save((Data, slices))``, is pickled with.
OGB_CLASSES = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]


@contextmanager
def ogb_files_readable() -> Iterator[None]:
    """Let `torch.load` open processed ogb graphs for as long as the context lasts.

    ogb 1.3.6, the last release, calls ``torch.load(path)``. Since torch 2.6 that means
    ``weights_only=True``, which refuses every class but tensors and plain containers, so ogb
    cannot open the file it has just saved. ``weights_only=False`` would let any file that is
    loaded meanwhile run code; naming the four PyG classes in question does not.
    """
    if not hasattr(torch.serialization, "safe_globals"):  # torch < 2.5, where ogb works as it is
        yield
        return
    trusted = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals(OGB_CLASSES)
    try:
        yield
    finally:
        # torch's own context would also take back the classes that PyG had named before.
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(trusted)
