"""How far `pyg_direct.plan` is off: unique nodes a batch, with the graph and with degrees alone.

Writes `results/plan_accuracy.json`.

    python -m benchmarks plan_accuracy --root FOLDER  # holds planetoid/, amazon/, citation_full/
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import degree

from benchmarks.result import new_result, parser, write
from examples.support.datasets import load_dataset
from examples.support.synthetic import power_law_graph
from pyg_direct import NeighborLoader
from pyg_direct.tools.plan import edges_with_degrees
from pyg_direct.tools.plan_orders import Batching, sample

BATCHES = 20


def measured(data: Data, fanout: list[int], batch_size: int) -> float:
    """Return the unique nodes of a loader's batches, on average."""
    loader = NeighborLoader(data, fanout, batch_size=batch_size, shuffle=True, drop_last=True)
    return float(
        np.mean([batch.num_nodes for _, batch in zip(range(BATCHES), loader, strict=False)])
    )


def row(name: str, data: Data, fanout: list[int], batch_size: int) -> dict[str, object]:
    """Measure one graph."""
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    nodes = measured(data, fanout, batch_size)
    degrees = degree(data.edge_index[1], data.num_nodes, torch.int64)
    random = Data(edge_index=edges_with_degrees(degrees), num_nodes=data.num_nodes)
    found = {"graph": name, "fanout": fanout, "batch_size": batch_size, "measured_nodes": nodes}
    for key, graph in (("with_graph", data), ("with_degrees", random)):
        predicted = sample(graph, Batching(fanout, batch_size), BATCHES).nodes
        found[key] = {"nodes": predicted, "error_percent": 100 * (predicted / nodes - 1)}
    print(found, flush=True)
    return found


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the result."""
    options = parser(__doc__)
    options.add_argument("--root", type=Path, help="of planetoid/, amazon/, citation_full/")
    args = options.parse_args(argv)
    result = new_result("plan_accuracy", args.quick, batches=BATCHES)
    if args.quick:
        rows = [row("generated", power_law_graph(500, 3000, 1, 4), [3, 2], 32)]
    else:
        rows = [
            row(name, load_dataset(name, args.root), [10, 5], 128)
            for name in ("cora", "amazon_photo", "dblp_citation")
        ]
        for name, edges, skew in (("power law", 5_000_000, 3), ("uniform", 2_000_000, 1)):
            data = power_law_graph(200_000, edges, 1, 4, skew=skew)
            rows.append(row(name, data, [15, 10, 5], 1024))
    result["rows"] = rows
    print(write(result, args.out))


if __name__ == "__main__":
    main()
