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
from dgl.nn.pytorch import GATConv, HeteroGraphConv, SAGEConv
from torch import nn
from turns import take_turns

INPUT_TYPE = "0"  # whose nodes are seeds


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


class HeteroModel(nn.Module):
    """The layers of PyG's GraphSAGE (mean) for each edge type, whose outputs are summed."""

    def __init__(self, graph, width, hidden, out, layers):
        super().__init__()
        self.convs = nn.ModuleList()
        for i in range(layers):
            size = out if i == layers - 1 else hidden
            convs = {e: SAGEConv(width, size, "mean") for e in graph.canonical_etypes}
            self.convs.append(HeteroGraphConv(convs, aggregate="sum"))
            width = hidden

    def forward(self, blocks, x):
        for i, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            x = conv(block, x)
            if i < len(self.convs) - 1:
                x = {kind: value.relu() for kind, value in x.items()}
        return x[INPUT_TYPE]


def graph_of(folder):
    """Return the graph that the parent has written, and its x and y by node type."""

    def load(name):
        return torch.from_numpy(np.load(folder / f"{name}.npy"))

    types = [str(t) for t in range(len(list(folder.glob("x_*.npy"))))]
    x, y = ({t: load(f"{name}_{t}") for t in types} for name in "xy")
    edges = {
        (t, f"{t} to {u}", u): tuple(load(f"edge_index_{t}_{u}")) for t in types for u in types
    }
    graph = dgl.heterograph(edges, {t: len(rows) for t, rows in x.items()})
    graph.create_formats_()  # those of edges by source and by destination, before the first turn
    return graph, x, y


def endless(loader):
    while True:
        yield from loader


def training(spec, graph, x, y, model):
    # DGL lists fan-outs from the inputs to the seeds.
    sampler = dgl.dataloading.NeighborSampler(spec["fanout"][::-1])
    seeds = torch.arange(graph.num_nodes(INPUT_TYPE))
    seeds = seeds if len(x) == 1 else {INPUT_TYPE: seeds}
    loader = dgl.dataloading.DataLoader(
        graph, seeds, sampler, batch_size=spec["batch_size"], shuffle=True, num_workers=0
    )
    optimizer = torch.optim.Adam(model.parameters())
    batches = endless(loader)

    def step():
        begin = time.process_time()
        inputs, outputs, blocks = next(batches)
        if len(x) == 1:
            rows, labels = x[INPUT_TYPE][inputs], y[INPUT_TYPE][outputs]
        else:
            rows = {kind: x[kind][ids] for kind, ids in inputs.items()}
            labels = y[INPUT_TYPE][outputs[INPUT_TYPE]]
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
            model(blocks, x[INPUT_TYPE])

    return whole


def main():
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(spec["threads"])
    graph, x, y = graph_of(folder)
    layers, width = len(spec["fanout"]), x[INPUT_TYPE].size(1)
    out = int(y[INPUT_TYPE].max()) + 1
    if len(x) == 1:
        model = Model(width, spec["hidden"], out, layers, spec["heads"])
    else:
        model = HeteroModel(graph, width, spec["hidden"], out, layers)
    kind = {"training": training, "inference": inference}[spec["kind"]]
    take_turns(kind(spec, graph, x, y, model), spec["warm_up"])


if __name__ == "__main__":
    main()
