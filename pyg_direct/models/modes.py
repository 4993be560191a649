"""Modes in which a model runs for a while: in evaluation, uncompiled, without drawing."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Let a module and its children be in evaluation mode and store nothing, then as before."""
    training = [(m, m.training) for m in module.modules()]
    cached = [m for m in module.modules() if getattr(m, "cached", False) is True]
    try:
        for m, _ in training:
            m.training = False
        for m in cached:
            setattr(m, "cached", False)  # noqa: B010
        yield
    finally:
        for m, mode in training:
            m.training = mode
        for m in cached:
            setattr(m, "cached", True)  # noqa: B010  (Module.__setattr__ is typed for tensors)


@contextmanager
def eagerly() -> Iterator[None]:
    """Let compiled parts of a model run as they are written."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None or "torch._dynamo" not in sys.modules:  # before torch 2.6; or none are
        yield
        return
    with set_stance("force_eager"):
        yield


@contextmanager
def same_generators(tensors: Iterable[Tensor]) -> Iterator[set[str]]:
    """Put all generators back; the set holds afterwards whose random numbers were drawn."""
    drew: set[str] = set()
    devices = sorted({t.device.index for t in tensors if t.device.index is not None})

    def states() -> dict[str, Any]:
        numbers = np.random.get_state()
        on_devices = [torch.cuda.get_rng_state(d).numpy().tobytes() for d in devices]
        return {
            "torch": (torch.get_rng_state().numpy().tobytes(), *on_devices),
            "Python": random.getstate(),
            "NumPy": [n.tobytes() if isinstance(n, np.ndarray) else n for n in numbers],
        }

    before, numbers, others = states(), np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices):
        try:
            yield drew
        finally:
            drew |= {kind for kind, state in states().items() if state != before[kind]}
            np.random.set_state(numbers)
            random.setstate(others)
