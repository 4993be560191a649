"""Which batches of an epoch a process makes that is one of several ranks."""

from __future__ import annotations

from typing import NamedTuple


class Ranks(NamedTuple):
    """The place of a process among the ranks that share the batches of an epoch.

    In each step the ranks take the next `world_size` batches of the epoch, each rank one. At its
    end fewer may be left. Then, by `tail`, all ranks end before this step ("drop"), those without a
    batch repeat the first ones of the epoch ("pad"), or they end earlier than others ("uneven").

    Example: of five batches, numbers 0 to 4, three ranks take 0, 1, 2 and then 3, 4 and, with
    "pad", 0 again.
    """

    rank: int = 0
    world_size: int = 1
    tail: str = "pad"
    in_common: bool = False  # whether the batches of a step are one, with the key of its number

    @property
    def may_repeat(self) -> int:
        """How many of the first batches may be made again."""
        return self.world_size - 1 if self.tail == "pad" else 0

    def steps(self, num_batches: int) -> int:
        """Return how many steps this rank makes over so many batches."""
        steps, left = divmod(num_batches, self.world_size)
        return steps + {"pad": left > 0, "drop": False, "uneven": self.rank < left}[self.tail]

    def batch_of(self, first: int, size: int) -> int | None:
        """Return the number of this rank's batch in a step, None if it makes none any more.

        Args:
            first: number of the step's first batch.
            size: how many batches are left for the step, at most `world_size`.
        """
        if size == self.world_size or (self.rank < size and self.tail != "drop"):
            return first + self.rank
        if size == 0 or self.tail != "pad":
            return None
        return (self.rank - size) % (first + size)
