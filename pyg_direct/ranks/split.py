"""How an epoch is split among ranks: arguments that all loaders take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.utils.data import DistributedSampler

from ..core.arguments import check_choice, check_count, check_flag, check_partner
from .exchange import check_split, default_group

NAMES = ("split_by_rank", "rank", "world_size", "tail", "share_rows", "cooperative", "owners")
TAILS = ("pad", "drop", "uneven")
HASH = "hash"


@dataclass(frozen=True, eq=False)
class Ranks:
    """How several processes share the batches of an epoch.

    Passed as ``NeighborLoader(..., ranks=Ranks())``. Its fields are arguments of the loaders, too
    (`split` is `split_by_rank` there), and mean the same; one is given in one of the two ways. In
    each step the ranks take the next batches of one list, each rank one; a batch has the same bits
    on any number of ranks.

    Args:
        split: True, or a `torch.distributed.ProcessGroup`: the ranks are those of the (default)
            group. With ``seed=None`` the first rank draws the base seed for all. At the first
            iteration the ranks exchange what decides their batches, and refuse to differ; all of
            them must begin it. False: `rank` and `world_size` say it.
        rank, world_size: the same without a process group, and without that exchange; they need a
            `seed`, the same on all ranks.
        tail: where the last step lacks batches, ranks make the first batches of the epoch again
            ('pad'), all leave that step out ('drop'), or some end earlier ('uneven'; around DDP's
            training this needs `torch.distributed.algorithms.Join`).
        share_rows: the rank that owns a row of a node attribute loads it once for all batches that
            ranks make together, and sends it to the others; batches have the same bits. Rows
            come through host memory, and go to a GPU only with ``device="cuda"``.
        owners: of `share_rows` and `cooperative`: 'hash', or integers [num_nodes] in [0, 1024),
            with node types a dict of such: rank r of W owns the p with p mod W = r.
        cooperative: all ranks make one batch together in each step, of the seeds of all loops; a
            rank has the nodes that it owns with their in-edges, and those of others that these
            come from. See the guide "Batches and rows in common".

    Example:
        >>> second = pyg_direct.Ranks(split=False, rank=1, world_size=4)
        >>> loader = pyg_direct.NeighborLoader(data, [5], batch_size=10, seed=0, ranks=second)
        >>> len(loader)
        8
    """

    split: Any = True
    rank: int | None = None
    world_size: int | None = None
    tail: str = "pad"
    share_rows: bool = False
    owners: Any = HASH
    cooperative: bool = False


def options_of(ranks: Ranks) -> dict[str, Any]:
    """Return the arguments of a loader that say the same, without those at their defaults."""
    names = ("split_by_rank", *(field.name for field in fields(Ranks)[1:]))
    values = (getattr(ranks, field.name) for field in fields(Ranks))
    absent = (False, *(field.default for field in fields(Ranks)[1:]))
    found = zip(names, values, absent, strict=True)
    return {name: value for name, value, default in found if repr(value) != repr(default)}


class Split(NamedTuple):
    """Who the ranks are, and what they do where batches are missing in their last step."""

    by: Any = None  # a process group, True for the default one, or None
    numbers: tuple[int, int] | None = None  # rank and world size, if the user gave them
    tail: str = "pad"
    share_rows: bool = False
    owners: Any = HASH  # of what ranks share, or integers [N], a dict of such by node type
    cooperative: bool = False  # whether all ranks make one batch together in each step

    @property
    def is_given(self) -> bool:
        """Whether batches are split at all."""
        return self.by is not None or self.numbers is not None

    @property
    def group(self) -> Any:
        """The process group of the ranks, or None if only their numbers are known.

        Raises:
            RuntimeError: it is the default group, and there is none.
        """
        return default_group() if self.by is True else self.by

    def place(self) -> tuple[int, int]:
        """Return the rank of this process, and the number of ranks.

        Raises:
            RuntimeError: see `group`.
        """
        if self.numbers is not None:
            return self.numbers
        group = self.group
        return (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))


def take_split(options: dict[str, Any], seed: int | None) -> Split:
    """Take `NAMES` out of the keyword arguments of a loader, and check them.

    Args:
        options: keyword arguments; those that were taken are removed.
        seed: of the loader.

    Raises:
        ValueError, TypeError: a wrong argument; the message says which.
    """
    given = {name: options.pop(name) for name in NAMES if name in options}
    by = given.get("split_by_rank", False)
    check_split(by)
    numbers = _numbers(given.get("rank"), given.get("world_size"), bool(by), seed)
    tail = check_choice("tail", given.get("tail", "pad"), TAILS)
    shares = check_flag("share_rows", given.get("share_rows", False))
    cooperative = check_flag("cooperative", given.get("cooperative", False))
    split = Split(by or None, numbers, tail, shares, given.get("owners", HASH), cooperative)
    _check_sharing(split, "owners" in given)
    if split.is_given:
        _refuse_other_orders(options)
    elif tail != "pad":
        partner = "ranks: pass split_by_rank=True, or rank= and world_size="
        check_partner(f"tail={tail!r}", partner, False)
    return split


def _check_sharing(split: Split, owners_given: bool) -> None:
    for name in ("share_rows", "cooperative"):
        if getattr(split, name) and split.by is None:
            raise ValueError(
                f"{name}=True needs the other ranks: pass split_by_rank=True, or a process group."
            )
    if owners_given:
        partner = "share_rows=True or cooperative=True"
        check_partner("owners=", partner, split.share_rows or split.cooperative)
    if split.cooperative and split.share_rows:
        raise ValueError(
            "cooperative=True loads each row once for all ranks already. Leave out share_rows=True."
        )
    if split.cooperative and split.tail == "uneven":
        raise ValueError(
            "tail='uneven' cannot be used with cooperative=True, as no rank can end before others "
            "that it makes batches with. Pass 'pad' or 'drop'."
        )


def _numbers(rank: Any, world_size: Any, has_group: bool, seed: int | None) -> Any:
    """Return (rank, world size) as the user gave them, or None."""
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ValueError(f"rank={rank!r} and world_size={world_size!r} need each other.")
    if has_group:
        raise ValueError("Pass either split_by_rank=, or rank= and world_size=: a group has both.")
    check_count("world_size", world_size, least=1)
    if check_count("rank", rank) >= world_size:
        raise ValueError(f"rank must be below world_size={world_size}, got {rank}.")
    if seed is None:
        raise ValueError(
            "rank= and world_size= need a seed=, the same one on all ranks: without a process "
            "group nothing can send them one. Or pass split_by_rank=True."
        )
    return int(rank), int(world_size)


def _refuse_other_orders(options: dict[str, Any]) -> None:
    """Refuse what would give the ranks different lists of batches."""
    if options.get("generator") is not None:
        raise ValueError(
            "generator= would need the same state on all ranks, which nothing ensures. Pass seed=, "
            "or neither of them: then the first rank's default generator decides for all."
        )
    batches = options.get("batch_sampler")
    for sampler in (options.get("sampler"), batches, getattr(batches, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise ValueError(
                "A DistributedSampler and split_by_rank= (or rank=) would both split the seeds. "
                "Pass one of them; with split_by_rank= the sampler gives the seeds of all ranks."
            )
