"""Tensors of the user's that move, change or lie, each case in a process of its own.

Whatever happens to them once a loader is built, the batches stay those of the graph as it was, or
an error says what is wrong; the process lives on.
"""

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.multiprocessing
from children import in_own_process
from graphs import assert_same_batch
from torch_geometric.data import Data, HeteroData

from pyg_direct import LinkNeighborLoader, NeighborLoader

pytestmark = [
    pytest.mark.usefixtures("each_backend"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

# So large that freed memory goes back to the system, and reading it is a fault.
NUM_NODES, NUM_EDGES = 20_000, 300_000


def graph(in_order: bool, dtype: torch.dtype = torch.int64) -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NUM_NODES, (2, NUM_EDGES), generator=generator)
    if in_order:
        edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    return Data(
        x=torch.randn(NUM_NODES, 16, generator=generator),
        edge_index=edge_index.contiguous().to(dtype),
        edge_attr=torch.randn(NUM_EDGES, 4, generator=generator),
        time=torch.randint(100, (NUM_NODES,), generator=generator),
        stamp=torch.randint(100, (NUM_EDGES,), generator=generator),
        weight=torch.rand(NUM_EDGES, generator=generator, dtype=torch.float64),
    )


def two_types() -> HeteroData:
    flat, data = graph(in_order=True), HeteroData()
    for name in ("a", "b"):
        data[name].x = flat.x.clone()
    for key in (("a", "to", "b"), ("b", "to", "a")):
        data[key].edge_index = flat.edge_index.clone()
        data[key].weight = flat.weight.clone()
    return data


def build(data: Any, **arguments: Any) -> NeighborLoader:
    typed = isinstance(data, HeteroData)
    seeds = torch.arange(60)
    arguments = {"input_nodes": ("a", seeds) if typed else seeds, "seed": 3} | arguments
    return NeighborLoader(data, [3, 3], batch_size=20, **arguments)


def share(data: Any) -> None:
    data.share_memory_()


def put_on_a_queue(data: Any) -> None:
    """Put every tensor on a queue, as it happens on the way to another process."""
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    for store in data.stores:
        queue.put({name: value for name, value in store.items() if isinstance(value, torch.Tensor)})
        queue.get()


def pickle_for_spawn(data: Any) -> None:
    """Do what starting a process with `data` as an argument does to it."""
    for store in data.stores:
        for value in store.values():
            multiprocessing.reduction.ForkingPickler.dumps(value)


def swap_storages(data: Any) -> None:
    for store in data.stores:
        for value in store.values():
            value.set_(value.clone())


MOVES: dict[str, Callable[[Any], None]] = {
    "share_memory_": share,
    "queue": put_on_a_queue,
    "pickle for another process": pickle_for_spawn,
    "set_": swap_storages,
}
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "times of nodes": {"time_attr": "time"},
    "times of edges": {"time_attr": "stamp", "input_time": torch.full((60,), 50)},
    "weights": {"weight_attr": "weight"},
    "weights and times": {"weight_attr": "weight", "time_attr": "time"},
    "threads": {"num_workers": 2},
}


@pytest.mark.parametrize(
    ("move", "kind", "in_order"),
    [("share_memory_", kind, True) for kind in KINDS]
    + [("share_memory_", "times of nodes", False)]
    + [(move, "uniform", True) for move in MOVES if move != "share_memory_"],
)
@in_own_process
def test_batches_are_right_after_tensors_move(move: str, kind: str, in_order: bool) -> None:
    data = graph(in_order)
    expected = list(build(data.clone(), **KINDS[kind]))

    loader = build(data, **KINDS[kind])
    MOVES[move](data)
    for batch, other in zip(loader, expected, strict=True):
        assert_same_batch(batch, other)


@in_own_process
def test_batches_of_several_types_are_right_after_tensors_move() -> None:
    data = two_types()
    expected = list(build(data.clone(), weight_attr="weight"))

    loader = build(data, weight_attr="weight")
    data.share_memory_()
    for batch, other in zip(loader, expected, strict=True):
        assert_same_batch(batch, other)


@pytest.mark.parametrize(
    ("kind", "in_order", "dtype"),
    [(kind, True, torch.int64) for kind in KINDS]
    + [("weights and times", False, torch.int64), ("uniform", True, torch.int32)],
)
@in_own_process
def test_a_graph_overwritten_in_mid_epoch(kind: str, in_order: bool, dtype: torch.dtype) -> None:
    data = graph(in_order, dtype)
    data.num_nodes, data.x = NUM_NODES, None
    expected = [(b.n_id, b.edge_index) for b in build(data.clone(), **KINDS[kind])]

    batches = iter(build(data, **KINDS[kind]))
    got = [next(batches)]
    data.edge_index.fill_(10**9)
    data.time.fill_(10**9)
    data.stamp.fill_(-(10**9))
    data.weight.fill_(float("nan"))
    got += batches
    for batch, (n_id, edge_index) in zip(got, expected, strict=True):
        assert torch.equal(batch.n_id, n_id)
        assert torch.equal(batch.edge_index, edge_index)


@pytest.mark.parametrize("value", [10**9, -(10**9), 2**62])
@pytest.mark.parametrize("arguments", [{}, {"disjoint": True}, {"time_attr": "time"}])
@in_own_process
def test_seeds_overwritten_in_mid_epoch(value: int, arguments: dict[str, Any]) -> None:
    data, seeds = graph(in_order=False), torch.arange(60)
    expected = [b.n_id for b in build(data, **arguments)]

    batches = iter(build(data, input_nodes=seeds, **arguments))
    got = [next(batches)]
    seeds.fill_(value)
    got += batches
    assert all(torch.equal(b.n_id, n) for b, n in zip(got, expected, strict=True))


@pytest.mark.parametrize("num_workers", [0, 2])
@in_own_process
def test_the_loaders_own_seeds_overwritten(num_workers: int) -> None:
    loader = build(graph(in_order=False), num_workers=num_workers)
    loader.input_data.node.fill_(10**9)
    with pytest.raises(IndexError, match=r"seeds must be node ids in \[0, 20000\), got 10000"):
        next(iter(loader))


@pytest.mark.parametrize("end", ["row", "col"])
@in_own_process
def test_seed_links_overwritten(end: str) -> None:
    links = torch.arange(60).repeat(2, 1)
    loader = LinkNeighborLoader(graph(in_order=False), [5], links, batch_size=20)
    links.fill_(10**9)
    assert next(iter(loader)).input_id.tolist() == list(range(20))
    getattr(loader.input_data, end).fill_(-(10**9))
    with pytest.raises(IndexError, match="seed links must be node ids"):
        next(iter(loader))


@pytest.mark.parametrize("name", ["x", "edge_attr"])
@in_own_process
def test_features_whose_storage_was_cut_are_an_error(name: str) -> None:
    data = graph(in_order=True)
    batches = iter(build(data, prefetch=0))  # no batch is made before the change
    next(batches)
    data[name].untyped_storage().resize_(64)
    with pytest.raises(RuntimeError, match="storage has 64 bytes"):
        next(batches)


@in_own_process
def test_features_with_fewer_rows_are_an_error() -> None:
    data = graph(in_order=True)
    batches = iter(build(data))
    next(batches)
    data.x.resize_(10, 16)
    with pytest.raises(IndexError, match="tensor with 10 rows"):
        next(batches)


@in_own_process
def test_features_are_read_when_a_batch_is_made() -> None:
    data = graph(in_order=True)
    batches = iter(build(data, prefetch=0))  # a producer might have made the second one
    next(batches)
    data.x.mul_(2)
    data.share_memory_()
    batch = next(batches)
    assert torch.equal(batch.x, data.x[batch.n_id])
