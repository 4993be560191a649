"""Graphs and features in a user's own stores."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.graph.from_stores import _check_ids, remote_parts

pytestmark = pytest.mark.usefixtures("each_backend")

SIZES = {"paper": 50, "author": 80}
KEYS = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "of", "author")]


def stores():
    """Return the same graph as `HeteroData` and in stores, each edge type in another layout."""
    generator = torch.Generator().manual_seed(0)
    data, features, edges = HeteroData(), MyFeatureStore(), MyGraphStore()
    for name, size in SIZES.items():
        data[name].x = torch.randn(size, 3, generator=generator)
        features.put_tensor(data[name].x, group_name=name, attr_name="x", index=None)
    for key, layout in zip(KEYS, ("coo", "csr", "csc"), strict=True):
        size = (SIZES[key[0]], SIZES[key[2]])
        ids = [torch.randint(end, (200,), generator=generator) for end in size]
        edge_index = torch.stack(ids)
        sort_by = {"coo": None, "csr": 0, "csc": 1}[layout]
        if sort_by is not None:
            edge_index = edge_index[:, edge_index[sort_by].argsort(stable=True)]
        data[key].edge_index = edge_index
        row, col = edge_index
        if layout == "csr":
            row = torch._convert_indices_from_coo_to_csr(row, size[0])
        if layout == "csc":
            col = torch._convert_indices_from_coo_to_csr(col, size[1])
        edges.put_edge_index((row, col), edge_type=key, layout=layout, size=size)
    return data, (features, edges)


def global_edges(batch, key):
    row, col = batch[key].edge_index
    return sorted(
        zip(batch[key[0]].n_id[row].tolist(), batch[key[2]].n_id[col].tolist(), strict=True)
    )


@pytest.mark.pyg("data", "batch.remote_stores")
def test_full_neighbourhoods_are_those_of_the_data():
    data, remote = stores()
    arguments = {"num_neighbors": [-1, -1], "input_nodes": ("paper", range(20)), "batch_size": 5}
    local, far = NeighborLoader(data, **arguments), NeighborLoader(remote, **arguments)
    assert len(local) == len(far) == 4
    for a, b in zip(local, far, strict=True):
        assert b["paper"].batch_size == 5
        assert a["paper"].input_id.tolist() == b["paper"].input_id.tolist()
        for name in SIZES:
            assert sorted(a[name].n_id.tolist()) == sorted(b[name].n_id.tolist())
            assert torch.equal(b[name].x, data[name].x[b[name].n_id])
        for key in KEYS:
            assert global_edges(a, key) == global_edges(b, key)
            assert len(b[key].e_id) == b[key].edge_index.size(1)


@pytest.mark.pyg("kwargs", "edge_label_index", "batch.remote_stores")
def test_links_and_custom_class():
    class Mine(HeteroData):
        pass

    _, remote = stores()
    loader = LinkNeighborLoader(
        remote, [3], edge_label_index=("paper", "of", "author"), batch_size=25, custom_cls=Mine
    )
    batches = list(loader)
    assert len(batches) == 8
    assert all(type(batch) is Mine for batch in batches)
    assert all(batch["paper", "of", "author"].edge_label_index.size(1) == 25 for batch in batches)


@pytest.mark.pyg("data", "batch.remote_stores")
def test_homogeneous_stores_give_batches_of_their_rows_and_edges():
    features, edges = MyFeatureStore(), MyGraphStore()
    x = torch.randn(30, 2)
    features.put_tensor(x, group_name=None, attr_name="x", index=None)
    edge_index = torch.randint(30, (2, 100))
    edges.put_edge_index(tuple(edge_index), edge_type=None, layout="coo", size=(30, 30))
    loader = NeighborLoader((features, edges), [-1], input_nodes=torch.arange(30), batch_size=30)
    (batch,) = loader
    assert isinstance(batch, Data)
    assert torch.equal(batch.x, x[batch.n_id])
    assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])


@pytest.mark.parametrize("ours", [(0, 0), (0, 1), (1, 0)])
def test_data_as_stores(ours):
    """`HeteroData` is both kinds of store, too."""
    data, remote = stores()
    pair = [remote[i] if own else HeteroData() for i, own in enumerate(ours)]
    if not ours[0]:
        for name in SIZES:
            pair[0].put_tensor(data[name].x, group_name=name, attr_name="x", index=None)
    if not ours[1]:
        for key in KEYS:
            size = (SIZES[key[0]], SIZES[key[2]])
            pair[1].put_edge_index(data[key].edge_index, edge_type=key, layout="coo", size=size)
    arguments = {"num_neighbors": [-1, -1], "input_nodes": "paper", "batch_size": 20}
    for a, b in zip(
        NeighborLoader(data, **arguments), NeighborLoader(tuple(pair), **arguments), strict=True
    ):
        for name in SIZES:
            assert torch.equal(b[name].x, data[name].x[b[name].n_id])
        for key in KEYS:
            assert global_edges(a, key) == global_edges(b, key)


def test_all_nodes_of_a_store():
    """PyG looks for the number of nodes of the type None."""
    _, remote = stores()
    for given in ("author", ("author", None)):
        loader = NeighborLoader(remote, [2], input_nodes=given, batch_size=80)
        (batch,) = loader
        assert batch["author"].n_id[:80].tolist() == list(range(80))
        assert loader.input_nodes is given


def test_seeds_of_homogeneous_stores():
    features, edges = MyFeatureStore(), MyGraphStore()
    features.put_tensor(torch.rand(30, 2), group_name=None, attr_name="x", index=None)
    links = torch.randint(30, (2, 100))
    edges.put_edge_index(tuple(links), edge_type=None, layout="coo", size=(30, 30))
    for given, expected in ((None, [*range(30)]), ([4, 2], [4, 2]), (range(3), [0, 1, 2])):
        (batch,) = NeighborLoader((features, edges), [2], input_nodes=given, batch_size=30)
        assert batch.n_id[: batch.batch_size].tolist() == expected
    for given in (links, (None, links)):
        (batch,) = LinkNeighborLoader((features, edges), [2], given, batch_size=100)
        assert torch.equal(batch.n_id[batch.edge_label_index], links)


def test_an_edge_type_of_a_store_by_its_ends():
    _, remote = stores()
    (batch,) = LinkNeighborLoader(remote, [2], ("paper", "author"), batch_size=200)
    assert batch["paper", "of", "author"].edge_label_index.size(1) == 200


@pytest.mark.pyg("weight_attr")
def test_times_and_weights_in_stores():
    """PyG refuses weights of remote stores."""
    _, (features, edges) = stores()
    time = torch.randint(100, (80,))
    features.put_tensor(time, group_name="author", attr_name="time", index=None)
    weight = (torch.arange(200) % 4 == 0).double()
    features.put_tensor(weight, group_name=KEYS[0], attr_name="weight", index=None)
    loader = NeighborLoader(
        (features, edges),
        [4, 4],
        input_nodes="paper",
        input_time=torch.full((50,), 30),
        time_attr="time",
        weight_attr="weight",
        batch_size=10,
    )
    authors = cited = 0
    for batch in loader:
        assert bool((batch["author"].time <= 30).all())
        assert bool((weight[batch[KEYS[0]].e_id] > 0).all())
        authors += batch["author"].num_nodes
        cited += batch[KEYS[0]].num_edges
    assert authors > 0
    assert cited > 0


def test_bad_stores_are_named():
    _, (features, edges) = stores()
    edges.put_edge_index(
        (torch.tensor([0, 99]), torch.tensor([0, 1])),
        edge_type=("author", "bad", "paper"),
        layout="coo",
        size=(80, 50),
    )
    with pytest.raises(ValueError, match="source ids must be in"):
        NeighborLoader((features, edges), [2], input_nodes="paper")


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader])
def test_features_of_edges(loader):
    """PyG leaves them out. They are asked for by positions in the edges that the store holds."""
    data, (features, edges) = stores()
    for key in KEYS:
        ends = data[key].edge_index.T.float()
        features.put_tensor(ends, group_name=key, attr_name="ends", index=None)
        features.put_tensor(ends[:, :1].half(), group_name=key, attr_name="from", index=None)
    seeds = {
        NeighborLoader: {"input_nodes": "paper"},
        LinkNeighborLoader: {"edge_label_index": KEYS[2]},
    }
    for batch in loader((features, edges), [2, 2], batch_size=25, **seeds[loader]):
        for key in KEYS:
            row, col = batch[key].edge_index
            ends = torch.stack([batch[key[0]].n_id[row], batch[key[2]].n_id[col]], dim=1)
            assert torch.equal(batch[key].ends, ends.float())
            assert torch.equal(batch[key]["from"], ends[:, :1].half())
    mirrored = {"subgraph_type": "bidirectional", **seeds[loader]}  # whose edges have no ids
    batch = next(iter(loader((features, edges), [2], **mirrored)))
    assert "ends" not in batch[KEYS[2]]


def stores_without_types(rows, size=(30, 30)):
    """Return 100 edges between 30 nodes, and a table of so many rows."""
    features, edges = MyFeatureStore(), MyGraphStore()
    table = torch.rand(rows, 2)
    features.put_tensor(table, group_name=None, attr_name="table", index=None)
    edge_index = torch.randint(30, (2, 100))
    edges.put_edge_index(tuple(edge_index), edge_type=None, layout="coo", size=size)
    return (features, edges), table


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("rows", [30, 31, 500])
def test_tables_of_more_rows_than_nodes_without_types_are_taken(loader, rows):
    """PyG selects their rows by node ids; those behind the last node are in no batch."""
    data, table = stores_without_types(rows)
    seeds = torch.arange(30) if loader is NeighborLoader else torch.randint(30, (2, 40))
    for batch in loader(data, [2, 2], seeds, batch_size=8):
        assert torch.equal(batch.table, table[batch.n_id])


def test_tables_of_fewer_rows_than_nodes_without_types_are_refused():
    data, _ = stores_without_types(29)
    with pytest.raises(ValueError, match="'table' in the feature store has 29 rows, and the"):
        NeighborLoader(data, [-1])


def test_tables_of_as_many_rows_as_edges_without_types_are_warned_of():
    data, _ = stores_without_types(100)
    with pytest.warns(UserWarning, match="has 100 rows, and .* 30 nodes and 100 edges"):
        NeighborLoader(data, [-1])


def test_sizes_of_stores_are_the_largest_that_are_told():
    edges, ends = MyGraphStore(), (torch.tensor([0, 2]), torch.tensor([4, 3]))
    edges.put_edge_index(ends, edge_type=None, layout="coo", size=(3, 5))
    assert remote_parts(MyFeatureStore(), edges)[2] == [5]
    edges.put_edge_index(ends, edge_type=None, layout="coo", size=(3, 4))
    with pytest.raises(ValueError, match="has the destination 4"):
        _check_ids(edges, 1)
    edges.meta = {"is_hetero": True}  # then PyG goes by the largest id
    _check_ids(edges, 1)
