"""The ids in a batch, `n_id`, `e_id` and `input_id`: in host memory as in PyG, or on the device.

Programs index their own CPU tensors with them, which a CUDA index cannot do, while a CPU index
works on CUDA tensors, too. So ids that were sampled on a GPU are copied back. The copies begin as
soon as the ids exist, on the stream that sampled them, and go on beside the gather.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from ..ops.backend import Backend
from ..ops.streams import Event
from .sampled import Sampled

NAMES = frozenset(["n_id", "e_id", "input_id"])
ATTRIBUTE = "_host_ids"  # of a sampler's output, where copies that have begun wait for the batch


class HostIds:
    """Copies of id tensors in host memory, by the tensor that they were made from."""

    in_place = False

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # The sources are kept, as a number from `id` is of a living object alone.
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._events: list[Event] = []

    def begin(self, tensors: Iterable[Tensor]) -> None:
        """Begin to copy tensors whose copies have not begun."""
        new = [tensor for tensor in tensors if id(tensor) not in self._copies]
        if new:
            hosts, event = self._backend.copy_to_host(new)
            self._events.append(event)
            self._copies |= {id(t): (t, host) for t, host in zip(new, hosts, strict=True)}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor, which may be incomplete until `wait`."""
        self.begin([tensor])
        return self._copies[id(tensor)][1]

    def parts(self) -> list[Tensor]:
        """Return the tensors that are copied, for `tensors_of`."""
        return [source for source, _ in self._copies.values()]

    def of_seeds(self, tensor: Tensor) -> Tensor:
        """Return the ids of the seeds, which PyG's functions keep on the host."""
        return tensor.cpu()

    def wait(self) -> None:
        """Wait until all copies are there. The thread sleeps meanwhile."""
        for event in self._events:
            self._backend.streams.synchronize(event)
        self._events.clear()


class DeviceIds:
    """The choice to leave ids where batches are made: nothing is copied to the host."""

    in_place = False

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def of(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device of the batch."""
        moved: Tensor = self._backend.memory.to_batch(tensor, tensor.device)
        return moved

    of_seeds = of

    def wait(self) -> None:
        """Do nothing: who uses the tensors waits on a stream."""


class IdsInPlace:
    """The ids of a batch that is made in host memory, where all of them are."""

    in_place = True

    def of(self, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    of_seeds = of

    def wait(self) -> None:
        """Do nothing."""


Ids = HostIds | DeviceIds | IdsInPlace
IN_PLACE = IdsInPlace()


def of_the_users(name: str, value: Any, ids: Ids) -> Any:
    """Return an attribute of the user's own; one with the name of an id field is of ids, too."""
    return ids.of(value) if name in NAMES and isinstance(value, Tensor) else value


def begin_copies(out: Any, backend: Backend) -> None:
    """Begin to copy the node and edge ids of a sampled subgraph to the host."""
    found: list[Tensor | None] = []
    if isinstance(out, Sampled):
        found = [part.given for part in out.nodes.values()]
        found += [part.given for part in out.edges.values()]
    elif isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
        found = [
            tensor
            for field in (out.node, out.edge)
            for tensor in (field.values() if isinstance(field, dict) else [field])
        ]
    if found:
        ids = HostIds(backend)
        ids.begin(tensor for tensor in found if tensor is not None)
        setattr(out, ATTRIBUTE, ids)


def ids_of(out: Any, backend: Backend, on_host: bool) -> Ids:
    """Return the ids for the batch of `out`, with the copies that have begun.

    Copies are known by the tensor they are of, so that one that was replaced meanwhile, as by a
    `transform_sampler_output`, is copied anew.
    """
    if not on_host:
        return IN_PLACE if backend.in_host_memory else DeviceIds(backend)
    begun = getattr(out, ATTRIBUTE, None)
    return begun if isinstance(begun, HostIds) else HostIds(backend)
