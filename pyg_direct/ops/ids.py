"""The ids in a batch: where they were sampled, in host memory, or on the device of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from .streams import Event, Streams


class Ids:
    """The ids of a batch that stay where they are: those of a batch in host memory."""

    in_place = True
    copies = False  # whether `begin` copies anything

    def begin(self, tensors: Iterable[Tensor]) -> None:
        """Begin to copy ids that the batch will have."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return ids where they belong; the values may come only until `wait`."""
        return tensor

    def of_seeds(self, tensor: Tensor) -> Tensor:
        """Return the ids of the seeds, which PyG's functions keep on the host."""
        return self.of(tensor)

    def wait(self) -> None:
        """Wait until all copies are there. The thread sleeps meanwhile."""

    def parts(self) -> list[Tensor]:
        """Return the tensors that are copied, for `tensors_of`."""
        return []


IN_PLACE = Ids()


class DeviceIds(Ids):
    """Ids on a device: nothing is copied to the host, and who uses them waits on a stream.

    Args:
        upload: brings a tensor to the device.
    """

    in_place = False

    def __init__(self, upload: Callable[[Tensor], Tensor]) -> None:
        self._upload = upload

    def of(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device of the batch."""
        return self._upload(tensor)


class HostIds(Ids):
    """Copies of id tensors in host memory, by the tensor that they were made from.

    Args:
        download: begins a copy to page-locked memory on the current stream.
        streams: of the device.
    """

    in_place, copies = False, True

    def __init__(self, download: Callable[[Tensor], Tensor], streams: Streams) -> None:
        self._download, self._streams = download, streams
        # The sources are kept: a number from `id` is of a living object only, and the memory must
        # stay until the copies have been waited for.
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._events: list[Event] = []

    def begin(self, tensors: Iterable[Tensor]) -> None:
        """Begin to copy tensors whose copies have not begun; those in host memory stay there."""
        new = [tensor for tensor in tensors if id(tensor) not in self._copies]
        if new:
            for tensor in new:
                host = tensor if tensor.device.type == "cpu" else self._download(tensor)
                self._copies[id(tensor)] = tensor, host
            self._events.append(self._streams.record_event())

    def of(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor."""
        self.begin([tensor])
        return self._copies[id(tensor)][1]

    def of_seeds(self, tensor: Tensor) -> Tensor:
        """Return the ids of the seeds in host memory."""
        return tensor.cpu()

    def wait(self) -> None:
        """Wait for the events of the copies."""
        for event in self._events:
            self._streams.synchronize(event)
        self._events.clear()

    def parts(self) -> list[Tensor]:
        """Return the sources of the copies."""
        return [source for source, _ in self._copies.values()]
