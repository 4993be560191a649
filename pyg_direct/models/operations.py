"""What a forward computes, as text: by it a run is told from one of another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .store import checksum_of


def operations_of(model: torch.nn.Module, inputs: Mapping[str, Any]) -> str:
    """Run a forward and return its operations in their order.

    Of each one the text has its name and arguments: numbers as they are, parameters by their names,
    results of earlier operations by their positions, and other tensors (inputs, buffers, constants)
    by their checksums. So what makes another computation of the same parameters is in it: how
    messages are aggregated, activations, constants in the code.

    Args:
        model: in evaluation mode.
        inputs: forward parameter -> value.
    """
    mode = _Operations({id(value): (name, value) for name, value in model.named_parameters()})
    with mode:
        model(**inputs)
    return "\n".join(mode.texts)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operation.

    Args:
        known: id of a tensor -> its name, and the tensor, so that no other one gets the id.
    """

    def __init__(self, known: dict[int, tuple[str, Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.texts: list[str] = []
        self._known = known

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation."""
        arguments = [self._text(value) for value in tree_leaves((args, kwargs or {}))]
        found = function(*args, **(kwargs or {}))
        for i, value in enumerate(tree_leaves(found)):
            self._known.setdefault(id(value), (f"{len(self.texts)}.{i}", value))
        self.texts.append(f"{function}({', '.join(arguments)})")
        return found

    def _text(self, value: Any) -> str:
        if not isinstance(value, Tensor):
            return "generator" if isinstance(value, torch.Generator) else repr(value)
        if id(value) not in self._known:
            self._known[id(value)] = (f"checksum {checksum_of({'': value})}", value)
        return self._known[id(value)][0]
