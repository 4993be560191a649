"""Facts about this machine; `Unknown` where one cannot be determined."""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from ..config import DEVICE_VARIABLE, resolve_device
from ..kernels import gather as numba_gather
from ..ops.cuda.backend import CudaBackend
from ..ops.cuda.compiler import install_cupy, require_cuda
from ..ops.cuda.host_memory import MEMINFO, available_in, lockable_bytes
from ..ops.cuda.link_file import gpu_key, write_link
from ..ops.devices import usable_device
from ..ops.placement import FREE_SHARE
from .bandwidth import HostBandwidth, host_bytes, measure_bandwidth

T = TypeVar("T")

PACKAGES = ("torch-geometric", "numba", "numpy", "pyg-direct", "torch-sparse", "pyg-lib")
CUPY_PACKAGES = ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-cuda14x", "cupy")
GPU_FIELDS = (
    "name", "memory.total", "memory.free", "compute_cap", "pci.bus_id",
    "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
)  # fmt: skip
COMMAND_SECONDS = 20
UNLIMITED = -1


@dataclass(frozen=True)
class Unknown:
    """In place of what could not be found out."""

    why: str

    def __str__(self) -> str:
        return f"unknown ({self.why})"


class TorchCuda(NamedTuple):
    """What torch reports about CUDA."""

    version: str  # of torch
    built_for: str | None  # CUDA version
    usable: bool


class Machine:
    """Everything that is asked of the machine. Each method may raise; tests replace them."""

    environ: Any = os.environ

    def package(self, name: str) -> str:
        """Return the version of an installed distribution."""
        return distribution_version(name)

    def run(self, *command: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
        if done.returncode != 0:
            raise OSError(f"{command[0]}: {(done.stderr or done.stdout).strip()[:200]}")
        return done.stdout

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()

    def torch_cuda(self) -> TorchCuda:
        """Return what torch says, which counts devices and makes no context."""
        return TorchCuda(str(torch.__version__), torch.version.cuda, torch.cuda.is_available())

    def require_cuda(self) -> None:
        """Raise if a loader could not use the GPU."""
        require_cuda(torch.device("cuda"))

    def pci_gpus(self) -> int:
        """Return how many display controllers of NVIDIA are in the machine, driver or not."""
        found = 0
        for device in Path("/sys/bus/pci/devices").iterdir():
            kind = (device / "class").read_text().strip()
            found += (device / "vendor").read_text().strip() == "0x10de" and kind[:4] == "0x03"
        return found

    def memlock(self) -> int:
        """Return how many bytes may be page-locked, or UNLIMITED."""
        lockable = lockable_bytes()
        return UNLIMITED if lockable is None else lockable

    def cores(self) -> set[int]:
        """Return the cores that this process may use."""
        if hasattr(os, "sched_getaffinity"):
            return os.sched_getaffinity(0)
        return set(range(os.cpu_count() or 1))

    def kernel_cache(self) -> str | None:
        """Return the folder of numba's cache, or None if none can be written."""
        cache: str | None = numba_gather.gather_rows.stats.cache_path  # type: ignore[attr-defined]
        return cache

    def writable(self, folder: str) -> bool:
        """Whether files can be made in a folder, or in the one that it would be made in."""
        path = Path(folder).absolute()
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)

    def device(self) -> str:
        """Return the device that a loader could use, with ``device=None``."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it would warn of is among the problems
            return str(resolve_device(None) or usable_device())

    def bandwidth(self) -> HostBandwidth:
        """Measure how fast the first GPU reads pinned memory, and keep what loaders go by."""
        device = torch.device("cuda", 0)
        speed = measure_bandwidth(CudaBackend(device), host_bytes())
        write_link(gpu_key(device), speed.bytes_under_way)
        return speed


class Gpu(NamedTuple):
    """One GPU, by the fields of GPU_FIELDS, and its NUMA node."""

    fields: dict[str, str]
    numa_node: str | Unknown


@dataclass
class Facts:
    """What was found out."""

    torch: TorchCuda | Unknown
    packages: dict[str, str]  # those that are installed
    cupy: dict[str, str]
    driver: str | Unknown | None  # None: there is none
    gpus: list[Gpu] | Unknown
    memlock: int | Unknown
    available_bytes: int | Unknown
    cores: set[int] | Unknown
    kernel_cache: str | Unknown | None
    kernel_cache_writable: bool | Unknown
    cupy_cache: str
    cupy_cache_writable: bool | Unknown
    pci_gpus: int | Unknown
    visible: str | None  # CUDA_VISIBLE_DEVICES
    variable: str | None  # PYG_DIRECT_DEVICE
    device: str | Unknown
    refusal: str | None = None  # why a loader could not use the GPU
    bandwidth: HostBandwidth | Unknown | None = None
    gpu_cores: dict[str, set[int]] = field(default_factory=dict)  # NUMA node -> cores

    @property
    def has_gpu(self) -> bool:
        """Whether there is an NVIDIA GPU, whatever torch makes of it."""
        return isinstance(self.gpus, list) and bool(self.gpus)

    @property
    def budget_bytes(self) -> int | Unknown:
        """What 'auto' would take of the first GPU's memory now."""
        if not isinstance(self.gpus, list) or not self.gpus:
            return Unknown("no GPU")
        free = self.gpus[0].fields["memory.free"]
        return int(FREE_SHARE * (int(free) << 20)) if free.isdigit() else Unknown(free)

    @staticmethod
    def cupy_command(major: int) -> str:
        """Return the command that installs CuPy for a major version of CUDA."""
        return install_cupy(major)

    @property
    def usable(self) -> bool:
        """Whether torch can use a GPU."""
        return isinstance(self.torch, TorchCuda) and self.torch.usable


def ask(function: Callable[..., T], *arguments: Any) -> T | Unknown:
    """Return what a function returns, or why it does not."""
    try:
        return function(*arguments)
    except Exception as error:  # of whatever kind: a report must not fail
        return Unknown(f"{type(error).__name__}: {error}".splitlines()[0])


def find_out(machine: Machine, bandwidth: bool = True) -> Facts:
    """Ask the machine everything.

    Args:
        machine: whom to ask.
        bandwidth: measure the bandwidth of host memory, if there is a GPU that can be used.
    """
    versions = {name: ask(machine.package, name) for name in (*PACKAGES, *CUPY_PACKAGES)}
    installed = {name: found for name, found in versions.items() if isinstance(found, str)}
    cupy_cache = machine.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    kernel_cache = ask(machine.kernel_cache)
    pci_gpus = ask(machine.pci_gpus)
    expected = isinstance(pci_gpus, int) and pci_gpus > 0
    facts = Facts(
        torch=ask(machine.torch_cuda),
        packages={name: found for name, found in installed.items() if name in PACKAGES},
        cupy={name: found for name, found in installed.items() if name in CUPY_PACKAGES},
        driver=ask(_driver, machine, expected),
        gpus=ask(_gpus, machine, expected),
        memlock=ask(machine.memlock),
        available_bytes=ask(_available_bytes, machine),
        cores=ask(machine.cores),
        kernel_cache=kernel_cache,
        kernel_cache_writable=ask(machine.writable, kernel_cache),
        cupy_cache=cupy_cache,
        cupy_cache_writable=ask(machine.writable, cupy_cache),
        pci_gpus=pci_gpus,
        visible=machine.environ.get("CUDA_VISIBLE_DEVICES"),
        variable=machine.environ.get(DEVICE_VARIABLE),
        device=ask(machine.device),
    )
    for gpu in facts.gpus if isinstance(facts.gpus, list) else []:
        if isinstance(gpu.numa_node, str):
            cores = ask(_cores_of_node, machine, gpu.numa_node)
            facts.gpu_cores |= {} if isinstance(cores, Unknown) else {gpu.numa_node: cores}
    if facts.usable:
        refused = ask(machine.require_cuda)
        facts.refusal = str(refused.why) if isinstance(refused, Unknown) else None
        if bandwidth and facts.refusal is None:
            facts.bandwidth = ask(machine.bandwidth)
    return facts


def _driver(machine: Machine, expected: bool) -> str | None:
    """Return the version of NVIDIA's driver; None where it is not installed, nor `expected`."""
    listed = ask(machine.run, "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if isinstance(listed, str) and listed.strip():
        return listed.split()[0]
    try:
        text = machine.read("/proc/driver/nvidia/version")
    except FileNotFoundError:
        if expected:
            raise
        return None
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    if found is None:
        raise ValueError(f"no version in {text[:60]!r}")
    return found[0]


def _gpus(machine: Machine, expected: bool) -> list[Gpu]:
    """Return the GPUs that nvidia-smi lists; none where it is not installed, nor `expected`."""
    query = f"--query-gpu={','.join(GPU_FIELDS)}"
    try:
        listed = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits")
    except FileNotFoundError:
        if expected:
            raise
        return []
    gpus = []
    for line in listed.splitlines():
        values = [part.strip() for part in line.split(",")]
        fields = dict(zip(GPU_FIELDS, values, strict=True))
        # nvidia-smi writes the PCI domain with 8 digits, Linux with 4.
        folder = f"/sys/bus/pci/devices/{fields['pci.bus_id'][-12:].lower()}"
        node = ask(machine.read, f"{folder}/numa_node")
        if node == "-1":
            node = Unknown("the system does not say")
        for name, file in (
            ("width.current", "current_link_width"),
            ("width.max", "max_link_width"),
        ):
            if not fields[f"pcie.link.{name}"].isdigit():
                fields[f"pcie.link.{name}"] = str(ask(machine.read, f"{folder}/{file}"))
        gpus.append(Gpu(fields, node))
    return gpus


def _available_bytes(machine: Machine) -> int:
    return available_in(machine.read(MEMINFO))


def _cores_of_node(machine: Machine, node: str) -> set[int]:
    cores: set[int] = set()
    for part in machine.read(f"/sys/devices/system/node/node{node}/cpulist").split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
