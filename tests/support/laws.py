"""Tests of randomness: each returns the probability of a deviation as large under the exact law.

`picks` is an array [R, k] of positions in lists of length d, one row for each independent draw.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch_geometric.data import Data

Ints = npt.NDArray[np.int64]

# The chance that the whole suite fails without a fault is below 1e-3, and with its fixed seeds the
# outcome is the same in every run. `P_VALUES` bounds how many p-values all tests look at.
P_VALUES = 200
THRESHOLD = 1e-3 / P_VALUES


def star(hubs: int, degree: int) -> Data:
    """Return `hubs` nodes (ids from `degree` on) with the same in-neighbours 0, ..., degree - 1."""
    leaf = torch.arange(degree).repeat(hubs)
    hub = degree + torch.arange(hubs).repeat_interleave(degree)
    return Data(edge_index=torch.stack([leaf, hub]), num_nodes=degree + hubs)


def two_sided(z: float) -> float:
    return float(2 * stats.norm.sf(abs(z)))


def chi_square(observed: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """p-value of counts against expected counts with the same sum, as rare cells are pooled."""
    observed, expected = np.asarray(observed, float).ravel(), np.asarray(expected, float).ravel()
    rare = expected < 10
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        keep = expected > 0
        observed, expected = observed[keep], expected[keep]
    assert len(observed) > 1, "too few draws for a test"
    q = float(((observed - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(q, len(observed) - 1))


def single_inclusion(picks: Ints, d: int) -> float:
    """Every entry is picked equally often. Without replacement.

    Draws without replacement are negatively correlated, so Pearson's Q is too small by the factor
    (1 - k/d) d / (d - 1): corrected, it is chi-square with d - 1 degrees of freedom.
    """
    r, k = picks.shape
    expected = r * k / d
    q = float(((np.bincount(picks.ravel(), minlength=d) - expected) ** 2 / expected).sum())
    corrected = q * (d - 1) / (d * (1 - k / d))
    # Also too even is wrong: `min` with the lower tail.
    upper, lower = stats.chi2.sf(corrected, d - 1), stats.chi2.cdf(corrected, d - 1)
    return float(min(1.0, 2 * min(upper, lower)))


def single_inclusion_with_replacement(picks: Ints, d: int) -> float:
    return chi_square(np.bincount(picks.ravel(), minlength=d), np.full(d, picks.size / d))


def pairs(picks: Ints, d: int) -> float:
    """Every pair is picked together equally often: max |z| over all pairs, with Bonferroni."""
    r, k = picks.shape
    if k == 1:
        return 1.0  # there are none
    member = np.zeros((r, d), np.float32)
    member[np.arange(r)[:, None], picks] = 1
    together = (member.T @ member)[np.triu_indices(d, 1)]
    p = k * (k - 1) / (d * (d - 1))
    z = float(np.abs(together - r * p).max() / np.sqrt(r * p * (1 - p)))
    return min(1.0, two_sided(z) * comb(d, 2))


def mean_of_features(picks: Ints, d: int) -> float:
    """The mean of a sample's features is unbiased; their variance is that of the law within 5 %."""
    k = picks.shape[1]
    x = np.random.default_rng(0).normal(size=d)
    x = (x - x.mean()) / x.std()
    means = x[picks].mean(1)
    variance = (d - k) / ((d - 1) * k)
    if not abs(means.var() / variance - 1) < 0.05:
        return 0.0
    return two_sided(means.mean() / np.sqrt(variance / len(means)))


def overlap(one: Ints, other: Ints, d: int) -> float:
    """Two independent k-subsets of d have a hypergeometric number of entries in common."""
    r, k = one.shape
    member = np.zeros((2, r, d), bool)
    for m, picks in zip(member, (one, other), strict=True):
        m[np.arange(r)[:, None], picks] = True
    common = (member[0] & member[1]).sum(1)
    expected = stats.hypergeom.pmf(np.arange(k + 1), d, k, k) * r
    return chi_square(np.bincount(common, minlength=k + 1), expected)


def independence(one: Ints, other: Ints, d: int) -> float:
    """Two entries drawn independently and uniformly fill a table [d, d] evenly."""
    table = np.bincount(one * d + other, minlength=d * d)
    return chi_square(table, np.full(d * d, len(one) / d**2))


def lag_one(member: npt.NDArray[np.bool_], p: float) -> float:
    """Memberships [batches, entries] of successive batches are uncorrelated."""
    centred = member - p
    products = (centred[:-1] * centred[1:]).sum(1)
    # Within one batch the entries of a k-subset are correlated, so the variance of the sum over
    # the d entries is taken from the products themselves.
    return two_sided(products.mean() / (products.std(ddof=1) / np.sqrt(len(products))))


def same_distribution(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Two samples of a number come from one distribution (Kolmogorov and Smirnov)."""
    return float(stats.ks_2samp(one, other).pvalue)


def same_counts(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Two tables of counts come from one distribution (chi-square of homogeneity)."""
    table = np.stack([np.asarray(one, float), np.asarray(other, float)])
    table = table[:, table.sum(0) > 0]
    return float(stats.chi2_contingency(table).pvalue)


Law = Callable[[Ints, int], float]
