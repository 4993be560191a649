"""Link loading: both ends of every link, their labels, and negatives."""

import numpy as np
import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from determined_pyg import determine
from graphs import papers_and_authors
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
def test_a_link_type_that_the_graph_does_not_have():
    data = HeteroData(paper={"num_nodes": 100})
    links = torch.randint(100, (2, 40))
    for batch in LinkNeighborLoader(
        data, [], edge_label_index=(("paper", "paper"), links), batch_size=20
    ):
        store = batch["paper", "paper"]
        assert store.input_id.numel() == 20
        assert torch.equal(batch["paper"].n_id[store.edge_label_index], links[:, store.input_id])


@pytest.mark.pyg("neg_sampling", "batch.edge_label")
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [0.5, 1, 2, 1.3])
def test_binary_negatives(disjoint, amount):
    data = graph()
    loader = LinkNeighborLoader(
        data,
        [3, 3],
        batch_size=10,
        disjoint=disjoint,
        neg_sampling=NegativeSampling("binary", amount),
    )
    for batch in loader:
        negatives = int(np.ceil(10 * amount))
        assert batch.edge_label.tolist() == [1.0] * 10 + [0.0] * negatives
        ends = batch.n_id[batch.edge_label_index]
        assert torch.equal(ends[:, :10], data.edge_index[:, batch.input_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        if disjoint:
            assert batch.edge_label_index.tolist() == [
                list(range(10 + negatives)),
                list(range(10 + negatives, 2 * (10 + negatives))),
            ]
            assert int(batch.batch.max()) < 10


@pytest.mark.parametrize("key", [None, ("author", "writes", "paper"), ("paper", "cites", "paper")])
@pytest.mark.parametrize("amount", [0.5, 1.5, 2])
def test_ends_of_a_link_share_a_subgraph_with_fractional_negatives(key, amount):
    """PyG gives the ends different numbers where the amount is not an integer."""
    data = graph() if key is None else papers_and_authors()
    links = data.edge_index if key is None else (key, data[key].edge_index)
    loader = LinkNeighborLoader(
        data, [2], edge_label_index=links, disjoint=True, batch_size=6,
        neg_sampling=NegativeSampling("binary", amount),
    )  # fmt: skip
    batch = next(iter(loader))
    store = batch if key is None else batch[key]
    src, dst = store.edge_label_index
    of_src, of_dst = (
        (batch.batch, batch.batch) if key is None else (batch[key[0]].batch, batch[key[2]].batch)
    )
    total = 6 + int(6 * amount)
    assert of_src[src].tolist() == of_dst[dst].tolist() == [i % 6 for i in range(total)]
    for edge_store in batch.edge_stores:
        ends = (key and edge_store._key) or (None, None, None)
        of_row, of_col = (batch.batch if key is None else batch[e].batch for e in ends[::2])
        row, col = edge_store.edge_index
        assert torch.equal(of_row[row], of_col[col]), "no edge leaves its subgraph"


@pytest.mark.pyg("edge_label", "neg_sampling_ratio")
def test_labels_make_room_for_zero():
    data, label = graph(), torch.arange(400) % 3
    loader = LinkNeighborLoader(data, [2], edge_label=label, neg_sampling_ratio=1.0, batch_size=50)
    for batch in loader:
        assert torch.equal(batch.edge_label[:50], label[batch.input_id] + 1)
        assert batch.edge_label[50:].tolist() == [0] * 50
    (batch,) = LinkNeighborLoader(
        data, [2], edge_label=label, neg_sampling_ratio=0.0, batch_size=400
    )
    assert torch.equal(batch.edge_label, label)


@pytest.mark.pyg("neg_sampling", "batch.triplets")
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [1, 3])
@pytest.mark.parametrize("key", [None, ("a", "likes", "b"), ("a", "to", "a")])
def test_triplets(disjoint, amount, key):
    data = graph() if key is None else hetero_graph()
    links = (data if key is None else data[key]).edge_index
    loader = LinkNeighborLoader(
        data,
        [3, 3],
        edge_label_index=key,
        batch_size=8,
        disjoint=disjoint,
        neg_sampling={"mode": "triplet", "amount": amount},
    )
    for batch in loader:
        src, dst = (batch, batch) if key is None else (batch[key[0]], batch[key[2]])
        seeds = batch if key is None else batch[key]
        number = len(seeds.input_id)
        assert torch.equal(src.n_id[src.src_index], links[0, seeds.input_id])
        assert torch.equal(dst.n_id[dst.dst_pos_index], links[1, seeds.input_id])
        assert dst.dst_neg_index.shape == ((number,) if amount == 1 else (number, amount))
        assert int(dst.dst_neg_index.max()) < len(dst.n_id)
        assert "edge_label_index" not in seeds
        if disjoint:
            assert torch.equal(src.batch[src.src_index], torch.arange(number))
            for column in dst.dst_neg_index.view(number, -1).T:
                assert torch.equal(dst.batch[column], torch.arange(number))


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


def test_resume():
    def loader():
        return LinkNeighborLoader(
            graph(), [3], neg_sampling="binary", batch_size=50, seed=2, shuffle=True
        )

    whole = [batch.e_id.tolist() for batch in loader()]
    started = loader()
    iterator = iter(started)
    for _ in range(3):
        next(iterator)
    other = loader()
    other.load_state_dict(started.state_dict())
    assert [batch.e_id.tolist() for batch in other] == whole[3:]


@pytest.mark.pyg("edge_label_time", "batch.seed_time", "batch.edge_label")
@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_temporal(neg_sampling):
    data = graph()
    time = torch.randint(20, 60, (400,))
    loader = LinkNeighborLoader(
        data,
        [5, 5],
        edge_label_time=time,
        time_attr="time",
        neg_sampling=neg_sampling,
        batch_size=16,
    )
    for batch in loader:
        limit = time[batch.input_id]
        seeds = batch.num_sampled_nodes[0]
        later = batch.time[seeds:] > limit[batch.batch[seeds:]]
        assert not bool(later.any())
        if neg_sampling == "triplet":
            assert torch.equal(batch.seed_time, limit)
        else:
            copies = batch.edge_label_time.numel() // len(limit)
            assert torch.equal(batch.edge_label_time, limit.repeat(copies))


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
def test_no_links(neg_sampling):
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
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        next(iter(LinkNeighborLoader(graph(), [2], **arguments)))


def test_no_links_have_no_labels_of_their_own():
    none = torch.empty(2, 0, dtype=torch.int64)
    loader = LinkNeighborLoader(
        graph(), [2], edge_label_index=none, edge_label=torch.empty(0, 3), batch_size=2
    )
    assert loader.input_data.label.shape == (0, 3)
    assert list(loader) == []
