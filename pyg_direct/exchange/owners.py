"""Which part, or rank, owns each node: as the user gives it, or by hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..ops.host.parts import by_hash

Ints = npt.NDArray[Any]


def check_parts(
    value: Any, name: str, kinds: Sequence[Any], counts: Sequence[int], parts: int, named: str
) -> list[Ints]:
    """Return the part of each node as the user gave it, int16 [N_t] for each type.

    Args:
        value: integers [N] in [0, parts), or a dict of such by node type where there are types.
        name: of the argument.
        kinds: the node types; [None] of a homogeneous graph.
        counts: the number of nodes of each.
        parts: how many there may be, at most 2^15.
        named: what else the argument may be, for messages.

    Raises:
        TypeError, ValueError: something else.
    """
    typed = list(kinds) != [None]
    if typed != isinstance(value, Mapping):
        wanted = "a dict of tensors by node type" if typed else "a tensor"
        raise TypeError(
            f"{name} must be {named}, or {wanted} with the part of each node, got "
            f"{type(value).__name__}."
        )
    by_type: Mapping[Any, Any] = value if typed else {None: value}
    if set(by_type) != set(kinds):
        raise ValueError(f"{name} must have the node types {list(kinds)}, got {[*by_type]}.")
    found = []
    for kind, count in zip(kinds, counts, strict=True):
        part, label = by_type[kind], name if kind is None else f"{name}[{kind!r}]"
        is_integer = isinstance(part, Tensor) and not (
            part.is_floating_point() or part.is_complex() or str(part.dtype) == "torch.bool"
        )
        if not is_integer or part.shape != (count,):
            raise ValueError(f"{label} must hold one integer for each of {count} nodes.")
        low, high = (int(end) for end in part.aminmax()) if count > 0 else (0, 0)
        if low < 0 or high >= parts:
            raise ValueError(f"{label} must hold parts in [0, {parts}), got {low} to {high}.")
        found.append(part.cpu().numpy().astype(np.int16))
    return found


def ranks_of(parts: Sequence[Ints] | None, counts: Sequence[int], world_size: int) -> list[Ints]:
    """Return the rank that owns each node, int16 [N_t] for each type.

    Args:
        parts: of the nodes; rank r of W holds the parts p with p mod W = r. None for a hash.
        counts: the number of nodes of each type.
        world_size: W.
    """
    if parts is None:
        return [by_hash(count, world_size) for count in counts]
    return [(part % world_size).astype(np.int16) for part in parts]
