"""The nodes that a rank has of a batch that several ranks sample in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernels import parts as kernels

Ints = npt.NDArray[Any]


class RankNodes:
    """Numbers the nodes of one type: those that this rank owns, and those that others own.

    Own nodes are numbered by the hop that found them on any rank, and in the order of the first
    edges that did; those of others as the edges of this rank read them.

    Memory: 4 bytes a node.

    Args:
        owner: int16 [N], the rank that owns each node.
        rank: this one.
    """

    def __init__(self, owner: Ints, rank: int) -> None:
        self.owner, self._rank = owner, rank
        self._table = np.full(len(owner), kernels.UNKNOWN, np.int32)
        self.own: list[Ints] = []  # ids, by hop
        self.others: list[Ints] = []
        self._counts = [0, 0]
        self._met, self._new = np.zeros((2, 2), np.int64)
        self._found = self._other = np.empty((2, 0), np.int64)

    def begin(self, seeds: Ints) -> None:
        """Begin a batch with its seeds that this rank owns, of which some may be the same."""
        for ids in (*self.own, *self.others):
            self._table[ids] = kernels.UNKNOWN
        self.own, self.others = [seeds], []
        self._counts = [len(seeds), 0]
        # Backwards, as of a duplicate the first place counts.
        self._table[seeds[::-1]] = np.arange(len(seeds) - 1, -1, -1, dtype=np.int32)

    def begin_hop(self, edges: int) -> None:
        """Begin a hop in which this rank has at most so many edges from nodes of this type."""
        self._met = np.zeros(2, np.int64)
        self._found, self._other = np.empty((2, 2, edges), np.int64)

    def find(self, source: Ints, counts: Ints, item: Ints, fanout: int, first_key: int) -> None:
        """Note the sources of this rank's edges in one relation; see `kernels.find_sources`."""
        kernels.find_sources(
            source, counts, item, fanout, first_key, self.owner, self._rank, self._table,
            self._counts[1], self._met, self._found, self._other,
        )  # fmt: skip

    def asked_of(self, ranks: int) -> list[tuple[Ints, Ints, Ints]]:
        """Return what is to be asked of each rank: ids, their keys, and their numbers."""
        count = int(self._met[1])
        ids, keys = self._other[:, :count]
        numbers = np.arange(self._counts[1], self._counts[1] + count)
        self.others.append(ids)
        self._counts[1] += count
        owner = self.owner[ids]
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=ranks))[:-1]
        lists = (np.split(values[order], ends) for values in (ids, keys, numbers))
        return list(zip(*lists, strict=True))

    def merge(self, ids: Ints, keys: Ints) -> None:
        """Note own nodes that another rank reads in this hop.

        Raises:
            ValueError: ids of nodes that this rank does not own.
        """
        if len(ids) == 0:
            return
        good = ids.min() >= 0 and ids.max() < len(self.owner)
        if not (good and (self.owner[ids] == self._rank).all()):
            raise ValueError("Another rank asks for nodes that this one does not own.")
        room, count = self._found.shape[1], int(self._met[0])
        if count + len(ids) > room:
            longer = np.empty((2, 2 * (count + len(ids))), np.int64)
            longer[:, :count] = self._found[:, :count]
            self._found = longer
        kernels.merge_asked(ids, keys, self._table, self._met, self._found)

    def number(self, in_order: bool) -> Ints:
        """Number the own nodes that this hop found, and return their keys, in that order.

        Args:
            in_order: by their keys; else as they were met.
        """
        found = self._found[:, : int(self._met[0])]
        if in_order:
            found = found[:, np.argsort(found[1])]
        ids: Ints = found[0]
        keys: Ints = found[1]
        first = self._counts[0]
        self._counts[0] += len(ids)
        self._table[ids] = np.arange(first, self._counts[0], dtype=np.int32)
        self.own.append(ids)
        return keys

    def numbers_of(self, ids: Ints) -> Ints:
        """Return the numbers of known nodes among the own ones, or among those of others."""
        found: Ints = self._table[ids].astype(np.int64)
        return found

    def write_rows(self, source: Ints, first_own: int, first_other: int, out: Ints) -> None:
        """Write the row of each source; see `kernels.number_sources`."""
        kernels.number_sources(
            source, self.owner, self._rank, self._table, first_own, first_other, out
        )


def field_of_bits(keys: list[Ints], size: int) -> Ints:
    """Return a field of bits, packed in uint8, in which those of some keys are set."""
    bits = np.zeros(size, np.uint8)
    for of_type in keys:
        bits[of_type] = 1
    return np.packbits(bits)
