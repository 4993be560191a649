"""The tensors in a batch, or in whatever a user's transform makes of it."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch_geometric.sampler import SamplerOutput

from .sparse import stored_parts

# What holds no tensor of a batch. From a module the walk would get to every module of the process.
NOT_LOOKED_INTO = (
    str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.FunctionType,
    types.MethodType, types.BuiltinFunctionType,
)  # fmt: skip
PACKAGE = __name__.partition(".")[0]


def tensors_of(value: Any, without: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Yield every tensor that can be reached from `value` through containers and attributes.

    Looked into are mappings, lists, tuples, sets, tensors that are made of others (sparse ones and
    subclasses such as `EdgeIndex`), and the attributes of batches and of users' objects. Modules,
    functions and classes are not, nor are objects of this package but for what their method
    `parts` returns: what a loader, a sampler or a backend refers to is not the batch's.

    Args:
        value: a batch, a sampler's output, or anything else.
        without: ids of objects that are not looked into, however they are reached.
    """
    seen: dict[int, Any] = {}  # with the objects, as a number from `id` is of a living one
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, NOT_LOOKED_INTO) or id(item) in seen or id(item) in without:
            continue
        seen[id(item)] = item
        if isinstance(item, Tensor):
            if not hasattr(item, "__tensor_flatten__"):  # else its attributes hold the elements
                yield from stored_parts(item)
            rest.extend(_attributes(item))
        elif isinstance(item, Mapping):
            rest.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            rest.extend(item)
        elif str(type(item).__module__).partition(".")[0] == PACKAGE:
            rest.extend(item.parts() if hasattr(item, "parts") else ())
        else:
            rest.extend(_attributes(item))


def _attributes(item: Any) -> Iterator[Any]:
    """Yield what an object keeps in `__dict__` and in slots, without running code of its class."""
    for kind in type(item).__mro__:
        slots = vars(kind).values() if "__slots__" in vars(kind) else ()
        for slot in slots:
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield slot.__get__(item)
                except AttributeError:  # nothing was assigned to it
                    continue
    try:
        own = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return
    yield from tuple(own.values())  # at once: another thread may assign to the object meanwhile


def tensors_made(data: Any, product: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch or a sampled subgraph that it does not share with the graph.

    What it shares may be large, and is not the batch's to keep.
    """
    shared = {id(data)}
    for store in getattr(data, "stores", ()):
        shared |= {id(store), *map(id, store.values())}
    yield from tensors_of(product, frozenset(shared))


def with_edge_ids(out: Any, permutation: Any) -> Any:
    """Return the output of a sampler of PyG's, whose `edge` is a position, with edge ids instead.

    Our own sampler has no permutation to apply.
    """
    if permutation is None or out.edge is None:
        return out
    out = copy.copy(out)
    if isinstance(out, SamplerOutput):
        out.edge = permutation[out.edge]
    else:
        out.edge = {
            key: edge if edge is None or permutation.get(key) is None else permutation[key][edge]
            for key, edge in out.edge.items()
        }
    return out
