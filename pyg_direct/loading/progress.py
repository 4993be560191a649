"""Starting and resuming epochs: the state that `state_dict` saves, and the batches of each rank."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from ..core.types import BatchKey, ExtendedKey
from ..ops.host import keys as rng
from .order import ClusterOrder, PartOrder
from .states import (
    FIELDS,
    SIZE_STEPS,
    STATE_VERSION,
    TAIL,
    Fingerprint,
    checked,
    difference,
    of_positions,
    refusal,
)


class EpochShard(NamedTuple):
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
        """Return the number of this rank's batch in a last step, None if it makes none any more.

        Args:
            first: number of the step's first batch.
            size: how many batches are left for the step, less than `world_size`.
        """
        if self.rank < size and self.tail != "drop":
            return first + self.rank
        if size == 0 or self.tail != "pad":
            return None
        return (self.rank - size) % (first + size)


SAMPLER_EPOCH = "sampler_epoch"  # the field of a state's fingerprint that is compared later


class Agree(Protocol):
    """Compares `values` with those of the other ranks."""

    def __call__(self, values: dict[str, Any], offer: int = 0) -> int:
        """Return the first rank's `offer`, or raise a ValueError on all ranks."""


class SeedOrder(NamedTuple):
    """What decides the order of the seeds in an epoch."""

    batches: Iterable[Any]  # positions of the seeds of each batch; iterated once an epoch
    generator: torch.Generator | None  # DataLoader's; None for torch's default one
    shuffle_generator: torch.Generator | None  # the same one if the loader's seed is to govern it
    ranks: EpochShard = EpochShard()
    agree: Agree | None = None  # given if batches are split among ranks, also if there is only one

    @property
    def sampler(self) -> Any:
        """What gives the positions of single seeds, where that is known, or whole batches."""
        return getattr(self.batches, "sampler", self.batches)

    @property
    def sampler_epoch(self) -> int | None:
        """What a DistributedSampler's order follows; None for other samplers."""
        sampler = self.sampler
        return sampler.epoch if isinstance(sampler, DistributedSampler) else None


class Positions(NamedTuple):
    """The positions of the seeds of each batch, from `positions_of`."""

    first: list[Any]  # of the first batches of the epoch, if batches after them are `left`
    ahead: list[Any]  # those of `left` that were drawn already
    rest: Iterator[Any]

    @property
    def left(self) -> Iterator[Any]:
        """All that the epoch has yet to come."""
        return chain(self.ahead, self.rest)


@dataclass
class Progress:
    """The position of a loader in its epochs; what `state_dict` saves."""

    seed: int | None  # as the user gave it
    epoch: int = -1  # the epoch that was begun last
    batch: int = 0  # batches of it that were handed out, those of all ranks counted
    finished: bool = True
    base_seed: int = 0  # of that epoch's draws
    # Random states from before the epoch, for samplers that draw from them when they are iterated.
    default_state: Tensor | None = None
    generator_state: Tensor | None = None
    sampler_epoch: int | None = None  # of a DistributedSampler, when the epoch began
    resume: bool = field(default=False, compare=False)  # the next epoch continues this one
    ticket: int = field(default=0, compare=False)  # of the iterator that may write to this
    next_epoch: int | None = field(default=None, compare=False)  # if the user named it
    agreed: bool = field(default=False, compare=False)  # with the other ranks
    size_steps: tuple[int, int] = (0, 0)  # of `StaticShapes`, in this epoch and the next
    batch_dependency: int = 1  # of LABOR: batches of a window, which share variates

    def begin(self, order: SeedOrder) -> Positions:
        """Begin the next epoch, or continue the one that was loaded, and return its batches.

        Raises:
            ValueError: the sampler gives other seeds than those that were left, or other ranks have
                other batches.
        """
        if self.resume:
            self._check_epoch(order)
            self._agree(order, 0)
            positions = self.replay(order, self.batch)
            self.resume = False
        else:
            positions = self._start(order)
        if order.agree is not None and not self.agreed:
            order.agree({"first_batch": of_positions(positions.ahead)})
            self.agreed = True
        self.ticket += 1
        self.next_epoch = None
        return positions

    def _start(self, order: SeedOrder) -> Positions:
        """Begin a new epoch. Draws in the order in which PyG's loader would."""
        began = self.default_state is not None
        default_state, generator_state = torch.get_rng_state(), None
        if order.generator is not None:
            generator_state = order.generator.get_state()
        self._warn_of_the_same_order(order)
        # Also with a seed, so that the order of the seed nodes does not depend on it.
        drawn = self._agree(order, rng.draw_seed(order.generator))
        if self.seed is not None:
            drawn = self.seed
        elif began and order.agree is not None:  # what the ranks agreed on leads to all that follow
            drawn = rng.as_seed(rng.derive(self.base_seed, 0, 0, rng.NEXT_SEED_DOMAIN))
        self.base_seed = drawn
        self.sampler_epoch = order.sampler_epoch
        self.epoch = self.epoch + 1 if self.next_epoch is None else self.next_epoch
        self.batch, self.finished = 0, False
        self.size_steps = (max(self.size_steps),) * 2
        if order.agree is not None:
            # The same on all ranks, for samplers that draw the order of the seeds.
            key = rng.derive(self.base_seed, self.epoch, 0, rng.ORDER_DOMAIN)
            shared = torch.Generator().manual_seed(rng.as_seed(key)).get_state()
            self.default_state, self.generator_state = shared, None
            return self.replay(order, 0)
        self.default_state, self.generator_state = default_state, generator_state
        self._seed_shuffle(order)
        return Positions([], [], positions_of(order.batches))

    def _agree(self, order: SeedOrder, drawn: int) -> int:
        """Return the first rank's `drawn`, having compared where the ranks stand."""
        if order.agree is None or self.agreed:
            return drawn
        began = self.default_state is not None
        stand = {"epoch": self.epoch, "batch": self.batch, "finished": self.finished}
        base_seed = self.base_seed if began else None
        return order.agree({**stand, "base_seed": base_seed, TAIL: order.ranks.tail}, drawn)

    def _warn_of_the_same_order(self, order: SeedOrder) -> None:
        now, sampler = order.sampler_epoch, order.sampler
        if now is not None and now == self.sampler_epoch and self.finished and sampler.shuffle:
            warnings.warn(
                f"The DistributedSampler gives the seeds in the order of the epoch before, as it "
                f"is still at epoch {now}. Call set_epoch(epoch) of it before each epoch.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _check_epoch(self, order: SeedOrder) -> None:
        if self.next_epoch not in (None, self.epoch):
            raise ValueError(
                f"The loaded state is from the middle of epoch {self.epoch}, but "
                f"set_epoch({self.next_epoch}) was called. Call set_epoch({self.epoch}), or leave "
                f"it out: the loader counts its epochs."
            )
        now = order.sampler_epoch
        if None not in (now, self.sampler_epoch) and now != self.sampler_epoch:
            raise ValueError(
                f"The loaded state is from epoch {self.sampler_epoch} of the DistributedSampler, "
                f"which is at epoch {now} and would give other seeds than those that were "
                f"left. Call set_epoch({self.sampler_epoch}) of it first."
            )

    def replay(self, order: SeedOrder, first: int) -> Positions:
        """Return the positions of an epoch begun before, perhaps elsewhere, from a batch on."""
        assert self.default_state is not None
        ambient = torch.get_rng_state()
        torch.set_rng_state(self.default_state)
        try:
            if order.generator is not None and self.generator_state is not None:
                order.generator.set_state(self.generator_state)
            rng.draw_seed(order.generator)
            self._seed_shuffle(order)
            batches = positions_of(order.batches)
            kept = list(islice(batches, min(first, order.ranks.may_repeat)))
            skipped = len(kept) + sum(1 for _ in islice(batches, first - len(kept)))
            # One more than was done: samplers draw their order when the first batch is asked for.
            ahead = list(islice(batches, 1))
        finally:
            torch.set_rng_state(ambient)
        if skipped < first:
            raise ValueError(
                f"The loaded state is from an epoch of {first} batches or more, but the sampler "
                f"gave {skipped}."
            )
        return Positions(kept, ahead, batches)

    def keys(self, first: int) -> Iterator[BatchKey]:
        """Return the keys of the batches of this epoch, from a batch on."""
        # The base seed that was drawn for this epoch identifies it.
        began = (self.base_seed, 0 if self.seed is None else self.epoch, first)
        if self.batch_dependency > 1:
            return rng.dependent_keys(*began, self.batch_dependency)
        return rng.keys(*began)

    def keys_of_steps(self, first: int) -> Iterator[BatchKey]:
        """Return the keys of the batches that all ranks make together, from a step on."""
        for step, key in enumerate(self.keys(first), first):
            yield ExtendedKey.of(key, step=step)

    def _seed_shuffle(self, order: SeedOrder) -> None:
        if order.shuffle_generator is not None and self.seed is not None:
            order.shuffle_generator.manual_seed(rng.shuffle_seed(self.seed, self.epoch))

    def state_dict(self, fingerprint: Fingerprint) -> dict[str, Any]:
        """Return everything a new process needs to continue, as tensors, numbers and texts."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            **{name: getattr(self, name) for name in FIELDS},
            "fingerprint": {**fingerprint, SAMPLER_EPOCH: self.sampler_epoch},
            **({SIZE_STEPS: list(self.size_steps)} if any(self.size_steps) else {}),
        }

    def load_state_dict(
        self, state: Any, fingerprint: Fingerprint, num_batches: int | None, strict: bool
    ) -> None:
        """Make the next epoch continue where `state` was saved, or raise and change nothing.

        Args:
            state: from `state_dict`, also of an older version.
            fingerprint: of this loader.
            num_batches: of an epoch, if that is known.
            strict: whether another fingerprint is an error, or a warning.

        Raises:
            ValueError: not such a state, or one of a loader with another fingerprint.
        """
        saved = checked(state)
        # Of a sampler that may be told its epoch before the loader is iterated.
        sampler_epoch = saved.pop(SAMPLER_EPOCH, None)
        if TAIL not in fingerprint:  # one process has no steps that lack batches
            saved.pop(TAIL, None)
        differing = [name for name, value in saved.items() if fingerprint.get(name) != value]
        if "order" in differing and "generator" in differing:
            differing.remove("generator")  # with a seed, shuffle=True brings one
        if differing:
            text = "; ".join(difference(name, saved, fingerprint) for name in differing)
            message = f"The state was saved by a loader with {text}."
            if strict:
                raise ValueError(
                    f"{message} Build the loader with the same data and arguments, or pass "
                    f"strict=False to continue with other batches."
                )
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        done = state["batch"]
        if num_batches is not None and done > num_batches:
            raise refusal(f"{done} batches were done, but an epoch has {num_batches}")
        for name in FIELDS:
            setattr(self, name, state[name])
        step, following = state.get(SIZE_STEPS, (0, 0))
        self.size_steps = step, following
        self.sampler_epoch = sampler_epoch if strict else None
        self.resume, self.agreed = not self.finished, False
        self.ticket += 1


KNOWN = SequentialSampler, RandomSampler, WeightedRandomSampler, ClusterOrder, PartOrder
EMPTY = np.empty(0, np.int64)
PIECE = 1 << 16  # seeds in order that are numbered at a time


def positions_of(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over what a batch sampler gives: lists of positions, or other things of the user's.

    For torch's own samplers arrays, int64 [n], of the same positions, cut from one permutation of
    8 bytes a seed: torch's list of Python integers takes 40, and to make a list for each batch and
    an array of the list takes longer, of seeds in order eight times as long. Random numbers are
    drawn when torch would draw them.
    """
    if type(batches) is BatchSampler and type(batches.sampler) in KNOWN:
        return _arrays(batches.sampler, batches.batch_size, batches.drop_last)
    return map(_kept, batches)


def _kept(batch: Any) -> Any:
    """Return what a batch sampler of the user's gave; of an array, which may change, a copy."""
    return batch.copy() if isinstance(batch, np.ndarray) else batch


def _arrays(sampler: Any, size: int, drop_last: bool) -> Iterator[Any]:
    left, pieces = len(sampler), map(Tensor.numpy, _drawn_by(sampler))
    piece = EMPTY
    while left >= (size if drop_last else 1):
        missing, found = min(size, left), []
        left -= missing
        while missing > 0:
            if len(piece) == 0:
                del piece  # before the next one is drawn
                piece = next(pieces)
            found.append(piece[:missing])
            piece = piece[missing:]
            missing -= len(found[-1])
        # A copy: one batch must not keep the whole permutation.
        batch = found[0].copy() if len(found) == 1 else np.concatenate(found)
        found.clear()
        if len(batch) < size:
            piece = EMPTY
            _end(pieces)
        yield batch
    piece = EMPTY
    _end(pieces)


def _end(pieces: Iterator[Any]) -> None:
    """Draw what is left: a RandomSampler draws once more at its end."""
    for _ in pieces:
        pass


def _drawn_by(sampler: Any) -> Iterator[Tensor]:
    """Yield the positions that a sampler gives, int64, as torch draws them: many at a time.

    Example: of ``RandomSampler(range(3), num_samples=4)`` a permutation of 3 positions, then the
    first position of another one.
    """
    if isinstance(sampler, ClusterOrder):
        yield sampler.draw()
    elif type(sampler) is SequentialSampler:
        for first in range(0, len(sampler), PIECE):
            yield torch.arange(first, min(first + PIECE, len(sampler)))
    elif type(sampler) is WeightedRandomSampler:
        yield torch.multinomial(
            sampler.weights, sampler.num_samples, sampler.replacement, generator=sampler.generator
        )
    elif sampler.replacement:  # draws 32 at a time itself
        numbers = iter(sampler)
        while piece := list(islice(numbers, 32)):
            yield torch.tensor(piece)
    else:
        generator = sampler.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        count = len(sampler.data_source)
        for _ in range(sampler.num_samples // count):
            yield torch.randperm(count, generator=generator)
        left = sampler.num_samples % count
        # Where nothing of it is needed, the state of a generator of the user's still shows it.
        if left > 0 or sampler.generator is not None:
            yield torch.randperm(count, generator=generator)[:left]
