"""`pyg_direct.share`: one graph and one table of features for all processes of a machine."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_geometric.data import Data, HeteroData

from ..graph.compressed import compressed_graph
from .exchange import Gather, default_group, gathered, gathered_unless_failed, host_group
from .memory import Block, Offer
from .shared_graph import Names, SharedData, shared_data_of

NAMESPACE = "/proc/self/ns/pid"
BOOT = Path("/proc/sys/kernel/random/boot_id")
CPU = torch.device("cpu")
Graphs = Data | HeteroData | Callable[[], Data | HeteroData]


def share(
    data: Graphs, *, time_attr: str | None = None, weight_attr: str | None = None
) -> Data | HeteroData:
    """Return the graph in memory that the processes of a machine share, with its CSC.

    A process that gets it maps the memory and copies nothing, nor do loaders over it build a CSC of
    their own. Batches are those of `data`, bit for bit. There are two ways to hand it over:

    * to processes that this one starts: as an argument, of `torch.multiprocessing.spawn` for
      example, or by a fork.
    * under a launcher such as torchrun, all ranks call `share` after `init_process_group`. The
      first rank of each machine makes the shared graph and the others map it, so give a function,
      which only the first rank calls.

    The memory has no name. It is freed with the last process that maps it, also after a crash or
    SIGKILL, and is not part of ``/dev/shm``. What one process writes to an attribute, all see;
    times and weights must stay as they are. `data.edge_index` is an ordinary tensor for all but
    loaders, which is made when something computes with it (16 bytes an edge).

    Args:
        data: the graph, or a function without arguments that returns it. Dense tensors and NumPy
            arrays of numbers are shared, as tensors, also in lists and dicts; other values are
            copied to each process. While it is shared, memory holds both `data` and the copy; of
            the graph that a function returns, each attribute is freed once it was copied.
        time_attr: what loaders will be given as `time_attr=`: neighbours are sorted by it now.
            Loaders without it build lists of their own, in each process.
        weight_attr: what loaders will be given as `weight_attr=`: its tables, 24 bytes an edge,
            are made now.

    Returns:
        `Data` or `HeteroData`. A graph that is shared already, or one of `pyg_direct.open`, is
        returned as it is: files are shared by all who open them. Let each process open it; as an
        argument of a spawned process, it would be copied.

    Raises:
        TypeError: `data` is not such a graph, but a pair of stores, for example.
        ValueError: an attribute that cannot be shared, which is named, or a graph that loaders
            refuse; or ranks of which some give a graph that is shared already.
        MemoryError: less memory than the graph takes.
        NotImplementedError: on another system than Linux.
        RuntimeError: under torchrun, before `init_process_group`; or another rank failed.

    Example:
        >>> shared = pyg_direct.share(data)
        >>> shared.x.is_shared()
        True
        >>> batch = next(iter(pyg_direct.NeighborLoader(shared, [5], batch_size=10)))
        >>> batch.x.shape[1]
        16
    """
    names = (time_attr, weight_attr)
    if not isinstance(data, (Data, HeteroData)) and not callable(data):
        raise TypeError(
            f"data must be a Data or HeteroData, or a function that returns one, got "
            f"{type(data).__name__}."
        )
    if not hasattr(os, "memfd_create"):
        raise NotImplementedError(
            "share needs Linux. Elsewhere, pyg_direct.save the graph once and let each process "
            "pyg_direct.open it: they share its pages."
        )
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        found: Data | HeteroData = _share_among_ranks(data, names)
        return found
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
            f"This is one of {os.environ['LOCAL_WORLD_SIZE']} ranks of this machine "
            f"(LOCAL_WORLD_SIZE), and they cannot agree before "
            f"torch.distributed.init_process_group was called: call share after it."
        )
    if _is_shared(data, names):
        return data  # type: ignore[return-value]
    found = shared_data_of(data, names).opened()
    return found


def _is_shared(data: Any, names: Names) -> bool:
    """Whether a graph is shared or opened; False for a function.

    Raises:
        ValueError: it is, but not with the times and weights that are asked for.
    """
    if compressed_graph(data, None, None) is None:
        return False
    if compressed_graph(data, *names) is None:
        raise ValueError(
            f"The graph is shared or opened already, and not with time_attr={names[0]!r} and "
            f"weight_attr={names[1]!r}: give them when it is shared or saved."
        )
    return True


def _share_among_ranks(data: Any, names: Names) -> Any:
    """Share under a launcher: what each rank does follows from what all have said."""
    known, error = False, None
    try:
        known = _is_shared(data, names)
    except ValueError as caught:
        error = caught
    with host_group(default_group()) as group:
        gather = partial(gathered, group=group, device=CPU)
        said = gathered_unless_failed((_machine(), names, known), error, gather)
        machines = [machine for machine, _, _ in said]
        if len({names for _, names, _ in said}) > 1:
            raise ValueError(f"Ranks give share other times or weights: {[n for _, n, _ in said]}.")
        sharing = [rank for rank, (_, _, known) in enumerate(said) if known]
        if len(sharing) == len(said):
            return data
        if sharing:
            raise ValueError(
                f"Ranks {sharing} give share a graph that is shared or opened already, and the "
                f"others do not."
            )
        return _from_first(data, names, gather, machines.index(machines[dist.get_rank()]))


def _from_first(data: Any, names: Names, gather: Gather, first: int) -> Any:
    """Share the graph of rank `first`, which is on this machine."""
    made: SharedData | None = None
    offered, error = None, None
    if dist.get_rank() == first:
        try:
            made = shared_data_of(data, names)
            offered = pickle.dumps(made.replaced(_offer))
        except Exception as caught:
            error = caught
    del data
    said = gathered_unless_failed(offered, error, gather)
    try:
        made = made or pickle.loads(said[first]).replaced(_accept)
        opened = made.opened()
    except OSError as caught:
        error = caught
    # Until all have mapped it, the first rank keeps what it offers.
    gathered_unless_failed(None, error, gather)
    return opened


def _machine() -> tuple[str, int]:
    """Return what the processes have in common that can map each other's memory.

    Containers with process numbers of their own count as machines.
    """
    return BOOT.read_text().strip(), os.stat(NAMESPACE).st_ino


def _offer(value: Any) -> Any:
    return value.offer() if isinstance(value, Block) else value


def _accept(value: Any) -> Any:
    return value.block() if isinstance(value, Offer) else value
