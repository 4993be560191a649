"""How likely the hop of a batch draws each node, as if draws were independent of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

SURE = 1.0 - 2.0**-53  # so that its logarithm is finite


@kernel
def add_log_missed(
    indptr: Ints,  # [N_dst + 1], of one relation
    indices: Ints,  # [E], of all relations, each in [0, N_src)
    fanout: int,  # negative: all neighbours
    replace: bool,
    frontier: Doubles,  # [N_dst]: probability that the hop expands a node
    times: Doubles,  # [N_dst]: how often it is expanded then; [0] where once
    log_missed: Doubles,  # [N_src], which is added to
) -> None:
    """Add for each edge the logarithm of the probability that no draw takes it.

    A list of d edges that is expanded once takes each with probability min(fanout, d) / d, or with
    replacement 1 - (1 - 1 / d)^fanout.

    Example: node 0 has the neighbours 3 and 5, a fan-out of 1 and the probability 0.5 to be
    expanded: `log_missed` of 3 and of 5 grows by log(1 - 0.25).
    """
    for v in range(frontier.shape[0]):
        first, last = indptr[v], indptr[v + 1]
        if last > first and frontier[v] > 0:
            degree = last - first
            share = 1.0
            if fanout >= 0:
                if replace:
                    share = 1.0 - (1.0 - 1.0 / degree) ** fanout
                elif fanout < degree:
                    share = fanout / degree
            if times.shape[0] > 0:
                share = 1.0 - (1.0 - share) ** times[v]
            missed = np.log1p(-min(share * frontier[v], SURE))
            for e in range(first, last):
                log_missed[indices[e]] += missed
