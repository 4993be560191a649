"""Keyword arguments that a loader passes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import citations

import pyg_direct
from pyg_direct.loading.options import check_names

LOADERS = {
    pyg_direct.NeighborLoader: ([5],),
    pyg_direct.LinkNeighborLoader: ([5],),
    pyg_direct.ShaDowKHopSampler: (2, 3),
    pyg_direct.PageRankLoader: (8,),
}


class Mine(pyg_direct.NeighborLoader):
    """A user's loader."""

    def __init__(self, *args: Any, colour: str = "red", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("name", "hint"),
    [("bach_size", " Did you mean batch_size=?"), ("nonsense", ""), ("node_sampler", None)],
)
def test_an_unknown_argument_is_named_with_the_loader(
    loader: Any, name: str, hint: str | None
) -> None:
    with pytest.raises(TypeError) as caught:
        loader(citations(), *LOADERS[loader], **{name: 1})
    expected = f"{loader.__name__} has no argument {name}=."
    assert str(caught.value).startswith(expected if hint is None else expected + hint)
    assert hint != "" or str(caught.value) == expected


def test_names_that_a_class_above_takes() -> None:
    check_names({"pin_memory": 1, "input_id": 1, "custom_cls": 1}, pyg_direct.NeighborLoader)
    with pytest.raises(TypeError, match="ShaDowKHopSampler has no argument custom_cls="):
        check_names({"custom_cls": 1}, pyg_direct.ShaDowKHopSampler)


def test_a_subclass_is_named() -> None:
    assert len(Mine(citations(), [5], colour="blue", batch_size=100)) == 3
    with pytest.raises(TypeError, match=r"Mine has no argument color=. Did you mean colour="):
        Mine(citations(), [5], color="blue")


def test_arguments_about_gpu_memory_on_the_cpu() -> None:
    """They are taken, as scripts run on both; that they do nothing can be seen."""
    loader = pyg_direct.NeighborLoader(
        citations(), [5], device="cpu", topology="host", device_bytes=1000, gather_blocks=4,
        ids="device",
    )  # fmt: skip
    plain = pyg_direct.NeighborLoader(citations(), [5], device=torch.device("cpu"))
    assert loader.placement.gpu_arguments == ("topology", "device_bytes", "ids", "gather_blocks")
    assert "no effect on the CPU: topology, device_bytes" in str(loader.placement)
    assert plain.placement.gpu_arguments == ()
    assert "no effect" not in str(plain.placement)


@pytest.mark.parametrize("device", ["device=0", "gpu", "mps", -1, True])
def test_devices_that_there_are_not(device: Any) -> None:
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda', or a GPU by its number"):
        pyg_direct.NeighborLoader(citations(), [5], device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_a_number_means_a_gpu_with_any_torch() -> None:
    with pytest.raises(RuntimeError, match="device='cuda:0' needs"):
        pyg_direct.NeighborLoader(citations(), [5], device=0)
