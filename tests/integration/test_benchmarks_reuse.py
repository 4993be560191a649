"""The benchmark of reused rows: what it measures is the model, on fewer edges."""

import pytest
import torch
from torch_geometric.nn import GraphSAGE

import pyg_direct
from benchmarks.labor.graphs import community_graph
from benchmarks.reuse.rows import Reuse, with_reuse


def loaders():
    data = community_graph(1_000, 20_000, 16)
    data.x = data.x.double()
    options = {"batch_size": 32, "shuffle": True, "seed": 0, "device": "cpu", "prefetch": 0}
    return [
        pyg_direct.NeighborLoader(data, [4, 3, -1], data.train_mask, **options) for _ in range(2)
    ]


def test_reused_rows_of_the_same_weights_and_neighbours_give_the_same_outputs() -> None:
    plain = GraphSAGE(16, 8, 3, 4).double()
    loader, other = loaders()
    fast = pyg_direct.accelerate(plain, loader, certify=False)
    reuse = Reuse(torch.ones(1_000, dtype=torch.bool), staleness=3)
    with_reuse(loader, fast, reuse)
    for turn, (batch, whole) in enumerate(zip(loader, other, strict=True)):
        reuse.current = reuse.batches.popleft()
        # The last hop takes all neighbours, and the weights stay: a row is the same in all steps.
        out = fast(batch.x, batch.edge_index)
        expected = plain(whole.x, whole.edge_index)[: whole.batch_size]
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
        assert turn == 0 or batch.num_edges < whole.num_edges
    assert reuse.oldest == 3


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_gradients_of_the_first_layer_are_plain_where_all_rows_have_them(share) -> None:
    plain = GraphSAGE(16, 8, 3, 4).double()
    loader, other = loaders()
    fast = pyg_direct.accelerate(plain, loader, certify=False)
    reuse = Reuse(torch.ones(1_000, dtype=torch.bool), 0, share)
    with_reuse(loader, fast, reuse)
    batch, whole = next(iter(loader)), next(iter(other))
    reuse.current = reuse.batches.popleft()
    weights = list(plain.parameters())
    found = torch.autograd.grad(fast(batch.x, batch.edge_index).square().sum(), weights)
    out = plain(whole.x, whole.edge_index)[: whole.batch_size]
    expected = torch.autograd.grad(out.square().sum(), weights)
    torch.testing.assert_close(found[-3:], expected[-3:], rtol=1e-9, atol=1e-12)
    same = torch.allclose(found[0], expected[0], rtol=1e-9, atol=1e-12)
    assert same == (share == 1.0)
