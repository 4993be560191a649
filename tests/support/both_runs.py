"""Tensors of the two engines, those of a training step and those of `inference`."""

import torch
from torch.utils._pytree import tree_map

from pyg_direct.models.inference.executor import Executor, Limits
from pyg_direct.models.inference.run import InferenceRun
from pyg_direct.models.lazy.batch_run import BatchRun
from pyg_direct.models.lazy.tensor import TableTensor
from pyg_direct.ops.devices import backend_for
from pyg_direct.ranks.together import Together

CPU = torch.device("cpu")


def of_step():
    """Return what makes a tensor of a training step."""
    run = BatchRun(CPU, draws_apart=False)
    return lambda t: run.enter(t.clone()).clone()


def of_inference():
    """Return what makes a tensor of `inference`."""
    together = Together(False, CPU)
    executor = Executor(backend_for(CPU), Limits(1, None, None), None, False, None, together)
    run = InferenceRun(executor)
    return lambda t: run.wrap(run.saved.leaf(t.clone(), 0)).clone()


ENGINES = {"step": of_step, "inference": of_inference}


def plain(value):
    """Return results with plain tensors."""
    return tree_map(lambda v: v.whole() if isinstance(v, TableTensor) else v, value)
