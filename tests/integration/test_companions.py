"""What stands beside the loader in PyG works with it: `trim_to_layer`, `inference`, samplers."""

from typing import Any

import pytest
import torch
import torch_geometric
import torch_geometric.typing
from graphs import (
    assert_same_batch,
    assert_same_epoch,
    assert_same_value,
    example_graph,
    graphs_and_seeds,
)
from hypothesis import given
from torch_geometric.data import Data
from torch_geometric.loader import (
    CachedLoader,
    ImbalancedSampler,
    NodeLoader,
    PrefetchLoader,
    ZipLoader,
)
from torch_geometric.nn import GraphSAGE, PNAConv
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.utils import trim_to_layer

from pyg_direct import NeighborLoader, NeighborSampler


@pytest.mark.pyg("batch.num_sampled")
@given(case=graphs_and_seeds())
def test_edges_and_nodes_are_grouped_by_hop(case: tuple[Data, list[int]]) -> None:
    data, seeds = case
    loader = NeighborLoader(
        data, [2, 1, 3], input_nodes=torch.tensor(seeds), batch_size=len(seeds), seed=0
    )
    batch = loader([*range(len(seeds))])
    nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
    assert (len(nodes), len(edges)) == (4, 3)
    assert nodes[0] == len(seeds)
    assert (sum(nodes), sum(edges)) == (len(batch.n_id), len(batch.e_id))
    row, col = batch.edge_index
    assert (col.diff() >= 0).all()
    node_ends, edge_ends = torch.tensor(nodes).cumsum(0), torch.tensor(edges).cumsum(0)
    begin = 0
    for hop in range(3):
        end = int(edge_ends[hop])
        low = int(node_ends[hop - 1]) if hop > 0 else 0
        assert ((col[begin:end] >= low) & (col[begin:end] < node_ends[hop])).all()
        assert (row[begin:end] < node_ends[hop + 1]).all()
        begin = end


@pytest.mark.pyg("with.trim_to_layer")
def test_trim_to_layer_computes_the_same_for_the_seeds() -> None:
    torch.manual_seed(0)
    data = example_graph()
    model = GraphSAGE(3, 8, num_layers=3, out_channels=2).eval()
    for batch in NeighborLoader(data, [2, 2, 2], batch_size=4, seed=0):
        full = model(batch.x, batch.edge_index)[: batch.batch_size]
        trimmed = model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )[: batch.batch_size]
        torch.testing.assert_close(trimmed, full)
        x, edge_index, edge_attr = trim_to_layer(
            1, batch.num_sampled_nodes, batch.num_sampled_edges, batch.x, batch.edge_index,
            batch.edge_attr,
        )  # fmt: skip
        assert len(x) == sum(batch.num_sampled_nodes[:-1])
        assert edge_index.size(1) == len(edge_attr) == sum(batch.num_sampled_edges[:-1])
        assert edge_index.numel() == 0 or int(edge_index.max()) < len(x)


@pytest.mark.pyg("with.basic_gnn_inference")
@pytest.mark.parametrize("cache", [False, True])
def test_basic_gnn_inference(loader_class: type, cache: bool) -> None:
    torch.manual_seed(0)
    data = example_graph()
    model = GraphSAGE(3, 8, num_layers=2, out_channels=4).eval()
    loader = loader_class(data, [-1], batch_size=5)
    with torch.no_grad():
        torch.testing.assert_close(
            model.inference(loader, cache=cache), model(data.x, data.edge_index)
        )


@pytest.mark.pyg("with.training")
def test_training_on_full_neighbourhoods_equals_pyg(pyg_loader: type) -> None:
    """The whole chain: same batches, same losses, same weights, bit for bit."""

    def train(loader_class: type) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = GraphSAGE(3, 8, num_layers=2, out_channels=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses = []
        for batch in loader_class(example_graph(), [-1, -1], batch_size=4, shuffle=True):
            out = model(batch.x / 36, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size] % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters())]

    assert_same_value(train(NeighborLoader), train(pyg_loader), "training")


@pytest.mark.pyg("with.pna_degrees")
def test_pna_degree_histogram(loader_class: type) -> None:
    loader = loader_class(example_graph(), [-1], batch_size=12)
    histogram = PNAConv.get_degree_histogram(loader)
    degree = torch.bincount(example_graph().edge_index[1], minlength=12)
    assert torch.equal(histogram, torch.bincount(degree))


@pytest.mark.pyg("sampler", "with.imbalanced_sampler")
def test_an_imbalanced_sampler_draws_the_rare_class_half_the_time(loader_class: type) -> None:
    data = example_graph()
    data.y = (torch.arange(12) == 7).long()
    loader = loader_class(
        data, [-1], batch_size=300, sampler=ImbalancedSampler(data, num_samples=300)
    )
    batch = next(iter(loader))
    seeds = batch.n_id[:300]
    assert batch.batch_size == 300
    assert 100 < int((seeds == 7).sum()) < 200
    assert torch.equal(batch.y[:300], data.y[seeds])


@pytest.mark.pyg("with.imbalanced_sampler")
def test_imbalanced_sampler_over_a_mask(loader_class: type) -> None:
    data, mask = example_graph(), torch.arange(12) > 5
    data.y = (torch.arange(12) == 7).long()
    sampler = ImbalancedSampler(data, input_nodes=mask, num_samples=300)
    (batch,) = loader_class(data, [-1], input_nodes=mask, batch_size=300, sampler=sampler)
    assert int(batch.n_id[:300].min()) == 6
    assert 100 < int(batch.y[:300].sum()) < 200


@pytest.mark.pyg("with.zip_loader")
def test_a_zip_loader_gives_the_batches_of_both_loaders(loader_class: type) -> None:
    one = loader_class(example_graph(), [-1], batch_size=4)
    two = loader_class(example_graph(), [-1, -1], input_nodes=range(6, 12), batch_size=4)
    for filter_per_worker in (True, False):
        zipped = ZipLoader([one, two], filter_per_worker=filter_per_worker, batch_size=4)
        assert zipped.dataset == range(6)
        batches = list(zipped)
        assert len(batches) == 2
        assert_same_batch(batches[1][1], two([4, 5]))
    one.filter_per_worker = two.filter_per_worker = True


@pytest.mark.pyg("with.prefetch_loader")
def test_cached_and_prefetch_loader(loader_class: type) -> None:
    loader = loader_class(example_graph(), [-1], batch_size=4)
    cpu = torch.device("cpu")
    assert assert_same_epoch(CachedLoader(loader, device=cpu), loader) == 3
    assert assert_same_epoch(PrefetchLoader(loader, device=cpu), loader) == 3


# Our sampler in PyG's loader, and others' samplers in ours ########################################


@pytest.mark.pyg("sampler.in_node_loader")
@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
def test_our_sampler_in_pygs_node_loader(kind: str) -> None:
    data = example_graph()
    sampler = NeighborSampler(data, [-1, -1], subgraph_type=kind)
    assert isinstance(sampler, BaseSampler)
    assert sampler.edge_permutation is None
    theirs = NodeLoader(data, sampler, batch_size=5)
    ours = NeighborLoader(data, [-1, -1], subgraph_type=kind, batch_size=5)
    assert assert_same_epoch(ours, theirs) == 3


@pytest.mark.pyg("sampler.in_node_loader")
@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")  # Python 3.12 on
def test_our_sampler_in_pygs_worker_processes() -> None:
    data = example_graph()
    loader = NodeLoader(data, NeighborSampler(data, [2]), input_nodes=[0] * 40, num_workers=2)
    picks = [tuple(sorted(batch.e_id.tolist())) for batch in loader]
    assert len(picks) == 40
    assert len(set(picks)) > 8


@pytest.mark.pyg("neighbor_sampler", "sampler.foreign")
@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="needs torch_sparse")
@pytest.mark.usefixtures("pyg_loader")
def test_pygs_sampler_in_our_loader(pyg_loader: type) -> None:
    """It numbers edges by their place in the CSC, which the loader translates."""
    data = example_graph()
    sampler = torch_geometric.sampler.NeighborSampler(data, [-1, -1])
    assert sampler.edge_permutation is not None
    ours = NeighborLoader(data, [-1, -1], neighbor_sampler=sampler, batch_size=5, num_workers=1)
    assert assert_same_epoch(ours, pyg_loader(data, [-1, -1], batch_size=5)) == 3


class SeedsOnly(BaseSampler):
    """A sampler of someone else's, with few of the fields that are optional."""

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        none = torch.empty(0, dtype=torch.int64)
        return SamplerOutput(
            node=inputs.node, row=none, col=none, edge=None, metadata=(inputs.input_id, inputs.time)
        )

    def sample_from_edges(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@pytest.mark.pyg("neighbor_sampler", "sampler.foreign")
def test_another_sampler_in_our_loader(loader_class: type) -> None:
    loader = loader_class(example_graph(), [], neighbor_sampler=SeedsOnly(), batch_size=5)
    batches = list(loader)
    assert [batch.n_id.tolist() for batch in batches] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]
    assert all("e_id" not in batch and "edge_attr" not in batch for batch in batches)


@pytest.mark.pyg("sampler.node_input", "sampler.output")
def test_sampler_output_of_our_sampler() -> None:
    out = NeighborSampler(example_graph(), [-1], disjoint=True).sample_from_nodes(
        NodeSamplerInput(input_id=torch.tensor([4, 2]), node=torch.tensor([3, 1]))
    )
    assert out.node.tolist() == [3, 1, 0, 2, 0]
    assert out.batch.tolist() == [0, 1, 0, 1, 1]
    assert (out.row.tolist(), out.col.tolist()) == ([2, 3, 3, 4], [0, 1, 1, 1])
    assert out.edge.tolist() == [6, 1, 4, 12]
    assert (out.num_sampled_nodes, out.num_sampled_edges) == ([2, 3], [4])
    assert out.metadata[0].tolist() == [4, 2]
    assert out.metadata[1] is None
