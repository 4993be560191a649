"""PyG's `num_neighbors`, by hop and relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch_geometric.sampler import NumNeighbors

from ..core.arguments import shown
from ..core.pyg import EdgeTypeStr
from ..core.types import IntTable

MAX_FANOUT = 2**63 - 1
MAX_DRAWS = 2**31 - 1  # with replacement, where every fan-out is drawn in full
MAX_HOPS = 255  # a hop is eight bits of the random counter

Fanouts: TypeAlias = tuple[tuple[int, ...], ...]
"""[hops][relations]; a negative one means all neighbours."""


def as_num_neighbors(value: Any) -> NumNeighbors:
    """Return `value` in PyG's own class.

    Raises:
        ValueError: neither a list nor a dict of lists, or a dict whose keys are not edge types.
    """
    given = value.values if isinstance(value, NumNeighbors) else value
    lists = list(given.values()) if isinstance(given, Mapping) else [given]
    if not all(isinstance(fanouts, (list, tuple)) for fanouts in lists):
        raise ValueError(
            f"num_neighbors must be a list with one fan-out for each hop, such as [15, 10], or, "
            f"with edge types, a dict of such lists, got {shown(given)}."
        )
    try:
        return value if isinstance(value, NumNeighbors) else NumNeighbors(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"num_neighbors={shown(value)} names no edge types: {error}") from error


def fanouts_of(num_neighbors: NumNeighbors, edge_types: Sequence[Any], is_hetero: bool) -> Fanouts:
    """Return the fan-outs of a graph's relations.

    Raises:
        ValueError: no fan-out for a relation, relations that do not exist, or different numbers of
            hops.
    """
    types: Any = list(edge_types) if is_hetero else None
    if is_hetero and isinstance(num_neighbors.values, Mapping):
        unknown = set(num_neighbors.values) - {EdgeTypeStr(key) for key in edge_types}
        if unknown:
            raise ValueError(
                f"num_neighbors names edge types that are not in the graph: {sorted(unknown)}. It "
                f"has {types}."
            )
    try:
        values: Any = num_neighbors.get_values(types)
    except (TypeError, ValueError) as error:
        raise ValueError(f"num_neighbors={shown(num_neighbors.values)}: {error}") from error
    if is_hetero:
        by_relation = [values[key] for key in edge_types]
    elif isinstance(values, (list, tuple)):
        by_relation = [values]
    else:
        raise ValueError(
            f"num_neighbors must be a list with one fan-out for each hop, as the graph is "
            f"homogeneous, got {shown(values)}."
        )
    return tuple(zip(*by_relation, strict=True))


def check_fanouts(num_neighbors: NumNeighbors, fanouts: Fanouts, replace: bool) -> None:
    """Raise a ValueError unless all fan-outs are integers in range, for not too many hops."""
    for value in (value for hop in fanouts for value in hop):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ValueError(
                f"num_neighbors must hold integers (negative for all neighbours), got "
                f"{shown(value)} in {shown(num_neighbors.values)}."
            )
        if value > (MAX_DRAWS if replace else MAX_FANOUT):
            limit = f"{MAX_DRAWS} at most with replace=True" if replace else f"{MAX_FANOUT} at most"
            raise ValueError(
                f"num_neighbors may be {limit} (negative for all neighbours), got {value}."
            )
    if len(fanouts) > MAX_HOPS:
        raise ValueError(f"num_neighbors may have {MAX_HOPS} hops at most, got {len(fanouts)}.")


def fanout_table(fanouts: Fanouts, num_edges: IntTable, replace: bool) -> IntTable:
    """Return fan-outs that passed `check_fanouts` as int64 [hops, R], ready to compute with.

    Without replacement no node gets more than all edges, so larger fan-outs are cut to that: sums
    and products of them stay in range.

    Args:
        fanouts: [hops][R].
        num_edges: [R], of each relation.
        replace: whether edges are drawn with replacement.

    Example: fan-outs [[5, 9223372036854775807, -1]] of relations of 10 edges are [[5, 10, -1]].
    """
    # Negative numbers of any size mean the same; NumPy would refuse those below -2^63.
    whole = [[max(-1, int(value)) for value in hop] for hop in fanouts]
    table = np.array(whole, np.int64).reshape(len(fanouts), len(num_edges))
    return table if replace else np.minimum(table, num_edges)
