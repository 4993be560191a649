"""Loaders, training steps and how they are measured: what the stages of `benchmarks.gpu` share."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

import pyg_direct.sampling.sampler
from benchmarks.cpu import contestants
from benchmarks.cpu.child import cpu_seconds
from benchmarks.energy import open_meter
from benchmarks.gpu.device import Context, Device
from benchmarks.gpu.plan import Plan
from benchmarks.statistics import spread
from examples.support.training import make_sage, predict
from pyg_direct import NeighborLoader
from pyg_direct.graph.shared import shared_graph_of

SEED = 0
CONVERTED = "csc.pickle"
INDPTR_BYTES = 16  # that an expanded node needs: two positions
SECTOR_BYTES = 32  # the least that is sent over the link
INDEX_BYTES = 4  # of a sampled edge: a node id


def save_graph(data: Data, folder: Path) -> None:
    """Write what `load_graph` reads."""
    contestants.save_graph(data, folder)
    graph = shared_graph_of(data)
    (folder / CONVERTED).write_bytes(pickle.dumps(graph, protocol=5))
    np.save(folder / "train.npy", data.train_mask.nonzero().view(-1).numpy())


def load_graph(folder: Path) -> tuple[Data, Tensor]:
    """Return the graph, and the ids of the nodes to train on.

    Samplers of ours over its edges take the CSC that `save_graph` has made, in each process.
    """
    data = contestants.load_graph(folder)
    graph = pickle.loads((folder / CONVERTED).read_bytes())

    def known(given: Any, *arguments: Any) -> Any:
        ours = getattr(given, "edge_index", None) is data.edge_index and not any(arguments)
        return graph if ours else shared_graph_of(given, *arguments)

    pyg_direct.sampling.sampler.shared_graph_of = known
    return data, torch.from_numpy(np.load(folder / "train.npy"))


def ours_loader(
    context: Context, device: Device, data: Data, train: Tensor, **arguments: Any
) -> NeighborLoader:
    """Return our loader on the device."""
    return loader_of(context.plan, data, train, device=device.argument, **arguments)


def loader_of(plan: Plan, data: Data, train: Tensor, **arguments: Any) -> NeighborLoader:
    """Return our loader, on the device that `arguments` name."""
    return NeighborLoader(
        data, plan.fanout, input_nodes=train, batch_size=plan.batch_size, shuffle=True,
        drop_last=True, seed=SEED, **arguments,
    )  # fmt: skip


class Trainer:
    """A GraphSAGE that is trained batch by batch, without ever waiting for the device.

    Args:
        plan: sizes.
        device: of the model.
        num_features: columns of x.
    """

    def __init__(self, plan: Plan, device: torch.device, num_features: int) -> None:
        torch.manual_seed(SEED)
        bare = Data(x=torch.empty(0, num_features))
        model = make_sage(bare, plan.num_classes, plan.hidden, len(plan.fanout))
        self._model = model.to(device).train()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.003)

    def __call__(self, batch: Data) -> None:
        """Make one step on a batch that is on the device."""
        self._optimizer.zero_grad()
        loss = F.cross_entropy(predict(self._model, batch), batch.y[: batch.batch_size])
        loss.backward()
        self._optimizer.step()


def loading_alone(batch: Data) -> None:
    """Do nothing with a batch."""


def measure(
    device: Device,
    next_batch: Callable[[], Data],
    step: Callable[[Data], None],
    warmup: int,
    rounds: int,
    batches: int,
) -> dict[str, Any]:
    """Measure rounds of batches, each loaded and then given to `step`.

    The host never waits for the device inside a round, except where the loader does, so both go on
    as in a user's loop.
    """
    for _ in range(warmup):
        step(next_batch())
    device.settle()
    wall: list[float] = []
    busy, sizes = [], []
    meter = open_meter(device.device.type == "cuda")
    cpu_before, begin = cpu_seconds(), meter.read()
    for _ in range(rounds):
        start, marks = time.perf_counter(), []
        for _ in range(batches):
            batch = next_batch()
            first = device.mark()
            step(batch)
            marks.append((first, device.mark()))
            sizes.append(size_of(batch))
        device.settle()
        wall.append(time.perf_counter() - start)
        busy.append(sum(device.between(*pair) for pair in marks) / wall[-1])
    cpu, end = cpu_seconds() - cpu_before, meter.read()
    total, joules = end.seconds - begin.seconds, meter.joules(begin, end)
    return {
        "batches_per_round": batches,
        "ms": spread([1e3 * seconds / batches for seconds in wall]),
        "cpu_ms": 1e3 * cpu / (rounds * batches),
        "cores": cpu / total,
        "share_in_step": spread(busy),
        "joules": {name: value / (rounds * batches) for name, value in joules.items()},
        "watts": {name: value / total for name, value in joules.items()},
        "energy_not_readable": meter.not_readable,
        **{name: float(np.mean([size[name] for size in sizes])) for name in sizes[0]},
        "device_bytes": device.memory(),
    }


def size_of(batch: Data) -> dict[str, int]:
    """Return nodes, edges and expanded nodes of a batch, which the host knows."""
    sampled = batch.get("num_sampled_nodes")
    expanded = {} if sampled is None else {"expanded": int(sum(sampled[:-1]))}
    return {"nodes": int(batch.num_nodes), "edges": int(batch.num_edges), **expanded}


def useful_bytes(
    measured: dict[str, Any], row_bytes: list[int], topology: str, features: str
) -> float:
    """Return the bytes that a batch must read of host memory: rows, ids and pairs of positions.

    Each read is alone, so it costs whole sectors of 32 bytes, also of a label of 8 bytes.

    Args:
        measured: nodes, edges and expanded nodes of a batch.
        row_bytes: of each table that lies on the host.
        topology: where the graph lies.
        features: where the tables lie.
    """
    rows = sum(map(sectors, row_bytes)) if features == "host" else 0
    needed = measured["nodes"] * rows
    if topology == "host":
        needed += measured["edges"] * sectors(INDEX_BYTES)
        needed += measured["expanded"] * sectors(INDPTR_BYTES)
    return float(needed)


def sectors(num_bytes: int) -> int:
    """Return the bytes of the fewest sectors that `num_bytes` can lie in."""
    return -(-num_bytes // SECTOR_BYTES) * SECTOR_BYTES


def in_turn(batches: list[Data]) -> Iterator[Data]:
    """Yield the same batches again and again."""
    while True:
        yield from batches
