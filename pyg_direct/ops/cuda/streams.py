"""The side streams of a CUDA device."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..streams import Event


class CudaStreams:
    """One stream for sampling and one for gathering on a CUDA device, for the whole process.

    More of them would share the link without making it faster, and each stream's freed memory is
    its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = {stage: _side_stream(device, stage) for stage in ("sample", "gather")}

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        """Make the stream of a stage current, inside an NVTX range of its name."""
        with torch.cuda.stream(self._side[stage]):
            torch.cuda.nvtx.range_push(f"pyg_direct.{stage}")  # type: ignore[no-untyped-call]
            try:
                yield
            finally:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    def record_event(self) -> Event:
        """Return an event of the current stream."""
        # Blocking: `synchronize` sleeps instead of burning a core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_event(self, event: Event) -> None:
        """Let the current stream wait for an event."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def synchronize(self, event: Event) -> None:
        """Let the host wait for an event. Other threads run meanwhile."""
        with torch.cuda.device(self._device):  # else a new thread may open a context on GPU 0
            event.synchronize()

    def record_stream(self, tensors: Iterable[Tensor]) -> None:
        """Tell torch's allocator that the current stream uses the tensors."""
        stream = torch.cuda.current_stream(self._device)
        for tensor in tensors:
            if tensor.device == self._device:
                tensor.record_stream(stream)

    def stream_id(self) -> int:
        """Return the address of the current stream."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)


@functools.cache
def _side_stream(device: torch.device, stage: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
