"""Runs layer-wise inference and prints what memory it took.

Arguments: "GraphSAGE" or "GAT", memory_bytes ("" for none), a folder for the result ("" for
memory), and the edges of a node, which are mapped from a file where they are many. Peak memory is
the anonymous memory above that before the run.
"""

import json
import logging
import sys
import threading
from pathlib import Path

import numpy as np
import torch
import torch_geometric.nn
from torch_geometric.data import Data

from pyg_direct import inference

NODES, FEW, WIDTH = 60_000, 15, 64


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    status = Path("/proc/self/status").read_text()
    return next(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:")
    )


class Watch:
    """Notes the largest anonymous memory while it is open."""

    def __enter__(self) -> "Watch":
        self.largest, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.largest = max(self.largest, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


torch.manual_seed(0)
logging.disable(logging.WARNING)
options = {"heads": 4} if sys.argv[1] == "GAT" else {}
model = getattr(torch_geometric.nn, sys.argv[1])(WIDTH, WIDTH, 3, 16, **options)
degree = int(sys.argv[4])
target = torch.arange(NODES).repeat_interleave(degree)
source = (torch.rand(len(target)) ** 2 * NODES).long()
edge_index = torch.stack([source, target])
if degree > FEW:
    path = Path(sys.argv[3]) / "edges.npy"
    np.save(path, edge_index.numpy())
    edge_index = torch.from_numpy(np.load(path, mmap_mode="r+"))
data = Data(x=torch.randn(NODES, WIDTH), edge_index=edge_index)
del source, target, edge_index
small = Data(x=data.x[:64], edge_index=torch.randint(64, (2, 256)))
inference(model, small)  # compiles what there is
limit = int(sys.argv[2]) if sys.argv[2] else None
out = Path(sys.argv[3]) / "out.npy" if sys.argv[3] else None
before = anonymous_bytes()
with Watch() as watch:
    inference(model, data, memory_bytes=limit, out=out, num_workers=2)
print(json.dumps({"peak": watch.largest - before}))
