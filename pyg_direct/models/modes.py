"""Modes in which a model runs for a while: in evaluation, uncompiled, without drawing."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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


class Generators:
    """The states of all generators of random numbers: of torch on some devices, Python and NumPy.

    Args:
        tensors: on whose devices they are, beside the CPU.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._devices = sorted({t.device.index for t in tensors if t.device.index is not None})
        of_devices = [torch.cuda.get_rng_state(d) for d in self._devices]
        self._torch = [torch.get_rng_state(), *of_devices]
        self._numpy, self._python = np.random.get_state(), random.getstate()

    def put_back(self) -> None:
        """Let all generators be as they were."""
        torch.set_rng_state(self._torch[0])
        for device, state in zip(self._devices, self._torch[1:], strict=True):
            torch.cuda.set_rng_state(state, device)
        np.random.set_state(self._numpy)
        random.setstate(self._python)

    def differing(self, other: Generators) -> list[str]:
        """Return whose generators are in another state than those of `other`."""
        numbers = zip(self._numpy, other._numpy, strict=True)
        same = {
            "torch": all(map(torch.equal, self._torch, other._torch)),
            "Python": self._python == other._python,
            "NumPy": all(np.array_equal(ours, theirs) for ours, theirs in numbers),
        }
        return [kind for kind, equal in same.items() if not equal]
