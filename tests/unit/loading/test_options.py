"""Keyword arguments that a loader passes on."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Any

import pytest
import torch
from graphs import citations, papers_and_authors
from typing_extensions import Unpack

import pyg_direct
from pyg_direct.loading.options import (
    DEFAULTS,
    BatchOptions,
    LinkOptions,
    LoaderOptions,
    NeighborOptions,
    check_names,
)
from pyg_direct.ranks.split import NAMES as SPLIT_NAMES

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


@pytest.mark.parametrize(
    ("loader", "given", "wrong", "right"),
    [
        (pyg_direct.NeighborLoader, {}, "num_neighbours", "num_neighbors"),
        (pyg_direct.LinkNeighborLoader, {}, "num_neighbours", "num_neighbors"),
        (pyg_direct.HGTLoader, {"input_nodes": "a"}, "num_sample", "num_samples"),
        (pyg_direct.ShaDowKHopSampler, {"num_neighbors": 2}, "dept", "depth"),
        (pyg_direct.GraphSAINTRandomWalkSampler, {"batch_size": 2}, "walk_lenght", "walk_length"),
    ],
)
def test_a_misspelt_argument_that_is_needed_is_named_as_it_was_given(
    loader: Any, given: dict[str, Any], wrong: str, right: str
) -> None:
    with pytest.raises(TypeError, match=f"no argument {wrong}=. Did you mean {right}="):
        loader(citations(), **given, **{wrong: 2})


def test_an_argument_that_is_left_out_is_named_by_python() -> None:
    with pytest.raises(TypeError, match=r"missing .* argument: 'num_neighbors'"):
        pyg_direct.NeighborLoader(citations())  # type: ignore[call-arg]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "name", ["num_neighbors", "seed", "shuffle_nothing", "input_nodes", "edge_label_index", "depth"]
)
def test_an_argument_cannot_be_assigned_to_a_built_loader(loader: Any, name: str) -> None:
    built = loader(citations(), *LOADERS[loader])
    if name not in inspect.signature(loader.__init__).parameters:
        setattr(built, name, [1])  # a name of the user's own
        assert getattr(built, name) == [1]
        return
    with pytest.raises(AttributeError, match=f"{name} of a {loader.__name__} is read when"):
        setattr(built, name, [1])


def test_the_fan_outs_of_a_sampler_can_be_assigned() -> None:
    loader = pyg_direct.NeighborLoader(citations(), [5], batch_size=50)
    with pytest.raises(AttributeError, match=r"Assign to loader.node_sampler.num_neighbors, or"):
        loader.num_neighbors = [1]
    loader.node_sampler.num_neighbors = [1]
    assert len(next(iter(loader)).num_sampled_edges) == 1


def test_options_read_at_each_batch_can_be_assigned() -> None:
    loader = pyg_direct.NeighborLoader(citations(), [5], batch_size=50)
    loader.transform = lambda batch: batch.num_nodes  # type: ignore[assignment]
    loader.prefetch = 0
    assert isinstance(next(iter(loader)), int)
    mine = Mine(citations(), [5])
    mine.num_neighbors = [5]  # a subclass of the user's may note what it likes
    assert mine.num_neighbors == [5]


KINDS_OF_OPTIONS = {
    pyg_direct.NeighborLoader: NeighborOptions,
    pyg_direct.LinkNeighborLoader: LinkOptions,
    pyg_direct.HGTLoader: LoaderOptions,
    pyg_direct.ShaDowKHopSampler: LoaderOptions,
    pyg_direct.PageRankLoader: LoaderOptions,
    pyg_direct.ClusterLoader: LoaderOptions,
    pyg_direct.GraphSAINTSampler: BatchOptions,
}


def test_type_checkers_know_all_options() -> None:
    of_torch = {*inspect.signature(torch.utils.data.DataLoader.__init__).parameters}
    known = {*typing.get_type_hints(LoaderOptions)}.difference(DEFAULTS)
    assert known == (of_torch | {"custom_cls", "input_id", *SPLIT_NAMES, "ranks", "in_order"}) - {
        "self"
    }
    assert {*typing.get_type_hints(LinkOptions)} - known == {*DEFAULTS}


@pytest.mark.parametrize("loader", KINDS_OF_OPTIONS)
def test_the_signature_shows_the_options_of_a_loader_with_their_defaults(loader: type) -> None:
    kind = KINDS_OF_OPTIONS[loader]
    init: Any = loader.__init__  # type: ignore[misc]
    assert typing.get_type_hints(init)["kwargs"] == Unpack[kind]
    shown = inspect.signature(loader).parameters.values()
    by_name = {p.name: p.default for p in shown if p.kind == p.KEYWORD_ONLY}
    names = typing.get_type_hints(kind)
    assert by_name == {name: value for name, value in DEFAULTS.items() if name in names}


@pytest.mark.parametrize("name", ["topology", "cache", "order"])
def test_a_users_subclass_refuses_options_that_its_loader_does_not_have(name: str) -> None:
    class Own(pyg_direct.ShaDowKHopSampler):
        def __init__(self, data: Any, **options: Any) -> None:
            super().__init__(data, 1, 2, **options)

    with pytest.raises(TypeError, match=f"no argument {name}="):
        Own(citations(), **{name: "auto"})


@pytest.mark.parametrize(
    "given",
    [("a", torch.zeros(2000).bool()), torch.ones(2000), [[1] * 2000], "a" * 2000],
)
def test_an_error_shows_no_long_values(given: Any) -> None:
    data = papers_and_authors()
    with pytest.raises(ValueError, match="input_nodes") as caught:
        pyg_direct.NeighborLoader(data, [5], input_nodes=given)
    assert len(str(caught.value)) < 500
    with pytest.raises((ValueError, TypeError)) as caught:
        pyg_direct.NeighborLoader(citations(), [5], replace=given)
    assert len(str(caught.value)) < 500
    if isinstance(given, torch.Tensor):
        assert "torch.float32 of shape (2000,)" in str(caught.value)


def test_arguments_of_a_base_class_are_taken_by_name() -> None:
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
def test_unknown_devices_are_refused(device: Any) -> None:
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda', or a GPU by its number"):
        pyg_direct.NeighborLoader(citations(), [5], device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_a_number_means_a_gpu_with_any_torch() -> None:
    with pytest.raises(RuntimeError, match="device='cuda:0' needs"):
        pyg_direct.NeighborLoader(citations(), [5], device=0)


def test_records_say_the_same_as_the_arguments_that_they_hold() -> None:
    gpu = {"topology": "host", "cache": 0.5, "cache_policy": "degree", "ids": "device"}
    ranks = {"rank": 1, "world_size": 2, "tail": "drop"}
    data = citations()
    loader = pyg_direct.NeighborLoader(
        data, [5], batch_size=50, seed=3,
        gpu=pyg_direct.Gpu(**gpu), ranks=pyg_direct.Ranks(split=False, **ranks),
    )  # fmt: skip
    flat = pyg_direct.NeighborLoader(data, [5], batch_size=50, seed=3, **gpu, **ranks)
    assert loader._split == flat._split
    assert loader.placement == flat.placement
    assert set(loader.placement.gpu_arguments) == set(gpu)
    for one, other in zip(loader, flat, strict=True):
        assert torch.equal(one.n_id, other.n_id)


def test_the_fields_of_the_records_are_the_arguments() -> None:
    by_default = {field.name: field.default for field in dataclasses.fields(pyg_direct.Gpu)}
    assert by_default == {name: DEFAULTS[name] for name in by_default}
    assert {field.name for field in dataclasses.fields(pyg_direct.Ranks)} == {
        "split" if name == "split_by_rank" else name for name in SPLIT_NAMES
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"gpu": pyg_direct.Gpu(), "cache": 1}, r"gpu=Gpu\(...\) and cache= say the same"),
        ({"gpu": "cuda"}, r"gpu must be a pyg_direct.Gpu, got 'cuda'"),
        ({"ranks": pyg_direct.Ranks(), "tail": "drop"}, r"ranks=Ranks\(...\) and tail= say"),
        ({"ranks": 2}, "ranks must be a pyg_direct.Ranks, got 2"),
        ({"gpu": pyg_direct.Gpu(topology="disk")}, "topology"),
        ({"ranks": pyg_direct.Ranks(split=False, rank=3, world_size=2)}, "rank must be below"),
    ],
)
def test_wrong_records_are_refused_with_what_they_may_be(given: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        pyg_direct.NeighborLoader(citations(), [5], seed=0, **given)


def test_loaders_without_a_place_for_the_graph_take_no_record_of_it() -> None:
    with pytest.raises(TypeError, match="has no argument gpu="):
        pyg_direct.ShaDowKHopSampler(citations(), 1, 2, gpu=pyg_direct.Gpu())  # type: ignore[call-arg]
