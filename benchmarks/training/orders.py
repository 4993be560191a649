"""Accuracy against CPU-seconds: orders of the same fan-outs, fewer hops, and bfloat16.

GraphSAGE, accelerated, with 5 seeds on each graph; contestants take turns, seed by seed. Accuracy
is that of all test nodes with all their neighbours; seconds are those of training, one thread.

    python -m benchmarks orders --root FOLDER  # holds amazon/ and citation_full/
"""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from benchmarks import result
from benchmarks.statistics import compare
from examples.support.datasets import load_dataset
from examples.support.synthetic import power_law_graph, random_split

TITLE = "Orders of the fan-outs, depths and bfloat16: accuracy and CPU time"
HIDDEN, BATCH_SIZE = 128, 512


class Kind(NamedTuple):
    """How a model is trained."""

    fanout: list[int]
    bfloat16: bool = False


KINDS = {
    "15/10/5": Kind([15, 10, 5]),
    "5/10/15": Kind([5, 10, 15]),
    "15/10": Kind([15, 10]),
    "10/15": Kind([10, 15]),
    "15/10/5, bfloat16": Kind([15, 10, 5], bfloat16=True),
}
GIVEN = "15/10/5"
EPOCHS = {"amazon_photo": 8, "dblp_citation": 3, "debian": 2}


def trained(data: Data, kind: Kind, epochs: int, seed: int) -> tuple[float, float]:
    """Return the accuracy of a training on the test nodes, and its CPU-seconds."""
    torch.manual_seed(seed)
    loader = pyg_direct.NeighborLoader(
        data, kind.fanout, data.train_mask, batch_size=BATCH_SIZE, shuffle=True, seed=seed
    )
    classes = int(data.y.max()) + 1
    plain = GraphSAGE(data.num_features, HIDDEN, len(kind.fanout), classes, dropout=0.3)
    model = pyg_direct.accelerate(plain, loader)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    begin = process_time()
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=kind.bfloat16):
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
    seconds = process_time() - begin
    guess = pyg_direct.inference(plain.eval(), data).argmax(dim=1)
    return float((guess == data.y)[data.test_mask].float().mean()), seconds


def measure(name: str, data: Data, epochs: int, seeds: int) -> dict[str, Any]:
    """Train with all kinds in turn."""
    scores: dict[str, list[float]] = {kind: [] for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    trained(data, KINDS[GIVEN], 1, 0)  # compiles, and is not counted
    for seed in range(seeds):
        for kind, how in KINDS.items():
            accuracy, spent = trained(data, how, epochs, seed)
            scores[kind].append(accuracy)
            seconds[kind].append(spent)
            print(name, seed, kind, f"{accuracy:.4f} {spent:.1f} s", flush=True)
    against = {kind: compare(scores, kind, GIVEN) for kind in KINDS}
    return {
        "graph": name, "nodes": data.num_nodes, "edges": data.num_edges, "epochs": epochs,
        "scores": scores, "seconds": seconds, "kinds": against,
    }  # fmt: skip


def sections(found: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    lines = [
        "",
        f"GraphSAGE with {HIDDEN} channels and a layer for each hop, accelerated, {found['seeds']} "
        f"seeds, batches of {BATCH_SIZE}. Accuracy in percent of the test nodes, with its "
        "standard deviation; p of an exact permutation test against the first row; seconds are "
        "medians of the CPU time of all epochs, with loading, one thread.",
    ]
    for row in found["rows"]:
        title = f"## {row['graph']}: {row['nodes']:,} nodes, {row['edges']:,} edges"
        base = float(np.median(row["seconds"][GIVEN]))
        table = []
        for kind, spent in row["seconds"].items():
            compared, middle = row["kinds"][kind], float(np.median(spent))
            chance = "" if kind == GIVEN else f"{compared['p_value']:.2f}"
            accuracy = result.percent(compared, kind)
            table.append([kind, accuracy, chance, f"{middle:.2f}", f"{middle / base:.2f}"])
        head = ["fan-out", "accuracy", "p", "CPU seconds", "of the first row"]
        lines += ["", f"{title}, {row['epochs']} epochs", "", *result.table(head, table)]
    return lines


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the results."""
    options = result.parser(__doc__)
    options.add_argument("--root", type=Path, help="of amazon/, citation_full/")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--graphs", nargs="*", choices=EPOCHS, help="others stay as they are")
    args = options.parse_args(argv)
    seeds = 2 if args.quick else args.seeds
    found = result.new_result("orders", args.quick, rows=[], seeds=seeds)
    path = args.out / "orders.json"
    if args.graphs and path.exists():
        found["rows"] = json.loads(path.read_text())["rows"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in ["generated"] if args.quick else args.graphs or EPOCHS:
            if args.quick:
                data = random_split(power_law_graph(600, 4000, 8, 4), 0.5, 0.25, 0)
            else:
                data = load_dataset(name, args.root)
            row = measure(name, data, EPOCHS.get(name, 1), seeds)
            others = [r for r in found["rows"] if r["graph"] != name]
            found["rows"] = sorted([*others, row], key=lambda r: str(r["graph"]))
            print(result.write(found, args.out))
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
