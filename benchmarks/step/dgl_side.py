"""The contestant DGL, run by an interpreter that has it: it imports nothing of this repository.

It is given the folder of `turns.py` in PYTHONPATH, as its environment has neither PyG nor us.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import numpy as np
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import GATConv, SAGEConv
from torch import nn
from turns import take_turns


class Model(nn.Module):
    """The layers of PyG's GraphSAGE (mean), or of its GAT."""

    def __init__(self, width, hidden, out, layers, heads):
        super().__init__()
        self.heads = heads
        self.convs = nn.ModuleList()
        for i in range(layers):
            last = i == layers - 1
            if heads:
                size = out if last else hidden // heads
                self.convs.append(GATConv(width, size, heads, allow_zero_in_degree=True))
            else:
                self.convs.append(SAGEConv(width, out if last else hidden, "mean"))
            width = hidden

    def forward(self, blocks, x):
        for i, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            last = i == len(self.convs) - 1
            x = conv(block, x)
            if self.heads:
                x = x.mean(1) if last else x.flatten(1)
            x = x if last else x.relu()
        return x


def endless(loader):
    while True:
        yield from loader


def training(spec, graph, x, y, model):
    # DGL lists fan-outs from the inputs to the seeds.
    sampler = dgl.dataloading.NeighborSampler(spec["fanout"][::-1])
    seeds = torch.arange(graph.num_nodes())
    loader = dgl.dataloading.DataLoader(
        graph, seeds, sampler, batch_size=spec["batch_size"], shuffle=True, num_workers=0
    )
    optimizer = torch.optim.Adam(model.parameters())
    batches = endless(loader)

    def step():
        begin = time.process_time()
        inputs, outputs, blocks = next(batches)
        rows, labels = x[inputs], y[outputs]
        loading = time.process_time() - begin
        optimizer.zero_grad()
        F.cross_entropy(model(blocks, rows), labels).backward()
        optimizer.step()
        return {"loading_cpu_ms": 1e3 * loading}

    return step


def inference(spec, graph, x, y, model):
    model.eval()
    blocks = [graph] * len(spec["fanout"])

    def whole():
        with torch.no_grad():
            model(blocks, x)

    return whole


def main():
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(spec["threads"])
    row, col = torch.from_numpy(np.load(folder / "edge_index.npy"))
    x, y = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in "xy")
    graph = dgl.graph((row, col), num_nodes=len(x))
    graph.create_formats_()  # those of edges by source and by destination, before the first turn
    model = Model(x.size(1), spec["hidden"], int(y.max()) + 1, len(spec["fanout"]), spec["heads"])
    kind = {"training": training, "inference": inference}[spec["kind"]]
    take_turns(kind(spec, graph, x, y, model), spec["warm_up"])


if __name__ == "__main__":
    main()
