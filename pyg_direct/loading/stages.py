"""Stream synchronisation for prefetched batches.

While the model trains on batch i, the rows of batch i+1 are gathered and batch i+2 is sampled, each
on a stream of its own::

    sample   | i+2 |
    gather   | i+1 |      <- waits for its sample
    consumer |  i  |      <- waits for its gather

The consumer's stream waits only for the batch that it asks for. In the other direction the host
waits before it begins a batch, in the thread that makes it, for what the consumer had
queued when it asked for that batch. So what the consumer wrote into a table is read by the batches
it asks for afterwards, and a host that runs ahead of the device does not fill its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from ..ops.streams import Event, Streams


class Asked(Protocol):
    """What a stage is called with."""

    @property
    def asked(self) -> Event:
        """When the consumer asked for it, from `Stages.ask`."""


T = TypeVar("T", bound=Asked)


class Handover(NamedTuple):
    """A finished product, for the consumer to take."""

    product: Any
    ready: Event


class Stages:
    """Orders the two stages of a batch with each other and with the consumer.

    Args:
        streams: where the stages run; `NoStreams` for one after another.
        tensors_of: returns the tensors in what a stage returns.
    """

    def __init__(self, streams: Streams, tensors_of: Callable[[Any], Iterable[Tensor]]) -> None:
        self._streams, self._tensors_of = streams, tensors_of

    def ask(self) -> Event:
        """Return the moment at which the consumer asks for a batch; called in its thread."""
        return self._streams.record_event()

    def produce(
        self,
        task: T,
        sample: Callable[[T], Any],
        gather: Callable[[Any], Any] | None,
    ) -> Handover:
        """Run the stages of one batch, in any thread.

        Args:
            task: what to make, and when it was asked for.
            sample: the first stage, called with the task.
            gather: the second one, called with what the first returned; None if the consumer is to
                run it itself.
        """
        streams = self._streams
        if streams.in_order:
            product = sample(task)
            return Handover(product if gather is None else gather(product), None)
        streams.synchronize(task.asked)
        with streams.on("sample"):
            product = sample(task)
            ready = streams.record_event()
        if gather is not None:
            with streams.on("gather"):
                self._receive(product, ready)
                product = gather(product)
                ready = streams.record_event()
        return Handover(product, ready)

    def take(self, handover: Handover) -> Any:
        """Return a product to the consumer, in its thread, for use on its current stream."""
        if not self._streams.in_order:
            self._receive(*handover)
        return handover.product

    def _receive(self, product: Any, ready: Event) -> None:
        self._streams.wait_event(ready)
        self._streams.record_stream(self._tensors_of(product))
