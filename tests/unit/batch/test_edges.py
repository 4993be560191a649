"""Sampled edges that know their hops: what keeps the hops, and what drops them."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from graphs import citations, papers_and_authors
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HGTConv
from torch_geometric.sampler import NeighborSampler as PyGSampler
from torch_geometric.utils import to_undirected

from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.batch.edges import HopEnds, SampledEdges
from pyg_direct.batch.tensors import tensors_of
from pyg_direct.loading.base import hand_out_hops

EDGES = torch.tensor([[2, 3, 0, 4], [0, 0, 1, 2]])
HOPS = HopEnds((2, 5, 6), (2, 5, 6), (3, 4))


def edges() -> SampledEdges:
    return SampledEdges(EDGES.clone(), HOPS)


def handing_out(**options) -> NeighborLoader:
    loader = NeighborLoader(citations(), [4, 3], batch_size=16, seed=0, **options)
    assert hand_out_hops(loader) == ""
    return loader


def check(kept, like: torch.Tensor) -> None:
    assert isinstance(kept, SampledEdges)
    assert kept.hops == HOPS
    assert torch.equal(kept, like)
    assert type(kept.as_tensor()) is torch.Tensor
    assert kept.as_tensor().data_ptr() == kept.data_ptr()


COPIES = {
    "made": lambda e: e,
    "clone": lambda e: e.clone(),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda e: pickle.loads(pickle.dumps(e)),
    "to": lambda e: e.to("cpu"),
    "to a copy": lambda e: e.to("cpu", copy=True),
    "to int32": lambda e: e.to(torch.int32),
    "to and back": lambda e: pickle.loads(pickle.dumps(e.clone())).to(torch.int32).long(),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_keep_the_hops(name) -> None:
    kept = COPIES[name](edges())
    check(kept, EDGES.to(kept.dtype))


def test_saved_edges_are_loaded_as_weights_are() -> None:
    file = io.BytesIO()
    torch.save({"edge_index": edges()}, file)
    file.seek(0)
    check(torch.load(file, weights_only=True)["edge_index"], EDGES)


def test_saved_and_loaded_batches_keep_the_hops() -> None:
    file = io.BytesIO()
    torch.save(Data(edge_index=edges(), num_nodes=6), file)
    file.seek(0)
    check(torch.load(file, weights_only=False).edge_index, EDGES)


def test_no_copy_is_made() -> None:
    tensor = EDGES.clone()
    assert SampledEdges(tensor, HOPS).as_tensor() is tensor


OTHERS = {
    "columns": lambda e: e[:, [0, 2]],
    "mask": lambda e: e[:, torch.tensor([True, False, True, True])],
    "flip": lambda e: e.flip(0),
    "cat": lambda e: torch.cat([e, e], dim=1),
    "sum": lambda e: e + 1,
    "undirected": to_undirected,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_have_no_hops(name) -> None:
    assert not isinstance(OTHERS[name](edges()), SampledEdges)


def add_one(e: SampledEdges) -> None:
    e.add_(1)


def write_entry(e: SampledEdges) -> None:
    e[0, 0] = 1


def write_row(e: SampledEdges) -> None:
    e[1].fill_(0)


def write_behind(e: SampledEdges) -> None:
    e.as_tensor()[0, 0] = 1


@pytest.mark.parametrize("write", [add_one, write_entry, write_row, write_behind])
def test_writing_drops_the_hops(write) -> None:
    for made in (edges(), edges().clone(), pickle.loads(pickle.dumps(edges()))):
        assert made.hops == HOPS
        write(made)
        assert made.hops is None
        assert not isinstance(made.clone(), SampledEdges)
        assert not isinstance(pickle.loads(pickle.dumps(made)), SampledEdges)


def test_loaders_hand_them_out_only_when_told() -> None:
    loader = NeighborLoader(citations(), [4, 3], batch_size=16, seed=0)
    plain = next(iter(loader))
    assert type(plain.edge_index) is torch.Tensor
    assert hand_out_hops(loader) == ""
    again = next(iter(NeighborLoader(citations(), [4, 3], batch_size=16, seed=0)))
    assert type(again.edge_index) is torch.Tensor


def test_edges_are_those_of_the_plain_batch() -> None:
    torch.manual_seed(0)
    data = citations()
    plain = NeighborLoader(data, [4, 3], batch_size=16, seed=0)
    told = NeighborLoader(data, [4, 3], batch_size=16, seed=0)
    hand_out_hops(told)
    for ours, other in zip(told, plain, strict=True):
        made = ours.edge_index
        assert torch.equal(made.as_tensor(), other.edge_index)
        ends = made.hops
        assert ends.source[-1] == other.num_nodes
        for hop, last in enumerate(ends.edge):  # a hop's edges lead into the hop's nodes only
            first = ends.edge[hop - 1] if hop else 0
            into = other.edge_index[1, first:last]
            assert (into < ends.destination[hop]).all()
            assert (into >= (ends.destination[hop - 1] if hop else 0)).all()
            assert (other.edge_index[0, :last] < ends.source[hop + 1]).all()


def test_types_have_their_own_hops() -> None:
    data = papers_and_authors()
    loader = NeighborLoader(data, [4, 3], input_nodes="paper", batch_size=16, seed=0)
    assert hand_out_hops(loader) == ""
    batch = next(iter(loader))
    for key in batch.edge_types:
        made = batch[key].edge_index
        assert made.hops.destination[0] == (16 if key[-1] == "paper" else 0)
        ends = made.hops.source[-1], made.hops.destination[-1]
        assert ends == (batch[key[0]].num_nodes, batch[key[-1]].num_nodes)


class Dropping(NeighborLoader):
    def filter_fn(self, out: Any) -> Any:
        out.row, out.col, out.edge = out.row[:-1], out.col[:-1], out.edge[:-1]
        return super().filter_fn(out)


def test_a_subclass_that_drops_edges_has_plain_ones() -> None:
    loader = Dropping(citations(), [4], batch_size=16)
    assert hand_out_hops(loader) == ""
    assert type(next(iter(loader)).edge_index) is torch.Tensor


def test_a_transform_may_leave_out_an_edge_type() -> None:
    data = papers_and_authors()
    gone, *others = data.edge_types

    def transform(batch: HeteroData) -> HeteroData:
        del batch[gone]
        return batch

    loader = NeighborLoader(data, [2], input_nodes="paper", batch_size=4, transform=transform)
    assert hand_out_hops(loader) == ""
    batch = next(iter(loader))
    assert batch.edge_types == others
    assert all(isinstance(batch[key].edge_index, SampledEdges) for key in others)


def test_link_loaders_hand_them_out() -> None:
    loader = LinkNeighborLoader(
        citations(), [4, 3], batch_size=16, neg_sampling="binary", disjoint=False, seed=0
    )
    hand_out_hops(loader)
    batch = next(iter(loader))
    seeds = batch.edge_index.hops.source[0]
    assert batch.edge_label_index.max() == seeds - 1


def test_moved_batches_keep_the_hops() -> None:
    batch = next(iter(handing_out()))
    assert batch.clone().edge_index.hops == batch.edge_index.hops
    assert batch.to("cpu").edge_index.hops is not None
    assert pickle.loads(pickle.dumps(batch)).edge_index.hops == batch.edge_index.hops


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_with_producers(workers) -> None:
    for batch in handing_out(num_workers=workers):
        assert batch.edge_index.hops is not None


def replaced(batch: Data) -> Data:
    batch.edge_index = to_undirected(batch.edge_index)
    return batch


def replaced_in_kind(batch: Data) -> Data:
    batch.edge_index = batch.edge_index.flip(0)
    return batch


def written(batch: Data) -> Data:
    batch.edge_index[0, 0] = 0
    return batch


def with_a_node_more(batch: Data) -> Data:
    batch.x = torch.cat([batch.x, batch.x[:1]])
    batch.num_nodes = len(batch.x)
    return batch


def without_edges(batch: Data) -> Data:
    del batch.edge_index
    return batch


def as_tuple(batch: Data) -> tuple:
    return batch.x, batch.edge_index


@pytest.mark.parametrize(
    "transform",
    [replaced, replaced_in_kind, written, with_a_node_more, without_edges, as_tuple],
    ids=lambda f: f.__name__,
)
def test_a_transform_that_changes_edges_drops_the_hops(transform) -> None:
    batch = next(iter(handing_out(transform=transform)))
    edge_index = batch[1] if isinstance(batch, tuple) else batch.get("edge_index")
    assert edge_index is None or type(edge_index) is torch.Tensor


def test_a_transform_of_features_keeps_the_hops() -> None:
    seen = []

    def transform(batch: Data) -> Data:
        seen.append(type(batch.edge_index))
        batch.x = batch.x * 2
        return batch

    batch = next(iter(handing_out(transform=transform)))
    assert isinstance(batch.edge_index, SampledEdges)
    assert set(seen) == {torch.Tensor}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subgraph_type": "induced"}, "subgraph_type is 'induced'"),
        ({"subgraph_type": "bidirectional"}, "subgraph_type is 'bidirectional'"),
        ({"transform_sampler_output": lambda out: out}, "transform_sampler_output"),
    ],
)
def test_edges_of_unknown_order_stay_plain_tensors(options, reason) -> None:
    loader = NeighborLoader(citations(), [4, 3], batch_size=16, **options)
    assert reason in hand_out_hops(loader)
    assert type(next(iter(loader)).edge_index) is torch.Tensor


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without:UserWarning")
def test_other_samplers_are_not_trusted() -> None:
    pytest.importorskip("torch_sparse")
    sampler = PyGSampler(citations(), [4, 3])
    loader = NeighborLoader(citations(), [4, 3], neighbor_sampler=sampler)
    assert "not pyg_direct's" in hand_out_hops(loader)


def test_streams_see_the_tensor_behind() -> None:
    made = edges()
    found = list(tensors_of({"edge_index": made}))
    assert {t.data_ptr() for t in found} == {made.data_ptr()}


def test_batches_made_in_inference_mode() -> None:
    with torch.inference_mode():
        made = [batch.edge_index for batch in handing_out()]
    assert all(isinstance(edge_index, SampledEdges) and edge_index.hops for edge_index in made)


def test_layers_that_change_edges_get_plain_ones() -> None:
    """HGTConv adds offsets to the edges of all types: they are between other nodes then."""
    data = papers_and_authors()
    for kind in data.node_types:
        data[kind].x = torch.randn(data[kind].num_nodes, 8)
    layer = HGTConv(8, 8, data.metadata(), heads=2)
    options = {"input_nodes": "paper", "batch_size": 16, "seed": 0}
    handed = NeighborLoader(data, [4, 3], **options)
    hand_out_hops(handed)
    for ours, other in zip(handed, NeighborLoader(data, [4, 3], **options), strict=True):
        expected = layer(other.x_dict, other.edge_index_dict)["paper"]
        torch.testing.assert_close(layer(ours.x_dict, ours.edge_index_dict)["paper"], expected)
    joined = torch.cat([edges() + 1, edges()], dim=1)
    assert type(joined) is torch.Tensor
