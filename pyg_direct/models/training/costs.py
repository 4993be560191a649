"""On which batches a step on the needed rows pays."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...core.private_torch import at_end_of_backward, tree_leaves
from ...ops import clock
from ...ops.devices import HOST, wait_for

# What such a step costs more in Python, for a batch and for each operation of the forward. The unit
# is what the plain model spends on an entry of a message (edges times columns). From times of steps
# with one CPU thread, at the sizes where both ways take as long: docs/guides/training.md has them.
COST_OF_BATCH, COST_OF_CALL = 200_000, 12_000
PRODUCTS_PER_ENTRY = 1000  # products of two numbers in a dense matrix product that take as long

# Of the calls of one kind, the first are not timed; those of the plain model are these.
UNTIMED, PLAIN_CALLS, TIMED_CALLS = 4, (7, 14, 21, 28), 32


class StepCosts:
    """What the last step on the needed rows has shown of a model.

    Nothing but the time depends on it.
    """

    def __init__(self) -> None:
        self._columns: float | None = None  # entries for each edge
        self._calls = 0

    def learn(self, num_edges: int, entries: int, calls: int, products: int) -> None:
        """Take the numbers of a step.

        Args:
            num_edges: of the batch.
            entries: of all messages that its forward sums up.
            calls: operations of torch in its forward.
            products: of two numbers, in products of its rows with dense matrices.
        """
        if num_edges > 0:
            entries += products // PRODUCTS_PER_ENTRY
            self._columns, self._calls = entries / num_edges, calls

    def pay(self, num_edges: int) -> bool:
        """Whether a step on the needed rows is expected to be faster than one of the plain model.

        The first step is taken on the needed rows, as nothing is known before.
        """
        if self._columns is None:
            return True
        return self._columns * num_edges >= COST_OF_BATCH + COST_OF_CALL * self._calls


class StepTimes:
    """How long steps take on the needed rows, and how long as the plain model has them.

    Of the first calls some are of the plain model, always the same ones, so that numbers depend on
    what is decided at the end alone. Nothing is timed where torch is to be deterministic.

    Attributes:
        slower: why the plain model is to run, by kind of call.
    """

    def __init__(self) -> None:
        self.slower: dict[Any, str] = {}
        self._calls: dict[Any, int] = {}
        self._seconds: dict[Any, tuple[list[float], list[float]]] = {}

    def run(
        self,
        kind: Any,
        num_edges: int,
        needed: Callable[[], Any],
        plain: Callable[[], Any],
        device: torch.device = HOST,
    ) -> Any:
        """Return what a step returns; it is one of the plain model now and then.

        Args:
            kind: of the call: those of another one are timed by themselves.
            num_edges: of the batch.
            needed, plain: run the step on the needed rows, or as it is.
            device: of the model. A GPU is waited for around each part that is timed.
        """
        call = self._calls[kind] = self._calls.get(kind, 0) + 1
        if call > TIMED_CALLS or torch.are_deterministic_algorithms_enabled():
            return needed()
        as_it_is = call in PLAIN_CALLS
        begin = _ended(device)
        out = plain() if as_it_is else needed()
        forward = _ended(device) - begin

        def took(backward: float) -> None:
            if call > UNTIMED:
                pair = self._seconds.setdefault(kind, ([], []))
                pair[as_it_is].append((forward + backward) / max(1, num_edges))
                self._decide(kind, *pair)

        _time_backward(out, device, took)
        return out

    def _decide(self, kind: Any, needed: list[float], plain: list[float]) -> None:
        if len(needed) + len(plain) < TIMED_CALLS - UNTIMED:
            return
        ours, theirs = median(needed), median(plain)
        if ours > theirs:
            self.slower[kind] = (
                f"steps on the needed rows took {ours / theirs:.2f} times as long as plain "
                f"ones (medians of {TIMED_CALLS} steps); forms() tells what ran on all rows"
            )


def _ended(device: torch.device) -> float:
    """Return the time at which a device has done what it was given so far."""
    wait_for(device)
    return clock.now()


def _time_backward(out: Any, device: torch.device, took: Callable[[float], None]) -> None:
    """Call a function with the seconds of the first backward of an output; with 0 if none comes."""
    needing = [v for v in tree_leaves(out) if isinstance(v, Tensor) and v.requires_grad]
    if not needing:
        took(0.0)
        return
    begun: list[float] = []

    def begin(grad: Tensor) -> None:
        if not begun:
            begun.append(_ended(device))
            at_end_of_backward(lambda: took(_ended(device) - begun[0]))

    needing[0].register_hook(begin)  # type: ignore[no-untyped-call]
