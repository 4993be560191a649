"""The batches of an epoch, as they are numbered, drawn and made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..core.types import BatchKey
from .order import ClusterOrder, PartOrder
from .progress import Positions, Progress, SeedOrder

Step = tuple[int, Any, BatchKey]
"""What to make in a step: the number of its first batch in the epoch; of this rank's batch the
positions in the loader's `input_nodes`, from `positions_of`, and the key of its draws."""

# Samplers that give the same positions again from the same states of torch's generators.
REPEATABLE = (
    SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler,
    DistributedSampler, ClusterOrder, PartOrder,
)  # fmt: skip


class Steps:
    """The steps of an epoch that were not handed over, in order.

    What was drawn stays until it is below `first`, so that batches can be made again whose making
    was interrupted. The iterator that gave the positions may have been ended by the interruption,
    or what it gave may be lost, so the sampler is iterated anew then.

    Args:
        began: the progress at the beginning, with its first batch; not written to.
        order: of the seeds, and the ranks that share the batches.
        positions: of the batches from there on, of all ranks.
    """

    def __init__(self, began: Progress, order: SeedOrder, positions: Positions) -> None:
        self._began, self._order, self._ranks = began, order, order.ranks
        self.first = began.batch  # of the next step to hand over; written by the consumer
        self._total: int | None = None  # batches of the epoch, once its end was met
        self._drawn: deque[Step] = deque()
        self._source = self._numbered(positions)
        self._drawing = False

    def _numbered(self, positions: Positions) -> Iterator[Step]:
        ranks, start = self._ranks, self._end
        kept, may_repeat = positions.first, ranks.may_repeat
        batches = zip(positions.left, self._began.keys(start), strict=False)
        in_common = self._began.keys_of_steps(start // ranks.world_size)
        for first in count(start, ranks.world_size):
            step = list(islice(batches, ranks.world_size))
            whole = len(step) == ranks.world_size
            if len(kept) < may_repeat:
                kept += [indices for indices, _ in step]
            if not whole and self._total is None:  # no batch may be left at all
                self._total = first + len(step)
            batch = first + ranks.rank if whole else ranks.batch_of(first, len(step))
            if batch is None:
                return
            if batch >= first:
                positions_here, key = step[batch - first]
            else:
                positions_here, key = kept[batch], next(self._began.keys(batch))
            yield first, positions_here, next(in_common) if ranks.in_common else key

    @property
    def _end(self) -> int:
        """Number of the first batch of the next step to draw."""
        return max(self.first, self.after(self._drawn[-1][0])[0] if self._drawn else 0)

    def after(self, first: int) -> tuple[int, int]:
        """Return the first batch of the step after one, and how many batches are done before it."""
        following = first + self._ranks.world_size
        return following, following if self._total is None else min(following, self._total)

    def of_all(self) -> int:
        """Return how many steps the rank with most makes from the beginning; known at the end."""
        assert self._total is not None
        return self._ranks._replace(rank=0).steps(self._total - self._began.batch)

    def left(self) -> Iterator[Step]:
        """Return all steps from `first` on."""
        return chain([step for step in self._drawn if step[0] >= self.first], self)

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Step:
        """Return the next step.

        Raises:
            RuntimeError: an earlier call was interrupted or failed, and the sampler may not give
                the same positions again.
        """
        if self._drawing:
            self._source = self._numbered(self._repeated())
        self._drawing = True
        try:
            step = next(self._source)
        except StopIteration:
            self._drawing = False
            raise
        drawn = self._drawn
        while drawn and drawn[0][0] < self.first:
            drawn.popleft()
        drawn.append(step)
        self._drawing = False
        return step

    def _repeated(self) -> Positions:
        batches, generator = self._order.batches, self._order.generator
        sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
        own = getattr(sampler, "generator", None)  # a DistributedSampler has none
        if type(sampler) not in REPEATABLE or own not in (None, generator):
            raise RuntimeError(
                f"This iterator was interrupted while a {type(sampler).__name__} gave the seeds, "
                f"and cannot continue, as that may give others when it is iterated anew. If it "
                f"gives the same, use loader.load_state_dict(loader.state_dict()) and iter(loader)."
            )
        return self._began.replay(self._order, self._end)
