"""Ranks that compute one result together, each of which runs the same program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .exchange import check_split, default_group, gathered, gathered_unless_failed

T = TypeVar("T")


class Together:
    """Some ranks that take the same steps, or only this process.

    Every exchange names its step, so that ranks whose programs differ are refused: otherwise, one
    would take what belongs to another step of another rank.

    Args:
        by: a process group, True for the default one, or False for only this process.
        device: see `gathered`.

    Raises:
        TypeError: `by` is something else.
        RuntimeError: it is True, and there is no default group.
    """

    def __init__(self, by: Any, device: torch.device) -> None:
        check_split(by)
        self._group = default_group() if by is True else by or None
        self._device, self._ended = device, False
        self.rank, self.size = 0, 1
        if self._group is not None:
            self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)

    def exchange(self, step: str, value: Any = None, error: Exception | None = None) -> list[Any]:
        """Return the values of all ranks, by rank. Collective.

        Args:
            step: what this rank does; the same text on all ranks.
            value: can be pickled.
            error: what failed on this rank; None for nothing.

        Raises:
            Exception: `error`, if there is one.
            RuntimeError: another rank failed, or is at another step.
        """
        if self.size == 1:
            if error is not None:
                raise error
            return [value]
        self._ended = True
        said = gathered_unless_failed(
            (step, value), error, partial(gathered, group=self._group, device=self._device)
        )
        for rank, (other, _) in enumerate(said):
            if other != step:
                raise RuntimeError(
                    f"Ranks compute different things: rank {rank} is at {other!r}, where this one "
                    f"is at {step!r}. The model's forward must not depend on the rank."
                )
        self._ended = False
        return [value for _, value in said]

    def from_first(self, step: str, make: Callable[[], T]) -> T:
        """Return what a function returns on the first rank; others do not call it. Collective.

        Raises:
            Exception: see `exchange`.
        """
        value, error = None, None
        if self.rank == 0:
            try:
                value = make()
            except Exception as caught:
                error = caught
        found: T = self.exchange(step, value, error)[0]
        return found

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the others, who wait at their next step, of an error on this rank."""
        try:
            yield
        except Exception as error:
            if self.size > 1 and not self._ended:
                with contextlib.suppress(Exception):
                    self.exchange("an error", None, error)
            raise
