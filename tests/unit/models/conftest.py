"""A loader and a batch of it, for the comparisons of accelerated models with plain ones."""

import pytest
import torch
from batches import homogeneous_graph, loader_of

from pyg_direct.loading.base import hand_out_hops


@pytest.fixture
def loader():
    return loader_of(homogeneous_graph(torch.float32))


@pytest.fixture
def batch(loader):
    hand_out_hops(loader)
    return next(iter(loader))
