"""Link loading: both ends of every link, their labels, and negatives."""

import numpy as np
import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from determined_pyg import determine
from hetero import graph as hetero_graph
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from pyg_direct import LinkNeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("each_backend")

needs_torch_sparse = pytest.mark.skipif(
    not torch_geometric.typing.WITH_TORCH_SPARSE, reason="PyG samples with torch_sparse here"
)


def graph(num_nodes=60, num_edges=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(num_nodes, 4, generator=generator),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
        edge_attr=torch.arange(num_edges),
        time=torch.randint(50, (num_nodes,), generator=generator),
    )


def pairs(edge_index):
    return list(zip(*edge_index.tolist(), strict=True))


@pytest.fixture
def determined(monkeypatch):
    determine(monkeypatch)


def assert_equal_stores(ours, theirs):
    for mine, other in zip(ours.stores, theirs.stores, strict=True):
        counts = {"num_sampled_nodes", "num_sampled_edges"}  # torch_sparse has none
        assert set(mine.keys()) - counts == set(other.keys())
        for key, value in other.items():
            if isinstance(value, torch.Tensor):
                assert mine[key].dtype == value.dtype, key
                assert torch.equal(mine[key], value), key
            else:
                assert mine[key] == value, key


@pytest.mark.pyg("edge_label_index", "edge_label", "batch.edge_label")
@needs_torch_sparse
@pytest.mark.usefixtures("determined")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"edge_label": torch.arange(400) % 3},
        {"edge_label": torch.rand(400, 2), "subgraph_type": "induced"},
        {"edge_label_index": torch.tensor([[5, 5, 0], [1, 5, 9]]), "drop_last": True},
        {"subgraph_type": "bidirectional"},
    ],
)
def test_homogeneous_equals_pyg(arguments):
    data = graph()
    ours = LinkNeighborLoader(data, [-1, -1], batch_size=30, **arguments)
    theirs = torch_geometric.loader.LinkNeighborLoader(data, [-1, -1], batch_size=30, **arguments)
    assert len(ours) == len(theirs)
    assert isinstance(ours, torch_geometric.loader.LinkNeighborLoader)
    for a, b in zip(ours, theirs, strict=True):
        assert_equal_stores(a, b)
    assert_equal_stores(ours([2, 0, 2]), theirs([2, 0, 2]))


@pytest.mark.pyg("edge_label_index")
@needs_torch_sparse
@pytest.mark.usefixtures("determined")
@pytest.mark.parametrize("key", [("a", "to", "a"), ("a", "likes", "b"), ("a", "b")])
def test_heterogeneous_equals_pyg(key):
    data = hetero_graph()
    arguments = {"edge_label_index": key, "batch_size": 16}
    ours = LinkNeighborLoader(data, [-1, -1], **arguments)
    theirs = torch_geometric.loader.LinkNeighborLoader(data, [-1, -1], **arguments)
    for a, b in zip(ours, theirs, strict=True):
        assert_equal_stores(a, b)


@pytest.mark.pyg("edge_label_index")
def test_links_of_a_type_without_edges_are_loaded():
    data = HeteroData(paper={"num_nodes": 100})
    links = torch.randint(100, (2, 40))
    for batch in LinkNeighborLoader(
        data, [], edge_label_index=(("paper", "paper"), links), batch_size=20
    ):
        store = batch["paper", "paper"]
        assert store.input_id.numel() == 20
        assert torch.equal(batch["paper"].n_id[store.edge_label_index], links[:, store.input_id])


def negative_nodes(weight=None, seed=0):
    data = graph(num_nodes=20)
    config = NegativeSampling("triplet", 50, dst_weight=weight)
    loader = LinkNeighborLoader(data, [0], neg_sampling=config, batch_size=400, seed=seed)
    (batch,) = loader
    return batch.n_id[batch.dst_neg_index].flatten().numpy()


@pytest.mark.pyg("neg_sampling", "sampler.negative_sampling")
def test_the_law_of_negatives():
    counts = np.bincount(negative_nodes(), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-4
    weight = torch.tensor([0.0, 1.0, 3.0] + [0.0] * 16 + [4.0])
    counts = np.bincount(negative_nodes(weight), minlength=20)
    assert counts[weight.numpy() == 0].sum() == 0
    expected = weight[weight > 0].numpy() / 8 * counts.sum()
    assert stats.chisquare(counts[weight.numpy() > 0], expected).pvalue > 1e-4
    assert stats.chisquare(counts[weight.numpy() > 0]).pvalue < 1e-4, "the test can fail"


@pytest.mark.pyg("neg_sampling")
def test_negatives_follow_the_key():
    def epoch(**kwargs):
        loader = LinkNeighborLoader(
            graph(), [3], neg_sampling="binary", batch_size=50, seed=2, shuffle=True, **kwargs
        )
        return [(b.n_id[b.edge_label_index].tolist(), b.e_id.tolist()) for b in loader]

    first = epoch()
    assert first == epoch(num_workers=3) == epoch(num_workers=1, prefetch=4)
    sources = [tuple(ends[0][50:]) for ends, _ in first]
    destinations = [tuple(ends[1][50:]) for ends, _ in first]
    assert len(set(sources)) == len(sources), "every batch draws anew"
    assert sources != destinations, "and so does either end"


def test_a_ready_sampler_has_times_for_those_of_the_links():
    data = graph()
    sampler = NeighborSampler(data, [2], time_attr="time")
    time = torch.full((400,), 3)
    loader = LinkNeighborLoader(data, [], edge_label_time=time, neighbor_sampler=sampler)
    batch = next(iter(loader))
    assert batch.edge_label_time.tolist() == [3]
    assert bool((batch.time[batch.num_sampled_nodes[0] :] <= 3).all())


def test_ends_that_several_edge_types_have_do_not_name_one():
    data = hetero_graph()
    data["a", "hates", "b"].edge_index = data["a", "likes", "b"].edge_index
    with pytest.raises(ValueError, match="edge_label_index must name an edge type"):
        LinkNeighborLoader(data, [2], edge_label_index=("a", "b"))


def test_triplets_have_no_links_and_times_of_the_graphs_own():
    data = graph()
    data.edge_label_time, data.edge_label_index = torch.arange(400), data.edge_index
    loader = LinkNeighborLoader(
        data, [2], edge_label_time=torch.full((400,), 60), time_attr="time",
        neg_sampling="triplet", batch_size=16,
    )  # fmt: skip
    assert not {"edge_label_time", "edge_label_index"} & set(next(iter(loader)).keys())


def test_positions_of_any_shape():
    loader = LinkNeighborLoader(graph(), [2], neg_sampling="binary", batch_size=4)
    batch = loader([[3, 1], [2, 7]])
    assert batch.input_id.tolist() == [3, 1, 2, 7]
    assert batch.edge_label.tolist() == [1.0] * 4 + [0.0] * 4


@pytest.mark.parametrize("neg_sampling", [None, "binary"])
def test_a_loader_without_links_has_no_batches(neg_sampling):
    none = torch.empty(2, 0, dtype=torch.int64)
    for label in (None, torch.empty(0)):
        loader = LinkNeighborLoader(
            graph(), [2], edge_label_index=none, edge_label=label, neg_sampling=neg_sampling
        )
        assert list(loader) == []


def test_the_users_own_seeds_are_kept():
    """Lightning reads them."""
    loader = LinkNeighborLoader(hetero_graph(), [2], edge_label_index=("a", "b"))
    assert loader.edge_label_index == ("a", "b")
    assert loader.input_data.input_type == ("a", "likes", "b")


@pytest.mark.pyg("sampler.in_link_loader")
def test_the_sampler_works_in_pygs_own_loader():
    data = graph()
    sampler = NeighborSampler(data, [4, 4], seed=3)
    loader = torch_geometric.loader.LinkLoader(
        data, sampler, neg_sampling=NegativeSampling("binary"), batch_size=20
    )
    for batch in loader:
        batch = batch.to("cpu")
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        ends = batch.n_id[batch.edge_label_index[:, :20]]
        assert torch.equal(ends, data.edge_index[:, batch.input_id])


@pytest.mark.pyg("edge_label_index", "edge_label_time", "sampler.negative_sampling")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"time_attr": "time"}, ValueError, "'edge_label_time' is not set"),
        ({"edge_label_time": torch.zeros(400)}, ValueError, "'time_attr' is not set"),
        ({"edge_label": torch.zeros(3)}, ValueError, "edge_label needs one entry for each of 400"),
        (
            {"edge_label": torch.zeros(400), "neg_sampling": "triplet"},
            ValueError,
            "'edge_label' needs to be undefined",
        ),
        (
            {"edge_label_index": torch.tensor([[0], [60]])},
            IndexError,
            r"edge_label_index\[1\] must be node ids in \[0, 60\), got 60",
        ),
        (
            {"neg_sampling": NegativeSampling("binary", 1, torch.ones(3), torch.ones(3))},
            ValueError,
            "src_weight of NegativeSampling needs one weight for each of 60",
        ),
        (
            {"neg_sampling": NegativeSampling("triplet", 1, None, torch.ones(61))},
            ValueError,
            "dst_weight of NegativeSampling needs one weight for each of 60",
        ),
        (
            {"neg_sampling": NegativeSampling("triplet", 1, None, torch.zeros(60))},
            ValueError,
            "dst_weight of NegativeSampling must be finite, .* and needs a positive sum",
        ),
    ],
)
def test_wrong_arguments_of_a_link_loader_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        next(iter(LinkNeighborLoader(graph(), [2], **arguments)))


def test_no_links_have_no_labels_of_their_own():
    none = torch.empty(2, 0, dtype=torch.int64)
    loader = LinkNeighborLoader(
        graph(), [2], edge_label_index=none, edge_label=torch.empty(0, 3), batch_size=2
    )
    assert loader.input_data.label.shape == (0, 3)
    assert list(loader) == []
