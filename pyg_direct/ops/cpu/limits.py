"""What one batch may not take of the graph, as arrays for the kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...core.types import ExcludedEdges
from ..backend import before_window

Ints = npt.NDArray[Any]

NO_INTS = np.empty(0, np.int64)


class Limits(NamedTuple):
    """The edges that a batch does without, and the times that bound its neighbours."""

    excluded: Ints = NO_INTS  # as in `ExcludedEdges`
    excluded_bounds: Ints = NO_INTS
    seed_time: Ints = NO_INTS  # [seeds], or [0] without times
    seed_before: Ints = NO_INTS  # [seeds], or [0] without a window: see `before_window`


NO_LIMITS = Limits()


def limits_of(seed_time: Tensor | None, excluded: ExcludedEdges | None, window: int) -> Limits:
    """Return the limits of a batch; see `Workspace.start`, and `SamplingPlan.window`."""
    limits = NO_LIMITS
    if excluded is not None:
        position, bounds = (part.numpy() for part in excluded)
        limits = limits._replace(excluded=position, excluded_bounds=bounds)
    if seed_time is not None:
        limits = limits._replace(seed_time=seed_time.numpy())
        if window >= 0:
            limits = limits._replace(seed_before=before_window(seed_time, window).numpy())
    return limits
