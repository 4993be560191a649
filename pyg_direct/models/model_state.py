"""What the modules of a model hold, and whether that has changed."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ..core.private_torch import TorchDispatchMode, schema_of, storage_of
from .table_tensor import written

CONTAINERS = (list, dict, set, OrderedDict)
LARGE_BYTES = 64 << 20  # tensors that are not copied: they may be the features of a graph


class ModelState:
    """Attributes, containers, tensors and generators of all modules, as they are now.

    Args:
        model: of which they are.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._attributes = {name: (m, dict(vars(m))) for name, m in model.named_modules()}
        self._contents = {
            (name, key): (value, copy.copy(value))
            for name, (_, attributes) in self._attributes.items()
            for key, value in attributes.items()
            if type(value) in CONTAINERS
        }
        self._numbers = [
            (t, t.detach().clone())
            for t in _tensors_of(model)
            if t.layout == torch.strided and not (is_lazy(t) or _is_large(t))
        ]
        self._generators = [
            (_joined(name, key), value, value.get_state())
            for name, (_, attributes) in self._attributes.items()
            for key, value in attributes.items()
            if isinstance(value, torch.Generator)
        ]

    def changed(self) -> set[str]:
        """Return the names of attributes that are others now, or whose entries are."""
        found = set()
        for name, (module, before) in self._attributes.items():
            now = vars(module)
            for key in before.keys() | now.keys():
                if before.get(key, now) is not now.get(key, before):
                    found.add(_joined(name, key))
        for (name, key), (value, before) in self._contents.items():
            if not _same_entries(value, before):
                found.add(_joined(name, key))
        for place, generator, state in self._generators:
            if not torch.equal(generator.get_state(), state):
                found.add(place)
        return {name for name in found if not name.endswith("_buffers")}

    def restore(self) -> None:
        """Let everything be as it was."""
        for module, before in self._attributes.values():
            vars(module).clear()
            vars(module).update(before)
        for value, before in self._contents.values():
            if not _same_entries(value, before):
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(before)
        with torch.no_grad():
            for tensor, numbers in self._numbers:
                if not torch.equal(tensor, numbers):  # batch norm changes no version
                    tensor.copy_(numbers)
        for _, generator, state in self._generators:
            generator.set_state(state)

    def copy_of_model(self) -> tuple[torch.nn.Module, KeepShared]:
        """Return a copy that has the model's parameters and buffers, and a mode to run it in.

        Large tensors, and those with a history, such as losses that the model keeps, are shared,
        too. The mode does not let operations write to large ones.
        """
        shared: dict[int, Any] = {id(t): t for t in _tensors_of(self._model)}
        with _Copying() as copying:
            made = copy.deepcopy(self._model, shared)
        large = [*copying.large, *filter(_is_large, _tensors_of(self._model))]
        return made, KeepShared({storage_of(t) for t in large})


class KeepShared(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that write to some storages."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        mutable = self._storages and schema_of(func).is_mutable
        if mutable and any(storage_of(t) in self._storages for t in written(func, args, kwargs)):
            raise RuntimeError("a large tensor is written to")
        return func(*args, **kwargs)


class _Copying(TorchFunctionMode):
    """Lets `copy.deepcopy` give some tensors as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.large: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and (not args[0].is_leaf or _is_large(args[0])):
            self.large += [args[0]] if _is_large(args[0]) else []
            return args[0]
        return func(*args, **(kwargs or {}))


def _tensors_of(model: torch.nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers: a forward may write to both."""
    return itertools.chain(model.parameters(), model.buffers())


def _is_large(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not is_lazy(tensor) and tensor.nbytes >= LARGE_BYTES


def _same_entries(value: Any, before: Any) -> bool:
    if len(value) != len(before):
        return False
    if isinstance(value, dict):
        return all(key in before and value[key] is before[key] for key in value)
    if isinstance(value, list):
        return all(a is b for a, b in zip(value, before, strict=True))
    return bool(value == before)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
