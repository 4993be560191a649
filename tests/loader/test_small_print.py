"""What PyG also does and few notice: keywords, frames, iterators, classes of the samplers."""

from __future__ import annotations

import logging
import unittest
from typing import Any

import pytest
import torch
import torch_geometric.typing
from graphs import assert_maps_to, assert_same_epoch, example_graph
from hetero import graph as hetero_graph
from torch import Tensor
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from versions import IN_ORDER, needs_merged_outputs

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

# Keywords #########################################################################################


@pytest.mark.pyg(
    "pin_memory", "timeout", "multiprocessing_context", "persistent_workers", "in_order"
)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("loader_type", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize(
    "keywords",
    [
        {"pin_memory": True},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"num_workers": 1, **IN_ORDER},
        {"num_workers": 1, "persistent_workers": True, "timeout": 60},
    ],
    ids=lambda keywords: "-".join(keywords),
)
def test_keywords_of_dataloader(loader_type: type, keywords: dict[str, Any]) -> None:
    """They are taken and change no batch: there are threads, which keep the order."""
    data = example_graph()
    loader = loader_type(data, [2, 2], batch_size=4, seed=1, **keywords)
    for _ in range(2):
        plain = loader_type(data, [2, 2], batch_size=4, seed=1)
        plain.load_state_dict({**plain.state_dict(), **loader.state_dict()})
        assert assert_same_epoch(loader, plain) > 2


@pytest.mark.pyg("share_memory")
def test_share_memory_is_taken() -> None:
    ours = [NeighborSampler(example_graph(), [2], seed=1, share_memory=b) for b in (False, True)]
    a, b = (NodeLoader(example_graph(), sampler, batch_size=4) for sampler in ours)
    assert assert_same_epoch(a, b) == 3


# The loader as an object ##########################################################################


@pytest.mark.pyg("loader.get_iterator")
def test_get_iterator_gives_an_epoch_of_the_loader(loader_class: type) -> None:
    for filter_per_worker in (True, False):
        loader = loader_class(
            example_graph(), [-1], batch_size=5, filter_per_worker=filter_per_worker
        )
        assert assert_same_epoch(loader._get_iterator(), loader) == 3


@pytest.mark.pyg("loader.enable_memory_log")
def test_the_memory_log_has_a_line_for_each_worker() -> None:
    loader = NeighborLoader(example_graph(), [2], batch_size=4, num_workers=2)
    logs = unittest.TestCase().assertLogs(level=logging.DEBUG)
    with logs as logged, loader.enable_memory_log():
        assert len(list(loader)) == 3
    for worker in range(2):
        assert any(f"Worker {worker} @ PID" in line for line in logged.output)


class Frame(torch_geometric.typing.TensorFrame):
    """As much of a `TensorFrame` as a loader sees; the package need not be installed."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        return self.values.device

    def __getitem__(self, index: Tensor) -> Frame:
        return Frame(self.values[index])

    def to(self, *args: Any, **kwargs: Any) -> Frame:
        return Frame(self.values.to(*args, **kwargs))


@pytest.mark.pyg("batch.tensor_frame")
def test_tensor_frames_are_indexed_by_nodes_and_edges_of_the_batch(loader_class: type) -> None:
    data = example_graph()
    data.tf, data.edge_tf = Frame(torch.arange(12) + 5), Frame(torch.arange(20) + 50)
    data.of_the_graph = Frame(torch.arange(3))
    for batch in loader_class(data, [2, 2], batch_size=5):
        assert torch.equal(batch.tf.values.cpu(), batch.n_id + 5)
        assert torch.equal(batch.edge_tf.values.cpu(), batch.e_id + 50)
        assert batch.of_the_graph is data.of_the_graph


# The samplers' inputs and outputs #################################################################


def nodes(*ids: int) -> NodeSamplerInput:
    return NodeSamplerInput(None, torch.tensor(ids))


def sampled(*ids: int, **arguments: Any) -> SamplerOutput:
    return NeighborSampler(example_graph(), [-1, -1], **arguments).sample_from_nodes(nodes(*ids))


@pytest.mark.pyg("sampler.node_input", "sampler.metadata")
def test_slices_of_the_input() -> None:
    """Without ids of its own, a slice is named by its positions."""
    part = NodeSamplerInput(None, torch.tensor([7, 2, 9]))[torch.tensor([2, 0])]
    out = NeighborSampler(example_graph(), [-1]).sample_from_nodes(part)
    assert out.node[:2].tolist() == [9, 7]
    assert out.metadata[0].tolist() == [2, 0]


@needs_merged_outputs
@pytest.mark.pyg("sampler.output")
def test_seed_node_and_global_ends_of_a_sampler_output_are_global_ids() -> None:
    out = sampled(3, 1, disjoint=True)
    assert torch.equal(out.seed_node, torch.tensor([3, 1])[out.batch])
    edge_index = example_graph().edge_index
    assert torch.equal(torch.stack([out.global_row, out.global_col]), edge_index[:, out.edge])


@needs_merged_outputs
@pytest.mark.pyg("sampler.output", "sampler.hetero_output")
@pytest.mark.parametrize("disjoint", [False, True])
def test_outputs_are_merged_by_pyg(disjoint: bool) -> None:
    """Two outputs of ours become one, with every node and edge of either once."""
    one, other = (sampled(*ids, disjoint=disjoint) for ids in ((3, 1), (7, 5)))
    merged = SamplerOutput.collate([one, other])
    edge_index = example_graph().edge_index
    ends = torch.stack([merged.global_row, merged.global_col])
    assert torch.equal(ends, edge_index[:, merged.edge])
    expected = set(one.node.tolist()) | set(other.node.tolist())
    assert set(merged.node.tolist()) == expected
    assert disjoint or len(merged.node) == len(expected)
    assert set(merged.edge.tolist()) == set(one.edge.tolist()) | set(other.edge.tolist())
    joined = SamplerOutput.collate([one, other], replace=False)
    assert len(joined.node) == len(one.node) + len(other.node)
    out = NeighborSampler(hetero_graph(), [1]).sample_from_nodes(
        NodeSamplerInput(None, torch.tensor([1]), input_type="a")
    )
    with pytest.raises(NotImplementedError):
        HeteroSamplerOutput.collate([out, out])


@pytest.mark.pyg("batch.orig_edge_index", "sampler.output")
def test_the_original_edges_are_kept_on_request() -> None:
    data = example_graph()
    sampler = NeighborSampler(data, [-1, -1], subgraph_type="bidirectional")
    plain = sampler.sample_from_nodes(nodes(3, 1))
    assert plain.orig_row is plain.num_sampled_edges is None
    sampler.keep_orig_edges = True
    out, one_way = sampler.sample_from_nodes(nodes(3, 1)), sampled(3, 1)
    assert torch.equal(out.orig_row, one_way.row)
    assert torch.equal(out.orig_col, one_way.col)
    assert out.num_sampled_edges == one_way.num_sampled_edges
    assert torch.equal(out.row, plain.row)
    (batch,) = NeighborLoader(data, [], input_nodes=[3, 1], batch_size=2, neighbor_sampler=sampler)
    assert torch.equal(batch._orig_edge_index, torch.stack([one_way.row, one_way.col]))


@pytest.mark.pyg("sampler.edge_input", "sampler.metadata")
@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
def test_metadata_of_links(mode: str | None) -> None:
    """Loaders read it by position."""
    row, col = torch.tensor([0, 4, 7]), torch.tensor([1, 8, 3])
    links = EdgeSamplerInput(torch.tensor([9, 8, 7]), row, col)
    negatives = None if mode is None else NegativeSampling(mode, 1)
    out = NeighborSampler(example_graph(), [2]).sample_from_edges(links, negatives)
    assert out.metadata[0].tolist() == [9, 8, 7]
    if mode == "triplet":
        _, src, dst_pos, dst_neg, time = out.metadata
        assert torch.equal(out.node[src], row)
        assert torch.equal(out.node[dst_pos], col)
        assert dst_neg.shape == (3,)
        assert time is None
    else:
        _, ends, label, time = out.metadata
        assert torch.equal(out.node[ends][:, :3], torch.stack([row, col]))
        assert (label is None) == (mode is None)
        assert mode is None or label.tolist() == [1.0] * 3 + [0.0] * 3
        assert time is None


@pytest.mark.pyg("batch.batch_size", "batch.link_seeds")
def test_seeds_of_links_are_sorted_and_single() -> None:
    data = example_graph()
    links = torch.tensor([[7, 0, 7], [3, 7, 0]])
    for batch in LinkNeighborLoader(data, [-1], links, batch_size=3):
        assert batch.n_id[: batch.num_sampled_nodes[0]].tolist() == [0, 3, 7]
        assert torch.equal(batch.n_id[batch.edge_label_index], links)
        assert "batch_size" not in batch
        assert_maps_to(batch, data)
