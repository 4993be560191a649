"""Numbers at the ends of their range, and graphs that lie, each case in a process of its own."""

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from children import in_own_process
from graphs import assert_same_epoch, example_graph
from torch_geometric.data import Data
from torch_geometric.testing import MyFeatureStore, MyGraphStore
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

from pyg_direct import NeighborLoader
from pyg_direct.ops.cpu import drawing
from pyg_direct.ops.cuda import bounds

pytestmark = [
    pytest.mark.usefixtures("each_backend"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

HUGE = [sys.maxsize, sys.maxsize - 1, 2**62, 2**33, 2**32 + 1, 2**32, 2**31, 2**31 - 1]


def loader(num_neighbors: Any, data: Data | None = None, **arguments: Any) -> NeighborLoader:
    data = example_graph() if data is None else data
    return NeighborLoader(data, num_neighbors, batch_size=5, seed=1, **arguments)


SAMPLING: dict[str, dict[str, Any]] = {
    "uniform": {},
    "disjoint": {"disjoint": True},
    "induced": {"subgraph_type": "induced"},
    "weights": {"weight_attr": "weight"},
    "times": {"time_attr": "time", "temporal_strategy": "last"},
}


def attributed() -> Data:
    data = example_graph()
    data.weight = torch.arange(data.num_edges) + 0.5
    data.time = torch.arange(data.num_nodes)
    return data


@pytest.mark.parametrize("name", SAMPLING)
@in_own_process
def test_a_huge_fanout_without_replacement_takes_all(name: str) -> None:
    for fanout in HUGE:
        ours = loader([fanout, fanout], attributed(), **SAMPLING[name])
        assert assert_same_epoch(ours, loader([-1, -1], attributed(), **SAMPLING[name])) == 3


@in_own_process
def test_a_huge_fanout_with_replacement_is_refused() -> None:
    for fanout in HUGE:
        if fanout < 2**31:
            with pytest.raises(ValueError, match=r"more than the 2147483648 that local ids"):
                next(iter(loader([fanout, fanout], replace=True)))
        else:
            with pytest.raises(ValueError, match=r"2147483647 at most with replace=True.*got"):
                loader([fanout, fanout], replace=True)


@in_own_process
def test_a_huge_fan_out_is_refused_when_replace_is_set_later() -> None:
    ours = loader([sys.maxsize])
    next(iter(ours))
    ours.node_sampler.replace = True
    with pytest.raises(ValueError, match="at most with replace=True"):
        next(iter(ours))


@pytest.mark.parametrize("fanout", [-(2**31), -(2**63), -(2**70)])
@in_own_process
def test_any_negative_fanout_takes_all(fanout: int) -> None:
    assert assert_same_epoch(loader([fanout]), loader([-1])) == 3


class Stores(MyGraphStore):
    """A graph store that compresses its edges itself."""

    def __init__(self, pointers: Any, indices: Any, edge_ids: Any = None) -> None:
        super().__init__()
        arrays = (indices, pointers, edge_ids)
        self.parts = tuple(None if a is None else torch.from_numpy(a) for a in arrays)
        self.put_edge_index((self.parts[0], self.parts[1]), None, "csc", size=(3, 3))

    def csc(self, *_: Any, **__: Any) -> Any:
        return self.parts


def example_stores(*arrays: Any) -> Any:
    features = MyFeatureStore()
    features.put_tensor(torch.randn(3, 2), group_name=None, attr_name="x", index=None)
    return features, Stores(*arrays)


BAD_POINTERS = {
    "differences that wrap": np.array([0, 2147483647, -2, 3], np.int32),
    "falling": np.array([0, 3, 1, 3]),
    "unsigned and falling": np.array([0, 3, 1, 3], np.uint8),
    "differences that wrap in 64 bits": np.array([0, 2**63 - 1, -2, 3]),
    "too far": np.array([0, 1, 2, 10**9]),
    "not from 0": np.array([-1, 1, 2, 3]),
    "no integers": np.array([0.0, 1.0, 2.0, 3.0]),
    "not flat": np.array([[0, 1, 2, 3]]),
}
BAD_INDICES = {
    "too large": np.array([0, 1, 10**9]),
    "negative": np.array([0, -1, 2]),
    "no integers": np.array([0.0, 1.0, 2.0]),
}


@pytest.mark.parametrize("case", BAD_POINTERS)
@in_own_process
def test_wrong_pointers_of_a_store_are_refused(case: str) -> None:
    stores = example_stores(BAD_POINTERS[case], np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="is not a valid CSC"):
        list(NeighborLoader(stores, [3], torch.arange(3)))


@pytest.mark.parametrize("case", BAD_INDICES)
@in_own_process
def test_wrong_indices_of_a_store_are_refused(case: str) -> None:
    stores = example_stores(np.array([0, 1, 2, 3]), BAD_INDICES[case])
    with pytest.raises(ValueError, match=r"data refers to node|is not a valid CSC"):
        list(NeighborLoader(stores, [3], torch.arange(3)))


@pytest.mark.parametrize("ids", [[0, 1, 10**9], [0, -1, 2], [0, 1]])
@in_own_process
def test_wrong_edge_ids_of_a_store_are_refused(ids: list[int]) -> None:
    stores = example_stores(np.array([0, 1, 2, 3]), np.array([0, 1, 2]), np.array(ids))
    with pytest.raises(ValueError, match="edge id"):
        list(NeighborLoader(stores, [3], torch.arange(3)))


@pytest.mark.parametrize("bad", [10**7, -(5 * 10**6)])
@pytest.mark.parametrize("size", [(3, 3), None])
@pytest.mark.parametrize("layout", ["coo", "csr"])
@in_own_process
def test_wrong_destinations_of_a_store_are_refused(layout: str, size: Any, bad: int) -> None:
    """PyG itself dies of them."""

    features, edges = example_stores(np.arange(4), np.arange(3))[0], MyGraphStore()
    row = torch.tensor([0, 1, 2, 3] if layout == "csr" else [0, 1, 2])
    edges.put_edge_index((row, torch.tensor([0, bad, 2])), None, layout, size=size)
    with pytest.raises(ValueError, match=r"has the destination|has .* destinations, but"):
        NeighborLoader((features, edges), [3], torch.arange(3))


def test_a_store_with_the_right_number_of_edges() -> None:
    """The checks above fail for what they say, and not for the way the store is made."""
    stores = example_stores(np.array([0, 2, 2, 3]), np.array([1, 2, 0]), np.array([2, 0, 1]))
    (batch,) = NeighborLoader(stores, [-1], torch.arange(3), batch_size=3)
    assert batch.edge_index.tolist() == [[1, 2, 0], [0, 0, 2]]
    assert batch.e_id.tolist() == [2, 0, 1]


@pytest.mark.skipif(not WITH_TORCH_SPARSE, reason="needs torch_sparse")
@in_own_process
def test_a_sparse_tensor_with_wrong_pointers_is_refused() -> None:
    pointers = torch.tensor([0, 2**31, 1, 3])
    adj_t = SparseTensor(
        rowptr=pointers, col=torch.arange(3), sparse_sizes=(3, 3), trust_data=True,
        is_sorted=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="is not a valid CSC"):
        NeighborLoader(Data(adj_t=adj_t, num_nodes=3), [3])


@pytest.mark.parametrize("limit", [6, 7])
def test_a_hop_of_as_many_edges_as_local_ids_can_count_is_refused(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (drawing, bounds):
        monkeypatch.setattr(module, "ID_LIMIT", limit)
    data = Data(edge_index=torch.tensor([[1], [0]]), num_nodes=2)
    loader = NeighborLoader(data, [6], torch.tensor([0]), replace=True)
    with pytest.raises(ValueError, match="smaller batch_size") if limit == 6 else nullcontext():
        list(loader)
