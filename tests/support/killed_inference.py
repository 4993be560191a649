"""Runs layer-wise inference in child processes, each of which is killed after some blocks.

Arguments: the file of a run that is left alone, and that of the runs that are killed. Prints how
often a run was killed. Processes are forked before anything has used threads.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from pyg_direct import inference
from pyg_direct.models import engine, schedule

BLOCKS = 9  # that a run may finish before it is killed

schedule.MIN_ROWS = schedule.REDUCED_EDGES = 30
computed = engine.computed


def slowly(block, phase):
    time.sleep(0.003)
    return computed(block, phase)


def run(out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Data(x=torch.randn(1000, 8), edge_index=torch.randint(1000, (2, 2000)))
    model = GraphSAGE(8, 8, num_layers=3, out_channels=8, jk="cat")
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


def killed(out: Path) -> bool:
    """Start a run, and return whether it was killed before its end."""
    marks = Path(f"{out}.partial") / "finished.npy"
    known = marks.read_bytes().count(1) if marks.exists() else 0
    child = start(out)
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if marks.exists() and marks.read_bytes().count(1) >= known + BLOCKS:
            os.kill(child, signal.SIGKILL)
            return os.WIFSIGNALED(os.waitpid(child, 0)[1])
        time.sleep(0.001)
    return False


engine.computed = slowly
os.waitpid(start(Path(sys.argv[1])), 0)
kills = 0
while killed(Path(sys.argv[2])):
    kills += 1
print(kills)
