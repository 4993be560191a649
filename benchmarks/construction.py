"""Time and memory that building a loader takes, of this checkout and of an older one.

Sorted and unsorted edges of the large benchmark graph, each build in a process of its own, the
checkouts in turn. Writes `results/construction.json`. Needs some 6 GB and a few minutes::

    git worktree add --detach /somewhere/old <commit>
    python -m benchmarks.construction --before /somewhere/old
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import REPOSITORY, environment
from examples.synthetic import power_law_graph

RESULT = REPOSITORY / "benchmarks" / "results" / "construction.json"

# Runs in either checkout, so it uses nothing of this one.
CHILD = """
import gc, json, sys, time
from pathlib import Path
import numpy as np, torch
from torch_geometric.data import Data
from pyg_direct import NeighborLoader

def status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])

def build(edge_index, num_nodes):
    return NeighborLoader(Data(edge_index=edge_index, num_nodes=num_nodes), [15, 10, 5],
                          input_nodes=torch.arange(2), device="cpu")

for toy in ([[0, 1], [0, 1]], [[0, 1], [1, 0]]):  # compiles the kernels
    build(torch.tensor(toy), 2)
mapped = np.load(sys.argv[1], mmap_mode="r")
edge_index = torch.empty(mapped.shape, dtype=torch.int64)
edge_index.copy_(torch.from_numpy(np.asarray(mapped)))
del mapped
gc.collect()
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
wall, cpu = time.perf_counter(), time.process_time()
loader = build(edge_index, int(sys.argv[2]))
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps({
    "seconds": wall,
    "cpu_seconds": cpu,
    "peak_extra_bytes": status("VmHWM") - before,
    "kept_extra_bytes": status("VmRSS") - before,
}))
"""


def measure(checkout: Path, edges: Path, num_nodes: int) -> dict[str, float]:
    """Build the loader of a checkout in a new process, and return what it took."""
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(edges), str(num_nodes)]
    done = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def run(before: Path, num_nodes: int, num_edges: int, rounds: int) -> dict[str, Any]:
    """Measure both checkouts on both orders of the edges."""
    checkouts = {"before": before, "now": REPOSITORY}
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        edges = power_law_graph(num_nodes, num_edges, 1).edge_index.numpy()
        for order in ("unsorted", "sorted"):
            if order == "sorted":
                edges = np.ascontiguousarray(edges[:, np.argsort(edges[1], kind="stable")])
            path = Path(folder) / f"{order}.npy"
            np.save(path, edges)
            samples: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
            for _ in range(rounds):
                for name, checkout in checkouts.items():
                    samples[name].append(measure(checkout, path, num_nodes))
            rows[order] = {
                name: {key: statistics.median(sample[key] for sample in taken) for key in taken[0]}
                | {"samples": taken}
                for name, taken in samples.items()
            }
            path.unlink()
    return rows


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout to compare with")
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--edges", type=int, default=62_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    before = options.before.resolve()
    revision = ["git", "rev-parse", "HEAD"]
    result = {
        "benchmark": "construction",
        **environment(),
        "before": subprocess.run(
            revision, cwd=before, check=True, capture_output=True, text=True
        ).stdout.strip(),
        "num_nodes": options.nodes,
        "num_edges": options.edges,
        # Of the CSC with 32-bit ids: pointers and indices, and edge ids unless edges were sorted.
        "csc_bytes": {
            "sorted": 4 * (options.nodes + 1) + 4 * options.edges,
            "unsorted": 4 * (options.nodes + 1) + 8 * options.edges,
        },
        "medians": run(before, options.nodes, options.edges, options.rounds),
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    for order, both in result["medians"].items():
        for name, row in both.items():
            print(order, name, {k: round(v, 3) for k, v in row.items() if k != "samples"})


if __name__ == "__main__":
    main()
