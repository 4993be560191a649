"""Attributes of a sampler that may be set at any time, and how they are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.arguments import (
    check_exclusion,
    check_flag,
    check_strategy,
    check_subgraph_type,
    check_window,
)
from ..core.pyg import SubgraphType


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
