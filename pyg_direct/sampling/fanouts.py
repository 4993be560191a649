"""PyG's `num_neighbors`, and the other settings of a sampler: which may be changed or combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch_geometric.sampler import NumNeighbors

from ..core.arguments import (
    check_exclusion,
    check_flag,
    check_strategy,
    check_subgraph_type,
    check_window,
    shown,
)
from ..core.pyg import EdgeTypeStr, SubgraphType
from ..core.types import Csc, IntTable
from ..graph.verify import parallel_edges

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


class Setting:
    """An attribute that is kept in the sampler's `Settings`.

    Setting it raises what the sampler's initialiser would.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, sampler: Any, owner: type | None = None) -> Any:
        return self if sampler is None else getattr(sampler._keyed.settings, self._name)

    def __set__(self, sampler: Any, value: Any) -> None:
        checked = _CHECKS[self._name](sampler, value)
        sampler._keyed = sampler._keyed.with_setting(self._name, checked)


def _subgraph_type(sampler: Any, value: Any) -> SubgraphType:
    kind, excluded = check_subgraph_type(value), sampler._keyed.settings.exclude_seed_edges
    check_exclusion(excluded, sampler.edge_types, kind == SubgraphType.bidirectional)
    return kind


def _times_of(sampler: Any) -> str | None:
    return "time_attr" if sampler.is_temporal else None


def _sample_direction(sampler: Any, value: Any) -> Any:
    if value != sampler.sample_direction:
        raise ValueError(
            f"sample_direction={value!r} cannot be set on a sampler, whose graph is grouped for "
            f"{sampler.sample_direction!r}. Build a new one."
        )
    return value


_CHECKS: Mapping[str, Callable[[Any, Any], Any]] = {
    "replace": lambda sampler, value: check_flag("replace", value),
    "subgraph_type": _subgraph_type,
    "temporal_strategy": lambda sampler, value: check_strategy(value, _times_of(sampler)),
    "time_window": lambda sampler, value: check_window(value, _times_of(sampler)),
    "sample_direction": _sample_direction,
}


WHY_NOT: Mapping[str, Mapping[str, str]] = {
    "uniform": {},
    "labor": {
        "replace=True": "its lists give the sources of smallest variates, each once",
        "disjoint=True": "subgraphs of their own share no nodes, which is all that LABOR is for",
        "time_attr": "it makes subgraphs disjoint, which share no nodes, and that is all LABOR is "
        "for",
        "weight_attr": "its variates know no weights",
    },
    "adaptive": {
        "replace=True": "a list would never be too short, so that nothing is left to hand on",
        "weight_attr": "how many edges of positive weight a list has is not counted",
        "negative fan-outs": "a fan-out of -1 has no size to share out",
    },
}


def check_law(law: str, given: Mapping[str, bool]) -> None:
    """Raise a ValueError if a law is asked for beside what it cannot honour.

    Args:
        law: `sampling=`.
        given: of the names in `WHY_NOT`, whether they are asked for.
    """
    for name, reason in WHY_NOT[law].items():
        if given[name]:
            raise ValueError(
                f"sampling={law!r} cannot be combined with {name}: {reason}. Use "
                f"sampling='uniform', or leave {name} out."
            )


def check_simple(csc: Csc, edge_types: Sequence[Any]) -> None:
    """Raise a ValueError if a node has two edges from the same source.

    They would have the same variate, so a list would take both or none of them.

    Args:
        csc: a graph on the host, verified.
        edge_types: of its relations, for the message.
    """
    found = parallel_edges(csc)
    if found is not None:
        relation, source, destination = found
        kind = edge_types[relation]
        of_type = "" if kind is None else f" of type {kind}"
        raise ValueError(
            f"sampling='labor' needs a graph without parallel edges, but there are "
            f"several{of_type} from node {source} to node {destination}, which would be taken "
            f"together. Merge them (torch_geometric.utils.coalesce), or use sampling='uniform'."
        )
