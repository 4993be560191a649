"""`num_neighbors`, `replace` and `directed`: one body over PyG's class and ours."""

import pytest
import torch
from graphs import assert_maps_to, assert_same_epoch, example_graph
from loaders import make


@pytest.mark.pyg("num_neighbors", "replace")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("hops", [[2, 2], [1, 3, 1], [0], [3, 0, 3], [-1, 2], [2, -1], []])
def test_counts_of_edges(loader_class: type, hops: list[int], replace: bool) -> None:
    data = example_graph()
    degree = torch.bincount(data.edge_index[1], minlength=12)
    for batch in make(loader_class, hops, replace=replace):
        assert_maps_to(batch, data)
        local = torch.bincount(batch.edge_index[1], minlength=len(batch.n_id))
        first, last = 0, batch.batch_size
        for k in hops:
            for i in range(first, last):
                d = int(degree[batch.n_id[i]])
                assert local[i] == (d if k < 0 else k * (d > 0) if replace else min(k, d))
            sources = batch.edge_index[0][batch.edge_index[1] < last]
            first, last = last, max(last, int(sources.max()) + 1 if len(sources) else 0)
        assert last == len(batch.n_id)
        if not replace:
            for i in range(len(batch.n_id)):
                edges = batch.e_id[batch.edge_index[1] == i]
                assert len(edges.unique()) == len(edges)


@pytest.mark.pyg("replace")
def test_replacement_repeats_edges(loader_class: type) -> None:
    batch = make(loader_class, [9], input_nodes=[3], replace=True)([0])
    assert batch.e_id.tolist() == [6] * 9
    assert batch.edge_index.tolist() == [[1] * 9, [0] * 9]
    assert batch.n_id.tolist() == [3, 0]


@pytest.mark.pyg("num_neighbors")
def test_num_neighbors_zero_and_negative_any(loader_class: type) -> None:
    assert_same_epoch(make(loader_class, [-7, -2]), make(loader_class, [-1, -1]))
    assert all(batch.num_edges == 0 for batch in make(loader_class, [0, 3]))


@pytest.mark.pyg("directed")
def test_directed_false_is_induced_and_deprecated(loader_class: type) -> None:
    with pytest.warns(Warning, match="deprecated"):
        loader = make(loader_class, directed=False)
    assert_same_epoch(loader, make(loader_class, subgraph_type="induced"))
