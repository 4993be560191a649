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
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GraphSAGE

import pyg_direct
from benchmarks.step.turns import take_turns

Work = Callable[[], "dict[str, float] | None"]


def graph_of(folder: Path) -> Data:
    """Return the graph that the parent has written."""
    files = sorted(folder.glob("*.npy"))
    # Copied, as torch counts no writes to NumPy's memory, and users' tensors are its own.
    return Data(**{path.stem: torch.from_numpy(np.load(path)).clone() for path in files})


def model_of(spec: dict[str, Any], data: Data) -> torch.nn.Module:
    """Return the model of a case, with the same parameters in every process."""
    torch.manual_seed(0)
    kind, options = (GAT, {"heads": spec["heads"]}) if spec["heads"] else (GraphSAGE, {})
    layers = len(spec["fanout"])
    return kind(data.num_features, spec["hidden"], layers, int(data.y.max()) + 1, **options)


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def training(spec: dict[str, Any], data: Data) -> Work:
    """Return one step with loading: forward, backward and optimizer on a new batch."""
    ours = spec["contestant"] != "PyG"
    made: Any = pyg_direct if ours else torch_geometric.loader
    options = {"seed": 0} if ours else {}
    size = spec["batch_size"]
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
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        return {"loading_cpu_ms": 1e3 * loading}

    return step


def inference(spec: dict[str, Any], data: Data) -> Work:
    """Return the computation of the outputs of all nodes."""
    model = model_of(spec, data).eval()

    def layer_by_layer() -> None:
        pyg_direct.inference(model, data, num_workers=spec["threads"])

    @torch.no_grad()
    def whole() -> None:
        model(data.x, data.edge_index)

    return whole if spec["contestant"] == "PyG" else layer_by_layer


def short_epochs(spec: dict[str, Any], data: Data) -> Work:
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
