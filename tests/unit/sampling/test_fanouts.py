"""Fan-outs by hop and edge type."""

from __future__ import annotations

from torch_geometric.sampler import NumNeighbors

from pyg_direct.sampling.fanouts import fanouts_of


def test_fanouts_that_graphs_share_are_those_of_each_ones_types() -> None:
    """PyG's object remembers them in the order of the types that it was first asked for."""
    first, second = ("a", "x", "b"), ("b", "y", "a")
    given = NumNeighbors({first: [1, 3], second: [2, 4]})
    assert fanouts_of(given, [first, second], True) == ((1, 2), (3, 4))
    assert fanouts_of(given, [second, first], True) == ((2, 1), (4, 3))
