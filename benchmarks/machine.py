"""What a result depends on besides the code: versions, commit and machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = {
    "torch": "torch",
    "torch_geometric": "torch-geometric",
    "torch_sparse": "torch-sparse",
    "pyg_lib": "pyg-lib",
    "numba": "numba",
    "numpy": "numpy",
    "pyg_direct": "pyg-direct",
}
REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = ("pyg_direct", "cuda", "benchmarks", "examples")
SUFFIXES = {".py", ".cu", ".cuh", ".h", ".json"}


def environment(folders: Iterable[str] = SOURCES) -> dict[str, object]:
    """Return everything that a reader needs to judge or repeat a result.

    Args:
        folders: with the sources on which it depends.
    """
    found = {"versions": versions(), "commit": commit(), "sources": sources_digest(folders=folders)}
    return {**found, "machine": machine()}


def sources_digest(root: Path = REPOSITORY, folders: Iterable[str] = SOURCES) -> str:
    """Return what tells the sources of a result from others, in a checkout or a copy of one."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and not path.is_relative_to(root / "benchmarks/results"):
                digest.update(f"{path.relative_to(root)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def describe(result: dict[str, Any]) -> str:
    """Return what `environment` found, in one line for a report."""
    found = result["machine"]
    names = ", ".join(f"{name} {value}" for name, value in result["versions"].items() if value)
    load = f"load {found['load_average_1min']:.1f} before the run"
    if "others_cores" in result:
        load += f", {result['others_cores']:.1f} cores taken by other programs while it ran"
    return (
        f"{found['cpu_model']}, {found['cores']} cores, {found['memory_bytes'] / 1e9:.0f} GB, "
        f"{load}; {names}. Commit {result['commit']}."
    )


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that matter; None if not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, distribution in PACKAGES.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """Return the commit of the checkout, with '+' if it has changes; None outside of one."""

    def git(*args: str) -> str:
        command = ["git", *args]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # The results themselves may change: they are what a run writes.
        changes = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
        return git("rev-parse", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, object]:
    """Return what the program runs on."""
    return {
        "cpu_model": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "transparent_huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "libc": " ".join(platform.libc_ver()),
        "load_average_1min": os.getloadavg()[0],
    }


def copy_bandwidth(num_bytes: int, repeats: int = 5) -> dict[str, float]:
    """Measure a copy with one thread and with all, in bytes read plus written a second.

    Args:
        num_bytes: size of the copied array, well above the caches.
        repeats: the best one counts, as it is a limit that is asked for.
    """
    source = torch.ones(num_bytes, dtype=torch.uint8)
    target = torch.zeros_like(source)  # touched, so that no page fault is measured
    before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    result = {}
    try:
        for threads in sorted({1, cores}):
            torch.set_num_threads(threads)
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                target.copy_(source)
                times.append(time.perf_counter() - start)
            result[str(threads)] = 2 * num_bytes / min(times)
    finally:
        torch.set_num_threads(before)
    return result


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _chosen(path: str) -> str | None:
    """Return the value in brackets, as in 'always [madvise] never'."""
    try:
        words = Path(path).read_text().split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)
