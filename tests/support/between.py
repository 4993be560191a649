"""A model of two layers with anything between them, and how it is run plain and accelerated."""

import torch
from batches import arguments, plain
from models import OUT, WIDTH
from torch import nn
from torch_geometric.nn import SAGEConv


class Net(nn.Module):
    """Two layers, and between them what a test gives."""

    def __init__(self, between=lambda net, h: h) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(WIDTH, 8), SAGEConv(8, OUT)
        self.norm, self.bias = nn.BatchNorm1d(8), nn.Parameter(torch.ones(8))
        self.act, self.drop = nn.Sequential(nn.Tanh()), nn.Dropout(0.0)
        self.register_buffer("mean", torch.zeros(8))
        self.between, self.scale, self.kind, self.parts = between, 2.0, "relu", [1.0, 2.0]
        self.losses, self.draws = [], torch.Generator().manual_seed(1)

    def forward(self, x, edge_index):
        return self.second(self.between(self, self.first(x, edge_index)), edge_index)


def reference(model, batch):
    return model(**plain(arguments(batch)))[: batch.batch_size]


def run(fast, batch):
    return fast(batch.x, batch.edge_index)[: batch.batch_size]
