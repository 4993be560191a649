"""Modes in which a model runs for a while, and those of torch that an operation depends on."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

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
    """Run compiled parts of a model eagerly."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None or "torch._dynamo" not in sys.modules:  # before torch 2.6; or none are
        yield
        return
    with set_stance("force_eager"):
        yield


TINY = 5e-324  # a number below the normal ones
DEVICES = ("cpu", "cuda")  # that autocast is set for


class Modes(NamedTuple):
    """Modes of torch that numbers depend on, for operations that are computed later.

    Those of gradients are not among them, as autograd is above what is computed, nor is autocast,
    which has converted the operands when an operation is called.
    """

    dtype: torch.dtype  # of numbers and new tensors
    deterministic: int
    precision: str | None  # of matrix products; None where it is set by backend
    flushes: bool  # numbers below the normal ones, in this thread

    def take(self, now: Modes) -> None:
        """Set what is otherwise now."""
        if self.dtype != now.dtype:
            torch.set_default_dtype(self.dtype)
        if self.deterministic != now.deterministic:
            torch.set_deterministic_debug_mode(self.deterministic)
        if self.precision != now.precision and self.precision is not None:
            torch.set_float32_matmul_precision(self.precision)
        if self.flushes != now.flushes:
            torch.set_flush_denormal(self.flushes)


_latest: Any = None


def modes_now() -> Modes:
    """Return the modes of torch; the same object as long as they do not change."""
    global _latest
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:
        precision = None
    deterministic = torch.get_deterministic_debug_mode()
    found = torch.get_default_dtype(), deterministic, precision, TINY * 1.0 == 0.0
    known = _latest
    if found != known:
        known = _latest = Modes(*found)
    return cast(Modes, known)


class AsCalled:
    """Lets operations be computed in the modes in which they were called, below autocast.

    Attributes:
        now: the modes that are set.
    """

    def __enter__(self) -> AsCalled:
        """Remember the modes that hold."""
        self._before = self.now = modes_now()
        self._autocast = [d for d in DEVICES if torch.is_autocast_enabled(d)]
        for device in self._autocast:  # what it has cached stays
            torch.set_autocast_enabled(device, False)
        self._contexts: list[Any] = [torch.no_grad()]
        if torch.is_inference_mode_enabled():
            self._contexts.insert(0, torch.inference_mode(False))
        for context in self._contexts:
            context.__enter__()
        return self

    def take(self, modes: Modes) -> None:
        """Set the modes of an operation."""
        if modes is not self.now:
            modes.take(self.now)
            self.now = modes

    def __exit__(self, *error: object) -> None:
        """Put back the modes that held."""
        for context in reversed(self._contexts):
            context.__exit__(*error)
        for device in self._autocast:
            torch.set_autocast_enabled(device, True)
        if self.now is not self._before:
            self._before.take(self.now)


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

    def restore(self) -> None:
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
