"""Loaders over the same tensors share one graph, and only as long as these are the same."""

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.graph import shared
from pyg_direct.graph.from_pyg import Graph
from pyg_direct.sampling.sampler import NeighborSampler, keyed


def homogeneous() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.rand(30, 2),
        edge_index=torch.randint(30, (2, 200), generator=generator),
        weight=torch.rand(200, generator=generator),
        time=torch.randint(9, (30,), generator=generator),
    )


def heterogeneous() -> HeteroData:
    data, part = HeteroData(), homogeneous()
    for kind in "ab":
        data[kind].x, data[kind].time = part.x, part.time.clone()
    for ends in ("ab", "ba"):
        data[ends[0], "to", ends[1]].edge_index = part.edge_index.clone()
        data[ends[0], "to", ends[1]].weight = part.weight.clone()
    return data


def graph_of(data: Any, **arguments: Any) -> Graph:
    return keyed(NeighborSampler(data, [2], **arguments)).graph


WITH = [{}, {"weight_attr": "weight"}, {"time_attr": "time"}]


@pytest.mark.parametrize("arguments", WITH)
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_samplers_over_the_same_tensors_share_their_graph(make: Any, arguments: Any) -> None:
    data = make()
    first = graph_of(data, **arguments)
    assert graph_of(data, **arguments) is first
    assert graph_of(copy.copy(data), replace=True, **arguments) is first, "the tensors are the same"
    assert graph_of(make(), **arguments) is not first


def test_loaders_share_their_graph_and_keep_their_batches() -> None:
    data = homogeneous()
    alone = [batch.e_id.tolist() for batch in NeighborLoader(data, [2], batch_size=9, seed=1)]
    train = NeighborLoader(data, [2], batch_size=9, seed=1)
    other = LinkNeighborLoader(data, [3], batch_size=5)
    assert keyed(other._sampler).graph is keyed(train._sampler).graph
    assert [batch.e_id.tolist() for batch in train] == alone


def test_other_arguments_make_another_graph() -> None:
    data = homogeneous()
    graphs = [graph_of(data, **arguments) for arguments in WITH]
    graphs.append(graph_of(data, sample_direction="backward"))
    assert len({id(graph) for graph in graphs}) == 4
    with pytest.raises(ValueError, match="is_sorted=True, but the edges are not sorted"):
        graph_of(data, is_sorted=True)


@pytest.mark.parametrize("arguments", WITH)
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_changes_in_place_are_noticed(make: Any, arguments: Any) -> None:
    data = make()
    first = graph_of(data, **arguments)
    store = data if make is homogeneous else data["a", "to", "b"]
    store.edge_index[0, 7] = (store.edge_index[0, 7] + 1) % 30
    changed = graph_of(data, **arguments)
    assert changed is not first
    assert changed.csc.indices.tolist() != first.csc.indices.tolist()


@pytest.mark.parametrize(("name", "arguments"), [("weight", WITH[1]), ("time", WITH[2])])
def test_changed_weights_and_times_are_noticed(name: str, arguments: Any) -> None:
    data = homogeneous()
    first = graph_of(data, **arguments)
    data[name].mul_(2)
    assert graph_of(data, **arguments) is not first


@pytest.mark.parametrize("num_edges", [200, 2 * shared.BLOCK, 3 * shared.BLOCK + 5])
@pytest.mark.parametrize("name", ["edge_index", "weight"])
def test_writes_by_numpy_are_noticed(name: str, num_edges: int) -> None:
    data = Data(
        x=torch.rand(30, 2),
        edge_index=torch.randint(29, (2, num_edges)),
        weight=torch.rand(num_edges),
    )
    entries = data[name].numpy().reshape(-1)
    for i in (0, 1, num_edges // 2 + 1, num_edges - 2, num_edges - 1):
        held = graph_of(data, weight_attr="weight")
        entries[i] += np.spacing(entries[i]) if name == "weight" else 1
        assert graph_of(data, weight_attr="weight") is not held


MOVES = {
    "columns_exchanged": lambda e, d: exchange(e, 100, 100 + d, 50),
    "sources_exchanged": lambda e, d: exchange(e[0], 100, 100 + d, 50),
    "one_pair_exchanged": lambda e, d: exchange(e[0], 7, 7 + d, 1),
    "rolled": lambda e, d: np.copyto(e, np.roll(e, d, -1)),
    "rows_exchanged": lambda e, d: np.copyto(e, e[::-1].copy()),
    "reversed": lambda e, d: np.copyto(e, e[:, ::-1].copy()),
    "sorted": lambda e, d: e.sort(axis=1),
}


def exchange(entries: Any, first: int, second: int, count: int) -> None:
    """Exchange the columns [first, first + count) and [second, second + count)."""
    held = entries[..., first : first + count].copy()
    entries[..., first : first + count] = entries[..., second : second + count]
    entries[..., second : second + count] = held


@pytest.mark.parametrize("distance", [1, 64, 2048, 16384, 2 * 16384, 100_000])
@pytest.mark.parametrize("name", MOVES)
def test_entries_moved_by_numpy_are_noticed(name: str, distance: int) -> None:
    """The sum of the entries, and of those at any distance, stays what it was."""
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(500, (2, 200_000), generator=generator)
    before = shared._digest(edge_index)
    MOVES[name](edge_index.numpy(), distance)
    assert not np.array_equal(before, shared._digest(edge_index))
    MOVES["columns_exchanged"](edge_index.numpy(), 1)
    assert np.array_equal(shared._digest(edge_index), shared._digest(edge_index.clone()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
def test_signs_that_change_in_pairs_are_noticed(dtype: torch.dtype) -> None:
    values = (torch.rand(40_000, generator=torch.Generator().manual_seed(0)) * 100 + 1).to(dtype)
    before = shared._digest(values)
    for first, second in [(0, 1), (5, 5 + 16384), (0, 39_999), (3, 7), (16, 48)]:
        values[[first, second]] *= -1
        assert not np.array_equal(before, shared._digest(values))
        values[[first, second]] *= -1
    assert np.array_equal(before, shared._digest(values))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::3],
        lambda t: t[1],
        lambda t: t[:, :1],
        lambda t: t[:, :0],
        lambda t: t[None, :, :, None],
        lambda t: t.bool(),
        lambda t: t.float().requires_grad_(),
    ],
)
def test_tensors_of_all_forms_have_a_digest(view: Any) -> None:
    tensor = view(torch.randint(9, (2, 40_000)))
    digest = shared._digest(tensor)
    assert np.array_equal(digest, shared._digest(tensor.clone()))
    if tensor.numel() > 0:
        changed = tensor.detach().clone()
        changed[(-1,) * tensor.dim()] = 0 if tensor[(-1,) * tensor.dim()] else 1
        assert not np.array_equal(digest, shared._digest(changed))


def test_exchanged_edges_are_sampled_as_they_are_now() -> None:
    """What a loader over moved edges gave: neighbours that are later than their seed."""
    edges = 3 * shared.BLOCK
    edge_index = torch.randint(200, (2, edges), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.rand(200, 2), edge_index=edge_index, time=torch.arange(edges) % 50)
    arguments: dict[str, Any] = {"time_attr": "time", "batch_size": 200, "disjoint": True}
    arguments["input_time"] = torch.full((200,), 25)
    held = NeighborLoader(data, [-1], **arguments)
    exchange(data.time.numpy(), 0, shared.BLOCK, 5000)
    changed = next(iter(NeighborLoader(data, [-1], **arguments)))
    assert (data.time[changed.e_id] <= 25).all()
    assert len(changed.e_id) == int((data.time <= 25).sum())
    assert held is not None


def test_a_changed_tensor_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data, digest, read = homogeneous(), shared._digest, []
    monkeypatch.setattr(shared, "_digest", lambda tensor: read.append(tensor) or digest(tensor))
    first = graph_of(data)
    data.edge_index.numpy()[0, 0] ^= 1
    assert graph_of(data) is not first
    assert len(read) == 2, "once for each sampler"


def test_new_tensors_and_numbers_of_nodes_make_another_graph() -> None:
    data = homogeneous()
    first = graph_of(data)
    edge_index = data.edge_index
    data.edge_index = edge_index.clone()
    assert graph_of(data) is not first
    data.edge_index, data.x = edge_index, torch.rand(31, 2)
    assert graph_of(data) is not first
    data.x = torch.rand(30, 2)
    assert graph_of(data) is first


def test_a_new_tensor_at_the_address_of_a_freed_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even with the same address and the same number from `id`."""
    data = homogeneous()
    monkeypatch.setattr(shared, "_state", lambda tensor: ())
    monkeypatch.setattr(shared, "id", lambda tensor: 0, raising=False)
    first = graph_of(data)
    assert graph_of(data) is first
    data.edge_index = data.edge_index.flip(1)
    assert graph_of(data) is not first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", ["adj_t", "counted", "inference", "EdgeIndex"])
def test_matrices_and_edges_without_a_version_are_compressed_each_time(change: str) -> None:
    data = homogeneous()
    if change == "adj_t":
        size = (30, 30)
        data.adj_t = torch.sparse_coo_tensor(data.edge_index, data.weight, size).to_sparse_csr()
    elif change == "counted":
        del data.x, data.time
    elif change == "EdgeIndex":
        from torch_geometric import EdgeIndex

        data.edge_index = EdgeIndex(data.edge_index)
    else:
        with torch.inference_mode():
            data.edge_index = data.edge_index.clone()
    assert graph_of(data) is not graph_of(data)


def test_a_graph_is_freed_with_its_last_sampler() -> None:
    gc.collect()
    data, known = homogeneous(), len(shared._graphs)
    samplers = [NeighborSampler(data, [2]) for _ in range(2)]
    indices = weakref.ref(keyed(samplers[0]).graph.csc.indices)
    assert len(shared._graphs) == known + 1
    del samplers[0]
    gc.collect()
    assert indices() is not None
    del samplers[0]
    gc.collect()
    assert indices() is None
    assert len(shared._graphs) == known


def test_a_newer_graph_outlives_an_older_one_of_the_same_tensors() -> None:
    data = homogeneous()
    old = NeighborSampler(data, [2])
    data.edge_index.numpy()[:] = data.edge_index.flip(1).numpy()
    new = graph_of(data)
    keep = NeighborSampler(data, [2])
    del old
    gc.collect()
    assert keyed(keep).graph is graph_of(data)
    assert new is not None
