"""Training that reuses rows of the first layer: what a step saves, and what models learn.

NeutronOrch (Ai et al., PVLDB 17(8)) and DistGNN-MB (Vasimuddin et al., arXiv 2211.06385) reuse rows
of hot nodes for a bounded number of steps. `accelerate(reuse=)` does with rows that earlier steps
computed.

    python -m benchmarks reuse
    python -m benchmarks reuse --graph noisy  # accuracies on this graph alone; keeps the others
"""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import pyg_direct
from benchmarks import result
from benchmarks.labor.graphs import community_graph, graph
from benchmarks.reuse.noisy import noisy_graph
from benchmarks.statistics import compare
from examples.support.training import make_sage
from pyg_direct import Reuse

TITLE = "Reuse of first-layer rows"
MASKS = ("val_mask", "test_mask")


class Case(NamedTuple):
    """A graph and how to train on it."""

    name: str
    nodes: int
    batch_size: int
    hidden: int
    epochs: int = 0
    lr: float = 0.003
    fanouts: tuple[int, ...] = (15, 10, 5)
    seeds: int = 5


STEPS = [Case("debian", 0, 1024, 128), Case("community", 200_000, 1024, 128)]
LEARNING = [
    Case("debian", 0, 1024, 64, 5, 0.01),
    Case("community", 50_000, 256, 64, 1),
    Case("noisy", 4_000, 128, 64, 20, 0.01, (10, 10), 8),
]
FEWER = 2  # the last fan-out that a user may take instead
QUICK = Case("community", 2_000, 64, 16, 2, seeds=2)
COLUMNS, DEGREE = 100, 25  # of the community graph
REFRESHED = 0.1
BELOW = 0.01  # how far the accuracy that is waited for lies below the last one of fresh rows
ROUNDS = {"debian": 74, "community": 20}
SHARES = (0.05, 0.1, 0.2, 0.4, 1.0)
FEWER_NEIGHBOURS = "fresh, fewer"
KINDS: dict[str, Reuse | None] = {
    "fresh": None,
    **{
        f"{name}, staleness {staleness}, {gradient}": Reuse(share, staleness, gradient, REFRESHED)
        for name, share in (("20 %", 0.2), ("all", 1.0))
        for staleness in (0, 16)
        for gradient in ("none", "refresh")
    },
    FEWER_NEIGHBOURS: None,
}


SHORT = {
    f"all, staleness 2, {gradient}": Reuse(1.0, 2, gradient, REFRESHED)
    for gradient in ("none", "refresh")
}


def kinds_of(case: Case) -> dict[str, Reuse | None]:
    """Return what is compared on a graph."""
    return KINDS | SHORT if case.name == "noisy" else KINDS


def fewer(case: Case) -> list[int]:
    """Return fan-outs with a smaller last one."""
    return [*case.fanouts[:-1], FEWER]


def data_of(case: Case) -> Any:
    """Return a graph."""
    if case.name == "noisy":
        return noisy_graph(case.nodes)
    if case.name == "debian":
        return graph("debian", None, False)
    return community_graph(case.nodes, DEGREE * case.nodes, COLUMNS)


class Training:
    """A model and its loader.

    Args:
        reuse: of rows; None for none.
        fanouts: of the loader.
    """

    def __init__(
        self, case: Case, data: Any, reuse: Reuse | None, fanouts: list[int], seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.loader = pyg_direct.NeighborLoader(
            data, fanouts, data.train_mask, batch_size=case.batch_size, shuffle=True, seed=seed,
            device="cpu", prefetch=0,
        )  # fmt: skip
        self.plain = make_sage(data, int(data.y.max()) + 1, case.hidden, len(fanouts))
        self.model: Any = pyg_direct.accelerate(self.plain, self.loader, certify=False, reuse=reuse)
        self.optimizer = torch.optim.Adam(self.plain.parameters(), lr=case.lr)
        self._batches: Any = None

    def step(self) -> dict[str, float] | None:
        """Load a batch and train on it; return what that took, None at the end of an epoch."""
        begin = process_time()
        if self._batches is None:
            self._batches = iter(self.loader)
            self.model.train()
        batch = next(self._batches, None)
        if batch is None:
            self._batches = None
            return None
        self.optimizer.zero_grad()
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        self.optimizer.step()
        took = process_time() - begin
        reused, hidden = batch.edge_index.hops.reused, self.plain.hidden_channels
        table_rows = 0 if reused is None else len(reused.fresh) + len(reused.slots)
        return {
            "cpu_seconds": took,
            "rows": len(batch.x),
            "edges": batch.edge_index.size(1),
            "bytes": 4 * (batch.x.numel() + table_rows * hidden),
        }


def steps(case: Case, rounds: int) -> list[dict[str, Any]]:
    """Measure steps with each share of nodes in the table, in turn; the first half is left out."""
    data = data_of(case)
    ways = {
        "none": Training(case, data, None, [*case.fanouts], 0),
        "none, fewer": Training(case, data, None, fewer(case), 0),
        **{f"{s:.0%}": Training(case, data, Reuse(share=s), [*case.fanouts], 0) for s in SHARES},
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        names = [*ways][turn % len(ways) :] + [*ways][: turn % len(ways)]
        for name in names:
            took = ways[name].step() or ways[name].step()
            assert took is not None
            found[name].append(took)
    rows = []
    for name, way in ways.items():
        later = found[name][rounds // 2 :]
        row: dict[str, Any] = {"graph": case.name, "share": name}
        row |= {key: float(np.median([took[key] for took in later])) for key in later[0]}
        ratios = [
            took["cpu_seconds"] / plain["cpu_seconds"]
            for took, plain in zip(later, found["none"][rounds // 2 :], strict=True)
        ]
        row["ratio"] = float(np.median(ratios))
        reused = way.model.acceleration.reused()
        row["reused"] = 0.0 if reused is None else reused.share
        row["age"] = 0.0 if reused is None else reused.mean_steps
        row["oldest"] = 0 if reused is None else reused.oldest_steps
        rows.append(row)
        print(row, flush=True)
    return rows


def learn(case: Case, data: Any, kind: str, seed: int) -> list[list[float]]:
    """Train once; return for each epoch CPU-seconds until then and the accuracies by `MASKS`."""
    fanouts = fewer(case) if kind == FEWER_NEIGHBOURS else [*case.fanouts]
    training = Training(case, data, kinds_of(case)[kind], fanouts, seed)
    seconds, curve = 0.0, []
    for _ in range(case.epochs):
        while (took := training.step()) is not None:
            seconds += took["cpu_seconds"]
        training.plain.eval()
        with torch.no_grad():
            hits = training.plain(data.x, data.edge_index).argmax(1) == data.y
        curve.append([seconds, *(float(hits[data[m]].float().mean()) for m in MASKS)])
    print(case.name, kind, seed, [f"{s:.1f} {v:.4f} {t:.4f}" for s, v, t in curve], flush=True)
    return curve


def accuracies(case: Case) -> dict[str, Any]:
    """Train all kinds with several seeds; compare accuracies, and CPU-seconds to the same one."""
    data = data_of(case)
    curves: dict[str, list[Any]] = {kind: [] for kind in kinds_of(case)}
    for seed in range(case.seeds):
        for kind in curves:
            curves[kind].append(learn(case, data, kind, seed))
    return compared(case, curves)


def compared(case: Case, curves: dict[str, list[Any]]) -> dict[str, Any]:
    """Compare the kinds with fresh rows.

    Args:
        case: that was trained.
        curves: by kind and seed, for each epoch CPU-seconds until then, validation and test
            accuracy.
    """
    last = {kind: [curve[-1][2] for curve in runs] for kind, runs in curves.items()}
    target = float(np.mean([curve[-1][1] for curve in curves["fresh"]])) - BELOW
    rows = {}
    for kind, runs in curves.items():
        seconds = [next((s for s, v, _ in curve if v >= target), None) for curve in runs]
        reached = [s for s in seconds if s is not None]
        rows[kind] = {
            **({} if kind == "fresh" else compare(last, kind, "fresh")),
            "accuracy": last[kind],
            "seconds_an_epoch": float(np.median([curve[-1][0] / len(curve) for curve in runs])),
            "seconds_to_target": float(np.median(reached)) if len(reached) == len(runs) else None,
            "curves": runs,
        }
    return {"graph": case.name, **case._asdict(), "target": target, "kinds": rows}


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    head = [
        "graph",
        "nodes in the table",
        "reused",
        "age",
        "rows",
        "edges",
        "MB",
        "CPU ms",
        "ratio",
    ]
    rows = [
        [
            row["graph"], row["share"], f"{row['reused']:.0%}",
            f"{row['age']:.1f}, at most {row['oldest']}", f"{row['rows']:,.0f}",
            f"{row['edges']:,.0f}", f"{row['bytes'] / 1e6:.1f}", f"{1e3 * row['cpu_seconds']:.0f}",
            f"{row['ratio']:.2f}",
        ]
        for row in found["steps"]
    ]  # fmt: skip
    lines = [
        "",
        f"A step (loading, forward, backward, optimizer) of a GraphSAGE of three layers, fan-outs "
        f"15/10/5, staleness 16, {found['threads']} thread; *fewer* has {FEWER} in place of 5, and "
        f"no table. Nodes with the most expected visits have rows in the table; *reused* is the "
        f"share of the nodes that the last hop would expand. MB are those of features, and of rows "
        f"read from or written to the table. CPU time of the process, kinds in turn; medians of "
        f"the second half of the steps, ratios to the step without a table of the same turn.",
        "",
        *result.table(head, rows),
    ]
    for case in found["learning"]:
        lines += ["", *_learned(case)]
    return lines


def _learned(case: dict[str, Any]) -> list[str]:
    fresh = case["kinds"]["fresh"]
    fanouts = case.get("fanouts", (15, 10, 5))
    measured = f" (at commit {case['commit'][:9]})" if "commit" in case else ""
    rows = []
    for kind, row in case["kinds"].items():
        to = row["seconds_to_target"]
        values = row["accuracy"]
        cells = [kind, f"{100 * np.mean(values):.2f} ± {100 * np.std(values, ddof=1):.2f}"]
        chosen = [max(curve, key=lambda epoch: epoch[1])[2] for curve in row["curves"]]
        cells.append(f"{100 * np.mean(chosen):.2f}")
        other = kind != "fresh"
        cells += [f"{100 * row['difference']:+.2f}", f"{row['p_value']:.2f}"] if other else ["", ""]
        cells += [f"{row['seconds_an_epoch']:.1f}", "never" if to is None else f"{to:.1f}"]
        rows.append(cells)
    head = [
        "rows",
        "test accuracy, %",
        "best epoch",
        "difference",
        "p",
        "CPU-seconds an epoch",
        "to the target",
    ]
    return [
        f"`{case['graph']}`{measured}, fan-outs {'/'.join(map(str, fanouts))}, "
        f"{case['hidden']} hidden columns, batches of {case['batch_size']}, "
        f"{case['epochs']} epochs, {len(fresh['accuracy'])} seeds; p of a permutation test against "
        f"fresh rows. At staleness 0 rows are computed in the step, and their gradients are those "
        f"of reused ones: *none*, or *refresh*, where a share of {REFRESHED:.0%} gets one, divided "
        f"by the share. *Best epoch* has the test accuracy of the epoch with the best validation; "
        f"differences are those of the last one. The target is a validation accuracy of "
        f"{case['target']:.3f}: {BELOW} below that of fresh rows in the end.",
        "",
        *result.table(head, rows),
    ]


def one_graph(name: str, path: Path) -> None:
    """Measure what models learn on a graph, and put it into a result that is there."""
    commit = result.new_result("reuse", False)["commit"]
    case = next(case for case in LEARNING if case.name == name)
    found = json.loads(path.read_text())  # before the minutes that it takes: it may not be there
    measured = {**accuracies(case), "commit": commit}
    found["learning"] = [*(c for c in found["learning"] if c["graph"] != name), measured]
    print(result.write(found, path.parent))


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the results."""
    parser = result.parser(__doc__)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--graph", choices=[case.name for case in LEARNING], help="learning on it")
    only.add_argument("--steps", action="store_true", help="steps alone, beside earlier learning")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.graph is not None:
        return one_graph(args.graph, args.out / "reuse.json")
    learnt: list[dict[str, Any]] = []
    if args.steps:
        earlier = json.loads((args.out / "reuse.json").read_text())
        learnt = [{"commit": earlier["commit"], **case} for case in earlier["learning"]]
    stepping, learning = ([QUICK], [QUICK]) if args.quick else (STEPS, LEARNING)
    found = result.new_result("reuse", args.quick, threads=1, steps=[], learning=learnt)
    for case in stepping:
        found["steps"] += steps(case, 6 if args.quick else ROUNDS[case.name])
    for case in [] if args.steps else learning:
        found["learning"].append(accuracies(case))
        result.write(found, args.out)
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
