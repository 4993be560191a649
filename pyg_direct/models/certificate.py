"""A comparison of an accelerated model with the plain one, on the first batch and some later ones.

An accelerated model runs the user's own forward on tensors of which some rows are computed. What
such a tensor cannot stand for (code that takes its memory, or asks for its type) makes the numbers
differ; so they are compared where they are used: on the user's batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..core.private_torch import tree_leaves, without_hooks
from .model_state import ModelState
from .modes import eagerly, same_generators

CALLS = (1, 64)  # that are compared, counted from 1, and each multiple of EVERY
EVERY = 4096
# The largest difference, in parts of the largest number of the plain model, by dtype. Products over
# other numbers of rows round differently, those of TF32 and half precision more so.
ALLOWED = {torch.float64: 1e-7, torch.float32: 1e-3}
ALLOWED_ELSE = 0.1
DIFFERENT_INTEGERS = 0.01  # share that may differ: an argmax turns where two numbers are close
# A gradient is compared with the largest of its parameter, or with this part of the largest of all:
# that of a bias before a norm is rounding and nothing else.
SMALL_GRADIENT = 0.1
DROPOUTS = {
    functional.dropout, functional.alpha_dropout, functional.feature_alpha_dropout,
    functional.dropout1d, functional.dropout2d, functional.dropout3d, torch.dropout,
}  # fmt: skip


@dataclasses.dataclass
class _Outcome:
    """What a model has done: its outputs, gradients, and what it has changed."""

    outputs: list[Tensor]
    gradients: list[Tensor | None]
    changed: set[str]
    buffers: dict[str, Tensor]
    drew: set[str]  # whose random numbers were drawn


class Certificate:
    """Counts the calls of an accelerated model, and compares some of them with the plain one.

    Dropout is the identity in both. The model's state, the gradients of its parameters and all
    generators are as before afterwards; hooks of modules run, as they may change numbers. A model
    that cannot be copied, or writes to a tensor of its own of 64 MiB or more, is not compared, nor
    are the numbers of one that draws random ones (beside dropout).
    """

    def __init__(self) -> None:
        self._calls = 0

    def is_due(self, call: int | None = None) -> bool:
        """Count a call, or be told its number, and return whether it is to be compared."""
        self._calls = self._calls + 1 if call is None else call
        return is_compared(self._calls)

    def check(
        self,
        model: torch.nn.Module,
        accelerated: Callable[[], Any],
        plain: Callable[[torch.nn.Module], Any],
    ) -> str:
        """Return why the accelerated model cannot be used, "" if it can.

        Args:
            model: the plain model.
            accelerated: returns what the accelerated model returns.
            plain: returns what a copy of `model` returns, of its rows those of the seeds.
        """
        state = ModelState(model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        try:
            with same_generators(parameters):  # a copy may be initialised, as of PyG 2.6's Linear
                twin, keep_shared = state.copy_of_model()
        except Exception:  # what a model holds need not be one that can be copied
            return ""
        try:
            with keep_shared:
                expected = _outcome(lambda: plain(twin), twin, parameters)
        except Exception:  # the call itself will say so
            return ""
        finally:
            state.restore()
        try:
            found = _outcome(accelerated, model, parameters)
        except torch.cuda.OutOfMemoryError:  # the call itself takes another way
            return ""
        except Exception as error:
            return f"it fails on some of the rows ({type(error).__name__}: {error})"
        finally:
            state.restore()
        reason = _compared(found, expected)
        return f"{reason} (call {self._calls})" if reason else ""


def is_compared(call: int) -> bool:
    """Whether a call is compared with the plain model, by its number from 1 on."""
    return call in CALLS or call % EVERY == 0


def _outcome(
    run: Callable[[], Any], model: torch.nn.Module, parameters: list[torch.nn.Parameter]
) -> _Outcome:
    before = ModelState(model)
    with ExitStack() as stack:
        drew = stack.enter_context(same_generators(parameters))
        # A checkpoint around the model must not count what a comparison saves for its backward.
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
        stack.enter_context(eagerly())
        with _NoDropout():
            found = _leaves(run())
        changed = before.changed()
        buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        gradients = _gradients([t for t in found if t.requires_grad], parameters)
    return _Outcome([t.detach() for t in found], gradients, changed, buffers, drew)


def _leaves(value: Any) -> list[Tensor]:
    """Return the tensors and numbers of a result."""
    found: list[Tensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, (bool, int, float)):
            found.append(torch.tensor(leaf))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += _leaves({f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf)})
    return found


def _gradients(outputs: list[Tensor], parameters: list[torch.nn.Parameter]) -> list[Tensor | None]:
    """Return the gradients of the parameters under fixed random weights of the outputs."""
    outputs = [t for t in outputs if t.is_floating_point()]
    if not outputs or not parameters:
        return []
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(t.shape, generator=draw).to(t) for t in outputs]
    with without_hooks(parameters):
        grads = torch.autograd.grad(outputs, parameters, weights, allow_unused=True)
    return [None if g is None else g.to_dense() if g.is_sparse else g for g in grads]


def _compared(found: _Outcome, expected: _Outcome) -> str:
    """Return in which way two outcomes differ, "" if they do not."""
    lost = sorted(expected.changed - found.changed)
    if lost:
        return f"its forward changes {', '.join(map(repr, lost))}, which is not repeated"
    kinds = sorted(expected.drew - found.drew)
    if kinds:
        return f"its forward draws random numbers of {' and '.join(kinds)}, which is not repeated"
    if expected.drew:
        return ""
    if [t.shape for t in found.outputs] != [t.shape for t in expected.outputs]:
        return "its outputs have other shapes than those of the plain model"
    for ours, theirs in zip(found.outputs, expected.outputs, strict=True):
        reason = _difference("its outputs differ", ours, theirs, _largest(theirs))
        if reason:
            return reason
    for name, theirs in expected.buffers.items():
        differs = f"the buffer {name!r} differs"
        reason = _difference(differs, found.buffers[name], theirs, _largest(theirs))
        if reason:
            return reason
    return _different_gradients(found.gradients, expected.gradients)


def _different_gradients(found: list[Tensor | None], expected: list[Tensor | None]) -> str:
    """Return in which way gradients differ, "" if they do not."""
    least = SMALL_GRADIENT * max(map(_largest, expected), default=0.0)
    for ours, theirs in zip(found, expected, strict=True):
        if ours is None and theirs is None:
            continue
        like = cast(Tensor, theirs if ours is None else ours)
        ours, theirs = (torch.zeros_like(like) if t is None else t for t in (ours, theirs))
        scale = max(_largest(theirs), least)
        reason = _difference("the gradients of its parameters differ", ours, theirs, scale)
        if reason:
            return reason
    return ""


def _difference(what: str, ours: Tensor, theirs: Tensor, scale: float) -> str:
    """Return a text if two tensors of one shape differ by more than rounding."""
    if ours.numel() == 0:
        return ""
    if not (theirs.is_floating_point() or theirs.is_complex()):
        share = float((ours != theirs).double().mean())
        return f"{what} in {share:.0%} of the numbers" if share > DIFFERENT_INTEGERS else ""
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    gap = float((ours - theirs).abs().masked_fill(same, 0.0).nan_to_num(float("inf")).max())
    allowed = ALLOWED.get(theirs.dtype, ALLOWED_ELSE)
    mixed = torch.is_autocast_enabled(theirs.device.type)
    allowed = max(allowed, ALLOWED_ELSE) if mixed else allowed
    if gap <= allowed * max(scale, torch.finfo(theirs.dtype).tiny):
        return ""
    return (
        f"{what} by {gap:.3g} from those of the plain model, whose largest is {scale:.3g} "
        f"(allowed: {allowed:g} of it)"
    )


def _largest(value: Tensor | None) -> float:
    """Return the largest finite absolute value; 0 if there is none."""
    if value is None or value.numel() == 0 or not (value.is_floating_point() or value.is_complex()):
        return 0.0
    return float(value.abs().nan_to_num(0.0, 0.0, 0.0).max())


class _NoDropout(TorchFunctionMode):
    """Makes dropout the identity: an accelerated model draws for the rows that it computes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DROPOUTS:
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))
