"""A comparison of an accelerated model with the plain one, on the first batch and some later ones.

An accelerated model runs the user's own forward on tensors of which some rows are computed. What
such a tensor cannot stand for (code that takes its memory, or asks for its type) makes the numbers
differ; so they are compared where they are used: on the user's batches.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.private_torch import tree_leaves, without_hooks
from ..lazy.modes import Generators, eagerly
from .batch_sizes import failure, tensors_of
from .model_state import held_by
from .undo import NotComparable, Undo

logger = logging.getLogger("pyg_direct")
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


class Outcome(NamedTuple):
    """What a copy of a model has done.

    Attributes:
        outputs: what it returned, and the arguments that it may have written to.
        gradients: under fixed random weights of the outputs, by name.
        held: what the copy holds afterwards, by place.
        generators: of random numbers.
    """

    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]
    held: dict[str, Any]
    generators: Generators


class Certificate:
    """Counts the calls of an accelerated model, and compares some of them with the plain one.

    Two copies of the model take the step, one plain and one accelerated, from the same state with
    the same random numbers; the model itself does not, and is as before afterwards, with all that
    can be reached from it. Not compared are a model that cannot be copied, one that writes to a
    tensor of its own of `LARGE_BYTES` or more, and what the plain model itself does not repeat; the
    log says so once.

    Attributes:
        left_out: why the last call that was due was not compared, "" if it was.
    """

    def __init__(self) -> None:
        self._calls: Counter[Any] = Counter()
        self._where = ""
        self.left_out = ""

    def is_due(self, kind: Any = None, call: int | None = None) -> bool:
        """Count a call, or be told its number, and return whether it is to be compared.

        Args:
            kind: of calls that are counted by themselves, as of training and of evaluation.
            call: the number of this one, if the caller counts.
        """
        number = self._calls[kind] = self._calls[kind] + 1 if call is None else call
        self._where = f" (call {number})"
        return is_compared(number)

    def check(
        self,
        model: torch.nn.Module,
        accelerated: Callable[[torch.nn.Module], Any],
        plain: Callable[[torch.nn.Module], Any],
        arguments: Any = (),
    ) -> str:
        """Return why the accelerated model cannot be used, "" if it can.

        Args:
            model: the plain model.
            accelerated: returns what a copy of `model` returns that is accelerated, of its rows
                those of the seeds, and the arguments that it was given.
            plain: likewise of a copy that is not.
            arguments: what both get copies of, as far as they are tensors.
        """
        undo = Undo(model, arguments, for_copies=True)

        def outcome(run: Callable[[torch.nn.Module], Any]) -> Outcome:
            try:
                twin = undo.copy_of(model)
                with undo.watching():
                    return _outcome(run, twin)
            finally:
                undo.restore()

        try:
            expected = outcome(plain)
        except NotComparable as error:
            return self._leave_out(model, str(error))
        except Exception:  # the call itself will say so
            return ""
        try:
            found = outcome(accelerated)
        except torch.cuda.OutOfMemoryError:  # the call itself takes another way
            return ""
        except Exception as error:
            return failure(error)
        differing = differences(found, expected)
        if differing:
            noise = differences(outcome(plain), expected)
            differing = {what: text for what, text in differing.items() if what not in noise}
            if not differing:
                return self._leave_out(model, f"run twice, {next(iter(noise.values()))}")
        return next((f"{text}{self._where}" for text in differing.values()), "")

    def _leave_out(self, model: torch.nn.Module, why: str) -> str:
        if not self.left_out:
            logger.warning("%s is not compared with the plain model: %s", type(model).__name__, why)
        self.left_out = why
        return ""


def is_compared(call: int) -> bool:
    """Whether a call is compared with the plain model, by its number from 1 on."""
    return call in CALLS or call % EVERY == 0


def kind_of_call(model: torch.nn.Module, arguments: Any) -> Any:
    """Return what a call has in common with those whose backward is the same."""
    if not torch.is_grad_enabled():
        return model.training
    learning = tuple([p.requires_grad for p in model.parameters()])
    return model.training, learning, any(t.requires_grad for t in tensors_of(arguments))


def _outcome(run: Callable[[torch.nn.Module], Any], twin: torch.nn.Module) -> Outcome:
    with ExitStack() as stack:
        # A checkpoint around the model must not count what a comparison saves for its backward.
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
        stack.enter_context(eagerly())
        out, given = run(twin)
        outputs, arguments = leaves_of(out), tensors_of(given)
        wanted: dict[str, Tensor] = {f"parameter {n!r}": p for n, p in twin.named_parameters()}
        wanted |= {f"argument {i}": t for i, t in enumerate(arguments) if t.is_leaf}
        gradients = _gradients(outputs, {k: t for k, t in wanted.items() if t.requires_grad})
        held = held_by(twin)
    outputs = [t.detach() for t in (*outputs, *arguments)]
    return Outcome(outputs, gradients, held, Generators(outputs))


def leaves_of(value: Any) -> list[Tensor]:
    """Return the tensors and numbers of a result."""
    found: list[Tensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf if leaf.layout == torch.strided else leaf.to_dense())
        elif isinstance(leaf, (bool, int, float)):
            found.append(torch.tensor(leaf))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += leaves_of({f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf)})
    return found


def _gradients(outputs: list[Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Return gradients under fixed random weights of the outputs."""
    outputs = [t for t in outputs if t.requires_grad]
    if not outputs or not wanted:
        return {}
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(t.shape, generator=draw).to(t) for t in outputs]
    with without_hooks([t for t in wanted.values() if isinstance(t, torch.nn.Parameter)]):
        grads = torch.autograd.grad(outputs, list(wanted.values()), weights, allow_unused=True)
    dense = [None if g is None else g.to_dense() if g.is_sparse else g for g in grads]
    return dict(zip(wanted, dense, strict=True))


def different_outputs(found: list[Tensor], expected: list[Tensor]) -> str:
    """Return a text if outputs differ by more than rounding."""
    if [t.shape for t in found] != [t.shape for t in expected]:
        return "its outputs differ in shape from those of the plain model"
    pairs = zip(found, expected, strict=True)
    texts = (_difference("its outputs differ", a, b, _largest(b)) for a, b in pairs)
    return next(filter(None, texts), "")


def differences(found: Outcome, expected: Outcome) -> dict[str, str]:
    """Return in what two outcomes differ, and a text for each."""
    texts = {"outputs": different_outputs(found.outputs, expected.outputs)}
    for place in expected.held.keys() | found.held.keys():
        texts[place] = _different_values(place, found.held.get(place), expected.held.get(place))
    texts |= _different_gradients(found.gradients, expected.gradients)
    for kind in found.generators.differing(expected.generators):
        texts[kind] = (
            f"its forward draws random numbers of {kind}, which a second call does not repeat"
        )
    return {what: text for what, text in texts.items() if text}


def _different_values(place: str, ours: Any, theirs: Any) -> str:
    """Return a text if the entries at a place of two models differ."""
    tensors = isinstance(ours, Tensor) and isinstance(theirs, Tensor)
    if tensors and ours.shape == theirs.shape and ours.dtype == theirs.dtype:
        return _difference(f"what it holds as {place!r} differs", ours, theirs, _largest(theirs))
    same = not tensors and type(ours) is type(theirs) and ours == theirs
    return "" if same else f"its forward changes {place!r}, which a second call does not repeat"


def _different_gradients(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, str]:
    """Return in which gradients two outcomes differ, and a text for each."""
    least = SMALL_GRADIENT * max(map(_largest, expected.values()), default=0.0)
    texts = {}
    for name in expected.keys() | found.keys():
        pair = found.get(name), expected.get(name)
        like = next((t for t in pair if t is not None), None)
        if like is None:
            continue
        ours, theirs = (torch.zeros_like(like) if t is None else t for t in pair)
        scale = max(_largest(theirs), least)
        what = f"the gradients of its {name.partition(' ')[0]}s differ"
        texts[name] = _difference(what, ours, theirs, scale)
    return texts


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
