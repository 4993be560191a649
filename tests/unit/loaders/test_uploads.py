"""What a batch asks of torch on a GPU: copies from pinned memory, no wait, no kernel of torch's.

Uploads a batch; in brackets what else there was before what the CPU draws was copied from
pinned memory (pageable uploads wait for the device), counted over a stand-in for the driver:

| loader | uploads before | now |
|---|---|---|
| `HGTLoader`, 3 types, 4 relations | 3 pinned (11 pageable, 4 `cat`) | 8 pinned |
| `ShaDowKHopSampler` | 5 pinned (2 pageable, 1 `index`) | 7 pinned |
| GraphSAINT | 1 pinned (2 pageable) | 3 pinned |
| heterogeneous `LinkNeighborLoader` with negatives | 3 pinned (1 `cat`) | 3 pinned |

`ClusterLoader` had 2 pageable uploads, and an `aminmax` with a wait for each of its tables.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from device_graphs import graph, heterogeneous_graph
from emulator import emulated
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from two_gpus import Machine

import pyg_direct

COPIES = {"_to_copy", "copy_"}
NO_KERNELS = {"empty", "new_empty", "empty_strided", "empty_like", "record_stream"}
# Of a batch, from pinned memory. The emulated device's own kernels are not operations of torch.
UPLOADS = {
    "node": 1, "link": 2, "typed link": 3, "hgt": 11, "shadow": 7, "pagerank": 10, "saint": 3,
    "cluster": 3,
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Counts what torch is asked to do with tensors that are not in host memory."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        every = [*given, *(t for t in tree_leaves(out) if isinstance(t, Tensor))]
        is_view = any(a.alias_info and not a.alias_info.is_write for a in func._schema.arguments)
        if all(t.device.type == "cpu" for t in every) or is_view or name in NO_KERNELS:
            return out
        if name not in COPIES:
            self.found[f"kernel: {name}"] += 1
            return out
        source = given[-1]
        if source.device.type == "cpu" and source.numel() > 0:
            pinned = source.is_pinned() and (kwargs or {}).get("non_blocking", args[-1] is True)
            self.found["upload" if pinned else "pageable upload"] += 1
        return out


def loader_of(kind: str) -> Any:
    given: dict[str, Any] = {"batch_size": 20, "prefetch": 0, "seed": 1}  # in this thread
    if kind == "node":
        return pyg_direct.NeighborLoader(graph(), [4, 3], **given)
    if kind == "link":
        return pyg_direct.LinkNeighborLoader(graph(), [4, 3], **{**given, "batch_size": 175})
    if kind == "typed link":
        data, key = heterogeneous_graph(), ("author", "writes", "paper")
        data["author", "knows", "author"].edge_index = torch.empty(2, 0, dtype=torch.int64)
        return pyg_direct.LinkNeighborLoader(
            data, [4, 3], edge_label_index=(key, data[key].edge_index), neg_sampling="binary",
            **{**given, "batch_size": 50},
        )  # fmt: skip
    if kind == "hgt":
        return pyg_direct.HGTLoader(heterogeneous_graph(), [8, 8], "paper", **given)
    if kind == "shadow":
        return pyg_direct.ShaDowKHopSampler(graph(), depth=2, num_neighbors=3, **given)
    if kind == "pagerank":
        return pyg_direct.PageRankLoader(graph(), k=6, **given)
    if kind == "saint":
        return pyg_direct.GraphSAINTNodeSampler(graph(), num_steps=4, **given)
    partition = torch.arange(80) % 8
    parts = pyg_direct.ClusterData(graph(), num_parts=8, partition=partition, log=False)
    return pyg_direct.ClusterLoader(parts, **{**given, "batch_size": 2})


@pytest.mark.parametrize("kind", UPLOADS)
def test_pinned_copies_and_no_kernels_of_torch(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with emulated() as backend:
        machine = Machine(backend, monkeypatch)
        machine.used = machine.gpu(0)
        loader = loader_of(kind)
        list(loader)  # tables get their places
        with Watch() as watch:
            number = sum(1 for _ in loader)
    assert number == 4
    assert watch.found == {"upload": UPLOADS[kind] * number}


def test_rows_are_gathered_on_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of loaders whose sampler stays on the CPU."""
    with emulated() as backend:
        gpu = Machine(backend, monkeypatch).gpu(0)
        monkeypatch.setattr("pyg_direct.loading.site.resolve_device", lambda device: gpu)
        loader = pyg_direct.ShaDowKHopSampler(graph(), 1, 2, batch_size=20, device="cuda")
        assert next(iter(loader)).num_graphs == 20
        assert loader._backend.device == gpu


def test_the_watch_counts_uploads_and_kernels() -> None:
    with emulated() as backend, Watch() as watch:
        there = torch.arange(3).to(backend.device)
        torch.cat([there, there])
        torch.arange(3).pin_memory().to(backend.device, non_blocking=True)
    assert watch.found == {"pageable upload": 1, "kernel: cat": 1, "upload": 1}
