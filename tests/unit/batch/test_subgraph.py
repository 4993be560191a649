"""What batches share that no sampler of PyG's has made."""

import torch

from pyg_direct.batch.subgraph import swapped_ends


def test_swapped_ends_are_a_contiguous_copy() -> None:
    edge_index = torch.tensor([[0, 1, 2], [3, 4, 5]])
    swapped = swapped_ends(edge_index)
    assert swapped.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert swapped.is_contiguous()
    assert swapped_ends(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0)
