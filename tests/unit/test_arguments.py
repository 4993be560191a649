"""Every argument of the loader that is not about a field: one body over PyG's class and ours."""

import copy
import threading
import warnings
from typing import Any

import pytest
import torch
import torch_geometric.loader
from graphs import (
    assert_maps_to,
    assert_same_batch,
    assert_same_epoch,
    example_graph,
    papers_and_authors,
)
from torch import Tensor
from torch.utils.data import BatchSampler, SequentialSampler
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg_direct.kernels.threads import available_cores


def make(loader_class: type, hops: Any = (-1, -1), **arguments: Any) -> Any:
    arguments.setdefault("batch_size", 5)
    return loader_class(example_graph(), list(hops), **arguments)


def seeds_of(loader: Any) -> list[list[int]]:
    return [batch.n_id[: batch.batch_size].tolist() for batch in loader]


# Seeds ############################################################################################

INPUT_NODES = {
    "None": (None, list(range(12)), list(range(12))),
    "tensor": (torch.tensor([7, 2, 9]), [7, 2, 9], [0, 1, 2]),
    "list": ([7, 2, 9], [7, 2, 9], [0, 1, 2]),
    "range": (range(4, 7), [4, 5, 6], [0, 1, 2]),
    # A position for ids, but the node itself for a mask: PyG's contract.
    "mask": (torch.arange(12) % 5 == 2, [2, 7], [2, 7]),
    "duplicates": (torch.tensor([7, 7, 2, 7]), [7, 7, 2, 7], [0, 1, 2, 3]),
}


@pytest.mark.pyg("input_nodes", "batch.batch_size", "batch.input_id")
@pytest.mark.parametrize("kind", INPUT_NODES)
def test_input_nodes(loader_class: type, kind: str) -> None:
    nodes, expected, ids = INPUT_NODES[kind]
    loader = make(loader_class, input_nodes=nodes, batch_size=3)
    batches = list(loader)
    assert [v for batch in batches for v in batch.n_id[: batch.batch_size].tolist()] == expected
    assert [i for batch in batches for i in batch.input_id.tolist()] == ids
    assert all(batch.input_id.dtype == torch.int64 for batch in batches)
    assert loader.input_nodes is nodes
    assert loader.dataset == range(len(expected))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_narrow_input_nodes(dtype: torch.dtype) -> None:
    """Which torch_sparse refuses."""
    loader = make(NeighborLoader, input_nodes=torch.tensor([7, 2, 9], dtype=dtype))
    assert_same_epoch(loader, make(NeighborLoader, input_nodes=torch.tensor([7, 2, 9])))


@pytest.mark.pyg("kwargs")
def test_input_id_overrides_the_positions(loader_class: type) -> None:
    loader = make(loader_class, input_nodes=[3, 1], input_id=torch.tensor([30, 10]))
    assert loader([1]).input_id.tolist() == [10]


def test_input_id_of_all_nodes() -> None:
    """PyG forgets it where `input_nodes` lists none."""
    loader = make(NeighborLoader, input_id=torch.arange(12) + 50)
    assert loader([1, 7]).input_id.tolist() == [51, 57]


@pytest.mark.pyg("shuffle")
def test_input_id_follows_the_shuffle(loader_class: type) -> None:
    nodes = torch.tensor([7, 2, 9, 4, 0])
    loader = make(loader_class, input_nodes=nodes, shuffle=True, batch_size=2)
    for batch in loader:
        assert torch.equal(nodes[batch.input_id], batch.n_id[: batch.batch_size])


@pytest.mark.pyg("batch.duplicated_seeds")
def test_duplicated_seeds_each_expand() -> None:
    loader = make(NeighborLoader, [-1], input_nodes=torch.tensor([3, 3, 1]))
    batch = loader([0, 1, 2])
    assert batch.n_id.tolist() == [3, 3, 1, 0, 2]
    assert batch.edge_index.tolist() == [[3, 3, 4, 4, 3], [0, 1, 2, 2, 2]]
    assert batch.batch_size == 3
    assert batch.num_sampled_nodes == [3, 2]
    assert_maps_to(batch, example_graph())


@pytest.mark.pyg("batch.duplicated_seeds")
def test_copies_of_a_seed_draw_on_their_own() -> None:
    data = Data(edge_index=torch.tensor([list(range(1, 41)), [0] * 40]), num_nodes=41)
    batch = NeighborLoader(data, [5], input_nodes=torch.zeros(8, dtype=torch.int64), seed=1)(
        list(range(8))
    )
    picks = {tuple(batch.e_id[batch.edge_index[1] == i].sort().values.tolist()) for i in range(8)}
    assert len(picks) == 8


# Fan-outs and replacement #########################################################################


@pytest.mark.pyg("num_neighbors", "replace")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("hops", [[2, 2], [1, 3, 1], [0], [3, 0, 3], [-1, 2], [2, -1], []])
def test_counts_of_edges(loader_class: type, hops: list[int], replace: bool) -> None:
    data = example_graph()
    degree = torch.bincount(data.edge_index[1], minlength=12)
    for batch in make(loader_class, hops, replace=replace):
        assert_maps_to(batch, data)
        local = torch.bincount(batch.edge_index[1], minlength=len(batch.n_id))
        first, last = 0, batch.batch_size
        for k in hops:
            for i in range(first, last):
                d = int(degree[batch.n_id[i]])
                assert local[i] == (d if k < 0 else k * (d > 0) if replace else min(k, d))
            sources = batch.edge_index[0][batch.edge_index[1] < last]
            first, last = last, max(last, int(sources.max()) + 1 if len(sources) else 0)
        assert last == len(batch.n_id)
        if not replace:
            for i in range(len(batch.n_id)):
                edges = batch.e_id[batch.edge_index[1] == i]
                assert len(edges.unique()) == len(edges)


@pytest.mark.pyg("replace")
def test_replacement_repeats_edges(loader_class: type) -> None:
    batch = make(loader_class, [9], input_nodes=[3], replace=True)([0])
    assert batch.e_id.tolist() == [6] * 9
    assert batch.edge_index.tolist() == [[1] * 9, [0] * 9]
    assert batch.n_id.tolist() == [3, 0]


@pytest.mark.pyg("num_neighbors")
def test_num_neighbors_zero_and_negative_any(loader_class: type) -> None:
    assert_same_epoch(make(loader_class, [-7, -2]), make(loader_class, [-1, -1]))
    assert all(batch.num_edges == 0 for batch in make(loader_class, [0, 3]))


@pytest.mark.pyg("directed")
def test_directed_false_is_induced_and_deprecated(loader_class: type) -> None:
    with pytest.warns(Warning, match="deprecated"):
        loader = make(loader_class, directed=False)
    assert_same_epoch(loader, make(loader_class, subgraph_type="induced"))


# Transforms #######################################################################################


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
def test_where_the_transform_runs(num_workers: int, filter_per_worker: bool) -> None:
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


# Order of the batches #############################################################################


@pytest.mark.pyg("loader.len")
def test_in_order_by_default(loader_class: type) -> None:
    loader = make(loader_class)
    assert seeds_of(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert len(loader) == 3
    assert seeds_of(loader) == seeds_of(loader)


@pytest.mark.pyg("drop_last")
def test_drop_last(loader_class: type) -> None:
    loader = make(loader_class, drop_last=True)
    assert len(loader) == 2
    assert seeds_of(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.pyg("batch_size")
def test_default_batch_size_is_one(loader_class: type) -> None:
    loader = loader_class(example_graph(), [-1])
    assert len(loader) == 12
    assert seeds_of(loader)[:3] == [[0], [1], [2]]


@pytest.mark.pyg("shuffle")
def test_shuffle_is_a_permutation_of_its_own_each_epoch(loader_class: type) -> None:
    loader = make(loader_class, shuffle=True)
    first, second = ([v for seeds in seeds_of(loader) for v in seeds] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert list(range(12)) not in (first, second)


@pytest.mark.pyg("shuffle")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffle_follows_pyg_under_the_same_seed(pyg_loader: type, num_workers: int) -> None:
    ours = make(NeighborLoader, shuffle=True, num_workers=num_workers)
    theirs = make(pyg_loader, shuffle=True)
    orders = []
    for loader in (ours, theirs):
        torch.manual_seed(5)
        orders.append([seeds_of(loader), seeds_of(loader)])
    assert orders[0] == orders[1]


@pytest.mark.pyg("generator")
def test_generator_decides_the_order(loader_class: type) -> None:
    def order(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return seeds_of(make(loader_class, shuffle=True, generator=generator))

    assert order(3) == order(3)
    assert order(3) != order(4)


@pytest.mark.pyg("sampler", "batch_sampler")
def test_sampler_and_batch_sampler(loader_class: type) -> None:
    nodes = torch.tensor([9, 8, 7, 6])
    loader = make(loader_class, input_nodes=nodes, sampler=[3, 3, 0], batch_size=2)
    assert seeds_of(loader) == [[6, 6], [9]]
    batches = BatchSampler(SequentialSampler(range(4)), 3, drop_last=False)
    loader = loader_class(example_graph(), [-1], input_nodes=nodes, batch_sampler=batches)
    assert seeds_of(loader) == [[9, 8, 7], [6]]
    assert len(loader) == 2


# Draws: what they may and may not depend on #######################################################


def epoch_of(**arguments: Any) -> list[Data]:
    torch.manual_seed(7)
    return list(make(NeighborLoader, [2, 2], batch_size=2, **arguments))


@pytest.mark.pyg("num_workers")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a test of its own below
@pytest.mark.parametrize("arguments", [{}, {"seed": 3}, {"seed": 3, "shuffle": True}])
def test_workers_and_prefetch_do_not_matter(arguments: dict[str, Any]) -> None:
    expected = epoch_of(**arguments)
    for num_workers in (0, 1, 3):
        for prefetch in (0, 1, 5):
            got = epoch_of(num_workers=num_workers, prefetch=prefetch, **arguments)
            assert assert_same_epoch(got, expected) == 6


def test_more_producers_than_cores_are_no_reason_to_warn() -> None:
    """torch's DataLoader warns of too many worker *processes*; there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(NeighborLoader, num_workers=available_cores() + 1)


@pytest.mark.pyg("prefetch_factor")
def test_prefetch_factor_is_prefetch() -> None:
    assert make(NeighborLoader, num_workers=1, prefetch_factor=4).prefetch == 4
    assert_same_epoch(epoch_of(num_workers=1, prefetch_factor=4), epoch_of())


def edges_of(loader: Any) -> list[list[int]]:
    return [batch.e_id.tolist() for batch in loader]


@pytest.mark.pyg("batch.manual_seed", "loader.pickle")
def test_manual_seed_governs(loader_class: type) -> None:
    loader = make(loader_class, [2, 2])
    torch.manual_seed(1)
    first, second = edges_of(loader), edges_of(loader)
    torch.manual_seed(1)
    assert edges_of(loader) == first
    assert second != first
    torch.manual_seed(2)
    assert edges_of(loader) != first


@pytest.mark.pyg("batch.manual_seed")
def test_a_new_loader_follows_manual_seed(loader_class: type) -> None:
    def first_epoch(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return edges_of(make(loader_class, [2, 2]))

    assert first_epoch(1) == first_epoch(1)
    assert len({str(first_epoch(seed)) for seed in range(5)}) == 5


def test_a_seed_of_ones_own_needs_no_manual_seed() -> None:
    def two_epochs(seed: int) -> list[Any]:
        torch.seed()
        loader = make(NeighborLoader, [2, 2], seed=seed, shuffle=True)
        return [seeds_of(loader), edges_of(loader), edges_of(loader)]

    first = two_epochs(9)
    assert two_epochs(9) == first
    assert two_epochs(10) != first
    assert first[1] != first[2]


def test_batches_of_the_same_seeds_draw_anew(loader_class: type) -> None:
    hub = [[0]] * 30
    loader = loader_class(example_graph(), [2], input_nodes=[0], batch_sampler=hub)
    assert len({tuple(sorted(edges)) for edges in edges_of(loader)}) > 8


@pytest.mark.pyg("loader.call")
def test_calls_draw_anew(loader_class: type) -> None:
    loader = make(loader_class, [2], input_nodes=[0])
    assert len({tuple(sorted(loader([0]).e_id.tolist())) for _ in range(30)}) > 8


# The loader as an object ##########################################################################


def test_repr_says_what_is_loaded() -> None:
    loader = NeighborLoader(example_graph(), [2, 3], input_nodes=[5, 1], batch_size=2)
    assert repr(loader) == (
        "NeighborLoader(12 nodes, 20 edges, 2 seeds, num_neighbors=[2, 3], batch_size=2, "
        "device=cpu)"
    )
    data = papers_and_authors()
    links = LinkNeighborLoader(data, [4], edge_label_index=("author", "paper"))
    assert repr(links) == (
        f"LinkNeighborLoader(330 nodes of 3 types, {data.num_edges:,} edges of 5 types, 500 seeds, "
        "num_neighbors=[4], batch_size=1, device=cpu)"
    )


def test_repr_on_a_gpu_says_where_things_lie(emulated_loaders: list[Any]) -> None:
    text = repr(NeighborLoader(example_graph(), [2]))
    assert "device=privateuseone:0, " in text
    assert " in GPU memory)" in text


@pytest.mark.pyg("filter_per_worker", "loader.len", "loader.attributes")
def test_the_loader_as_an_object(loader_class: type) -> None:
    data = example_graph()
    loader = loader_class(data, [2, 3], input_nodes=torch.tensor([5, 1]), batch_size=2)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert str(loader) == "NeighborLoader()"
    assert loader.data is data
    assert len(loader.node_sampler.num_neighbors) == 2
    assert loader.input_data.node.tolist() == [5, 1]
    assert loader.transform is loader.custom_cls is loader.transform_sampler_output is None
    assert loader.filter_per_worker is True  # for data on the CPU
    assert (len(loader), loader.batch_size, loader.dataset) == (1, 2, range(2))


@pytest.mark.pyg("loader.call")
@pytest.mark.parametrize("index", [[1, 0], torch.tensor([1, 0])], ids=["list", "tensor"])
def test_call_takes_positions(loader_class: type, index: list[int] | Tensor) -> None:
    loader = make(loader_class, input_nodes=torch.tensor([5, 7]), filter_per_worker=False)
    batch = loader(index)
    assert batch.n_id[:2].tolist() == [7, 5]
    assert batch.input_id.tolist() == [1, 0]
    assert "x" in batch


@pytest.mark.pyg("loader.pickle")
def test_two_iterators_at_a_time(loader_class: type) -> None:
    loader = make(loader_class)
    expected = seeds_of(loader)
    pairs = list(zip(loader, loader, strict=True))
    for side in (0, 1):
        assert seeds_of([pair[side] for pair in pairs]) == expected


@pytest.mark.pyg("num_neighbors")
def test_num_neighbors_can_be_set_on_a_shallow_copy() -> None:
    """What Lightning does for evaluation."""
    loader = make(NeighborLoader, [0])
    sampler = copy.copy(loader.node_sampler)
    sampler.num_neighbors = [-1, -1]
    other = torch_geometric.loader.NodeLoader(example_graph(), sampler, batch_size=5)
    assert_same_epoch(other, make(NeighborLoader))
    assert all(batch.num_edges == 0 for batch in loader)


@pytest.mark.pyg("neighbor_sampler")
def test_a_ready_sampler() -> None:
    data = example_graph()
    sampler = NeighborSampler(data, [2, 2], replace=True, disjoint=True, seed=4)
    loader = NeighborLoader(data, [9], neighbor_sampler=sampler, batch_size=5, seed=8)
    assert loader.node_sampler is sampler
    direct = make(NeighborLoader, [2, 2], replace=True, disjoint=True, seed=8)
    assert_same_epoch(loader, direct)
