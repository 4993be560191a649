"""How well models learn from each kind of batches, and how many CPU-seconds that takes."""

from __future__ import annotations

from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.labor.graphs import community_graph, graph
from benchmarks.labor.sizes import loader_of
from benchmarks.statistics import compare, permutation_test
from examples.support.training import evaluate, make_sage, train_epoch

DEVICE = torch.device("cpu")
BELOW = 0.01  # how far the accuracy that is waited for lies below plain sampling's last one
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "labor": {"sampling": "labor"},
    "labor, kappa 64": {"sampling": "labor", "batch_dependency": 64},
    "uniform, proximity": {"order": "proximity"},
    "uniform, clusters": {"order": "clusters"},
    "uniform, parts": {"order": "parts"},  # of a graph in parts
    "labor, kappa 64, proximity": {
        "sampling": "labor",
        "batch_dependency": 64,
        "order": "proximity",
    },
    "uniform, fan-outs reversed": {"reversed": True},
    "labor, fan-outs reversed": {"sampling": "labor", "reversed": True},
}
EQUAL_FANOUTS = tuple(
    kind
    for kind, given in KINDS.items()
    if "reversed" not in given and given.get("order") != "parts"
)
FANOUTS = ("uniform", "labor", "uniform, fan-outs reversed", "labor, fan-outs reversed")


class Case(NamedTuple):
    """A graph and how to train on it."""

    name: str
    epochs: int
    batch_size: int
    fanouts: list[int]
    lr: float = 0.01
    weight_decay: float = 5e-4
    kinds: tuple[str, ...] = EQUAL_FANOUTS


CASES = [
    Case("debian", 6, 512, [10, 10], weight_decay=1e-5),
    Case("coauthor_cs", 5, 128, [5, 5]),
    Case("community", 4, 512, [10, 10, 10], lr=0.003, weight_decay=0.0),
    Case("community", 4, 512, [15, 10, 5], lr=0.003, weight_decay=0.0, kinds=FANOUTS),
]
QUICK = Case("community", 1, 256, [3, 3])


def clusters_of(data: Any, nodes: torch.Tensor) -> torch.Tensor:
    """Return clusters as a user might have them: runs of a search from the nodes themselves."""
    from pyg_direct import NeighborSampler
    from pyg_direct.sampling.sampler import keyed

    return keyed(NeighborSampler(data, [1])).proximity(None)[nodes] // 500


def order_of(data: Any, nodes: torch.Tensor, kind: str) -> dict[str, Any]:
    """Return the arguments of a kind, but for fan-outs."""
    given = {name: value for name, value in KINDS[kind].items() if name != "reversed"}
    if given.get("order") == "clusters":
        given["order"] = clusters_of(data, nodes)
    return given


def label_mix(data: Any, case: Case, kind: str) -> dict[str, float]:
    """Return how far the labels of a batch's seeds are from those of all: total variation."""
    nodes = data.train_mask.nonzero().view(-1)
    classes = int(data.y.max()) + 1
    every = torch.bincount(data.y[nodes], minlength=classes) / len(nodes)
    given = order_of(data, nodes, kind)
    loader = loader_of(data, case.batch_size, [0], input_nodes=nodes, drop_last=True, **given)
    found = []
    for batch in loader:
        share = torch.bincount(batch.y, minlength=classes) / case.batch_size
        found.append(float((share - every).abs().sum() / 2))
    return {"mean": float(np.mean(found)), "max": max(found)}


def curve(data: Any, case: Case, kind: str, seed: int) -> dict[str, Any]:
    """Train once; return the accuracy and the CPU-seconds of training after each epoch."""
    torch.manual_seed(seed)
    nodes = data.train_mask.nonzero().view(-1)
    given = {**order_of(data, nodes, kind), "seed": seed}
    fanouts = case.fanouts[::-1] if "reversed" in KINDS[kind] else case.fanouts
    loader = loader_of(data, case.batch_size, fanouts, input_nodes=nodes, **given)
    judge = {
        name: loader_of(
            data, 1024, case.fanouts, input_nodes=data[f"{name}_mask"].nonzero().view(-1)
        )
        for name in ("val", "test")
    }
    model = make_sage(data, int(data.y.max()) + 1, 64, len(case.fanouts))
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr, weight_decay=case.weight_decay)
    seconds, spent, val = 0.0, [], []
    for _ in range(case.epochs):
        start = process_time()
        train_epoch(model, loader, optimizer, DEVICE)
        seconds += process_time() - start
        spent.append(seconds)
        val.append(evaluate(model, judge["val"], DEVICE))
    test = evaluate(model, judge["test"], DEVICE)
    return {"seconds": spent, "val": val, "test": test}


def first_at(run: dict[str, Any], target: float) -> float | None:
    """Return the CPU-seconds until a run has reached an accuracy, None if it never has."""
    for seconds, accuracy in zip(run["seconds"], run["val"], strict=True):
        if accuracy >= target:
            return float(seconds)
    return None


def run_case(case: Case, root: Path | None, seeds: int, quick: bool) -> dict[str, Any]:
    """Train with all kinds in turn, and return the row of the table."""
    if case.name == "community" and not quick:
        data = community_graph(50_000, 1_250_000, 32)
    else:
        data = graph(case.name, root, quick)
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in case.kinds}
    for seed in range(seeds):
        for kind in case.kinds:
            runs[kind].append(curve(data, case, kind, seed))
            print(case.name, seed, kind, runs[kind][-1], flush=True)
    test = {kind: [run["test"] for run in found] for kind, found in runs.items()}
    target = float(np.mean([run["val"][-1] for run in runs["uniform"]])) - BELOW
    until = {kind: [first_at(run, target) for run in found] for kind, found in runs.items()}
    against = {}
    for kind, times in until.items():
        reached = [t for t in times if t is not None]
        plain = [t for t in until["uniform"] if t is not None]
        ratio = float(np.mean(reached) / np.mean(plain)) if reached and plain else None
        p_value = permutation_test(reached, plain) if reached and plain else None
        against[kind] = {
            "mix": label_mix(data, case, kind),
            "reached": len(reached),
            "seconds": float(np.mean(reached)) if reached else None,
            "ratio": ratio,
            "p_value": p_value,
            "epoch": float(np.mean([run["seconds"][-1] for run in runs[kind]])) / case.epochs,
            "difference": compare(test, kind, "uniform"),
        }
    return {**case._asdict(), "seeds": seeds, "target": target, "runs": runs, "kinds": against}
