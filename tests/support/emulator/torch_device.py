"""A torch device that is not the CPU, on a machine without a GPU.

Its tensors are real tensors of torch's reserved device type (`privateuse1`), with two devices:
``torch.device("privateuseone:0")`` and ``torch.device("privateuseone:1")``. The C++ half is
compiled once with g++ and kept in the emulator's cache folder. README.md beside this file says what
it checks.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils.cpp_extension

from .build import build

TYPE = "privateuseone"
SOURCE = Path(__file__).with_name("torch_device.cpp")


def load() -> types.ModuleType:
    """Register the device with torch, once in a process, and return its module.

    The module has the functions of `torch.cuda` that the package uses; `torch.get_device_module`
    finds it.
    """
    sys.audit("tests.emulator")  # `tests/tiers.py` looks for it
    return _loaded()


@functools.cache
def _loaded() -> types.ModuleType:
    library = ctypes.CDLL(str(_library()))
    library.emulated_current_stream.restype = ctypes.c_int64
    library.emulated_was_recorded.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.emulated_set_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
    module = _module(library)
    torch._register_device_module(TYPE, module)
    return module


def _library() -> Path:
    folder = Path(torch.__file__).parent
    command = [
        "-std=c++20" if torch.__version__ >= "2.10" else "-std=c++17", "-O0", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
    ]  # fmt: skip
    libraries = [f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    key = f"{torch.__version__} {sysconfig.get_platform()}"
    headers = torch.utils.cpp_extension.include_paths()
    return build("torch_device", SOURCE.read_text(), command, libraries, headers, key)


class Stream(torch.Stream):
    """A stream of an emulated device. Work runs when it is launched, whatever the stream.

    It keeps count of what it was told to do, so that tests can tell what waits for what: every call
    of `Event.record` and `wait_event` is a step of a vector clock, as a race detector has it.
    """

    def __new__(cls, device: Any = None, number: int | None = None, priority: int = 0) -> Stream:
        number = next(_numbers) if number is None else number
        kind = torch._C._autograd.DeviceType.PrivateUse1.value
        return super().__new__(cls, stream_id=number, device_index=_index(device), device_type=kind)

    def __init__(self, device: Any = None, number: int | None = None, priority: int = 0) -> None:
        self.cuda_stream, self.priority = self.stream_id, priority

    @property
    def clock(self) -> dict[tuple[int, int], int]:
        """The steps of each stream that work of this one comes after, by (device, stream)."""
        return _clocks.setdefault((self.device_index, self.stream_id), {})

    def wait_event(self, event: Event) -> None:
        for key, step in (event.clock or {}).items():
            self.clock[key] = max(step, self.clock.get(key, 0))

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None: ...


class Event:
    """A point in a stream's work: `clock` says what it comes after; None before `record`."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.blocking, self.clock, self.waited_on = blocking, None, []

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or torch.get_device_module(TYPE).current_stream()
        key = stream.device_index, stream.stream_id
        stream.clock[key] = stream.clock.get(key, 0) + 1
        self.clock: dict[tuple[int, int], int] | None = dict(stream.clock)

    def synchronize(self) -> None:
        assert self.clock is not None, "an event that was not recorded"
        self.waited_on.append(torch.get_device_module(TYPE).current_device())

    def query(self) -> bool:
        return True

    def comes_before(self, stream: Stream) -> bool:
        """Whether work that is given to `stream` now runs after this event."""
        return all(stream.clock.get(key, 0) >= step for key, step in (self.clock or {}).items())


_numbers = itertools.count(1)
_clocks: dict[tuple[int, int], dict[tuple[int, int], int]] = {}


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return torch.get_device_module(TYPE).current_device() if index is None else index


def _module(library: Any) -> types.ModuleType:
    """Return what stands for `torch.cuda`."""
    module = types.ModuleType(f"torch.{TYPE}")

    @contextmanager
    def device(wanted: torch.device | int) -> Iterator[None]:
        before = library.emulated_current_device()
        library.emulated_set_device(_index(wanted))
        try:
            yield
        finally:
            library.emulated_set_device(before)

    def current_stream(device: torch.device | int | None = None) -> Stream:
        index = _index(device)
        return Stream(index, library.emulated_current_stream(index))

    @contextmanager
    def stream(wanted: Stream) -> Iterator[None]:
        with device(wanted.device):
            index = wanted.device.index
            before = library.emulated_current_stream(index)
            library.emulated_set_stream(index, wanted.stream_id)
            try:
                yield
            finally:
                library.emulated_set_stream(index, before)

    for function in (device, current_stream, stream):
        setattr(module, function.__name__, function)
    module.Stream, module.Event = Stream, Event
    module.was_recorded = lambda tensor, stream: bool(
        library.emulated_was_recorded(tensor.data_ptr(), stream.stream_id)
    )
    module.current_device = library.emulated_current_device
    module.set_device = lambda wanted: library.emulated_set_device(_index(wanted))
    module.device_count = library.emulated_device_count
    module.synchronize = lambda device=None: None
    module.is_available = module.is_initialized = lambda: True
    # What torch itself calls.
    module._lazy_init = lambda: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    return module
