"""Which attributes of a graph a batch selects from, and along which dimension."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.pyg import BaseStorage, cat_dim, fields_of, store_of, with_counts

SPARSE = ("adj", "adj_t")
TOPOLOGY = ("edge_index", *SPARSE)


@dataclass(slots=True)
class Attribute:
    """An attribute of nodes or edges."""

    name: str
    dim: int  # along which entries are selected
    checked: Any = field(default=None, compare=False)  # what `gather` found of its value


class Roles(NamedTuple):
    """The attributes of one store by what selects from them; a batch shares all others."""

    node: tuple[Attribute, ...]
    edge: tuple[Attribute, ...]


class _Known(NamedTuple):
    names: list[str]
    values: list[Callable[[], Any]]
    roles: Roles


class KnownRoles:
    """The roles in the stores of one graph, kept until a value of a store is replaced.

    PyG tells them from names, shapes and the class of the graph, which for a small batch takes as
    long as to gather it. Values are compared by identity, and not kept alive.

    Args:
        counts: how many nodes and edges a homogeneous graph has, which it may not tell itself.
    """

    def __init__(self, counts: tuple[int, int] | None = None) -> None:
        self._known: dict[Any, _Known] = {}
        self._counts = counts
        self.named = False  # whether a batch was looked at by `check_names`

    def of(self, key: Any, store: BaseStorage) -> Roles:
        """Return the roles in the store of a type; None is the type of a homogeneous graph."""
        fields, known = fields_of(store), self._known.get(key)
        if known is not None and known.names == list(fields):
            for value, now in zip(known.values, fields.values(), strict=True):
                if value() is not now:  # also where it has died
                    break
            else:
                return known.roles
        roles = roles_in(store, self._counts)
        self._known[key] = _Known(list(fields), list(map(_reference, fields.values())), roles)
        return roles

    def __reduce__(self) -> Any:
        return KnownRoles, (self._counts,)


def roles_in(store: BaseStorage, counts: tuple[int, int] | None = None) -> Roles:
    """Return the roles in a store, as PyG tells them; `counts` as of `KnownRoles`."""
    node, edge = [], []
    if counts is not None:
        counted = with_counts(store, *counts)
        store = store_of(counted, None)  # of which `counted` has to live
    for name, value in store.items():
        of_nodes = store.is_node_attr(name)
        of_edges = name not in TOPOLOGY and store.is_edge_attr(name)
        if of_nodes and isinstance(value, (list, tuple)) and "edge" in name:
            # Of as many edges as nodes; PyG looks at the names of tensors and arrays alone.
            of_edges = len(value) == getattr(store, "num_edges", None)
            of_nodes = not of_edges
        if of_nodes or of_edges:
            dim = cat_dim(store, name, value)
            node += [Attribute(name, dim)] * of_nodes
            edge += [Attribute(name, dim)] * of_edges
    return Roles(tuple(node), tuple(edge))


def _reference(value: Any) -> Callable[[], Any]:
    """Return what gives a value as long as it lives; numbers and the like cannot be referred to."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
