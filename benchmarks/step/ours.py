"""A contestant with PyG's models: the loader of pyg_direct, or PyG's own ways."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GAT, GraphSAGE, to_hetero

import pyg_direct
from benchmarks.step.turns import take_turns

INPUT_TYPE = "0"  # whose nodes are seeds, where there are several
Work = Callable[[], "dict[str, float] | None"]


def graph_of(folder: Path) -> Data | HeteroData:
    """Return the graph that the parent has written; a `Data` if it has one node type."""

    def load(name: str) -> Tensor:
        # Copied, as torch counts no writes to NumPy's memory, and users' tensors are its own.
        return torch.from_numpy(np.load(folder / f"{name}.npy")).clone()

    types = range(len(list(folder.glob("x_*.npy"))))
    if len(types) == 1:
        return Data(x=load("x_0"), y=load("y_0"), edge_index=load("edge_index_0_0"))
    data = HeteroData()
    for t in types:
        data[str(t)].x, data[str(t)].y = load(f"x_{t}"), load(f"y_{t}")
        for other in types:
            data[str(t), "to", str(other)].edge_index = load(f"edge_index_{t}_{other}")
    return data


def model_of(spec: dict[str, Any], data: Data | HeteroData) -> torch.nn.Module:
    """Return the model of a case, with the same parameters in every process."""
    torch.manual_seed(0)
    kind, options = (GAT, {"heads": spec["heads"]}) if spec["heads"] else (GraphSAGE, {})
    layers, of_type = len(spec["fanout"]), data.node_stores[0]
    classes, width = int(of_type.y.max()) + 1, of_type.num_features
    if isinstance(data, Data):
        return kind(width, spec["hidden"], layers, classes, **options)
    return to_hetero(kind((width, width), spec["hidden"], layers, classes), data.metadata())


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def training(spec: dict[str, Any], data: Data | HeteroData) -> Work:
    """Return one step with loading: forward, backward and optimizer on a new batch."""
    ours = spec["contestant"] != "PyG"
    made: Any = pyg_direct if ours else torch_geometric.loader
    options: dict[str, Any] = {"seed": 0} if ours else {}
    size = spec["batch_size"]
    if isinstance(data, HeteroData):
        options["input_nodes"] = INPUT_TYPE
    loader = made.NeighborLoader(data, spec["fanout"], batch_size=size, shuffle=True, **options)
    model = model_of(spec, data)
    if ours:
        model = pyg_direct.accelerate(model, loader)
    optimizer = torch.optim.Adam(model.parameters())
    batches = endless(loader)

    def step() -> dict[str, float]:
        begin = time.process_time()
        batch = next(batches)
        loading = time.process_time() - begin
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=spec["bfloat16"]):
            if isinstance(data, HeteroData):
                seeds = batch[INPUT_TYPE]
                out = model(batch.x_dict, batch.edge_index_dict)[INPUT_TYPE]
            else:
                seeds, out = batch, model(batch.x, batch.edge_index)
            loss = F.cross_entropy(out[: seeds.batch_size], seeds.y[: seeds.batch_size])
        loss.backward()
        optimizer.step()
        return {"loading_cpu_ms": 1e3 * loading}

    return step


def inference(spec: dict[str, Any], data: Data | HeteroData) -> Work:
    """Return the computation of the outputs of all nodes."""
    model = model_of(spec, data).eval()

    def layer_by_layer() -> None:
        pyg_direct.inference(
            model, data, num_workers=spec["threads"], memory_bytes=spec["memory_bytes"]
        )

    @torch.no_grad()
    def whole() -> None:
        model(data.x, data.edge_index)

    return whole if spec["contestant"] == "PyG" else layer_by_layer


def short_epochs(spec: dict[str, Any], data: Data | HeteroData) -> Work:
    """Return an epoch of two batches, in training of nothing."""
    seeds = torch.arange(2 * spec["batch_size"])
    loader = pyg_direct.NeighborLoader(
        data, spec["fanout"], seeds, batch_size=spec["batch_size"], seed=0
    )

    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


KINDS = {"training": training, "inference": inference, "short epochs": short_epochs}


def main() -> None:
    """Prepare, then work by turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("spec", type=json.loads)
    args = parser.parse_args()
    torch.set_num_threads(args.spec["threads"])
    if args.spec["keep_memory"]:
        pyg_direct.keep_memory()
    data = graph_of(args.folder)
    take_turns(KINDS[args.spec["kind"]](args.spec, data), args.spec["warm_up"])


if __name__ == "__main__":
    main()
