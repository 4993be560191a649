"""The command `pyg-direct info`; `arguments.py` says what it is for."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from typing import NamedTuple

from ..core.config import DEVICE_VARIABLE
from ..core.units import size_text
from . import arguments
from .doctor.bandwidth import HostBandwidth
from .doctor.facts import (
    PACKAGES,
    UNLIMITED,
    Facts,
    GpuFacts,
    Machine,
    TorchCuda,
    Unknown,
    find_out,
)

OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}  # CUDA major -> branch of the driver
TORCH_WITH_CUDA = "pip install --force-reinstall torch"


class Problem(NamedTuple):
    """A misconfiguration, and what to do about it."""

    what: str
    fix: str


def report(machine: Machine | None = None, bandwidth: bool = True) -> str:
    """Return the whole report.

    Args:
        machine: None for this one.
        bandwidth: measure the bandwidth to host memory, if there is a GPU that can be used.
    """
    facts = find_out(machine or Machine(), bandwidth)
    lines = [f"{name + ':':<24}{value}" for name, value in rows(facts)]
    found = list(problems(facts))
    lines += ["", f"{'problems:':<24}{len(found) or 'none found'}"]
    for number, problem in enumerate(found, 1):
        lines += [f"  {number}. {problem.what}", f"     fix: {problem.fix}"]
    return "\n".join(lines)


def rows(facts: Facts) -> Iterator[tuple[str, object]]:
    """Yield name and value of each line about the machine."""
    yield "python", platform.python_version()
    yield "torch", facts.torch.version if isinstance(facts.torch, TorchCuda) else facts.torch
    for name in PACKAGES:
        yield name, facts.packages.get(name, "not installed")
    yield "cupy", ", ".join(map(" ".join, facts.cupy.items())) or "not installed"
    yield "CUDA of torch", _or_none(_torch_major(facts))
    yield "CUDA of CuPy", ", ".join(map(str, cupy_majors(facts))) or "none"
    yield "NVIDIA driver", _or_none(facts.driver)
    if isinstance(facts.gpus, Unknown) or not facts.gpus:
        yield "GPU", facts.gpus or "none"
    else:
        for number, gpu in enumerate(facts.gpus):
            for name, value in gpu_rows(gpu):
                yield f"GPU {number}{name}", value
        yield "'auto' may take", f"{_size(facts.budget_bytes)} of GPU memory"
    if facts.has_gpu or facts.usable:
        yield "bandwidth, measured", bandwidth_text(facts.bandwidth)
        yield from check_rows(facts)
        memlock = facts.memlock
        yield "may be page-locked", "unlimited" if memlock == UNLIMITED else _size(memlock)
    yield "cores", len(facts.cores) if isinstance(facts.cores, set) else facts.cores
    yield "bfloat16 on the CPU", bfloat16_text(facts.bfloat16)
    yield "available RAM", _size(facts.available_bytes)
    yield "numba's kernel cache", _cache(facts.kernel_cache, facts.kernel_cache_writable)
    if facts.cupy:
        yield "CuPy's kernel cache", _cache(facts.cupy_cache, facts.cupy_cache_writable)
    yield "pyg_direct's cache", _cache(facts.own_cache, facts.own_cache_writable)
    yield DEVICE_VARIABLE, facts.variable or "not set"
    yield "device=None means", _default_device(facts)


def gpu_rows(gpu: GpuFacts) -> Iterator[tuple[str, object]]:
    """Yield the lines of one GPU."""
    yield (
        "",
        (
            f"{gpu.name}, {_size(gpu.total_bytes)}, {_size(gpu.free_bytes)} free, "
            f"compute capability {gpu.capability}"
        ),
    )
    (generation, newest), (width, widest) = gpu.generation, gpu.width
    yield (
        ", PCIe",
        f"generation {generation} of {newest} (lower when idle), x{width} of x{widest}",
    )
    yield ", NUMA node", _numbers(gpu.numa_nodes)


def check_rows(facts: Facts) -> Iterator[tuple[str, object]]:
    """Yield the results of comparing batches of the GPU with the CPU's."""
    if isinstance(facts.checks, list):
        for name, passed in facts.checks:
            yield "same as on the CPU", f"{'pass' if passed else 'FAIL'}: {name}"
    else:
        yield "same as on the CPU", facts.checks or "not checked"


def bfloat16_text(names: list[str] | Unknown) -> object:
    """Return whether this CPU multiplies matrices faster in bfloat16, as text."""
    if isinstance(names, Unknown):
        return names
    if not names:
        return "no instructions for it, so torch.autocast gains nothing"
    return f"{', '.join(names)}: torch.autocast('cpu', torch.bfloat16) may gain"


def bandwidth_text(bandwidth: HostBandwidth | Unknown | None) -> object:
    """Return the measured bandwidth as text."""
    if not isinstance(bandwidth, HostBandwidth):
        return "not measured" if bandwidth is None else bandwidth
    best, enough, copy = (
        rate.bytes_per_second / 1e9 for rate in (bandwidth.best, bandwidth.enough, bandwidth.copy)
    )
    return (
        f"{best:.1f} GB/s with {bandwidth.best.threads:,} threads, {enough:.1f} GB/s with "
        f"{bandwidth.enough.threads:,}; copy engine {copy:.1f} GB/s"
    )


def problems(facts: Facts) -> Iterator[Problem]:
    """Yield all misconfigurations."""
    explained = False
    for check in (torch_problems, cupy_problems):
        for problem in check(facts):
            explained = True
            yield problem
    if facts.refusal is not None and not explained:
        yield Problem(f"A loader cannot use the GPU: {facts.refusal}", "follow the message above")
    yield from check_problems(facts)
    yield from variable_problems(facts)
    yield from memory_problems(facts)
    yield from place_problems(facts)
    yield from cache_problems(facts)


def torch_problems(facts: Facts) -> Iterator[Problem]:
    """Yield why torch does not find a GPU that is there."""
    if not isinstance(facts.torch, TorchCuda):
        yield Problem(f"torch could not be asked: {facts.torch}.", TORCH_WITH_CUDA)
        return
    torch, driver = facts.torch, facts.driver
    if torch.built_for is None:
        if facts.has_gpu:
            yield Problem(
                f"There is an NVIDIA GPU, but torch {torch.version} was built without CUDA.",
                TORCH_WITH_CUDA,
            )
        return
    unseen = isinstance(driver, Unknown) and not torch.usable
    if unseen and isinstance(facts.pci_gpus, int) and facts.pci_gpus:
        yield Problem(
            "There is an NVIDIA GPU, but no driver that answers.",
            "sudo ubuntu-drivers install (on Ubuntu); for a container, docker run --gpus all",
        )
        return
    oldest = OLDEST_DRIVER.get(_major(torch.built_for))
    if isinstance(driver, str) and oldest is not None and _major(driver) < oldest:
        yield Problem(
            f"The driver {driver} is too old: torch {torch.version} uses CUDA {torch.built_for}, "
            f"which needs {oldest} or newer.",
            "update the driver, or install a torch that was built for an older CUDA",
        )
    elif not torch.usable and facts.has_gpu:
        what = "The driver lists a GPU, but torch does not"
        if facts.visible is not None:
            what += f": CUDA_VISIBLE_DEVICES is {facts.visible!r}"
        yield Problem(
            f"{what}.",
            "sudo dmesg | grep NVRM says why"
            if facts.visible is None
            else "unset CUDA_VISIBLE_DEVICES",
        )


def cupy_problems(facts: Facts) -> Iterator[Problem]:
    """Yield problems of CuPy, if torch has CUDA and there is a GPU."""
    major = _torch_major(facts)
    if major is None or not (facts.has_gpu or facts.usable):
        return
    extra = facts.cupy_command(major)
    installed = sorted(facts.cupy)
    remove = f"pip uninstall -y {' '.join(installed)} && {extra}"
    if not installed:
        yield Problem("CuPy is not installed; without it a loader cannot use the GPU.", extra)
    elif len(installed) > 1:
        yield Problem(f"{' and '.join(installed)} overwrite each other's files.", remove)
    elif cupy_majors(facts) not in ([], [major]):
        yield Problem(f"{installed[0]} does not fit torch, which uses CUDA {major}.", remove)


def check_problems(facts: Facts) -> Iterator[Problem]:
    """Yield that a GPU gives other batches than the CPU, or an error."""
    fix = f"{DEVICE_VARIABLE}=cpu, and please report this with the output of this command"
    if isinstance(facts.checks, Unknown):
        yield Problem(f"A check of the GPU's batches failed: {facts.checks.why}", fix)
        return
    wrong = [name for name, passed in facts.checks or () if not passed]
    if wrong:
        yield Problem(f"The GPU gives other batches than the CPU: {', '.join(wrong)}.", fix)


def variable_problems(facts: Facts) -> Iterator[Problem]:
    """Yield problems of PYG_DIRECT_DEVICE."""
    if isinstance(facts.device, Unknown):
        yield Problem(
            f"{DEVICE_VARIABLE}={facts.variable!r} names no device: {facts.device.why}",
            f"unset {DEVICE_VARIABLE}",
        )
    elif facts.device != "cpu" and (not facts.usable or facts.refusal):
        yield Problem(
            f"Loaders would use {facts.device}, which cannot be used.", f"{DEVICE_VARIABLE}=cpu"
        )


def memory_problems(facts: Facts) -> Iterator[Problem]:
    """Yield too low limits on page-locked memory."""
    limit, available = facts.memlock, facts.available_bytes
    if isinstance(limit, Unknown) or isinstance(available, Unknown) or not facts.has_gpu:
        return
    if UNLIMITED != limit < available:
        yield Problem(
            f"Only {_size(limit)} may be page-locked, so registering features and graphs of the "
            f"host for the GPU may fail.",
            "ulimit -l unlimited; in a container, docker run --ulimit memlock=-1",
        )


def place_problems(facts: Facts) -> Iterator[Problem]:
    """Yield what slows down the link between host memory and GPU."""
    for number, gpu in enumerate(facts.gpus if isinstance(facts.gpus, list) else []):
        width, most = gpu.width
        if isinstance(width, int) and isinstance(most, int) and width < most:
            yield Problem(
                f"GPU {number} is connected by {width} of its {most} PCIe lanes.",
                f"put it into a slot with {most} lanes, or ask the administrator of the machine",
            )
        if isinstance(gpu.cores, Unknown) or isinstance(facts.cores, Unknown):
            continue
        if gpu.cores and not gpu.cores & facts.cores:
            nodes = _numbers(gpu.numa_nodes)
            yield Problem(
                f"This process may use no core of GPU {number}'s NUMA node {nodes}.",
                f"numactl --cpunodebind={nodes} --membind={nodes} python ...",
            )


def cache_problems(facts: Facts) -> Iterator[Problem]:
    """Yield caches that cannot be written."""
    if facts.kernel_cache is None or facts.kernel_cache_writable is False:
        yield Problem(
            f"numba cannot keep compiled kernels in {facts.kernel_cache or 'any folder'}, so each "
            f"process compiles them again.",
            "export NUMBA_CACHE_DIR=/a/writable/folder",
        )
    if facts.cupy and facts.has_gpu and facts.cupy_cache_writable is False:
        yield Problem(
            f"CuPy cannot keep compiled kernels in {facts.cupy_cache}: they are kept in "
            f"{facts.own_cache}/cupy, or each process compiles them again.",
            "export CUPY_CACHE_DIR=/a/writable/folder",
        )
    if facts.has_gpu and facts.own_cache_writable is not True:
        yield Problem(
            f"What is measured and checked of a GPU cannot be kept in {facts.own_cache}, so each "
            f"process checks it again, and none knows its link.",
            "export XDG_CACHE_HOME=/a/writable/folder",
        )


def cupy_majors(facts: Facts) -> list[int]:
    """Return the CUDA majors of the installed CuPy wheels; a CuPy from source does not say."""
    suffixes = [name.removeprefix("cupy-cuda") for name in facts.cupy]
    return [int(suffix.removesuffix("x")) for suffix in suffixes if suffix.endswith("x")]


def _torch_major(facts: Facts) -> int | None:
    built_for = facts.torch.built_for if isinstance(facts.torch, TorchCuda) else None
    return None if built_for is None else _major(built_for)


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _default_device(facts: Facts) -> object:
    """Return what ``device=None`` means, and why: a GPU only with tensors of the process on it."""
    if isinstance(facts.device, Unknown):
        return facts.device
    if facts.variable:
        return f"{facts.device}, as {DEVICE_VARIABLE} says"
    if facts.device != "cpu":
        return f"{facts.device}, in a process with tensors there; else cpu"
    if isinstance(facts.torch, Unknown):
        return f"cpu, as torch could not be asked: {facts.torch}"
    if facts.torch.built_for is None:
        return f"cpu, as torch {facts.torch.version} was built without CUDA"
    if not facts.usable:
        return "cpu, as torch finds no CUDA device"
    return f"cpu, as the GPU cannot be used: {facts.refusal or 'see the problems'}"


def _or_none(value: object) -> object:
    return "none" if value is None else value


def _size(nbytes: int | Unknown) -> str:
    if isinstance(nbytes, Unknown):
        return str(nbytes)
    return size_text(nbytes)


def _numbers(numbers: set[int] | Unknown) -> str:
    if isinstance(numbers, Unknown) or not numbers:
        return str(numbers or Unknown("the system does not say"))
    return ",".join(map(str, sorted(numbers)))


def _cache(folder: str | Unknown | None, writable: bool | Unknown) -> str:
    if folder is None:
        return "none: no folder can be written"
    return f"{folder}{' (read-only)' if writable is False else ''}"


def main(argv: list[str] | None = None) -> None:
    """Print the report."""
    run(*arguments.info(argv))


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Print the report."""
    if args.compile:
        from .compiling import compile_kernels  # which imports PyG

        compile_kernels()
    print(report(bandwidth=not args.no_bandwidth))


if __name__ == "__main__":
    main()
