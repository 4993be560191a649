"""What PyG's documentation shows of its loaders, with the import swapped and nothing else changed.

The graphs are small ones of our own; the calls, and the fields that are read, are those shown.
"""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from graphs import citations, papers_and_authors, remote_stores
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE, SAGEConv, to_hetero
from torch_geometric.utils import trim_to_layer

from pyg_direct import LinkNeighborLoader, NeighborLoader

# PyG warns of it in shapes that the documentation uses itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class GNN(torch.nn.Module):
    """The two-layer network of the examples."""

    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv((-1, -1), hidden)
        self.conv2 = SAGEConv((-1, -1), out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)


# Neighbour loading ################################################################################


def test_class_documentation_of_the_node_loader() -> None:
    data = citations()
    loader = NeighborLoader(
        data, num_neighbors=[30] * 2, batch_size=128, input_nodes=data.train_mask
    )
    sampled = next(iter(loader))
    assert sampled.batch_size == 128
    assert torch.equal(sampled.x, data.x[sampled.n_id])
    assert torch.equal(sampled.n_id[sampled.edge_index], data.edge_index[:, sampled.e_id])
    assert sampled.input_id.tolist() == list(range(128))
    assert (len(sampled.num_sampled_nodes), len(sampled.num_sampled_edges)) == (3, 2)


def test_the_tutorial_on_neighbour_sampling_step_by_step() -> None:
    """On a tree, what is drawn is the same for everyone: these are the tutorial's own numbers."""
    edge_index = torch.tensor([[2, 3, 3, 4, 5, 6, 7], [0, 0, 1, 1, 2, 3, 4]])
    data = Data(x=torch.randn(8, 32), y=torch.randint(0, 4, (8,)), edge_index=edge_index)
    loader = NeighborLoader(
        data,
        input_nodes=torch.tensor([0, 1]),
        num_neighbors=[2, 1],
        batch_size=1,
        replace=False,
        shuffle=False,
    )
    first, second = loader
    assert first.edge_index.tolist() == [[1, 2, 3, 4], [0, 0, 1, 2]]
    assert first.n_id.tolist() == [0, 2, 3, 5, 6]
    assert first.batch_size == 1
    assert torch.equal(first.x, data.x[first.n_id])
    assert second.n_id.tolist() == [1, 3, 4, 6, 7]


def test_training_on_batches_and_inference_layer_by_layer() -> None:
    """As in the examples for large graphs: the second loader's own data loses its features."""
    data = citations()
    train_loader = NeighborLoader(
        data, input_nodes=data.train_mask, num_neighbors=[25, 10], shuffle=True, batch_size=64,
        num_workers=2, persistent_workers=True,
    )  # fmt: skip
    subgraph_loader = NeighborLoader(
        copy.copy(data), input_nodes=None, num_neighbors=[-1], shuffle=False, batch_size=64,
        num_workers=2, persistent_workers=True,
    )  # fmt: skip
    del subgraph_loader.data.x, subgraph_loader.data.y
    subgraph_loader.data.num_nodes = data.num_nodes
    subgraph_loader.data.n_id = torch.arange(data.num_nodes)

    model = GNN(16, 4)
    model(data.x, data.edge_index)  # makes its lazy parameters
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = 0
    for batch in train_loader:
        optimizer.zero_grad()
        y = batch.y[: batch.batch_size]
        loss = F.cross_entropy(model(batch.x, batch.edge_index)[: batch.batch_size], y)
        loss.backward()
        optimizer.step()
        seen += batch.batch_size
    assert seen == len(train_loader.dataset) == 200

    with torch.no_grad():
        x_all = data.x
        for i, conv in enumerate((model.conv1, model.conv2)):
            parts = []
            for batch in subgraph_loader:
                x = conv(x_all[batch.n_id], batch.edge_index)
                x = x.relu() if i == 0 else x
                parts.append(x[: batch.batch_size])
            x_all = torch.cat(parts)
        torch.testing.assert_close(x_all, model(data.x, data.edge_index))


def test_models_that_trim_give_the_outputs_of_the_whole_batch() -> None:
    """A model that trims, in its own way, and one of PyG's, in its own arguments."""
    data = citations()
    batch = next(iter(NeighborLoader(data, num_neighbors=[5, 3, 2], batch_size=32)))
    model = GraphSAGE(16, 8, num_layers=3, out_channels=4)
    expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    out = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    torch.testing.assert_close(out[: batch.batch_size], expected)
    x, edge_index = batch.x, batch.edge_index
    for i, conv in enumerate(model.convs):
        x, edge_index, _ = trim_to_layer(
            layer=i,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
            x=x,
            edge_index=edge_index,
        )
        x = conv(x, edge_index)
        x = x.relu() if i < 2 else x
    torch.testing.assert_close(x[: batch.batch_size], expected)


def test_seeds_split_between_processes() -> None:
    """What each rank of the multi-GPU examples does, one after the other."""
    data, world_size = citations(), 4
    train_idx = data.train_mask.nonzero(as_tuple=False).view(-1)
    seen = []
    for rank in range(world_size):
        mine = train_idx.split(train_idx.size(0) // world_size)[rank]
        loader = NeighborLoader(
            data, num_neighbors=[10, 10], input_nodes=mine, batch_size=16, num_workers=1,
            shuffle=True,
        )  # fmt: skip
        for batch in loader:
            seen += batch.n_id[: batch.batch_size].tolist()
    assert sorted(seen) == train_idx.tolist()


# Graphs with types ################################################################################


def test_class_documentation_with_types() -> None:
    data = papers_and_authors()
    loader = NeighborLoader(
        data,
        num_neighbors={key: [30] * 2 for key in data.edge_types},
        batch_size=128,
        input_nodes=("paper", data["paper"].train_mask),
    )
    sampled = next(iter(loader))
    assert sampled["paper"].batch_size == 128
    for key, store in sampled.edge_items():
        ends = [sampled[k].n_id[row] for k, row in zip(key[::2], store.edge_index, strict=True)]
        assert torch.equal(torch.stack(ends), data[key].edge_index[:, store.e_id])


def test_training_with_types() -> None:
    data = papers_and_authors()
    loader = NeighborLoader(
        data, num_neighbors=[15] * 2, batch_size=128,
        input_nodes=("paper", data["paper"].train_mask),
    )  # fmt: skip
    model = to_hetero(GNN(8, 4), data.metadata(), aggr="sum")
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    total = 0
    for batch in loader:
        optimizer.zero_grad()
        batch = batch.to("cpu")
        batch_size = batch["paper"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)
        loss = F.cross_entropy(out["paper"][:batch_size], batch["paper"].y[:batch_size])
        loss.backward()
        optimizer.step()
        total += batch_size
    assert total == 150
    assert set(batch.node_types) == set(data.node_types)
    assert set(batch.edge_types) == set(data.edge_types)


def test_a_loader_over_remote_stores_gives_their_rows_for_all_seeds() -> None:
    data = papers_and_authors()
    features, edges = remote_stores(data)
    loader = NeighborLoader(
        data=(features, edges),
        num_neighbors={key: [5, 5] for key in data.edge_types},
        batch_size=64,
        input_nodes="paper",
    )
    total = 0
    for batch in loader:
        total += batch["paper"].batch_size
        assert torch.equal(batch["author"].x, data["author"].x[batch["author"].n_id])
    assert total == 200


# Links ############################################################################################


@pytest.mark.parametrize("label", [None, torch.ones(1800)])
def test_class_documentation_of_the_link_loader(label: Tensor | None) -> None:
    data = citations()
    label = None if label is None else label[: data.num_edges]
    given: dict[str, Any] = {} if label is None else {"edge_label": label}
    loader = LinkNeighborLoader(
        data, num_neighbors=[30] * 2, batch_size=128, edge_label_index=data.edge_index, **given
    )
    sampled = next(iter(loader))
    assert sampled.edge_label_index.shape == (2, 128)
    assert torch.equal(sampled.n_id[sampled.edge_label_index], data.edge_index[:, :128])
    assert ("edge_label" in sampled) == (label is not None)
    assert label is None or sampled.edge_label.tolist() == [1.0] * 128
    assert {"n_id", "e_id", "input_id", "num_sampled_nodes", "num_sampled_edges"} <= set(
        sampled.keys()
    )


def test_unsupervised_training_on_links() -> None:
    data = citations()
    loader = LinkNeighborLoader(
        data, batch_size=256, shuffle=True, neg_sampling_ratio=1.0, num_neighbors=[10, 10]
    )
    model = GraphSAGE(16, hidden_channels=8, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in loader:
        optimizer.zero_grad()
        h = model(batch.x, batch.edge_index)
        score = (h[batch.edge_label_index[0]] * h[batch.edge_label_index[1]]).sum(dim=-1)
        loss = F.binary_cross_entropy_with_logits(score, batch.edge_label)
        loss.backward()
        optimizer.step()
        assert bool(torch.isfinite(loss))
        assert int(batch.edge_label.sum()) * 2 == len(batch.edge_label)


def test_the_tutorial_on_links_between_types() -> None:
    data = HeteroData()
    data["user"].node_id, data["movie"].node_id = torch.arange(60), torch.arange(40)
    data["movie"].x = torch.randn(40, 6)
    ratings = torch.stack([torch.randint(60, (800,)), torch.randint(40, (800,))])
    data["user", "rates", "movie"].edge_index = ratings
    data = T.ToUndirected()(data)
    train_data, _, _ = T.RandomLinkSplit(
        num_val=0.1,
        num_test=0.1,
        disjoint_train_ratio=0.3,
        neg_sampling_ratio=2.0,
        add_negative_train_samples=False,
        edge_types=("user", "rates", "movie"),
        rev_edge_types=("movie", "rev_rates", "user"),
    )(data)
    edge_label_index = train_data["user", "rates", "movie"].edge_label_index
    edge_label = train_data["user", "rates", "movie"].edge_label
    loader = LinkNeighborLoader(
        data=train_data,
        num_neighbors=[20, 10],
        neg_sampling_ratio=2.0,
        edge_label_index=(("user", "rates", "movie"), edge_label_index),
        edge_label=edge_label,
        batch_size=128,
        shuffle=True,
    )
    sampled = next(iter(loader))
    store = sampled["user", "rates", "movie"]
    assert store.edge_label_index.size(1) == 3 * 128
    assert store.edge_label_index.min() == 0
    assert (store.edge_label.min(), store.edge_label.max()) == (0, 1)
    users, movies = store.edge_label_index[:, :128]
    ends = torch.stack([sampled["user"].node_id[users], sampled["movie"].node_id[movies]])
    assert torch.equal(ends, edge_label_index[:, store.input_id])


def test_triplets_have_a_positive_and_negatives_for_each_source() -> None:
    data = citations()
    loader = LinkNeighborLoader(
        data, num_neighbors=[5], batch_size=32, neg_sampling=dict(mode="triplet", amount=2)
    )
    batch = next(iter(loader))
    h = batch.x
    positive = (h[batch.src_index] * h[batch.dst_pos_index]).sum(-1)
    negative = (h[batch.src_index].unsqueeze(1) * h[batch.dst_neg_index]).sum(-1)
    assert (positive.shape, negative.shape) == ((32,), (32, 2))


# Times ############################################################################################


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_nodes_with_times(strategy: str) -> None:
    """Seeds at times of their own, and neighbours that are no later; also as relational tables."""
    data = papers_and_authors()
    data["paper"].time = torch.randint(50, (200,))
    data["author"].time = torch.randint(50, (120,))
    nodes, times = torch.arange(0, 200, 2), torch.randint(20, 60, (100,))
    loader = NeighborLoader(
        data,
        num_neighbors=[8, 4],
        time_attr="time",
        input_nodes=("paper", nodes),
        input_time=times,
        temporal_strategy=strategy,
        batch_size=25,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        transform=lambda batch: batch,
    )
    for batch in loader:
        paper, author = batch["paper"], batch["author"]
        assert torch.equal(paper.seed_time, times[paper.input_id])
        assert torch.equal(paper.n_id[:25], nodes[paper.input_id])
        assert bool((paper.time[25:] <= paper.seed_time[paper.batch[25:]]).all())
        assert bool((author.time <= paper.seed_time[author.batch]).all())


def test_edges_with_times() -> None:
    data = citations()
    data.edge_time = torch.arange(data.num_edges)
    loader = NeighborLoader(
        data, num_neighbors=[5, 5], time_attr="edge_time", batch_size=50,
        input_time=torch.full((300,), 900),
    )  # fmt: skip
    assert all(bool((batch.edge_time <= 900).all()) for batch in loader)


def test_links_with_times() -> None:
    data = papers_and_authors()
    for name in data.node_types:
        data[name].time = torch.randint(50, (data[name].num_nodes,))
    key = ("author", "writes", "paper")
    time = torch.full((500,), 60)
    loader = LinkNeighborLoader(
        data,
        num_neighbors=[4, 4],
        edge_label_index=key,
        edge_label_time=time,
        time_attr="time",
        neg_sampling_ratio=0.5,
        batch_size=32,
    )
    batch = next(iter(loader))
    assert batch[key].edge_label_time.tolist() == [60] * 48
    assert int(batch["author"].batch.max()) == 31
