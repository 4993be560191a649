"""What the loaders of several ranks exchange to make their batches: from meeting to ending."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from ..ops.backend import Backend
from ..ops.devices import HOST
from ..ranks.channel import Channel, ExchangeError, is_lost, meet
from ..ranks.exchange import gathered_unless_failed
from ..ranks.rounds import Rounds
from ..ranks.traffic import ExchangeTraffic
from .rows import RowTraffic

WINDOW = 4  # batches of a rank whose requests travel together
TIMEOUT_SECONDS = 300.0  # of one exchange, unless a loader has a timeout=
MEETING_MARGIN_SECONDS = 5.0  # beyond that for ranks to begin, as no thread answers before
GROUP_MARGIN_SECONDS = 10.0  # of a group's own timeout, beyond those of its exchanges

_channels: weakref.WeakKeyDictionary[Any, list[Channel]] = weakref.WeakKeyDictionary()
"""By process group of the user: the channels that loaders have had to its ranks."""


_for_loops: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By process group of the user: one of the same ranks for the threads that iterate loaders."""


_allowed_seconds: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
"""By group of our own: how long an exchange may take before the group ends it itself."""


class Maker(NamedTuple):
    """Makes batches in the rounds of all ranks."""

    make: Callable[[list[Any]], list[Any]]  # see `Rounds`
    traffic: RowTraffic


class BatchExchange:
    """Makes batches, or parts of them, together with the other ranks; see `Rounds`.

    Args:
        name: what the loaders are over, for messages: "a loader over ...".
    """

    argument = "a partition"  # by which ranks came to work together, for messages
    window = WINDOW
    _computes = False  # whether the threads that iterate loaders exchange something, too
    _travels = True  # to other processes, before ranks have met
    orders: tuple[str, ...] = ("proximity",)  # of seeds by name that there may be beside it

    def __init__(self, name: str) -> None:
        self._name = name
        self._rounds: Rounds | None = None
        self.channel: Channel | None = None
        self.loop_channel: Channel | None = None  # of the thread that iterates, if `_computes`
        self._counted: RowTraffic | None = None

    def _maker(self, channel: Channel, sampler: Any, backend: Backend) -> Maker:
        """Return what makes batches; the ranks have met, and all of them call it.

        Raises:
            Exception: this rank cannot begin, which the others learn.
        """
        raise NotImplementedError

    def _rounds_over(self, channel: Channel, maker: Maker) -> Rounds:
        """Return the rounds in which batches are made; `begin` starts them."""
        return Rounds(channel, maker.make, self.window)

    def _check_world_size(self, size: int) -> None:
        """Raise a ValueError if so many ranks cannot work together, which all of them know."""

    def _said(self) -> Any:
        """Return what the ranks compare when they have met."""

    def _check_same(self, said: Sequence[Any]) -> None:
        """Raise a ValueError if what the ranks said differs in what must not, on all of them."""

    def check_sampler(self, sampler: Any, changes_output: bool) -> None:
        """Raise a ValueError if ranks cannot make batches of a sampler together.

        Args:
            sampler: of the loader.
            changes_output: whether there is a `transform_sampler_output`.
        """

    def begin(self, sampler: Any, backend: Backend, group: Any, timeout_seconds: float) -> None:
        """Begin an epoch; at the first one, meet the other ranks: collective then.

        Args:
            sampler: of the loader.
            backend: of the loader.
            group: the process group of the ranks, None for this process alone.
            timeout_seconds: of one exchange; 0 for `TIMEOUT_SECONDS`.

        Raises:
            ValueError: so many ranks, or ranks with other data, cannot work together.
            RuntimeError: another rank could not begin, or an earlier epoch has failed.
            Exception: see `_maker`.
        """
        if self._rounds is not None:
            self._rounds.check()
            return
        own = loop = None
        seconds = timeout_seconds or TIMEOUT_SECONDS
        if group is not None and dist.get_world_size(group) > 1:
            self._check_world_size(dist.get_world_size(group))
            own = self._group_for(group, seconds)
            if self._computes:
                if group not in _for_loops:
                    _for_loops[group] = _new_group(group, seconds)
                loop = _for_loops[group]
        channel = Channel(own, seconds)
        if self._computes:
            self.loop_channel = Channel(loop, seconds)
        if own is not None:
            _channels.setdefault(group, []).append(channel)
        maker, error = None, None
        try:
            maker = self._maker(channel, sampler, backend)
        except Exception as caught:
            error = caught
        if own is not None:
            gather = Channel(own, seconds).values
            self._check_same(gathered_unless_failed(self._said(), error, gather))
        elif error is not None:
            raise error
        assert maker is not None  # else there was an error
        self._rounds = self._rounds_over(channel, maker)
        if self.loop_channel is not None:
            self.loop_channel.watch = self._rounds.check
        self.channel, self._counted = channel, maker.traffic
        weakref.finalize(self, self._rounds.close).atexit = False
        self._rounds.start()

    def _group_for(self, group: Any, seconds: float) -> Any:
        """Return a group of our own of the same ranks, once all of them are here.

        It is one whose exchange has ended on all ranks, if there is any: each has threads and
        connections, and ranks may build many loaders one after another.

        Raises:
            RuntimeError: some ranks are not here in time.
        """
        channels = _channels.get(group, [])
        free = {
            channel.group.group_name: channel
            for channel in channels
            if channel.ended and _allowed_seconds[channel.group] >= seconds
        }
        loop = _for_loops.get(group)
        loop_serves = loop is None or (not is_lost(loop) and _allowed_seconds[loop] >= seconds)
        try:
            patience = seconds + MEETING_MARGIN_SECONDS
            said = meet(group, self.argument, (list(free), loop_serves), patience, HOST)
        except ExchangeError as error:
            raise RuntimeError(
                f"Not all ranks have begun to iterate a loader over {self._name}, as they must, "
                f"whose loaders exchange hops and rows. {error}"
            ) from error
        if not all(serves for _, serves in said):  # another one is made then, on all ranks
            _for_loops.pop(group, None)
        common = set.intersection(*(set(names) for names, _ in said))
        if common:
            channel = free[min(common)]
            channels.remove(channel)
            return channel.group
        return _new_group(group, seconds)

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, once all have called it in their loops.

        By the thread of the rounds, so that a rank that waits here learns of another's failure.

        Raises:
            ExchangeError: a rank has failed or is gone.
        """
        assert self._rounds is not None  # an epoch has begun
        return [pickle.loads(found) for found in self._rounds.gather(pickle.dumps(value))]

    def traffic(self) -> ExchangeTraffic:
        """Return what was exchanged so far."""
        if self.channel is None or self._counted is None:
            return ExchangeTraffic()
        found = replace(self.channel.traffic(), **vars(self._counted))
        loop = self.loop_channel
        if loop is None:
            return found
        return found.with_computing(loop.rank, loop.traffic(), loop.waited_seconds)

    def works_for(
        self, is_working: Callable[[], bool], is_stale: Callable[[int], bool], together: int
    ) -> None:
        """See `Rounds.works_for`."""
        if self._rounds is not None:
            self._rounds.works_for(is_working, is_stale, together)

    def fail(self, error: BaseException) -> None:
        """See `Rounds.fail`."""
        if self._rounds is not None:
            self._rounds.fail(error)

    def made(self, asked: Any) -> Any:
        """See `Rounds.made`.

        Raises:
            RuntimeError: no epoch was begun yet.
        """
        if self._rounds is None:
            raise RuntimeError(
                f"A loader over {self._name} meets the other ranks at its first iteration. Call "
                f"iter(loader) on all of them before loader(positions)."
            )
        return self._rounds.made(asked)

    def bring_rows(self, nodes: Mapping[Any, Any]) -> None:
        """Keep the rows of a batch with its ids, unless they came with these.

        Args:
            nodes: of the batch, by type.
        """

    def part_of(self, node_type: Any, node: Tensor) -> Tensor:
        """Return the part of each node, int64 [n]; only where 'parts' is among `orders`."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied or sent to another process once ranks have met.

        Raises:
            TypeError: they have, or such a loader never can.
        """
        if self._rounds is not None or not self._travels:
            raise TypeError(
                f"A loader over {self._name} cannot be copied or sent to another process, as it "
                f"answers other ranks. Build it in the process of each rank."
            )
        return self.__dict__


def _new_group(group: Any, seconds: float) -> Any:
    """Return a group of gloo of the same ranks, all of which call this.

    Raises:
        RuntimeError: a rank ended, or could not be reached, while it was made.
    """
    try:
        made = dist.new_group(
            dist.get_process_group_ranks(group),
            timeout=timedelta(seconds=seconds + GROUP_MARGIN_SECONDS),
            backend="gloo",
            use_local_synchronization=True,
        )
    except Exception as error:
        raise RuntimeError(
            f"The ranks could not connect to each other within {seconds:g} s, though all had begun "
            f"to iterate: one ended, or gloo found no way to its machine. GLOO_SOCKET_IFNAME names "
            f"the network interface to use. {error}"
        ) from error
    _allowed_seconds[made] = seconds
    return made
