"""Edge weights of a graph, their running sums and alias tables."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.threads import MIN_EDGES_PER_THREAD, available_cores, split
from ..core.types import NO_TIME, Csc, WeightTable
from ..kernels import alias as weight_tables

Ints = npt.NDArray[Any]
Longs = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


def with_weights(
    csc: Csc, weight: Doubles, relations: npt.NDArray[np.bool_], positive: bool = False
) -> Csc:
    """Return `csc`, with its arrays on the host, with weights.

    Args:
        csc: the graph, with its times if it has some.
        weight: [E] by position, each >= 0 and finite; anything where a relation has no weights.
        relations: [R], which relations have weights.
        positive: whether all of them are known to be above 0.
    """
    weight, cumulative = weights_and_sums(csc.indptr, weight)
    weights = WeightTable(weight, cumulative, None, relations, positive)
    whole = relations & (csc.time_base == NO_TIME)
    return replace(csc, weights=with_alias_tables(csc, weights, whole))


def with_alias_tables(
    csc: Csc, weights: WeightTable, missing: npt.NDArray[np.bool_]
) -> WeightTable:
    """Return `weights` with the alias tables of the relations `missing` [R] beside those it has.

    Takes 8 bytes for each edge of the graph, unless nothing is missing.

    Args:
        csc: the graph, with its arrays on the host; their lists and the weights are known to be
            valid.
        weights: of the graph.
        missing: which relations get a table, of those that have weights.
    """
    if not missing.any():
        return weights
    alias = np.zeros(len(weights.weight), np.int64)
    if weights.alias is not None:
        alias[:] = weights.alias
    for r in np.flatnonzero(missing):
        first = csc.indptr_base[r]
        indptr = csc.indptr[first : first + csc.num_nodes[csc.dst_type[r]] + 1]
        fill_alias_tables(indptr, weights.weight, weights.cumulative, alias)
    return weights._replace(alias=alias)


def weights_and_sums(indptr: Ints, weight: Doubles) -> tuple[Doubles, Doubles]:
    """Return `weight` [E] and its running sums within each list of `indptr`, ready to draw from.

    Lists whose sum is infinite or next to nothing are copied and rescaled first.
    """
    running = np.empty_like(weight)
    split(
        len(indptr) - 1,
        _threads(weight),
        partial(weight_tables.accumulate, indptr, weight, running),
    )
    total = running[indptr[1:][indptr[1:] > indptr[:-1]] - 1]
    if ((total > weight_tables.LARGE) | ((total > 0) & (total < weight_tables.SMALL))).any():
        weight = weight.copy()
        weight_tables.rescale(indptr, weight, running)
    return weight, running


def fill_alias_tables(indptr: Ints, weight: Doubles, cumulative: Doubles, table: Longs) -> None:
    """Fill the alias tables `table` [E], zeros before, of the lists of `indptr`."""
    keep, other = weight_tables.parts(table)
    task = partial(weight_tables.fill_alias, indptr, weight, cumulative, keep, other)
    split(len(indptr) - 1, _threads(weight), task)


def alias_table_of(weight: Doubles) -> Longs:
    """Return the alias table [n] of one list of weights [n], n < 2^32, each >= 0 and one above."""
    whole = np.array([0, len(weight)])
    weight, cumulative = weights_and_sums(whole, weight)
    table = np.zeros(len(weight), np.int64)
    weight_tables.fill_alias(whole, weight, cumulative, *weight_tables.parts(table), 0, 1)
    return table


def _threads(weight: Doubles) -> int:
    return available_cores() if len(weight) >= MIN_EDGES_PER_THREAD else 1
