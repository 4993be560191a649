"""Windows of time of single seeds: which times their neighbours may have."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from ..core.arguments import check_tensor
from .negatives import links_of_seeds

LEAST_TIME = torch.iinfo(torch.int64).min


class TimeBounds(NamedTuple):
    """The first and the last time that neighbours may have, seed by seed."""

    start: Tensor | None = None  # int64 [seeds]; None: of any age
    end: Tensor | None = None  # int64 [seeds]; None: the time of the seed

    def at(self, index: Tensor) -> TimeBounds:
        """Return the bounds of some of the seeds."""
        return TimeBounds(*(None if bound is None else bound[index] for bound in self))

    def of_links(self, num_seeds: int, num_links: int, paired: bool) -> TimeBounds:
        """Return the bounds of all seeds of a batch of links, from those of the links."""
        return self.at(links_of_seeds(num_seeds, num_links, paired))

    def parts(self) -> tuple[dict[str, str], list[Tensor]]:
        """Return which bounds there are, by name, and the bounds, for fingerprints."""
        given = {name: bound for name, bound in self._asdict().items() if bound is not None}
        return ({"windows": " ".join(given)} if given else {}), list(given.values())

    def cut(self, seed_time: Tensor, window: int | None) -> tuple[Tensor, Tensor | None]:
        """Return the last and the first time that neighbours of each seed may have.

        Args:
            seed_time: int64 [seeds].
            window: how much older than its seed a neighbour may be; None for any age.
        """
        end = seed_time if self.end is None else torch.minimum(seed_time, self.end)
        if window is None:
            return end, self.start
        return end, torch.where(seed_time < LEAST_TIME + window, LEAST_TIME, seed_time - window)


NO_BOUNDS = TimeBounds()


def check_bounds(start: Any, end: Any, num_seeds: int) -> TimeBounds:
    """Return `input_start_time` and `input_end_time` as int64, copied to the host.

    Raises:
        TypeError: no tensors.
        ValueError: not one integer for each seed.
    """
    bounds: list[Tensor | None] = []
    for name, bound in (("input_start_time", start), ("input_end_time", end)):
        check_tensor(name, bound)
        if bound is not None and (
            bound.shape != (num_seeds,) or bound.is_floating_point() or bound.is_complex()
        ):
            raise ValueError(
                f"{name} must hold one integer for each of {num_seeds} seeds, got {bound.dtype} of "
                f"shape {tuple(bound.shape)}."
            )
        bounds.append(None if bound is None else bound.to("cpu", torch.int64, copy=True))
    return TimeBounds(*bounds)


def check_windows(bounds: TimeBounds, seed_time: Tensor) -> None:
    """Check bounds beside the times of their seeds, int64 [seeds].

    Raises:
        ValueError: an end later than its seed, or not one window that could hold a neighbour.
    """
    start, end = bounds
    if end is not None and bool((end > seed_time).any()):
        i = int((end > seed_time).nonzero()[0])
        raise ValueError(
            f"input_end_time[{i}] is {int(end[i])}, later than the seed itself, whose time is "
            f"{int(seed_time[i])}: its batch would know the future. If the seed is asked about at "
            f"a later time, pass that as its time."
        )
    last = seed_time if end is None else end
    if start is not None and len(start) > 0 and bool((start > last).all()):
        raise ValueError(
            f"input_start_time is later than the end of every window (of the first seed "
            f"{int(start[0])} and {int(last[0])}), so that no seed would have a neighbour."
        )


class _Bounded:
    """Seeds with windows of their own; selecting from them keeps the windows."""

    bounds: TimeBounds

    def __getitem__(self, index: Any) -> Any:
        index = torch.as_tensor(index, dtype=torch.int64)
        return with_bounds(super().__getitem__(index), self.bounds.at(index))  # type: ignore[misc]


class BoundedNodes(_Bounded, NodeSamplerInput):
    """Seed nodes with windows."""


class BoundedLinks(_Bounded, EdgeSamplerInput):
    """Seed links with windows."""


def with_bounds(seeds: Any, bounds: TimeBounds) -> Any:
    """Return PyG's sampler input with windows of its seeds; as it is where there are none."""
    if bounds == NO_BOUNDS:
        return seeds
    cls = BoundedNodes if isinstance(seeds, NodeSamplerInput) else BoundedLinks
    names = [field.name for field in dataclasses.fields(seeds)]
    bounded = cls(**{name: getattr(seeds, name) for name in names})
    bounded.bounds = bounds
    return bounded


def bounds_of(seeds: Any) -> TimeBounds:
    """Return the windows of a sampler input."""
    return getattr(seeds, "bounds", NO_BOUNDS)
