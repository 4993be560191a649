"""The side streams of a CUDA device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..streams import Event, NoStreams, T
from .memory import in_capture


class CudaStreams:
    """One stream for sampling and one for gathering on a CUDA device, for the whole process.

    More of them would share the link without making it faster, and each stream's freed memory is
    its own.
    """

    in_order = False
    finish = None  # who takes a batch waits for its event

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._torch: Any = torch.get_device_module(device)  # torch.cuda
        self._nvtx = _nvtx(self._torch)
        self._side = {stage: _side_stream(device, stage) for stage in ("sample", "gather")}

    def start_thread(self) -> None:
        """Make the device the current one of the thread.

        torch puts the stream of the current device back after each `on`. In a thread that never
        chose a device that is GPU 0, where it would open a context, on every rank of a DDP job.
        """
        self._torch.set_device(self._device)

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        """Make the stream of a stage current, inside an NVTX range of its name."""
        with self._torch.stream(self._side[stage]):
            if self._nvtx is None:
                yield
                return
            self._nvtx.range_push(f"pyg_direct.{stage}")
            try:
                yield
            finally:
                self._nvtx.range_pop()

    def record_event(self) -> Event:
        """Return an event of the current stream."""
        # Blocking: `synchronize` sleeps instead of burning a core.
        event = self._torch.Event(blocking=True)
        event.record(self._torch.current_stream(self._device))
        return event

    def wait_event(self, event: Event) -> None:
        """Let the current stream wait for an event."""
        self._torch.current_stream(self._device).wait_event(event)

    def synchronize(self, event: Event) -> None:
        """Let the host wait for an event. Other threads run meanwhile.

        CUDA waits in the context of the thread's current device, and makes it where there is none.
        A thread is on the event's device already: producers choose it, and a consumer records an
        event or queues a wait before.
        """
        event.synchronize()

    def record_stream(self, tensors: Iterable[Tensor]) -> None:
        """Tell torch's allocator that the current stream uses the tensors."""
        stream = self._torch.current_stream(self._device)
        for tensor in tensors:
            if tensor.device == self._device:
                tensor.record_stream(stream)

    def stream_id(self) -> int:
        """Return the address of the current stream."""
        return int(self._torch.current_stream(self._device).cuda_stream)


class CallersStream(NoStreams):
    """The current stream alone, for an allocator that cannot be told which streams use memory.

    Memory goes back to it when a tensor is deleted, whatever still reads it on another stream than
    the one of its allocation. So each batch has ended when it is handed over: graph and tables can
    be deleted at any time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def finish(self) -> None:
        """Wait for the current stream."""
        torch.get_device_module(self._device).current_stream(self._device).synchronize()


class CudaGraphs:
    """CUDA graphs over torch's memory; the stream of captures is one for the whole process.

    torch asks for ordinary calls on the stream of a capture before it: they take what libraries
    keep for a stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def apart(self, work: Callable[[], T]) -> T:
        """Return what a call does, on the stream of captures, in order with the current one."""
        module = torch.get_device_module(self._device)
        side, current = _side_stream(self._device, "capture"), module.current_stream(self._device)
        side.wait_stream(current)
        with module.stream(side):
            made = work()
        current.wait_stream(side)
        return made

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Return what launches again what a call launched, and what the call returned."""
        module, side = torch.get_device_module(self._device), _side_stream(self._device, "capture")
        graph = module.CUDAGraph()
        with module.graph(graph, stream=side, capture_error_mode="thread_local"):
            made = in_capture(work)
        return graph.replay, made


@functools.cache
def _side_stream(device: torch.device, stage: str) -> Any:
    # Before the kernels of training, of which each fills the device. Ours cannot take it from them:
    # those that read host memory have few blocks (`tuning.HOST_BLOCKS`, `gather_blocks`).
    return torch.get_device_module(device).Stream(device, priority=-1)


def _nvtx(module: Any) -> Any:
    """Return torch's functions for profiler ranges; None from a torch that was built without."""
    nvtx: Any = getattr(module, "nvtx", None)
    try:
        nvtx.range_push("pyg_direct")
        nvtx.range_pop()
    except (AttributeError, RuntimeError):
        return None
    return nvtx
