"""Time and memory that `ClusterData` takes to partition a graph, each in a process of its own.

python -m benchmarks cluster  # 1 M and 10 M edges: some minutes and about 3 GB
"""

from __future__ import annotations

from typing import Any

from benchmarks import result as results
from benchmarks.child import measure_in_child
from benchmarks.machine import REPOSITORY

TITLE = "What partitioning by METIS takes"
SIZES = ((40_000, 1_000_000, 100), (400_000, 10_000_000, 1000))  # nodes, edges, parts
QUICK_SIZES = ((400, 4_000, 4),)
CHILD = """
import torch
from torch_geometric.data import Data
from examples.support.synthetic import power_law_graph
from pyg_direct import ClusterData

nodes, edges, parts = map(int, sys.argv[1:])
edge_index = power_law_graph(nodes, edges, 1).edge_index
toy = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
ClusterData(toy, 2, log=False)  # compiles the kernels
graph = Data(edge_index=edge_index, num_nodes=nodes)
measured(lambda: ClusterData(graph, parts, log=False))
"""


def measure(nodes: int, edges: int, parts: int, quick: bool) -> dict[str, Any]:
    """Partition one graph in a new process, and return what it took."""
    taken = measure_in_child(CHILD, nodes, edges, parts, checkout=REPOSITORY, quick=quick)
    row: dict[str, Any] = {"nodes": nodes, "edges": edges, "parts": parts, **taken}
    print(*cells(row), sep=" | ", flush=True)
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    peak = row["peak_extra_bytes"]
    return [
        *(f"{row[name]:,}" for name in ("nodes", "edges", "parts")),
        f"{peak / 1e9:.2f} GB", f"{peak / row['edges']:.0f} B",
        f"{row['wall_seconds']:.0f} s", f"{row['cpu_seconds']:.0f} s",
    ]  # fmt: skip


def sections(result: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    head = ["nodes", "edges", "parts", "peak, beside the data", "of an edge", "wall", "CPU"]
    return [
        "",
        "`ClusterData(data, num_parts)` of power-law graphs, each in a process of",
        "its own; the peak is what the resident memory grew by.",
        "",
        *results.table(head, [cells(row) for row in result["rows"]]),
    ]


def main(argv: list[str] | None = None) -> None:
    """Partition the graphs and write the result."""
    args = results.parser(__doc__).parse_args(argv)
    result = results.new_result("cluster", args.quick, rows=[])
    for sizes in QUICK_SIZES if args.quick else SIZES:
        result["rows"].append(measure(*sizes, args.quick))
        results.write(result, args.out)


if __name__ == "__main__":
    main()
