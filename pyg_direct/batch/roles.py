"""Which attributes of a graph a batch selects from, along which dimension, and in which dtype."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import shown
from ..core.lazy_tensor import OrderedTensor
from ..core.pyg import TOPOLOGY, BaseStorage, cat_dim, fields_of, store_of, with_counts
from ..core.quantized import QuantizedTensor


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


NARROW_FLOATS = (torch.float16, torch.bfloat16)
FEATURE_DTYPES = (torch.float32, *NARROW_FLOATS)


def is_narrow(value: Any) -> bool:
    """Whether an attribute is stored as int8 with a scale, as float16 or as bfloat16."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype == np.float16)
    if isinstance(value, OrderedTensor):
        return is_narrow(value.stored)
    return isinstance(value, QuantizedTensor) or (
        isinstance(value, Tensor) and value.dtype in NARROW_FLOATS
    )


def dtype_in_batch(value: Tensor, feature_dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which batches get an attribute.

    Args:
        value: the attribute; a `QuantizedTensor` passes for float32.
        feature_dtype: what the loader was asked for; None for what the attribute passes for.
    """
    return feature_dtype if feature_dtype is not None and is_narrow(value) else value.dtype


def converted(rows: Any, feature_dtype: torch.dtype | None) -> Any:
    """Return rows that PyG selected, in the dtype in which batches get them."""
    return rows.to(dtype_in_batch(rows, feature_dtype)) if isinstance(rows, Tensor) else rows


def check_feature_dtype(
    feature_dtype: Any, attributes: Iterable[tuple[str, Any]] | None
) -> torch.dtype | None:
    """Return `feature_dtype`, which is None or a dtype that narrow attributes are decoded to.

    Args:
        feature_dtype: as the user gave it.
        attributes: of the graph, with names for messages; None if they are not known.

    Raises:
        ValueError: another dtype, or no attribute that is stored narrow.
    """
    if feature_dtype is None:
        return None
    if not isinstance(feature_dtype, torch.dtype) or feature_dtype not in FEATURE_DTYPES:
        names = ", ".join(map(str, FEATURE_DTYPES))
        raise ValueError(
            f"feature_dtype must be None or one of {names}, got {shown(feature_dtype)}."
        )
    given = None if attributes is None else list(attributes)
    if given is not None and not any(is_narrow(value) for _, value in given):
        stored = ", ".join(
            f"{label} {value.dtype}" for label, value in given if hasattr(value, "dtype")
        )
        raise ValueError(
            f"feature_dtype={feature_dtype} would have no effect: it is for attributes stored as "
            f"torch.float16, torch.bfloat16 or pyg_direct.quantize's tables, and the graph has "
            f"{stored or 'no attributes'}. Store features so, data.x = "
            f"pyg_direct.quantize(data.x, torch.float16), or convert batches with transform=."
        )
    return feature_dtype
