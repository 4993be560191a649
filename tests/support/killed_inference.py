"""Runs layer-wise inference in child processes, each of which is killed after some layers.

Arguments: the file of a run that is left alone, and that of the runs that are killed. Prints how
often a run was killed. Processes are forked before anything has used threads.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from pyg_direct import inference
from pyg_direct.models.inference import blocks, executor

executor.BLOCK_BYTES = 4096
read = blocks.RowSelection.read


def slowly(rows, value):
    time.sleep(0.0005)
    return read(rows, value)


def run(out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Data(x=torch.randn(1000, 8), edge_index=torch.randint(1000, (2, 2000)))
    model = GraphSAGE(8, 8, num_layers=6, out_channels=8, jk="cat")
    inference(model, data, out=out, resume=True, num_workers=2)


def start(out: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(out)
            status = 0
        finally:
            os._exit(status)
    return child


def recorded(folder: Path) -> int:
    """Return how many layers the journal of a run has."""
    state = folder / "layers_of_inference"
    return len(json.loads(state.read_text())["steps"]) if state.exists() else 0


def killed(out: Path) -> bool:
    """Start a run, and return whether it was killed before its end."""
    folder = Path(f"{out}.partial")
    known = recorded(folder)
    child = start(out)
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if recorded(folder) > known:
            os.kill(child, signal.SIGKILL)
            return os.WIFSIGNALED(os.waitpid(child, 0)[1])
        time.sleep(0.001)
    return False


blocks.RowSelection.read = slowly
os.waitpid(start(Path(sys.argv[1])), 0)
kills = 0
while killed(Path(sys.argv[2])):
    kills += 1
print(kills)
