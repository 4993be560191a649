"""`transform`, `transform_sampler_output` and `filter_per_worker`, over PyG's class and ours."""

import copy
import threading
from typing import Any

import pytest
from graphs import assert_maps_to, assert_same_batch, assert_same_epoch, example_graph
from loaders import make
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from pyg_direct import NeighborLoader


@pytest.mark.pyg("transform")
@pytest.mark.parametrize("filter_per_worker", [None, True, False])
def test_transform_sees_the_finished_batch(loader_class: type, filter_per_worker: Any) -> None:
    def transform(batch: Data) -> Any:
        assert {"n_id", "e_id", "input_id", "batch_size"} <= set(batch.keys())
        return "anything", batch

    loader = make(loader_class, transform=transform, filter_per_worker=filter_per_worker)
    plain = make(loader_class)
    out = list(loader)
    assert [label for label, _ in out] == ["anything"] * 3
    for (_, ours), theirs in zip(out, plain, strict=True):
        assert_same_batch(ours, theirs)
    assert loader([2])[0] == "anything"


@pytest.mark.pyg("transform_sampler_output")
def test_transform_sampler_output_comes_before_the_features(loader_class: type) -> None:
    def first_edge_only(out: SamplerOutput) -> SamplerOutput:
        assert out.metadata[0].tolist() == [0, 1, 2, 3, 4]
        out = copy.copy(out)
        out.row, out.col, out.edge = out.row[:1], out.col[:1], out.edge[:1]
        return out

    batch = make(loader_class, transform_sampler_output=first_edge_only)([0, 1, 2, 3, 4])
    assert batch.num_edges == 1
    assert batch.edge_attr.shape == (1, 2)
    assert_maps_to(batch, example_graph())


@pytest.mark.pyg("transform_sampler_output", "batch.e_id")
def test_transform_sampler_output_may_drop_the_edge_ids(loader_class: type) -> None:
    def forget(out: SamplerOutput) -> SamplerOutput:
        out.edge = None
        return out

    batch = make(loader_class, transform_sampler_output=forget)([0, 1])
    assert "e_id" not in batch
    assert "edge_attr" not in batch
    assert batch.num_edges > 0


@pytest.mark.pyg("transform", "filter_per_worker")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_the_transform_runs_in_producers_or_the_main_thread(
    num_workers: int, filter_per_worker: bool
) -> None:
    threads = []
    loader = make(
        NeighborLoader,
        transform=lambda batch: threads.append(threading.current_thread()) or batch,
        num_workers=num_workers,
        filter_per_worker=filter_per_worker,
    )
    assert_same_epoch(loader, make(NeighborLoader))
    here = [thread is threading.current_thread() for thread in threads]
    assert here == [not (filter_per_worker and num_workers)] * 3


@pytest.mark.pyg("filter_per_worker", "loader.collate_fn")
def test_collate_fn_and_filter_fn_are_halves_of_a_call(loader_class: type) -> None:
    loader = make(loader_class, filter_per_worker=False)
    half = loader.collate_fn([1, 2])
    assert isinstance(half, SamplerOutput)
    assert_same_batch(loader.filter_fn(half), loader([1, 2]))
    loader.filter_per_worker = True
    assert_same_batch(loader.collate_fn([1, 2]), loader([1, 2]))
