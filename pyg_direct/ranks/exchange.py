"""Values that every rank of a process group has, brought to all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

# Collectives of torch 2.4 write to no tensors that were made within `torch.inference_mode`.
NOT_INFERRING = torch.inference_mode(False)

Gather = Callable[[Any], list[Any]]
"""Returns the values of all ranks, by rank, once all have called it."""


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


def check_split(by: Any) -> None:
    """Raise TypeError unless `by`, an argument `split_by_rank`, is a bool or a process group."""
    if not isinstance(by, (bool, dist.ProcessGroup)):
        raise TypeError(
            f"split_by_rank must be True, False or a torch.distributed.ProcessGroup, got {by!r}."
        )


@NOT_INFERRING
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


def gathered_unless_failed(value: Any, error: Exception | None, gather: Gather) -> list[Any]:
    """Return the values of all ranks, by rank, if nothing failed on any. Collective.

    Args:
        value: of this rank; can be pickled.
        error: what failed on this rank since the last exchange; None for nothing.
        gather: returns the values of all ranks.

    Raises:
        Exception: `error`, if there is one.
        RuntimeError: something failed on another rank.
    """
    text = None if error is None else f"{type(error).__name__}: {error}"
    said = gather((value, text))
    if error is not None:
        raise error
    for rank, (_, text) in enumerate(said):
        if text is not None:
            raise RuntimeError(f"Rank {rank} failed: {text}")
    return [value for value, _ in said]


@contextlib.contextmanager
def host_group(group: Any) -> Iterator[Any]:
    """Give a group of the same ranks that needs no GPU. Collective.

    For ranks that may not have chosen a GPU yet: NCCL would send from the same one on all of them.
    """
    if dist.get_backend(group) != "nccl":
        yield group
        return
    ranks = dist.get_process_group_ranks(group)
    made = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    try:
        yield made
    finally:
        dist.destroy_process_group(made)
