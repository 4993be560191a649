"""The few statistics that the tables need."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def spread(samples: list[float]) -> dict[str, float | int]:
    """Return n, median, quartiles and extremes of `samples`."""
    low, median, high = np.percentile(samples, [25, 50, 75])
    return {
        "n": len(samples),
        "median": float(median),
        "p25": float(low),
        "p75": float(high),
        "min": float(min(samples)),
        "max": float(max(samples)),
    }


def permutation_test(first: list[float], second: list[float]) -> float:
    """Return the two-sided p value of an exact permutation test on the difference of the means.

    It assumes no distribution. Of the ways to deal the pooled values into two groups of the given
    sizes, p is the share with a difference at least as large: 2 of 252 at best for 5 and 5.
    """
    pooled = np.array(first + second)
    observed = abs(np.mean(first) - np.mean(second))
    tolerance = 1e-12  # equal differences must count as equal
    extreme = total = 0
    for chosen in combinations(range(len(pooled)), len(first)):
        mask = np.zeros(len(pooled), bool)
        mask[list(chosen)] = True
        difference = abs(pooled[mask].mean() - pooled[~mask].mean())
        extreme += bool(difference >= observed - tolerance)
        total += 1
    return extreme / total
