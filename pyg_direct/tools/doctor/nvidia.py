"""NVIDIA's driver and the GPUs it lists: by NVML, or as far as torch's `collect_env` reports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from .unknown import Unknown, ask

NVML_PACKAGE = "nvidia-ml-py"
BITS = 64  # of the words in which NVML hands out sets


class Gpu(NamedTuple):
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
    """What there is of NVIDIA's."""

    driver: str | Unknown | None  # None: no driver is installed
    gpus: list[Gpu] | Unknown


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


def _gpu(nvml: Any, handle: Any) -> Gpu:
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    major_minor = ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    node = nvml.NVML_AFFINITY_SCOPE_NODE
    words = (os.cpu_count() or 1) // BITS + 1
    return Gpu(
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
    """Read what `torch.utils.collect_env` found.

    Args:
        driver: `get_nvidia_driver_version`.
        listed: `get_gpu_info`, with a line "GPU 0: NVIDIA H200" for each GPU.
    """
    names = re.findall(r"^GPU \d+: (.+?)\s*$", listed or "", re.MULTILINE)
    return Nvidia(driver, [_known_by_name(name) for name in names])


def by_properties(properties: Iterable[Any]) -> list[Gpu]:
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


def _known_by_name(name: str) -> Gpu:
    more = Unknown(f"pip install {NVML_PACKAGE}")
    return Gpu(name, more, more, more, (more, more), (more, more), more, more)
