"""Time and memory that building a loader takes, of this checkout and of an older one.

Sorted and unsorted edges of the large benchmark graph, each build in a process of its own, the
checkouts in turn. Writes `results/construction.json`. Needs some 6 GB and a few minutes::

    git worktree add --detach /somewhere/old <commit>
    python -m benchmarks construction --before /somewhere/old
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import measure_in_child
from benchmarks.machine import REPOSITORY
from benchmarks.result import new_result, parser, write
from examples.support.synthetic import power_law_graph

ORDERS = ("unsorted", "sorted")  # of the edges; a quick run has the first

# Runs in either checkout, so it uses nothing of this one.
CHILD = """
import numpy as np, torch
from torch_geometric.data import Data
from pyg_direct import NeighborLoader

def build(edge_index, num_nodes):
    return NeighborLoader(Data(edge_index=edge_index, num_nodes=num_nodes), [15, 10, 5],
                          input_nodes=torch.arange(2), device="cpu")

for end in (1, 0):  # compiles the kernels for many edges, unsorted and sorted
    ends = torch.zeros(1 << 17, dtype=torch.int64)
    ends[:1] = end
    build(torch.stack([ends, ends]), 2)
mapped = np.load(sys.argv[1], mmap_mode="r")
edge_index = torch.empty(mapped.shape, dtype=torch.int64)
edge_index.copy_(torch.from_numpy(np.asarray(mapped)))
del mapped
measured(lambda: build(edge_index, int(sys.argv[2])))
"""


def measure(checkout: Path, edges: Path, num_nodes: int, quick: bool = False) -> dict[str, float]:
    """Build the loader of a checkout in a new process, and return what it took."""
    taken = measure_in_child(CHILD, edges, num_nodes, checkout=checkout, quick=quick)
    return {"seconds": taken.pop("wall_seconds"), **taken}


def run(
    checkouts: dict[str, Path],
    num_nodes: int,
    num_edges: int,
    rounds: int,
    quick: bool,
) -> dict[str, Any]:
    """Measure the checkouts in turn, on edges in each of the orders."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        edges = power_law_graph(num_nodes, num_edges, 1).edge_index.numpy()
        for order in ORDERS[:1] if quick else ORDERS:
            if order == "sorted":
                edges = np.ascontiguousarray(edges[:, np.argsort(edges[1], kind="stable")])
            path = Path(folder) / f"{order}.npy"
            np.save(path, edges)
            samples: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
            for _ in range(rounds):
                for name, checkout in checkouts.items():
                    samples[name].append(measure(checkout, path, num_nodes, quick))
            rows[order] = {
                name: {key: statistics.median(sample[key] for sample in taken) for key in taken[0]}
                | {"samples": taken}
                for name, taken in samples.items()
            }
            path.unlink()
    return rows


def main(argv: list[str] | None = None) -> None:
    """Measure and write the result."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="a checkout to compare with")
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args(argv)
    nodes, edges = (2_000, 40_000) if args.quick else (2_400_000, 62_000_000)
    result = new_result("construction", args.quick, num_nodes=nodes, num_edges=edges)
    checkouts = {"now": REPOSITORY}
    if args.before is not None:
        checkouts = {"before": args.before.resolve(), **checkouts}
        revision = ["git", "-C", str(args.before), "rev-parse", "HEAD"]
        done = subprocess.run(revision, check=True, capture_output=True, text=True)
        result["before"] = done.stdout.strip()
    # Of the CSC with 32-bit ids: pointers and indices, and edge ids unless edges were sorted.
    result["csc_bytes"] = {
        "sorted": 4 * (nodes + 1) + 4 * edges,
        "unsorted": 4 * (nodes + 1) + 8 * edges,
    }
    rounds = 1 if args.quick else args.rounds
    result["medians"] = run(checkouts, nodes, edges, rounds, args.quick)
    for order, rows in result["medians"].items():
        for name, row in rows.items():
            print(order, name, {k: round(v, 3) for k, v in row.items() if k != "samples"})
    print(write(result, args.out))


if __name__ == "__main__":
    main()
