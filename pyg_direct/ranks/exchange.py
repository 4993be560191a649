"""Values that every rank of a process group has, brought to all of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def default_group() -> Any:
    """Return the default process group.

    Raises:
        RuntimeError: there is none.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "There is no default process group. Call torch.distributed.init_process_group() before "
            "(torchrun, Lightning and Ray Train start the processes that it needs), or pass rank= "
            "and world_size=. In a single process leave split_by_rank out."
        )
    return dist.group.WORLD


def gathered(value: Any, group: Any, device: torch.device) -> list[Any]:
    """Return the values of all ranks, by rank. Collective: waits for every rank of the group.

    Args:
        value: of this rank; can be pickled. Sizes may differ, as they are exchanged first.
        group: a process group, of any backend.
        device: of this rank. A backend that only works on GPUs sends from it, where it is one.
    """
    values: list[Any] = [None] * dist.get_world_size(group)
    on_device: Any = torch.cuda.device_of
    with on_device(torch.empty(0, device=device)):  # nothing for the CPU
        dist.all_gather_object(values, value, group)
    return values
