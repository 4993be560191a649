"""What one rank has of a batch that several ranks make together, and what it sends and receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor


class RowsBetween(NamedTuple):
    """Rows of one node type that go between this rank and each other one, one way.

    Example: rows = [[], [4, 0, 2]] and by_hop = [[0, 0, 0], [0, 1, 2]]: row 4 is first read by the
    edges of the first hop, and 0 and 2 by those of the second.
    """

    rows: Sequence[Tensor]  # P x int64 [n_p], hop by hop; none between a rank and itself
    by_hop: Sequence[Sequence[int]]  # P x [hops + 1], the first of them 0


class NodesInCommon(NamedTuple):
    """The nodes of one type that a rank has of a batch.

    They are the seeds of its loop, which have no edges; then its own nodes, by the hop that found
    them; then nodes that other ranks own, by the hop whose edges first read them.

    Example: the loop has the seeds 7 and 4, of which this rank owns 4. It draws the sources 9, its
    own, and 5, another's, and for 9 the source 4: the rows are 7, 4 | 4, 9 | 5, own_by_hop is
    [1, 1, 0] and others_by_hop is [0, 1, 0].
    """

    num_seeds: int
    own_by_hop: Sequence[int]  # [hops + 1]; first the seeds of all ranks' loops that it owns
    others_by_hop: Sequence[int]  # [hops + 1], the first of them 0
    send: RowsBetween  # numbers among the own nodes, which each rank reads as sources
    receive: RowsBetween  # numbers among the others' nodes, as each rank sends them


class SeedOutputs(NamedTuple):
    """Which rank computes the seeds of which loop; both lists include this rank."""

    send: Sequence[Tensor]  # P x int64 [n_p], numbers among the own nodes: seeds of p's loop
    receive: Sequence[Tensor]  # P x int64 [n_p], which seeds of this loop p owns


@dataclass(frozen=True)
class Cooperation:
    """What a batch of `cooperative=True` says of its ranks.

    Rows that rank q sends to p are in the same order in both lists, and equally many in each hop,
    so no rank has to be asked for the size of a message. Copies to other processes have no group.
    """

    rank: int
    size: int  # P
    step: int  # number of the batch in its epoch; the same on all ranks
    group: Any  # of gloo, for exchanges of the thread that iterates; None for one rank
    timeout_seconds: float
    nodes: Mapping[Any, NodesInCommon]  # by node type; of a homogeneous graph, by None
    input_type: Any
    outputs: SeedOutputs

    def __reduce__(self) -> Any:
        without = replace(self, group=None)
        return Cooperation, tuple(vars(without).values())
