"""The state of a model, wherever it is stored, so that it can be restored.

A forward may change all that it can reach: tensors, containers within containers, arrays,
generators of random numbers, objects of the user's, variables and globals of functions. What a
model holds is found by following it from object to object, as `copy.deepcopy` does, but what is put
back are the objects themselves.
"""

from __future__ import annotations

import array
import copy
import itertools
import operator
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import MessagePassing

LARGE_BYTES = 64 << 20  # of tensors and arrays that are not copied: they may be those of a graph
MOST_OBJECTS = 20_000  # that are followed: more are not the state of a model

OF_LAYERS = vars(cast(Any, MessagePassing)())
# What cannot change, or is of PyG's layers alone.
FIXED = {
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, torch.Size,
    torch.dtype, torch.device, torch.layout, torch.memory_format, types.ModuleType,
    type(OF_LAYERS["inspector"]),
}  # fmt: skip
LIBRARIES = {"torch", "torch_geometric", "pyg_direct", *sys.stdlib_module_names}
INSTALLED = ("site-packages", "dist-packages")
# Attributes of modules that are followed if they hold something, such as hooks.
OF_MODULES = {*vars(torch.nn.Module()), *OF_LAYERS} - {"_parameters", "_buffers", "_modules"}
NAMES = {"_user_args", "_fused_user_args", "_edge_user_args"}  # of arguments of PyG's layers
OF_FUNCTIONS = ("__self__", "__func__", "func", "args", "keywords", "fget", "__wrapped__")
ITERATORS: tuple[Any, ...] = (
    itertools.count, itertools.repeat, type(iter([])), type(iter(())), type(iter(range(0))),
)  # fmt: skip


class ModelState:
    """A snapshot of all that can be reached from some objects.

    Args:
        roots: the model, and what else a forward may change.

    Attributes:
        tensors: that were found, each with another one that has its memory.
        shared: of which no copies are made: tensors and arrays of `LARGE_BYTES` and more, and
            tensors that compute, such as those of an accelerated step.
    """

    def __init__(self, *roots: Any) -> None:
        self.tensors: list[tuple[Tensor, Tensor]] = []
        self.shared: list[Any] = []
        self.kept: list[tuple[Callable[[Any, Any], object], Any, Any]] = []
        self.iterators: dict[int, Any] = {}  # copies, by the numbers of the objects
        ahead: list[Any] = list(roots)
        self.follow: Callable[[Iterable[Any]], None] = ahead.extend  # looks at objects later
        seen: dict[int, Any] = {}
        self._seen = seen  # and so they live, with their numbers
        while ahead and len(seen) < MOST_OBJECTS:
            value = ahead.pop()
            kind: Any = type(value)
            if kind in FIXED or id(value) in seen:
                continue
            seen[id(value)] = value
            if kind is dict:  # most are
                self.kept.append((_put_entries, value, value.copy()))
                ahead += value.values()
                continue
            for look in _ways(kind):
                look(self, value)

    def all_tensors(self) -> list[Tensor] | None:
        """Return the tensors that were found; None where not all that is there was looked at."""
        found = [tensor for tensor, _ in self.tensors]
        found += [value for value in self.shared if isinstance(value, Tensor)]
        return found if len(self._seen) < MOST_OBJECTS else None

    def restore(self) -> None:
        """Restore everything but the elements of tensors."""
        for put, value, before in self.kept:
            put(value, self._as_they_were(before) if self.iterators else before)
        for tensor, alias in self.tensors:
            if tensor.data_ptr() != alias.data_ptr() or tensor.shape != alias.shape:
                tensor.data = alias

    def _as_they_were(self, held: Any) -> Any:
        """Return the entries of an object with copies of iterators, which cannot be rewound."""
        if type(held) is dict:
            return {key: self.iterators.get(id(v), v) for key, v in held.items()}
        return [self.iterators.get(id(v), v) for v in held] if type(held) is list else held


def copied(model: torch.nn.Module, shared: list[Any]) -> torch.nn.Module:
    """Return a copy of a model that has nothing in common with it but some tensors and arrays.

    Tensors with a history, such as losses that the model keeps, are copied with it. Large ones that
    are found by `copy.deepcopy` alone are added to what is shared.
    """
    with _Copying(shared):
        return copy.deepcopy(model, {id(value): value for value in shared})


class _Copying(TorchFunctionMode):
    """Lets `copy.deepcopy` copy tensors that operations have made, and share large ones."""

    def __init__(self, shared: list[Any]) -> None:
        super().__init__()
        self._shared = shared

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not cast(Any, Tensor).__deepcopy__:
            return func(*args, **(kwargs or {}))
        value, memo = args
        if is_large(value):
            self._shared.append(value)
            return value
        if value.is_leaf:
            return func(value, memo)
        with torch.enable_grad():
            return memo.setdefault(id(value), value.clone())


def is_large(value: Any) -> bool:
    """Whether a tensor or an array is one that is not copied."""
    if isinstance(value, Tensor) and (value.layout != torch.strided or is_lazy(value)):
        return False
    return bool(value.nbytes >= LARGE_BYTES)


def held_by(model: torch.nn.Module) -> dict[str, Any]:
    """Return the numbers that a model holds, as tensors, and texts, by their places."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers"):
                for own, tensor in value.items():
                    _place(found, seen, f"{name}.{own}".lstrip("."), tensor)
            elif key not in OF_MODULES and key != "_modules":
                _place(found, seen, f"{name}.{key}".lstrip("."), value)
    return found


def _place(found: dict[str, Any], seen: set[int], place: str, value: Any) -> None:
    """Record the entry at a place and those within it, without large tensors and arrays."""
    if isinstance(value, (Tensor, np.ndarray)) and is_large(value):
        return
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(value.copy())
    if isinstance(value, (Tensor, str, bool, int)):
        found[place] = value.detach().clone() if isinstance(value, Tensor) else value
    elif isinstance(value, float):
        found[place] = torch.tensor(value, dtype=torch.float32)  # which it may come from
    if type(value) in FIXED or isinstance(value, (Tensor, torch.nn.Module)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        within = {f"{place}[{key!r}]": v for key, v in value.items()}
    elif isinstance(value, (list, tuple, deque)):
        within = {f"{place}[{i}]": v for i, v in enumerate(value)}
    elif _attributes in _ways(cast(Any, type(value))):
        within = {f"{place}.{key}": v for key, v in vars(value).items()}
    else:
        return
    for name, v in within.items():
        _place(found, seen, name, v)


# --- each looks at an object of a kind, and says what it holds ---


def _tensor(state: ModelState, value: Tensor) -> None:
    if type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__ or is_large(value):
        state.shared.append(value)
    elif value.layout == torch.strided and not (value.is_meta or is_lazy(value)):
        state.tensors.append((value, value.detach()))


def _array(state: ModelState, value: Any) -> None:
    if is_large(value):
        state.shared.append(value)
    elif value.flags.writeable:
        state.kept.append((_put_elements, value, value.copy()))
        if value.dtype.hasobject:
            state.follow(value.ravel().tolist())


def _mapping(state: ModelState, value: Any) -> None:
    state.kept.append((_put_entries, value, dict(value)))
    state.follow(value.values())


def _items(state: ModelState, value: Any) -> None:
    state.kept.append((_put_items, value, list(value)))
    state.follow(value)


def _entries(state: ModelState, value: Any) -> None:
    state.follow(value)


def _module(state: ModelState, value: Any) -> None:
    held = vars(value).copy()
    state.kept.append((_put_attributes, value, held))
    for name, v in held.items():
        if type(v) not in FIXED and (name not in OF_MODULES or (v and name not in NAMES)):
            state.follow((v,))
    if isinstance(value, torch.jit.ScriptModule):
        state.follow([*value.parameters(), *value.buffers()])


def _attributes(state: ModelState, value: Any) -> None:
    held = vars(value)
    state.kept.append((_put_attributes, value, dict(held)))
    state.follow(held.values())


def _slots(names: list[str], state: ModelState, value: Any) -> None:
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    state.kept.append((partial(_put_slots, names), value, held))
    state.follow(held.values())


def _class(state: ModelState, value: Any) -> None:
    if not _is_of_library(value.__module__):
        held = {name: v for name, v in vars(value).items() if not name.startswith("__")}
        state.kept.append((_put_in_class, value, held))
        state.follow(held.values())


def _function(state: ModelState, value: Any) -> None:
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # it is empty
            state.kept.append((_put_in_cell, cell, [cell.cell_contents]))
            state.follow([cell.cell_contents])
    if not _is_of_library(value.__module__):
        state.follow([value.__defaults__, value.__kwdefaults__, vars(value)])
        known = value.__globals__
        held = {name: known[name] for name in value.__code__.co_names if name in known}
        state.kept.append((dict.update, known, held))
        state.follow(held.values())


def _bound(state: ModelState, value: Any) -> None:
    state.follow([getattr(value, name, None) for name in OF_FUNCTIONS])


def _iterator(state: ModelState, value: Any) -> None:
    state.iterators[id(value)] = copy.copy(value)


def _draws(state: ModelState, value: Any) -> None:
    if isinstance(value, torch.Generator):
        state.kept.append((torch.Generator.set_state, value, value.get_state()))
    elif isinstance(value, random.Random):
        state.kept.append((random.Random.setstate, value, value.getstate()))
    elif isinstance(value, np.random.RandomState):
        state.kept.append((np.random.RandomState.set_state, value, value.get_state()))
    else:
        bits = getattr(value, "bit_generator", value)
        state.kept.append((_put_bits, bits, copy.deepcopy(bits.state)))


Look = Callable[[ModelState, Any], None]
# The first of these that a kind of objects is one of says how to look at it.
WAYS: list[tuple[Any, Look]] = [
    (Tensor, _tensor),
    (torch.nn.Module, _module),
    (np.ndarray, _array),
    (dict, _mapping),
    ((list, deque, set), _items),
    ((bytearray, array.array), _items),
    ((tuple, frozenset), _entries),
    (types.FunctionType, _function),
    ((types.MethodType, types.BuiltinMethodType, property, staticmethod, classmethod), _bound),
    (partial, _bound),
    (type, _class),
    (ITERATORS, _iterator),
    ((torch.Generator, random.Random, np.random.RandomState), _draws),
    ((np.random.Generator, np.random.BitGenerator), _draws),
    (types.SimpleNamespace, _attributes),
]


@lru_cache(1024)
def _ways(kind: Any) -> list[Look]:
    """Return how to look at objects of a kind."""
    found = [look for kinds, look in WAYS if issubclass(kind, kinds)][:1]
    own = [k for k in kind.__mro__ if not _is_of_library(k.__module__)]
    of_user = bool(own) or kind.__module__.startswith("torch_geometric.")
    if not of_user or issubclass(kind, (type, Tensor)):
        return found
    if _module not in found and kind.__dictoffset__:
        found.append(_attributes)
    slots = [name for k in own for name in _as_list(vars(k).get("__slots__", ()))]
    if slots:
        found.append(partial(_slots, slots))
    if own:
        found.append(lambda state, value: state.follow(own))
    return found


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else [*names]


@lru_cache(4096)
def _is_of_library(module: str | None) -> bool:
    """Whether functions and classes of a module are those of an installed library."""
    place = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return (module or "").partition(".")[0] in LIBRARIES or any(n in place for n in INSTALLED)


# --- each puts what an object held into it ---


def _put_elements(value: Any, before: Any) -> None:
    value[...] = before


def _put_entries(value: Any, before: dict[Any, Any]) -> None:
    kind = OrderedDict if isinstance(value, OrderedDict) else dict
    if [*value] != [*before] or not all(map(operator.is_, value.values(), before.values())):
        kind.clear(value)
        kind.update(value, before)


def _put_items(value: Any, before: list[Any]) -> None:
    if len(value) == len(before) and all(map(operator.is_, value, before)):
        return
    if isinstance(value, (set, deque)):
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(before)
    elif isinstance(value, array.array):
        value[:] = array.array(value.typecode, before)
    else:
        value[:] = before


def _put_attributes(value: Any, before: dict[str, Any]) -> None:
    _put_entries(vars(value), before)


def _put_slots(names: list[str], value: Any, before: dict[str, Any]) -> None:
    for name in names:
        if name in before:
            object.__setattr__(value, name, before[name])
        elif hasattr(value, name):
            object.__delattr__(value, name)


def _put_in_class(value: Any, before: dict[str, Any]) -> None:
    now = {name: v for name, v in vars(value).items() if not name.startswith("__")}
    for name in now.keys() - before.keys():
        delattr(value, name)
    for name, v in before.items():
        if now.get(name, before) is not v:
            setattr(value, name, v)


def _put_in_cell(cell: Any, before: list[Any]) -> None:
    cell.cell_contents = before[0]


def _put_bits(bits: Any, before: Any) -> None:
    bits.state = before
