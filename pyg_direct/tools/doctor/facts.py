"""Facts about this machine and its GPUs; `Unknown` where one cannot be determined."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from ...core.config import DEVICE_VARIABLE, resolve_device
from ...ops.cpu.backend import kernel_cache
from ...ops.cuda import certificate
from ...ops.cuda.backend import CudaBackend
from ...ops.cuda.cache_file import cache_file
from ...ops.cuda.compiler import install_cupy, require_cuda
from ...ops.cuda.link_file import gpu_key, write_link
from ...ops.devices import usable_device
from ...ops.host_memory import available_bytes, lockable_bytes, usable_bytes
from ...ops.placement import FREE_SHARE
from .bandwidth import HostBandwidth, host_bytes, measure_bandwidth

PACKAGES = ("torch-geometric", "numba", "numpy", "pyg-direct", "torch-sparse", "pyg-lib")
CUPY_PACKAGES = ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-cuda14x", "cupy")
UNLIMITED = -1
BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")  # the last one on ARM


class TorchCuda(NamedTuple):
    """What torch reports about CUDA."""

    version: str  # of torch
    built_for: str | None  # CUDA version
    usable: bool
    properties: tuple[Any, ...] = ()  # of each device, from `get_device_properties`


class Machine:
    """Reads facts from the machine. Each method may raise; tests replace them."""

    environ: Any = os.environ

    def package(self, name: str) -> str:
        """Return the version of an installed distribution."""
        return distribution_version(name)

    def nvml(self) -> Any:
        """Return the module of nvidia-ml-py.

        Raises:
            ImportError: it is not installed.
        """
        import pynvml

        return pynvml

    def nvidia_of_torch(self) -> tuple[str | None, str | None]:
        """Return the driver's version and a list of GPUs, as torch's own report has them."""
        from torch.utils import collect_env

        report: Any = collect_env  # which has no types
        return report.get_nvidia_driver_version(report.run), report.get_gpu_info(report.run)

    def torch_cuda(self) -> TorchCuda:
        """Return torch's devices, without creating a CUDA context."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        properties = tuple(map(torch.cuda.get_device_properties, range(count)))
        return TorchCuda(str(torch.__version__), torch.version.cuda, count > 0, properties)

    def require_cuda(self) -> None:
        """Raise if a loader could not use the GPU."""
        require_cuda(torch.device("cuda"))

    def pci_gpus(self) -> int:
        """Return how many display controllers of NVIDIA are in the machine.

        NVML is a part of the driver: where that is missing, only the system sees the GPU.
        """
        found = 0
        for device in Path("/sys/bus/pci/devices").iterdir():
            kind = (device / "class").read_text().strip()
            found += (device / "vendor").read_text().strip() == "0x10de" and kind[:4] == "0x03"
        return found

    def memlock(self) -> int:
        """Return how many bytes may be page-locked, or UNLIMITED."""
        lockable = lockable_bytes()
        return UNLIMITED if lockable is None else lockable

    def available_bytes(self) -> int:
        """Return the bytes that can be had without swapping, within a container's limits."""
        return min(available_bytes(), usable_bytes())

    def cores(self) -> set[int]:
        """Return the cores that this process may use."""
        if hasattr(os, "sched_getaffinity"):
            return os.sched_getaffinity(0)
        return set(range(os.cpu_count() or 1))

    def bfloat16(self) -> list[str]:
        """Return Linux's names of the instructions for bfloat16 that all cores have."""
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        known = [line.split() for line in lines if line.startswith(("flags", "Features"))]
        if not known:
            raise ValueError("/proc/cpuinfo lists no features")
        return [name for name in BFLOAT16 if all(name in words for words in known)]

    def kernel_cache(self) -> str | None:
        """Return the folder of numba's cache, or None if none can be written."""
        return kernel_cache()

    def writable(self, folder: str) -> bool:
        """Whether files can be created in a folder, or in its nearest parent that exists."""
        path = Path(folder).absolute()
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)

    def device(self) -> str:
        """Return the device that a loader could use, with ``device=None``."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it would warn of is among the problems
            return str(resolve_device(None) or usable_device())

    def bandwidth(self) -> HostBandwidth:
        """Measure how fast the first GPU reads pinned memory, and keep the result for loaders."""
        device = torch.device("cuda", 0)
        speed = measure_bandwidth(CudaBackend(device), host_bytes())
        write_link(gpu_key(device), speed.bytes_under_way)
        return speed

    def checks(self) -> list[tuple[str, bool]]:
        """Compare batches of the first GPU with the CPU's: name and whether they are the same."""
        return list(certificate.results(CudaBackend(torch.device("cuda", 0))))


@dataclass
class Facts:
    """All facts of a machine."""

    torch: TorchCuda | Unknown
    packages: dict[str, str]  # installed ones, with their versions
    cupy: dict[str, str]
    driver: str | Unknown | None  # None: there is none
    gpus: list[GpuFacts] | Unknown
    memlock: int | Unknown
    available_bytes: int | Unknown
    cores: set[int] | Unknown
    bfloat16: list[str] | Unknown
    kernel_cache: str | Unknown | None
    kernel_cache_writable: bool | Unknown
    cupy_cache: str
    cupy_cache_writable: bool | Unknown
    own_cache: str | Unknown  # of measurements and checks
    own_cache_writable: bool | Unknown
    pci_gpus: int | Unknown
    visible: str | None  # CUDA_VISIBLE_DEVICES
    variable: str | None  # PYG_DIRECT_DEVICE
    device: str | Unknown
    refusal: str | None = None  # why a loader could not use the GPU
    bandwidth: HostBandwidth | Unknown | None = None
    checks: list[tuple[str, bool]] | Unknown | None = None  # batches compared with the CPU's

    @property
    def has_gpu(self) -> bool:
        """Whether there is an NVIDIA GPU, also if torch cannot use it."""
        return isinstance(self.gpus, list) and bool(self.gpus)

    @property
    def budget_bytes(self) -> int | Unknown:
        """What 'auto' would take of the first GPU's memory now."""
        if not isinstance(self.gpus, list) or not self.gpus:
            return Unknown("no GPU")
        free = self.gpus[0].free_bytes
        return free if isinstance(free, Unknown) else int(FREE_SHARE * free)

    @staticmethod
    def cupy_command(major: int) -> str:
        """Return the command that installs CuPy for a major version of CUDA."""
        return install_cupy(major)

    @property
    def usable(self) -> bool:
        """Whether torch can use a GPU."""
        return isinstance(self.torch, TorchCuda) and self.torch.usable


def find_out(machine: Machine, bandwidth: bool = True) -> Facts:
    """Collect all facts of a machine.

    Args:
        machine: where the facts are read.
        bandwidth: measure the bandwidth of host memory and compare batches with the CPU's, if there
            is a GPU that can be used.
    """
    versions = {name: ask(machine.package, name) for name in (*PACKAGES, *CUPY_PACKAGES)}
    installed = {name: found for name, found in versions.items() if isinstance(found, str)}
    cupy_cache = machine.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    kernel_cache = ask(machine.kernel_cache)
    own_cache = ask(lambda: str(cache_file("")))
    pci_gpus = ask(machine.pci_gpus)
    nvidia = ask(_nvidia, machine)
    if isinstance(nvidia, Unknown):
        nvidia = Nvidia(nvidia, nvidia)
    elif nvidia.driver is None and isinstance(pci_gpus, int) and pci_gpus > 0:
        nvidia = nvidia._replace(driver=Unknown(f"{pci_gpus} GPU on the PCI bus, but no NVML"))
    of_torch = ask(machine.torch_cuda)
    if isinstance(of_torch, TorchCuda) and not nvidia.gpus:
        nvidia = nvidia._replace(gpus=by_properties(of_torch.properties))
    if isinstance(of_torch, TorchCuda) and of_torch.usable and nvidia.driver is None:
        nvidia = nvidia._replace(driver=Unknown("torch uses one, but its version is unknown"))
    facts = Facts(
        torch=of_torch,
        packages={name: found for name, found in installed.items() if name in PACKAGES},
        cupy={name: found for name, found in installed.items() if name in CUPY_PACKAGES},
        driver=nvidia.driver,
        gpus=nvidia.gpus,
        memlock=ask(machine.memlock),
        available_bytes=ask(machine.available_bytes),
        cores=ask(machine.cores),
        bfloat16=ask(machine.bfloat16),
        kernel_cache=kernel_cache,
        kernel_cache_writable=ask(machine.writable, kernel_cache),
        cupy_cache=cupy_cache,
        cupy_cache_writable=ask(machine.writable, cupy_cache),
        own_cache=own_cache,
        own_cache_writable=ask(machine.writable, own_cache),
        pci_gpus=pci_gpus,
        visible=machine.environ.get("CUDA_VISIBLE_DEVICES"),
        variable=machine.environ.get(DEVICE_VARIABLE),
        device=ask(machine.device),
    )
    if facts.usable:
        refused = ask(machine.require_cuda)
        facts.refusal = str(refused.why) if isinstance(refused, Unknown) else None
        if bandwidth and facts.refusal is None:
            facts.bandwidth = ask(machine.bandwidth)
            facts.checks = ask(machine.checks)
    return facts


def _nvidia(machine: Machine) -> Nvidia:
    """Return driver and GPUs, from NVML where nvidia-ml-py is installed."""
    try:
        nvml = machine.nvml()
    except ImportError:
        return by_torch(*machine.nvidia_of_torch())
    return by_nvml(nvml)


T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """Why a question has no answer."""

    why: str

    def __str__(self) -> str:
        return f"unknown ({self.why})"


def ask(function: Callable[..., T], *arguments: Any) -> T | Unknown:
    """Return the result of a function, or why it failed."""
    try:
        return function(*arguments)
    except Exception as error:  # of whatever kind: a report must not fail
        return Unknown(f"{type(error).__name__}: {error}".splitlines()[0])


NVML_PACKAGE = "nvidia-ml-py"
BITS = 64  # of the words of NVML's sets


class GpuFacts(NamedTuple):
    """One GPU; of a PCIe link the pair (now, at most)."""

    name: str
    total_bytes: int | Unknown
    free_bytes: int | Unknown
    capability: str | Unknown
    generation: tuple[int | Unknown, int | Unknown]
    width: tuple[int | Unknown, int | Unknown]
    numa_nodes: set[int] | Unknown
    cores: set[int] | Unknown  # of the CPU that it is connected to


class Nvidia(NamedTuple):
    """NVIDIA's driver and GPUs."""

    driver: str | Unknown | None  # None: no driver is installed
    gpus: list[GpuFacts] | Unknown


def by_nvml(nvml: Any) -> Nvidia:
    """Ask NVML, which comes with the driver and creates no CUDA context.

    Args:
        nvml: the module `pynvml` of nvidia-ml-py.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return Nvidia(None, [])
    try:
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return Nvidia(ask(nvml.nvmlSystemGetDriverVersion), [_gpu(nvml, h) for h in handles])
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> GpuFacts:
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    major_minor = ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    node = nvml.NVML_AFFINITY_SCOPE_NODE
    words = (os.cpu_count() or 1) // BITS + 1
    return GpuFacts(
        name=str(ask(nvml.nvmlDeviceGetName, handle)),
        total_bytes=memory if isinstance(memory, Unknown) else int(memory.total),
        free_bytes=memory if isinstance(memory, Unknown) else int(memory.free),
        capability=(
            major_minor if isinstance(major_minor, Unknown) else ".".join(map(str, major_minor))
        ),
        generation=(
            ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        ),
        width=(
            ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        ),
        numa_nodes=ask(lambda: _members(nvml.nvmlDeviceGetMemoryAffinity(handle, words, node))),
        cores=ask(lambda: _members(nvml.nvmlDeviceGetCpuAffinity(handle, words))),
    )


def _members(words: Iterable[int]) -> set[int]:
    """Return the numbers of the bits that are set: ``[5, 1]`` holds 0, 2 and 64."""
    bits = sum(int(word) << (BITS * place) for place, word in enumerate(words))
    return {number for number in range(bits.bit_length()) if bits >> number & 1}


def by_torch(driver: str | None, listed: str | None) -> Nvidia:
    """Parse the report of `torch.utils.collect_env`.

    Args:
        driver: `get_nvidia_driver_version`.
        listed: `get_gpu_info`, with a line "GPU 0: NVIDIA H200" for each GPU.
    """
    names = re.findall(r"^GPU \d+: (.+?)\s*$", listed or "", re.MULTILINE)
    return Nvidia(driver, [_known_by_name(name) for name in names])


def by_properties(properties: Iterable[Any]) -> list[GpuFacts]:
    """Return GPUs that NVML does not list.

    Args:
        properties: of each, from `torch.cuda.get_device_properties`.
    """
    return [
        _known_by_name(f"{found.name} (as torch says, NVML does not list it)")._replace(
            total_bytes=int(found.total_memory), capability=f"{found.major}.{found.minor}"
        )
        for found in properties
    ]


def _known_by_name(name: str) -> GpuFacts:
    more = Unknown(f"pip install {NVML_PACKAGE}")
    return GpuFacts(name, more, more, more, (more, more), (more, more), more, more)
