"""Print, as JSON, how long a fresh process takes from its first import to its first batch.

python -m benchmarks.cpu.first_batch pyg_direct
"""

from __future__ import annotations

import importlib
import json
import sys
import time


def main(loader: str) -> None:
    """Take the steps of a user's script, and time them."""
    start = time.perf_counter()
    importlib.import_module("torch_geometric.loader")  # every user of PyG pays for this
    host_imported = time.perf_counter()
    from benchmarks.cpu.cases import SMALL_CASE, Contestant
    from benchmarks.cpu.contestants import make_loader
    from examples.support.synthetic import power_law_graph

    sizes = SMALL_CASE.num_nodes, SMALL_CASE.num_edges, SMALL_CASE.num_features
    data = power_law_graph(*sizes)
    begin = time.perf_counter()
    # Imports the loader's own package, too.
    next(iter(make_loader(Contestant(loader, 0, "default"), SMALL_CASE, data)))
    end = time.perf_counter()
    print(json.dumps({"host_import_s": host_imported - start, "own_s": end - begin}))


if __name__ == "__main__":
    main(sys.argv[1])
