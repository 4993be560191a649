"""PyG's results where it leaves them open: one of those that it may give, and always the same.

PyG sorts edges by `index_sort(stable=False)`, which for 17 to 32,767 edges is an unstable
`torch.sort`, with pyg-lib and without. So the order of one node's edges, and with it the order of
discovery, is an accident of the sort; here it is stable. What holds without this is tested in
`tests/loader/test_order_of_pyg.py`. Of several edges between two nodes `coalesce(reduce="any")`
takes any; here it takes the first.
"""

from __future__ import annotations

import pytest
import torch
import torch_geometric.utils
from torch import Tensor

scatter = torch_geometric.utils.scatter


def determine(patch: pytest.MonkeyPatch) -> None:
    """Let PyG's loaders give determined results for as long as `patch` holds."""
    patch.setattr("torch_geometric.sampler.utils.index_sort", _stable_index_sort)
    patch.setattr("torch_geometric.utils._coalesce.index_sort", _stable_index_sort)
    patch.setattr("torch_geometric.utils._coalesce.scatter", _scatter_of_the_first)


def _stable_index_sort(
    inputs: Tensor, max_value: int | None = None, stable: bool = False
) -> tuple[Tensor, Tensor]:
    return torch.sort(inputs, stable=True)


def _scatter_of_the_first(
    source: Tensor, index: Tensor, dim: int, size: int | None, reduce: str
) -> Tensor:
    if reduce != "any":
        return scatter(source, index, dim, size, reduce)
    assert dim == 0
    out = source.new_zeros(size)
    for place in reversed(range(len(index))):
        out[index[place]] = source[place]
    return out
