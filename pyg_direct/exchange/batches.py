"""What the loaders of several ranks exchange to make their batches: from meeting to ending."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from ..core.private_torch import let_wait
from ..ops.backend import Backend
from ..ranks.board import ExchangeError
from ..ranks.channel import GLOO_REMARK, Channel, device_backends, is_lost
from ..ranks.exchange import gathered_unless_failed
from ..ranks.traffic import ExchangeTraffic
from ..ranks.windows import Iteration, Place, Terms, Windows
from .rows import RowTraffic

WINDOW = 4  # batches of a rank whose requests travel together
MEETING_MARGIN_SECONDS = 5.0  # beyond that for ranks to begin
NOWHERE: Mapping[str, str] = {}

_channels: weakref.WeakKeyDictionary[Any, list[Channel]] = weakref.WeakKeyDictionary()
"""By process group of the user: the channels that loaders have had to its ranks."""


_for_loops: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By process group of the user: one of the same ranks for the threads that iterate loaders."""


class Maker(NamedTuple):
    """Makes batches in the windows of all ranks."""

    make: Callable[[list[Any]], list[Any]]  # see `Windows`
    traffic: RowTraffic


class BatchExchange:
    """Makes batches, or parts of them, together with the other ranks; see `Windows`.

    Args:
        name: what the loaders are over, for messages: "a loader over ...".
    """

    argument = "a partition"  # by which ranks came to work together, for messages
    _computes = False  # whether the threads that iterate loaders exchange something, too
    _travels = True  # to other processes, before ranks have met
    orders: tuple[str, ...] = ("proximity",)  # of seeds by name that there may be beside it
    exchanged: Container[int] = ()  # tables of the user's, by `id`, whose rows ranks exchange

    def __init__(self, name: str) -> None:
        self._name = name
        self._windows: Windows | None = None
        self.channel: Channel | None = None
        self.loop_channel: Channel | None = None  # of the thread that iterates, if `_computes`
        self._counted: RowTraffic | None = None

    def _maker(self, channel: Channel, sampler: Any, backend: Backend, window: int) -> Maker:
        """Return what makes batches, so many of a rank at a time; the ranks have met.

        Raises:
            Exception: this rank cannot begin, which the others learn.
        """
        raise NotImplementedError

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

    def window_of(self, is_ahead: bool, completes_in_loop: bool) -> int:
        """Return how many batches of this rank may be made together.

        Args:
            is_ahead: whether producers make them.
            completes_in_loop: whether the thread that iterates gathers their rows, one by one.
        """
        return WINDOW if is_ahead else 1

    def begin(self, sampler: Any, backend: Backend, terms: Terms) -> int:
        """Begin an epoch; at the first one, meet the other ranks: collective then.

        Args:
            sampler: of the loader.
            backend: of the loader.
            terms: what this rank asks of the exchange.

        Returns:
            How many batches of this rank are made together; 0 if nothing is exchanged.

        Raises:
            ValueError: so many ranks, or ranks with other data, cannot work together.
            RuntimeError: another rank could not begin, or an earlier epoch has failed.
            Exception: see `_maker`.
        """
        if self._windows is not None:
            self._windows.check()
            if terms.window < self._windows.size:
                raise ValueError(
                    f"The ranks have agreed to make {self._windows.size} batches at a time, which "
                    f"needs producers on all of them: prefetch= and filter_per_worker= must stay "
                    f"as they were. Build the loader anew on all ranks."
                )
            return self._windows.size
        channel, window = self._met(terms)
        maker, error, board = None, None, channel.board
        try:
            maker = self._maker(channel, sampler, backend, window)
        except Exception as caught:
            error = caught
        if board is not None:
            gather = partial(board.values, seconds=channel.timeout_seconds)
            self._check_same(gathered_unless_failed(self._said(), error, gather))
        elif error is not None:
            raise error
        assert maker is not None  # else there was an error
        self._windows = Windows(channel, maker.make, window)
        self.channel, self._counted = channel, maker.traffic
        weakref.finalize(self, self._windows.close).atexit = False
        self._windows.start()
        return window

    def _met(self, terms: Terms) -> tuple[Channel, int]:
        """Return a channel to the other ranks, once all of them are here, and the window of all.

        Its group is one whose exchange has ended on all ranks, if there is any: each has threads
        and connections, and ranks may build many loaders one after another.

        Raises:
            RuntimeError: some ranks are not here in time.
        """
        group, board = terms.group, terms.board
        seconds = terms.timeout_seconds
        if board is None:
            return Channel(None, seconds), terms.window
        self._check_world_size(board.size)
        free = {
            (old.group.group_name, old.traffic().collectives): old
            for old in _channels.get(group, [])
            if old.ended
        }
        loop = _for_loops.get(group)
        here = list(free), loop is not None and not is_lost(loop), terms.window
        try:
            said = board.values(here, seconds + MEETING_MARGIN_SECONDS)
        except ExchangeError as error:
            raise RuntimeError(
                f"Not all ranks have begun to iterate a loader over {self._name}, as they must, "
                f"whose loaders exchange hops and rows. {error}"
            ) from error
        common = set.intersection(*(set(names) for names, _, _ in said))
        if common:
            known = free[min(common)]
            _channels[group].remove(known)
            own = known.group
        else:
            own = _new_group(group, seconds)
        if self._computes:
            if not all(serves for _, serves, _ in said):
                _for_loops[group] = _new_group(group, seconds, device_backends(group))
            self.loop_channel = Channel(_for_loops[group], seconds, board=board)
        channel = Channel(own, seconds, board=board)
        _channels.setdefault(group, []).append(channel)
        return channel, min(window for _, _, window in said)

    @property
    def place(self) -> Place | None:
        """Which batch of an iteration this thread makes; None for none, or without windows."""
        return None if self._windows is None else self._windows.place

    @property
    def has_begun(self) -> bool:
        """Whether the ranks have met."""
        return self._windows is not None

    def iterate(self, epoch: int, first_step: int) -> Iteration:
        """Begin an iteration over batches; see `Windows`."""
        return self._begun().iterate(epoch, first_step)

    def at(self, place: Place | None) -> AbstractContextManager[None]:
        """Return a context in which a batch is made, None for none of an iteration."""
        return contextlib.nullcontext() if self._windows is None else self._windows.at(place)

    def traffic(self) -> ExchangeTraffic:
        """Return what was exchanged so far."""
        if self.channel is None or self._counted is None:
            return ExchangeTraffic()
        found = replace(self.channel.traffic(), **vars(self._counted))
        loop = self.loop_channel
        if loop is None:
            return found
        return found.with_computing(loop.rank, loop.traffic(), loop.waited_seconds)

    def fail(self, error: BaseException) -> None:
        """See `Windows.fail`."""
        if self._windows is not None:
            self._windows.fail(error)

    def made(self, asked: Any) -> Any:
        """See `Windows.made`.

        Raises:
            RuntimeError: the batch is none of an epoch.
        """
        return self._begun().made(asked)

    def _begun(self) -> Windows:
        if self._windows is None:
            raise RuntimeError(
                f"A loader over {self._name} meets the other ranks at its first iteration. Iterate "
                f"it on all of them: a batch outside of an epoch needs a loader of this rank alone."
            )
        return self._windows

    def bring_rows(self, nodes: Mapping[Any, Any], padded: bool = False) -> None:
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
        if self._windows is not None or not self._travels:
            raise TypeError(
                f"A loader over {self._name} cannot be copied or sent to another process, as it "
                f"answers other ranks. Build it in the process of each rank."
            )
        return self.__dict__


def _new_group(group: Any, seconds: float, on_devices: Mapping[str, str] = NOWHERE) -> Any:
    """Return a group of the same ranks, all of which call this.

    Args:
        group: of the user.
        seconds: how long to wait for the others.
        on_devices: by what it moves tensors of types of devices; those of the host by gloo.

    Raises:
        RuntimeError: a rank ended, or could not be reached, while it was made.
    """
    try:
        made = dist.new_group(
            dist.get_process_group_ranks(group),
            timeout=timedelta(seconds=seconds),
            backend=",".join(f"{on}:{by}" for on, by in {"cpu": "gloo", **on_devices}.items()),
            use_local_synchronization=True,
        )
    except Exception as error:
        raise RuntimeError(
            f"The ranks could not connect to each other within {seconds:g} s, though all had begun "
            f"to iterate: one ended, or gloo found no way to its machine. GLOO_SOCKET_IFNAME names "
            f"the network interface to use. {str(error).partition(GLOO_REMARK)[0]}"
        ) from error
    # A rank may be in a collective while the loops of others pause, as long as its own does.
    let_wait(made, timedelta(days=365))
    return made
