"""Writes a result to a disk that is too small for it.

Arguments: what to do, the folder of the small disk, and another folder for inputs. Prints the
error's number and message, and what lies on the small disk afterwards.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct.files.convert.convert import convert
from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec
from pyg_direct.files.generate import PowerLaw, generate

ROWS, COLUMNS = 40_000, 32  # 5 MB of float32


def act(what: str, folder: Path, inputs: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Data(x=torch.randn(ROWS, COLUMNS), edge_index=torch.randint(ROWS, (2, 1000)))
    model = GraphSAGE(COLUMNS, COLUMNS, 2, COLUMNS)
    if what == "inference":
        pyg_direct.inference(model, data, out=folder / "out.npy")
    elif what == "resumable inference":
        pyg_direct.inference(model, data, out=folder / "out.npy", resume=True)
    elif what == "inference by nodes":
        cached = ReadsEdges()
        pyg_direct.inference(cached, data, out=folder / "out.npy", fallback="nodes")
    elif what == "inference with layers in files":
        tempfile.tempdir = str(folder)
        pyg_direct.inference(model, data, memory_bytes=92_000_000, num_workers=1)
    elif what == "quantize":
        pyg_direct.quantize(data.x, torch.bfloat16, out=folder / "x.npy")
    elif what == "save":
        pyg_direct.save(data, folder / "graph")
    elif what == "generate":
        generate(PowerLaw(ROWS, 1000, num_features=4 * COLUMNS), folder / "graph")
    else:
        assert what == "convert"
        np.save(inputs / "x.npy", data.x.numpy())
        np.save(inputs / "edges.npy", data.edge_index.numpy())
        node = ArraySource(str(inputs / "x.npy"))
        edges = EdgeSpec(None, ArraySource(str(inputs / "edges.npy")), {})
        convert(GraphSpec([NodeSpec(None, None, {"x": node})], [edges]), folder / "graph")


class ReadsEdges(torch.nn.Module):
    """Cannot be cut, as it computes on edges outside of a convolution."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, edge_index[1], x[edge_index[0]])


disk = Path(sys.argv[2])
error = None
try:
    act(sys.argv[1], disk, Path(sys.argv[3]))
except OSError as caught:
    error = caught
left = sorted(str(path.relative_to(disk)) for path in disk.rglob("*"))
print(json.dumps({"errno": error and error.errno, "message": str(error), "left": left}))
