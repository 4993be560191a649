"""A heterogeneous graph, and what is true of all batches of it."""

import torch
from torch_geometric.data import HeteroData

SIZES = {"a": 40, "b": 25, "lonely": 7}


def graph(seed=0, extra_types=()):
    """Three node types, among them one without edges; edge types sorted by name.

    torch_sparse visits edge types by name, we in the order of the data, as pyg-lib does.
    """
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for name, size in SIZES.items():
        data[name].x = torch.randn(size, 3, generator=generator)
        data[name].number = torch.arange(size)
    keys = [("a", "likes", "b"), ("a", "to", "a"), ("b", "of", "a"), ("b", "to", "b")]
    for key in sorted([*keys, *extra_types]):
        edges = int(torch.randint(60, 200, (1,), generator=generator))
        row = torch.randint(SIZES[key[0]], (edges,), generator=generator)
        col = torch.randint(SIZES[key[2]], (edges,), generator=generator)
        data[key].edge_index = torch.stack([row, col])
        data[key].edge_attr = torch.arange(edges)
    return data


def check_mapping(data, batch):
    """Every edge of the batch is the edge of the graph that its e_id names."""
    for key in data.edge_types:
        store = batch[key]
        row, col = store.edge_index
        mapped = torch.stack([batch[key[0]].n_id[row], batch[key[2]].n_id[col]])
        assert torch.equal(mapped, data[key].edge_index[:, store.e_id]), key
        assert torch.equal(store.edge_attr, data[key].edge_attr[store.e_id])
    for name in data.node_types:
        assert torch.equal(batch[name].x, data[name].x[batch[name].n_id])
        assert torch.equal(batch[name].number, batch[name].n_id)
