"""Joules of the processor and of the GPU, from the counters that hardware keeps.

The processor's are those of RAPL, as Linux shows them in `/sys/class/powercap` (see "Power Capping
Framework" in the kernel's documentation): microjoules of each package and of its memory, which wrap
around. Most systems let root alone read them. The GPU's is NVML's
`nvmlDeviceGetTotalEnergyConsumption`: millijoules since the driver was loaded, on GPUs from Volta
on. What cannot be read is named.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

POWERCAP = Path("/sys/class/powercap")
PROCESSOR, GPU = "processor", "gpu"


class NotReadableError(Exception):
    """A machine has no such counter, or it may not be read; the text says which."""


class Counter(Protocol):
    """Energy since some moment."""

    def read(self) -> dict[str, int]:
        """Return what each domain shows now."""

    def joules(self, before: dict[str, int], after: dict[str, int]) -> float:
        """Return the joules between two readings, over all domains."""


class Rapl:
    """The energy of all packages of the processor, and of memory where that is counted.

    Args:
        root: folder with a folder for each domain.

    Raises:
        NotReadableError: no package, or a counter that this user may not read.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._files: dict[str, Path] = {}
        self._range: dict[str, int] = {}
        for folder in sorted(root.glob("intel-rapl:*")) if root.is_dir() else []:
            try:
                name = (folder / "name").read_text().strip()
                # Cores and graphics are a part of their package, and `psys` holds all of them.
                if name.startswith("package") or name == "dram":
                    self._range[folder.name] = int((folder / "max_energy_range_uj").read_text())
                    self._files[folder.name] = folder / "energy_uj"
            except (OSError, ValueError) as error:
                raise NotReadableError(f"{folder}: {error}") from error
        if not self._files:
            raise NotReadableError(f"{root} has no package of RAPL")
        self.read()

    def read(self) -> dict[str, int]:
        """Return microjoules by domain."""
        try:
            return {name: int(file.read_text()) for name, file in self._files.items()}
        except (OSError, ValueError) as error:
            raise NotReadableError(str(error)) from error

    def joules(self, before: dict[str, int], after: dict[str, int]) -> float:
        """Return joules; a counter that shows less than before has wrapped around once."""
        used = 0
        for name, first in before.items():
            passed = after[name] - first
            used += passed if passed >= 0 else passed + self._range[name]
        return used / 1e6


class Nvml:
    """The energy of one GPU.

    Args:
        nvml: the module `pynvml`.
        index: of the GPU, as NVML counts them.

    Raises:
        NotReadableError: no NVML, no such GPU, or one that does not count.
    """

    def __init__(self, nvml: Any, index: int = 0) -> None:
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self.read()
        except nvml.NVMLError as error:
            raise NotReadableError(f"NVML: {error}") from error

    def read(self) -> dict[str, int]:
        """Return millijoules."""
        return {GPU: int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))}

    def joules(self, before: dict[str, int], after: dict[str, int]) -> float:
        """Return joules; the counter has 64 bits and does not wrap."""
        return (after[GPU] - before[GPU]) / 1e3


class Reading(NamedTuple):
    """What all counters showed at one moment."""

    seconds: float
    shown: dict[str, dict[str, int]]


class Meter:
    """All counters that can be read here.

    Args:
        counters: by name.
        not_readable: why others cannot be read, by name.
    """

    def __init__(self, counters: dict[str, Counter], not_readable: dict[str, str]) -> None:
        self._counters, self.not_readable = counters, not_readable

    def read(self) -> Reading:
        """Return what all counters show now. Work that is to be counted has ended by then."""
        shown = {name: counter.read() for name, counter in self._counters.items()}
        return Reading(time.perf_counter(), shown)

    def joules(self, before: Reading, after: Reading) -> dict[str, float]:
        """Return the joules between two readings, by name."""
        return {
            name: counter.joules(before.shown[name], after.shown[name])
            for name, counter in self._counters.items()
        }


def open_meter(gpu: bool, root: Path = POWERCAP, nvml: Any = None) -> Meter:
    """Return a meter of the processor, and of the first GPU where one is used.

    Args:
        gpu: whether one is used.
        root: of RAPL's domains.
        nvml: the module `pynvml`; None imports it.
    """
    counters: dict[str, Counter] = {}
    missing: dict[str, str] = {}
    try:
        counters[PROCESSOR] = Rapl(root)
    except NotReadableError as why:
        missing[PROCESSOR] = str(why)
    if gpu:
        try:
            if nvml is None:
                import pynvml as nvml
            counters[GPU] = Nvml(nvml)
        except ImportError:
            missing[GPU] = "nvidia-ml-py is not installed"
        except NotReadableError as why:
            missing[GPU] = str(why)
    return Meter(counters, missing)
