"""Epochs of training with each loader on the same cores: wall time and CPU time.

A GraphSAGE and a heterogeneous model on the packages of Debian, which lie in the repository. All
contestants take turns, epoch by epoch, each with its own copy of the model. CPU time counts this
process and its workers; it is what energy goes into.

PyG's loader with pyg-lib and with torch-sparse, and GraphBolt's, take part where installed.

    python -m benchmarks end_to_end  # some minutes on an idle machine
"""

from __future__ import annotations

import copy
import resource
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch_geometric.loader
from torch import Tensor, nn
from torch_geometric import typing
from torch_geometric.nn import GraphSAGE, to_hetero

import pyg_direct
from benchmarks import graphbolt
from benchmarks.energy import Meter, open_meter
from benchmarks.graphs import debian_hetero
from benchmarks.load import Watch, taken_by_others
from benchmarks.result import new_result, number, parser, quartiles, table, write
from benchmarks.statistics import spread
from examples.support.common import SageEncoder
from examples.support.debian import packages

TITLE = "Training, end to end"
HIDDEN, NUM_WORKERS = 64, (0, 2)
# In these, code is compiled, and an accelerated model compares its steps with four plain ones.
FIRST_STEPS = 32
OURS, ACCELERATED = "pyg_direct", "pyg_direct, accelerate"
PYG_LIB, TORCH_SPARSE = "PyG + pyg-lib", "PyG + torch_sparse"
# Those that are not always there, the baseline first.
RIVALS = {
    PYG_LIB: typing.WITH_PYG_LIB,
    TORCH_SPARSE: typing.WITH_TORCH_SPARSE,
    graphbolt.NAME: graphbolt.installed(),
}


class Task(NamedTuple):
    """A graph, its seeds and a model."""

    name: str
    data: Any
    seed_type: str | None  # None: the graph has no types
    seeds: Tensor
    fanout: list[int]
    model: nn.Module
    batch_size: int

    def loader(self, cls: Any, num_workers: int) -> Any:
        """Return a loader over the seeds."""
        seeds = self.seeds if self.seed_type is None else (self.seed_type, self.seeds)
        options = {"batch_size": self.batch_size, "shuffle": True, "num_workers": num_workers}
        return cls(self.data, self.fanout, seeds, **options)

    def loss(self, model: Any, batch: Any) -> Tensor:
        """Return the loss of the seeds of a batch."""
        if self.seed_type is None:
            out, store = model(batch.x, batch.edge_index), batch
        else:
            out = model(batch.x_dict, batch.edge_index_dict)[self.seed_type]
            store = batch[self.seed_type]
        return F.cross_entropy(out[: store.batch_size], store.y[: store.batch_size])


def contestants(task: Task) -> list[str]:
    """Return who can run a task here.

    GraphBolt gives PyG's batches of graphs without types alone.
    """
    rivals = [name for name, there in RIVALS.items() if there]
    if task.seed_type is not None:
        rivals = [name for name in rivals if name != graphbolt.NAME]
    return [*rivals, OURS, ACCELERATED]


@contextmanager
def drawn_by(contestant: str) -> Iterator[None]:
    """Let PyG's loader draw with the library that a contestant names; it prefers pyg-lib."""
    before = typing.WITH_PYG_LIB
    typing.WITH_PYG_LIB = before and contestant != TORCH_SPARSE
    try:
        yield
    finally:
        typing.WITH_PYG_LIB = before


def tasks(quick: bool, num_seeds: int = 5_000) -> list[Task]:
    """Return the tasks, with untrained models and so many seeds."""
    torch.manual_seed(0)
    data = packages()
    num_classes = int(data.y.max()) + 1
    limit, batch_size = (100, 64) if quick else (num_seeds, 1024)
    sage = GraphSAGE(data.num_features, HIDDEN, num_layers=2, out_channels=num_classes)
    typed = debian_hetero()
    hetero = to_hetero(SageEncoder(HIDDEN, num_classes), typed.metadata())
    seeds = typed["package"].train_mask.nonzero().view(-1)[:limit]
    found = [
        Task(
            "GraphSAGE, 2 layers, fan-out 15/10", data, None,
            data.train_mask.nonzero().view(-1)[:limit], [15, 10], sage, batch_size,
        ),
        Task(
            "to_hetero(SAGE), 2 layers, fan-out 10/5", typed, "package", seeds, [10, 5], hetero,
            batch_size,
        ),
    ]  # fmt: skip
    with torch.no_grad():  # lazy layers learn their sizes
        batch = next(iter(found[1].loader(pyg_direct.NeighborLoader, 0)))
        hetero(batch.x_dict, batch.edge_index_dict)
    return found


def batches_of(task: Task, contestant: str, num_workers: int) -> tuple[Any, Iterable[Any]]:
    """Return a contestant's loader, and what to iterate for an epoch of PyG's batches."""
    if contestant == graphbolt.NAME:
        loader = graphbolt.loader_of(
            task.data, task.seeds, task.fanout, task.batch_size, num_workers
        )
        return loader, _Converted(loader)
    ours = contestant in (OURS, ACCELERATED)
    cls = pyg_direct.NeighborLoader if ours else torch_geometric.loader.NeighborLoader
    with drawn_by(contestant):
        loader = task.loader(cls, num_workers)
    return loader, loader


class _Converted:
    """GraphBolt's minibatches as PyG's batches, by its own conversion."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return (minibatch.to_pyg_data() for minibatch in self._loader)


def epoch_of(task: Task, contestant: str, num_workers: int) -> Callable[[], None]:
    """Return a function that trains for an epoch, with a model of its own."""
    loader, batches = batches_of(task, contestant, num_workers)
    model = copy.deepcopy(task.model)
    if contestant == ACCELERATED:
        model = pyg_direct.accelerate(model, loader)
    optimizer = torch.optim.Adam(model.parameters())
    expected = -(-len(task.seeds) // task.batch_size)

    def epoch() -> None:
        steps = 0
        with drawn_by(contestant):
            for batch in batches:
                optimizer.zero_grad()
                task.loss(model, batch).backward()
                optimizer.step()
                steps += 1
        if steps != expected:
            raise RuntimeError(f"{contestant}: {steps} batches in place of {expected}")

    return epoch


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that ended, as workers do."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(task: Task, rounds: int, meter: Meter, watch: Watch) -> list[dict[str, Any]]:
    """Train in turn; the first epochs of each, of `FIRST_STEPS`, are thrown away."""
    ways = {
        (who, workers): epoch_of(task, who, workers)
        for who in contestants(task)
        for workers in NUM_WORKERS
    }
    wall: dict[Any, list[float]] = {way: [] for way in ways}
    cpu: dict[Any, list[float]] = {way: [] for way in ways}
    joules: dict[Any, dict[str, list[float]]] = {way: {} for way in ways}
    warm_up = -(-FIRST_STEPS * task.batch_size // len(task.seeds))
    for turn in range(-warm_up, rounds):
        if turn == 0:
            watch.begin()
        for way, epoch in ways.items():
            begin, used = meter.read(), cpu_seconds()
            epoch()
            end = meter.read()
            if turn >= 0:
                wall[way].append(end.seconds - begin.seconds)
                cpu[way].append(cpu_seconds() - used)
                for name, value in meter.joules(begin, end).items():
                    joules[way].setdefault(name, []).append(value)
        if turn >= 0:
            watch.round()
    return [
        {
            "contestant": who,
            "num_workers": workers,
            "wall_s": spread(wall[who, workers]),
            "cpu_s": spread(cpu[who, workers]),
            "joules": {name: spread(values) for name, values in joules[who, workers].items()},
        }
        for who, workers in ways
    ]


def best_rows(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the row of each contestant with the number of workers that is fastest in wall time."""
    best: dict[str, dict[str, Any]] = {}
    for row in task["rows"]:
        known = best.get(row["contestant"])
        if known is None or row["wall_s"]["median"] < known["wall_s"]["median"]:
            best[row["contestant"]] = row
    return best


def energy_lines(result: dict[str, Any]) -> list[str]:
    """Return what is said of energy: joules of each row, or why there are none."""
    if "energy_not_readable" not in result:  # of a time when energy was not measured
        return []
    lines = [
        f"The energy of the {name} was not readable ({why}): CPU time stands for it."
        for name, why in result["energy_not_readable"].items()
    ]
    lines += [
        f"{row['contestant']}, {row['num_workers']} workers, {task['name']}: {name} "
        f"{quartiles(joules)} J an epoch, {number(joules['median'] / row['wall_s']['median'])} W."
        for task in result["tasks"]
        for row in task["rows"]
        for name, joules in row["joules"].items()
    ]
    return ["", *lines]


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    steps = result.get("first_steps")  # older results have none
    left_out = "an epoch" if steps is None else f"training of {steps} steps or more"
    lines = [
        "",
        "Seconds of an epoch: medians (quartiles) of rounds in which all take turns, each with a",
        f"model of its own, after {left_out} that is thrown away;",
        f"torch has {result['threads']} of the cores, workers use the others.",
        "CPU time is that of the process and of its workers, which are processes in PyG and",
        "threads in pyg_direct. Where other programs ran (see the load), CPU times tell more.",
        "GraphBolt's minibatches become PyG's batches by its own `to_pyg_data`, which it has for",
        "graphs without types alone.",
        f"Not installed, so not measured: {', '.join(result['not_installed']) or 'none'}.",
        *energy_lines(result),
    ]
    for task in result["tasks"]:
        best = best_rows(task)
        baseline = best.get(result["baseline"])
        rows = []
        for row in task["rows"]:
            cells = [row["contestant"], str(row["num_workers"])]
            for metric in ("wall_s", "cpu_s"):
                found = row[metric]
                low, high = number(found["p25"]), number(found["p75"])
                cells.append(f"{number(found['median'])} ({low} to {high})")
            at_best = baseline is not None and row is best[row["contestant"]]
            for metric in ("wall_s", "cpu_s"):
                ratio = baseline[metric]["median"] / row[metric]["median"] if at_best else 0
                cells.append(f"{ratio:.1f} x" if at_best else "")
            rows.append(cells)
        lines += [
            "",
            f"## {task['name']}",
            "",
            f"{task['num_seeds']:,} seeds, {task['batch_size']:,} a batch.",
            "",
            *table(["", "workers", "wall, s", "CPU, s", "PyG's best wall / this", "CPU"], rows),
            *taken_by_others(task.get("others_cores")),
        ]
    return lines


def main(argv: list[str] | None = None) -> None:
    """Measure and write the result."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--threads", type=int, default=1, help="of torch; workers have the rest")
    options.add_argument("--seeds", type=int, default=5_000, help="of an epoch")
    args = options.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    rivals = [name for name in RIVALS if RIVALS[name] and name != graphbolt.NAME]
    result = new_result(
        "end_to_end", args.quick, threads=torch.get_num_threads(), first_steps=FIRST_STEPS,
        baseline=rivals[0] if rivals else None,
        not_installed=[name for name, there in RIVALS.items() if not there], tasks=[],
    )  # fmt: skip
    meter = open_meter(gpu=False)
    result["energy_not_readable"] = meter.not_readable
    for task in tasks(args.quick, args.seeds):
        watch = Watch()
        result["tasks"].append(
            {
                "name": task.name,
                "num_seeds": len(task.seeds),
                "batch_size": task.batch_size,
                "rows": measure(task, 1 if args.quick else args.rounds, meter, watch),
                "others_cores": watch.cores,
            }
        )
        path = write(result, args.out)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
