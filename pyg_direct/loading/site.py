"""Where a loader makes its batches, and when that is decided."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.utils.data
from torch_geometric.sampler import BaseSampler

from ..batch.assemble import tables_of
from ..core.arguments import shown
from ..core.config import DEVICE_VARIABLE, local_rank, resolve_device
from ..core.mapped_files import check_unchanged
from ..core.placing import Placing
from ..core.pyg import SubgraphType
from ..core.types import Ends
from ..ops.backend import Backend, CacheRequest
from ..ops.devices import HOST, Choice, backend_for, cuda_available, process_device
from ..ops.placement import Placement
from ..sampling.sampler import NeighborSampler, keyed, moved

OPEN = "until the first iteration decides"


class Site:
    """The sampler and the backend of a loader.

    A device that the user names, by `device=`, PYG_DIRECT_DEVICE or a ready sampler, holds from the
    beginning. Otherwise all begins on the CPU, which costs nothing, and `decide` moves it to the
    GPU that the process uses, once it uses one.

    Args:
        data: whose attributes are gathered.
        placing: what the user asked for.
        sampler: a ready one, or None.
        make_sampler: makes one of ours for a device and a topology.
        draws_on_cpu: the sampler stays on the CPU, wherever the batches are.
        exchange: of a loader whose ranks make batches together, on the CPU; None of others.

    Attributes:
        is_apart: whether batches are on another device than what is sampled.

    Raises:
        ValueError: a device or a mode that contradicts something else.
    """

    def __init__(
        self,
        data: Any,
        placing: Placing,
        sampler: BaseSampler | None,
        make_sampler: Callable[[torch.device, str], NeighborSampler],
        draws_on_cpu: bool = False,
        exchange: Any = None,
    ) -> None:
        self._data, self._placing = data, placing
        named = resolve_device(placing.device)
        self.is_apart = draws_on_cpu or (exchange is not None and named != HOST)
        ready = isinstance(sampler, NeighborSampler) and not self.is_apart
        self._open = self._left_open = named is None and not ready
        if self._open and not cuda_available():
            self._refuse_device_modes("torch finds no CUDA device")
        if sampler is None:
            device = HOST if self.is_apart else named or HOST
            sampler = make_sampler(device, "auto" if self._open else placing.topology)
        self.sampler = sampler
        self.backend = self._backend_of(sampler, named)
        ours = isinstance(sampler, NeighborSampler)
        self.ends: Ends | None = keyed(sampler).ends if ours else None
        self._threads = self.backend.threads
        self._prepare(self.backend)
        if self._open:
            self._reason = OPEN
        else:
            self._reason = "neighbor_sampler= samples there" if ready else self._named_by()
            exchanged = () if exchange is None else exchange.exchanged
            self.backend.memory.place_tables(tables_of(data, exchanged), placing.features)

    def host_backend(self) -> Backend:
        """Return what samples and gathers on the CPU, whatever device the batches are on."""
        return self.backend if self.backend.device == HOST else backend_for(HOST, self._threads)

    def _named_by(self) -> str:
        if self._placing.cpu_for:
            return f"{self._placing.cpu_for} makes batches there"
        return f"{'device=' if self._placing.device is not None else DEVICE_VARIABLE} names it"

    def _backend_of(self, sampler: BaseSampler, named: torch.device | None) -> Backend:
        """Return the backend that makes the batches: that of our own sampler, else a new one."""
        if self.is_apart or not isinstance(sampler, NeighborSampler):
            device = named or HOST
            threads = keyed(sampler).backend.threads if isinstance(sampler, NeighborSampler) else 1
            return backend_for(device, threads)
        here = keyed(sampler).backend.device
        if self._placing.device is not None and not _same_device(named, here):
            raise ValueError(
                f"device={str(self._placing.device)!r} contradicts neighbor_sampler=, which "
                f"samples on {str(here)!r}. Pass the device to the sampler."
            )
        return keyed(sampler).backend

    def check_files(self) -> None:
        """Raise a ValueError if files of an opened graph were changed since."""
        if isinstance(self.sampler, NeighborSampler):
            check_unchanged(keyed(self.sampler).graph.csc.files)

    @property
    def placement(self) -> Placement:
        """Where each array is stored, and why."""
        return replace(
            self.backend.memory.placement, reason=self._reason, gpu_arguments=self._placing.given()
        )

    def decide(self) -> bool:
        """Decide where batches are made from now on, if the user left it open.

        A decision for a GPU is final. One for the CPU holds until the next call, as the model
        may be moved in the meantime.

        Returns:
            Whether `sampler` and `backend` are others now.

        Raises:
            ValueError: topology='device' or features='device', and no GPU is in use.
        """
        if not self._open or torch.utils.data.get_worker_info() is not None:
            return False
        choice = process_device((table.device for _, table in tables_of(self._data)), local_rank())
        return self._follow(choice)

    def _follow(self, choice: Choice) -> bool:
        device, self._reason = choice
        if device == self.backend.device:
            self._refuse_device_modes(choice.reason)
            return False
        _, topology, features, device_bytes, *_ = self._placing
        sampler = self.sampler
        if isinstance(sampler, NeighborSampler) and not self.is_apart:
            # A copy: batches in progress keep the old one.
            sampler = moved(sampler, device, (topology, device_bytes))
            backend = keyed(sampler).backend
        else:
            backend = backend_for(device)
        self._prepare(backend)
        backend.memory.place_tables(tables_of(self._data), features)
        self.sampler, self.backend, self._open = sampler, backend, False
        return True

    def _prepare(self, backend: Backend) -> None:
        """Tell a backend how the user wants rows to be read.

        Raises:
            ValueError: another loader over the same sampler wants another cache.
        """
        backend.gather_blocks = self._placing.gather_blocks
        size, policy = self._placing.cache, self._placing.cache_policy
        if size is None:
            return
        wanted = CacheRequest(size, policy)
        if backend.cache is not None and wanted.contradicts(backend.cache):
            raise ValueError(
                f"cache={size!r} contradicts cache={backend.cache.size!r}, or its cache_policy, of "
                f"another loader over the same neighbor_sampler=. Pass the same to both, or a "
                f"sampler to each."
            )
        backend.cache = backend.cache or wanted

    def _refuse_device_modes(self, reason: str) -> None:
        for name in ("topology", "features"):
            if getattr(self._placing, name) == "device":
                raise ValueError(
                    f"{name}='device' needs a CUDA device, but batches are made on the CPU: "
                    f"{reason}. Move the model to the GPU before the loop, pass device='cuda', or "
                    f"use {name}='auto'."
                )

    def reopened(self) -> Site:
        """Return a site for another process, which decides for itself if the user left it open."""
        if not self._left_open or self._open:
            return self
        site, sampler, backend = copy.copy(self), self.sampler, backend_for(HOST)
        if isinstance(sampler, NeighborSampler) and not self.is_apart:
            sampler = moved(sampler, HOST, ("auto", None))
            backend = keyed(sampler).backend
        backend.threads = self._threads
        site.sampler, site.backend, site._open, site._reason = sampler, backend, True, OPEN
        return site


def _same_device(wanted: torch.device | None, here: torch.device) -> bool:
    """Whether a device that a user named is `here`; without a number it may be any of its kind."""
    if wanted is None or wanted.type != here.type:
        return wanted is None
    return wanted.index == here.index or None in (wanted.index, here.index)


def check_ready_sampler(sampler: Any, sampling: dict[str, Any], placing: Placing) -> None:
    """Check a ready sampler, and that no argument that it decides was given beside it.

    Raises:
        TypeError: no sampler.
        ValueError: arguments of sampling or of the graph's place were given.
    """
    if not isinstance(sampler, BaseSampler):
        raise TypeError(
            f"neighbor_sampler must be a sampler such as pyg_direct.NeighborSampler, got "
            f"{shown(sampler)}."
        )
    placed = {"topology": placing.topology, "device_bytes": placing.device_bytes}
    defaults = {
        "subgraph_type": "directional",
        "temporal_strategy": "uniform",
        "sampling": "uniform",
        "directed": True,
        "topology": "auto",
        "device_bytes": None,  # of this and the next one 0 is a value, and equals False
        "time_window": None,
    }
    given = [
        name
        for name, value in {**sampling, **placed}.items()
        if value not in (defaults.get(name, False), None, SubgraphType.directional)
    ]
    if given:
        raise ValueError(
            f"neighbor_sampler= decides how to sample, so {', '.join(given)} would be ignored. Set "
            f"it on the sampler."
        )
