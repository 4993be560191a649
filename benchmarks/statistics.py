"""The few statistics that the tables need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

MAX_DEALS = 50_000


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


def growth(nodes: Sequence[int], costs: Sequence[float]) -> float:
    """Return how many times as large a cost is for ten times the nodes, from two sizes."""
    return float((costs[1] / costs[0]) ** (1 / math.log10(nodes[1] / nodes[0])))


def compare(scores: dict[str, list[float]], first: str, second: str) -> dict[str, object]:
    """Return means and deviations of all in `scores`, and how `first` differs from `second`."""
    mean = {name: float(np.mean(values)) for name, values in scores.items()}
    return {
        "mean": mean,
        "std": {name: float(np.std(values, ddof=1)) for name, values in scores.items()},
        "difference": mean[first] - mean[second],
        "p_value": permutation_test(scores[first], scores[second]),
    }


def permutation_test(first: list[float], second: list[float]) -> float:
    """Return the two-sided p value of a permutation test on the difference of the means.

    It assumes no distribution. Of the ways to deal the pooled values into two groups of the given
    sizes, p is the share with a difference at least as large: 2 of 252 at best for 5 and 5. Where
    there are too many ways, a fixed random choice of them stands for all.
    """
    pooled, size = np.array(first + second), len(first)
    if math.comb(len(pooled), size) <= MAX_DEALS:
        deals = np.array(list(combinations(range(len(pooled)), size)))
    else:
        rng = np.random.default_rng(0)
        deals = rng.permuted(np.tile(np.arange(len(pooled)), (MAX_DEALS, 1)), axis=1)[:, :size]
        deals[0] = np.arange(size)  # the one that happened
    sums = pooled[deals].sum(axis=1)
    differences = abs(sums / size - (pooled.sum() - sums) / (len(pooled) - size))
    tolerance = 1e-12  # equal differences must count as equal
    observed = abs(np.mean(first) - np.mean(second))
    return float(np.mean(differences >= observed - tolerance))
