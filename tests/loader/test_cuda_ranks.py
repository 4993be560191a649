"""Batches in which ranks share something, on the emulated CUDA device: those of the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device_graphs import assert_equal, graph, heterogeneous_graph
from emulator import emulated
from rank_processes import run_ranks
from torch import Tensor

import pyg_direct
from pyg_direct.loading import site
from pyg_direct.ops.cuda.backend import CudaBackend

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")

OPTIONS: dict[str, Any] = {"batch_size": 9, "seed": 5, "split_by_rank": True, "timeout": 60}
Make = Callable[..., Any]


def quantized() -> Any:
    data = graph()
    data.x = pyg_direct.quantize(data.x, torch.int8, scale="row")
    return data


def in_parts(folder: Path) -> Any:
    pyg_direct.partition(graph(), folder, 2, "hash")
    return pyg_direct.open(folder)


def node(data: Any, seeds: Any = None, **given: Any) -> Make:
    return lambda **where: pyg_direct.NeighborLoader(
        data, [4, 3], seeds, **OPTIONS, **given, **where
    )


WAYS: dict[str, Callable[[Path], Make]] = {
    "rows": lambda _: node(graph(), share_rows=True),
    "rows, in the loop": lambda _: node(graph(), share_rows=True, filter_per_worker=False),
    "quantized rows": lambda _: node(quantized(), share_rows=True, feature_dtype=torch.float16),
    "typed rows": lambda _: node(heterogeneous_graph(), "paper", share_rows=True),
    "rows, HGT": lambda _: (
        lambda **where: pyg_direct.HGTLoader(
            heterogeneous_graph(), [8, 4], "paper", share_rows=True, **OPTIONS, **where
        )
    ),
    "cooperative": lambda _: node(graph(), cooperative=True),
    "typed, cooperative": lambda _: node(heterogeneous_graph(), "paper", cooperative=True),
    "parts": lambda folder: node(in_parts(folder)),
}


def on_emulated_device(make: Make, **given: Any) -> dict[Any, Any]:
    """Return the batches of a loader with device="cuda", and check that they are there."""
    with emulated() as backend, pytest.MonkeyPatch.context() as patch:
        real = site.backend_for

        def backend_for(device: torch.device, threads: int = 1) -> Any:
            is_cuda = device.type == "cuda"
            return CudaBackend(backend.device, backend.library) if is_cuda else real(device)

        patch.setattr(site, "backend_for", backend_for)
        batches = list(make(device="cuda", **given))
        for batch in batches:
            for store in batch.stores:
                for name in ("x", "edge_attr", "edge_index"):
                    value = store.get(name)
                    if value is not None:
                        assert getattr(value, "_tensor", value).device == backend.device
        return in_host_memory(batches)


def in_host_memory(batches: Any) -> dict[Any, Any]:
    """Return what batches hold, by number, type and name."""
    return {
        (number, kind, name): on_host(value)
        for number, batch in enumerate(batches)
        for kind, store in enumerate(batch.stores)
        for name, value in store.items()
        if name != "cooperation"
    }


def on_host(value: Any) -> Any:
    edges = getattr(value, "_tensor", value)  # of SampledEdges
    return edges.cpu() if isinstance(edges, Tensor) else value


@pytest.mark.parametrize("given", [{}, {"prefetch": 0}, {"ids": "device"}], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_emulated_batches_of_ranks_are_those_of_the_cpu(
    way: str, given: dict[str, Any], tmp_path: Path
) -> None:
    make, ranks = WAYS[way](tmp_path / "parts"), tmp_path / "ranks"
    ranks.mkdir()

    def on_rank(_: int) -> None:
        expected = in_host_memory(make(device="cpu"))
        assert len(expected) > 3
        assert_equal(on_emulated_device(make, **given), expected)

    run_ranks(2, on_rank, ranks)


def test_emulated_batches_of_one_rank_have_their_rows(tmp_path: Path) -> None:
    make = node(graph(), share_rows=True)

    def on_rank(_: int) -> None:
        assert_equal(on_emulated_device(make), in_host_memory(make()))

    run_ranks(1, on_rank, tmp_path)


@pytest.mark.parametrize("way", [{"share_rows": True}, {"cooperative": True}], ids=str)
@pytest.mark.parametrize(
    "given", [{"cache": 0.5}, {"topology": "device"}], ids=lambda given: next(iter(given))
)
def test_gpu_options_for_rows_and_hops_of_other_ranks_are_refused(
    way: dict[str, Any], given: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="come from other ranks by way of the host"):
        node(graph(), device="cuda", **way, **given)()
