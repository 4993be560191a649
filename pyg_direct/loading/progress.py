"""Starting and resuming epochs, and the state that `state_dict` saves."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..core.types import BatchKey
from ..ops.host import keys as rng
from .positions import positions_of

STATE_VERSION = 2
READABLE_VERSIONS = (1, STATE_VERSION)  # version 1 had three fields of the fingerprint

SAMPLER_EPOCH = "sampler_epoch"  # the field of a state's fingerprint that is compared later

Fingerprint = Mapping[str, Any]
"""Names and values, numbers or texts, of everything that decides what the batches are."""


class SeedOrder(NamedTuple):
    """What decides the order of the seeds in an epoch."""

    batches: Iterable[Any]  # positions of the seeds of each batch; iterated once an epoch
    generator: torch.Generator | None  # DataLoader's; None for torch's default one
    shuffle_generator: torch.Generator | None  # the same one if the loader's seed is to govern it

    @property
    def sampler(self) -> Any:
        """What gives the positions of single seeds, where that is known, or whole batches."""
        return getattr(self.batches, "sampler", self.batches)

    @property
    def sampler_epoch(self) -> int | None:
        """What a DistributedSampler's order follows; None for other samplers."""
        sampler = self.sampler
        return sampler.epoch if isinstance(sampler, DistributedSampler) else None


Step = tuple[int, Any, BatchKey]
"""A batch to make: its number in the epoch, positions in the loader's `input_nodes` from
`positions_of`, and the key of its draws."""


@dataclass
class Progress:
    """Where a loader stands; what `state_dict` saves."""

    seed: int | None  # as the user gave it
    epoch: int = -1  # the epoch that was begun last
    batch: int = 0  # batches of it that were handed out
    finished: bool = True
    base_seed: int = 0  # of that epoch's draws
    # Random states from before the epoch, for samplers that draw from them when they are iterated.
    default_state: Tensor | None = None
    generator_state: Tensor | None = None
    sampler_epoch: int | None = None  # of a DistributedSampler, when the epoch began
    resume: bool = field(default=False, compare=False)  # the next epoch continues this one
    ticket: int = field(default=0, compare=False)  # of the iterator that may write to this

    def begin(self, order: SeedOrder) -> Steps:
        """Begin the next epoch, or go on with the one that was loaded, and return what to make."""
        if self.resume:
            self._check_sampler_epoch(order)
            batches = self.replay(order, self.batch)
            self.resume = False
        else:
            batches = self._start(order)
        self.ticket += 1
        return Steps(copy.copy(self), order, batches)

    def _start(self, order: SeedOrder) -> Iterator[Any]:
        """Begin a new epoch. Draws in the order in which PyG's loader would."""
        self.default_state, self.generator_state = torch.get_rng_state(), None
        if order.generator is not None:
            self.generator_state = order.generator.get_state()
        self._warn_of_the_same_order(order)
        self.sampler_epoch = order.sampler_epoch
        self.epoch, self.batch, self.finished = self.epoch + 1, 0, False
        # Also with a seed, so that the order of the seed nodes does not depend on it.
        drawn = rng.draw_seed(order.generator)
        self.base_seed = drawn if self.seed is None else self.seed
        self._seed_shuffle(order)
        return positions_of(order.batches)

    def _warn_of_the_same_order(self, order: SeedOrder) -> None:
        now, sampler = order.sampler_epoch, order.sampler
        if now is not None and now == self.sampler_epoch and self.finished and sampler.shuffle:
            warnings.warn(
                f"The DistributedSampler gives the seeds in the order of the epoch before, as it "
                f"still stands at epoch {now}. Call set_epoch(epoch) of it before each epoch.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _check_sampler_epoch(self, order: SeedOrder) -> None:
        now = order.sampler_epoch
        if None not in (now, self.sampler_epoch) and now != self.sampler_epoch:
            raise ValueError(
                f"The loaded state is from epoch {self.sampler_epoch} of the DistributedSampler, "
                f"which stands at epoch {now} and would give other seeds than those that were "
                f"left. Call set_epoch({self.sampler_epoch}) of it first."
            )

    def replay(self, order: SeedOrder, first: int) -> Iterator[Any]:
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
            skipped = sum(1 for _ in islice(batches, first))
            # One more than was done: samplers draw their order when the first batch is asked for.
            ahead = list(islice(batches, 1))
        finally:
            torch.set_rng_state(ambient)
        if skipped < first:
            raise ValueError(
                f"The loaded state is from an epoch of {first} batches or more, but the sampler "
                f"gave {skipped}."
            )
        return chain(ahead, batches)

    def keys(self, first: int) -> Iterator[BatchKey]:
        """Return the keys of the batches of this epoch, from a batch on."""
        # The base seed that was drawn for this epoch identifies it.
        return rng.keys(self.base_seed, 0 if self.seed is None else self.epoch, first)

    def _seed_shuffle(self, order: SeedOrder) -> None:
        if order.shuffle_generator is not None and self.seed is not None:
            key = rng.derive(self.seed, self.epoch, 0, rng.SHUFFLE_DOMAIN)
            order.shuffle_generator.manual_seed(rng.as_seed(key))

    def state_dict(self, fingerprint: Fingerprint) -> dict[str, Any]:
        """Return everything a new process needs to go on, as tensors, numbers and texts."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            **{name: getattr(self, name) for name in _FIELDS},
            "fingerprint": {**fingerprint, SAMPLER_EPOCH: self.sampler_epoch},
        }

    def load_state_dict(
        self, state: Any, fingerprint: Fingerprint, num_batches: int | None, strict: bool
    ) -> None:
        """Make the next epoch go on where `state` was saved, or raise and change nothing.

        Args:
            state: from `state_dict`, also of an older version.
            fingerprint: of this loader.
            num_batches: of an epoch, if that is known.
            strict: whether another fingerprint is an error, or a warning.

        Raises:
            ValueError: not such a state, or one of a loader with another fingerprint.
        """
        saved = _checked(state)
        # Of a sampler that may be told its epoch before the loader is iterated.
        sampler_epoch = saved.pop(SAMPLER_EPOCH, None)
        differing = [name for name, value in saved.items() if fingerprint.get(name) != value]
        if "order" in differing and "generator" in differing:
            differing.remove("generator")  # with a seed, shuffle=True brings one
        if differing:
            text = "; ".join(_difference(name, saved, fingerprint) for name in differing)
            message = f"The state was saved by a loader with {text}."
            if strict:
                raise ValueError(
                    f"{message} Build the loader with the same data and arguments, or pass "
                    f"strict=False to go on with other batches."
                )
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        done = state["batch"]
        if num_batches is not None and done > num_batches:
            raise _refusal(f"{done} batches were done, but an epoch has {num_batches}")
        for name in _FIELDS:
            setattr(self, name, state[name])
        self.sampler_epoch = sampler_epoch if strict else None
        self.resume = not self.finished
        self.ticket += 1


# Samplers that give the same positions again from the same states of torch's generators.
REPEATABLE = (
    SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler,
    DistributedSampler,
)  # fmt: skip


class Steps:
    """The batches of an epoch that were not handed over, in order.

    What was drawn stays until it is below `first`, so that batches can be made again whose making
    was interrupted. The iterator that gave the positions may have been ended by the interruption,
    or what it gave may be lost, so the sampler is iterated anew then.

    Args:
        began: the progress at the beginning, with its first batch; not written to.
        order: of the seeds.
        positions: of the batches from there on.
    """

    def __init__(self, began: Progress, order: SeedOrder, positions: Iterator[Any]) -> None:
        self._began, self._order = began, order
        self.first = began.batch  # number of the next batch to hand over; written by the consumer
        self._drawn: deque[Step] = deque()
        self._source = self._numbered(positions)
        self._drawing = False

    def _numbered(self, positions: Iterator[Any]) -> Iterator[Step]:
        first = self._end
        return zip(count(first), positions, self._began.keys(first), strict=False)

    @property
    def _end(self) -> int:
        """Number of the next batch to draw."""
        return max(self.first, self._drawn[-1][0] + 1 if self._drawn else 0)

    def left(self) -> Iterator[Step]:
        """Return all batches from `first` on."""
        return chain([step for step in self._drawn if step[0] >= self.first], self)

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Step:
        """Return the next batch.

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

    def _repeated(self) -> Iterator[Any]:
        batches, generator = self._order.batches, self._order.generator
        sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
        own = getattr(sampler, "generator", None)  # a DistributedSampler has none
        if type(sampler) not in REPEATABLE or own not in (None, generator):
            raise RuntimeError(
                f"This iterator was interrupted while a {type(sampler).__name__} gave the seeds, "
                f"and cannot go on, as that may give others when it is iterated anew. If it gives "
                f"the same, go on by loader.load_state_dict(loader.state_dict()) and iter(loader)."
            )
        return self._began.replay(self._order, self._end)


# Fields of a fingerprint that are hashes, of which the value says nothing: what they stand for.
HASHES = {
    "graph": "another graph (edges, or what time_attr= or weight_attr= names)",
    "seeds": "other seeds (input_nodes= or edge_label_index=, or their times or labels)",
}
# Fields that no argument is called by: what decides them.
CAUSES = {
    "order": "shuffle=, sampler= or batch_sampler= giving",
    "generator": "generator= given:",
    "loader": "class",
    "sampler": "neighbor_sampler= of class",
    "input_type": "seeds of type",
    "num_replicas": "a DistributedSampler of as many ranks as num_replicas:",
    "sampler_seed": "a DistributedSampler of seed",
}


def _difference(name: str, saved: Fingerprint, here: Fingerprint) -> str:
    """Return how one field of two fingerprints differs, in terms of the loader's arguments."""
    if name in HASHES:
        return HASHES[name]
    what = f"{CAUSES[name]} " if name in CAUSES else f"{name}="
    return f"{what}{saved[name]!r} (here {here.get(name)!r})"


def _is_int(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value < high


def _is_random_state(value: Any) -> bool:
    """Whether a value is None or a state that torch's CPU generators take."""
    if value is None:
        return True
    try:
        torch.Generator().set_state(value)
    except (RuntimeError, TypeError, AttributeError):
        return False
    return True


# What is saved of `Progress`, and what is allowed there.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "epoch": ("an int in [-1, 2**32)", _is_int(-1, 1 << 32)),
    "batch": ("an int of 0 or more", _is_int(0, 1 << 63)),
    "finished": ("a bool", lambda value: type(value) is bool),
    "base_seed": ("an int in [0, 2**64)", _is_int(0, 1 << 64)),
    "default_state": ("a state of a torch generator or None", _is_random_state),
    "generator_state": ("a state of a torch generator or None", _is_random_state),
}


def _refusal(problem: str) -> ValueError:
    return ValueError(
        f"The state cannot be loaded: {problem}. Pass what the loader's state_dict() returned."
    )


def _checked(state: Any) -> dict[str, Any]:
    """Return the fingerprint in a state; see `Progress.load_state_dict`.

    Raises:
        ValueError: not a state, or one that no loader can have saved.
    """

    if not isinstance(state, Mapping):
        raise _refusal(f"it is a {type(state).__name__} and no dict")
    version = state.get("version")
    if version not in READABLE_VERSIONS:
        raise _refusal(
            f"it has version {version!r}, and this pyg_direct reads the versions "
            f"{', '.join(map(str, READABLE_VERSIONS))}"
        )
    extra = {"fingerprint"} if version == STATE_VERSION else {"num_seeds", "batch_size"}
    expected = {"version", "seed", *_FIELDS, *extra}
    for what, names in (("lacks", expected - set(state)), ("also has", set(state) - expected)):
        if names:
            raise _refusal(f"it {what} {', '.join(sorted(map(repr, names)))}")
    for name, (allowed, is_allowed) in _FIELDS.items():
        if not is_allowed(state[name]):
            raise _refusal(f"{name!r} must be {allowed}, got {state[name]!r}")
    if not state["finished"] and (state["epoch"] < 0 or state["default_state"] is None):
        raise _refusal("it is in the middle of an epoch that was never begun")
    saved = state["fingerprint"] if version == STATE_VERSION else {k: state[k] for k in extra}
    if not isinstance(saved, Mapping):
        raise _refusal(f"'fingerprint' must be a dict, got {saved!r}")
    return {"seed": state["seed"], **saved}
