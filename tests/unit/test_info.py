"""The report names what is there, every mismatch with what mends it, and never fails."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from pyg_direct import info
from pyg_direct.doctor.bandwidth import HostBandwidth, Rate
from pyg_direct.doctor.facts import GPU_FIELDS, UNLIMITED, Machine, TorchCuda, find_out
from pyg_direct.ops.cuda.compiler import CUPY_WHEELS

SPEED = HostBandwidth(
    (Rate(256, 100, (2e-9,)), Rate(512, 100, (1e-9,))), Rate(0, 100, (4e-9,)), 0.03
)


class Fake(Machine):
    """A machine with a GPU where everything fits; arguments change that."""

    def __init__(self, **changes: Any) -> None:
        self.asked_link = 0
        self.environ = changes.pop("environ", {})
        self.packages = {"numba": "0.61", "numpy": "2.1", "cupy-cuda13x": "14.2.0"}
        self.packages |= changes.pop("packages", {})
        self.gpu = dict(
            zip(GPU_FIELDS, ["NVIDIA H200", "143771", "140000", "9.0", "00000000:AB:00.0", "1", "5",
                             "16", "16"], strict=True)
        )  # fmt: skip
        self.gpu |= changes.pop("gpu", {})
        self.answers = {
            "torch_cuda": TorchCuda("2.11.0+cu130", "13.0", True), "require_cuda": None,
            "memlock": UNLIMITED, "cores": {0, 1, 2, 3}, "kernel_cache": "/home/me/cache",
            "device": "cuda", "bandwidth": SPEED, "driver": "580.159.03", "smi": True,
            "pci_gpus": 1,
            "read_only": (), "node": "1", "node_cores": "2-3,8",
        }  # fmt: skip
        assert set(changes) <= set(self.answers)
        self.answers |= changes

    def package(self, name: str) -> str:
        if self.packages.get(name) is None:
            raise PackageNotFoundError(name)
        return self.packages[name]

    def run(self, *command: str) -> str:
        if not self.answers["smi"]:
            raise FileNotFoundError("nvidia-smi")
        return (
            self.answers["driver"] + "\n"
            if "driver_version" in command[1]
            else ", ".join(self.gpu.values()) + "\n"
        )

    def read(self, path: str) -> str:
        if path == "/proc/driver/nvidia/version" and self.answers["driver"]:
            return f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.answers['driver']}  Tue"
        files = {
            "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   100000000 kB",
            "/sys/bus/pci/devices/0000:ab:00.0/numa_node": self.answers["node"],
            "/sys/bus/pci/devices/0000:ab:00.0/current_link_width": "8",
            "/sys/devices/system/node/node1/cpulist": self.answers["node_cores"],
        }
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    def writable(self, folder: str) -> bool:
        return folder not in self.answers["read_only"]

    def _answer(self, name: str) -> Any:
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def torch_cuda(self) -> TorchCuda:
        return self._answer("torch_cuda")

    def require_cuda(self) -> None:
        return self._answer("require_cuda")

    def pci_gpus(self) -> int:
        return self._answer("pci_gpus")

    def memlock(self) -> int:
        return self._answer("memlock")

    def cores(self) -> set[int]:
        return self._answer("cores")

    def kernel_cache(self) -> str | None:
        return self._answer("kernel_cache")

    def device(self) -> str:
        return self._answer("device")

    def bandwidth(self) -> HostBandwidth:
        self.asked_link += 1
        return self._answer("bandwidth")


def problems(**changes: Any) -> list[info.Problem]:
    return list(info.problems(find_out(Fake(**changes))))


def test_a_machine_where_everything_fits() -> None:
    text = info.report(Fake())
    assert "problems:               none found" in text
    for line in (
        "torch:                  2.11.0+cu130",
        "torch-sparse:           not installed",
        "cupy:                   cupy-cuda13x 14.2.0",
        "CUDA of torch:          13",
        "CUDA of CuPy:           13",
        "NVIDIA driver:          580.159.03",
        "GPU 0:                  NVIDIA H200, 143771 MiB, 140000 MiB free, compute capability 9.0",
        "GPU 0, PCIe:            generation 1 of 5 (lower when idle), x16 of x16",
        "GPU 0, NUMA node:       1",
        "'auto' may take:        73.4 GB of GPU memory",
        "bandwidth, measured:    100.0 GB/s with 512 threads, 100.0 GB/s with 512; "
        "copy engine 25.0 GB/s",
        "available RAM:          102.4 GB",
        "may be page-locked:     unlimited",
        "numba's kernel cache:   /home/me/cache",
        "PYG_DIRECT_DEVICE:      not set",
        "device=None means:      cuda, in a process with tensors there; else cpu",
    ):
        assert line in text.splitlines(), text


CPU_TORCH = TorchCuda("2.13.0+cpu", None, False)
BLIND_TORCH = TorchCuda("2.11.0+cu130", "13.0", False)


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"torch_cuda": CPU_TORCH, "device": "cpu"}, "built without CUDA", "reinstall torch"),
        ({"torch_cuda": BLIND_TORCH, "driver": "535.54.03", "device": "cpu"},
         "535.54.03 is too old: .* CUDA 13.0, which needs 580", "update the driver"),
        ({"torch_cuda": BLIND_TORCH, "device": "cpu"}, "torch does not", "dmesg"),
        ({"torch_cuda": BLIND_TORCH, "device": "cpu", "environ": {"CUDA_VISIBLE_DEVICES": ""}},
         "CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE_DEVICES"),
        ({"torch_cuda": BLIND_TORCH, "device": "cpu", "smi": False, "driver": ""},
         "no driver that answers", "--gpus all"),
        ({"packages": {"cupy-cuda13x": None}}, "CuPy is not installed",
         r"^pip install 'cupy-cuda13x>=13\.\d'$"),
        ({"packages": {"cupy-cuda13x": None, "cupy-cuda12x": "13.6"}},
         "cupy-cuda12x does not fit torch, which uses CUDA 13",
         r"^pip uninstall -y cupy-cuda12x && pip install 'cupy-cuda13x>=13\.\d'$"),
        ({"torch_cuda": TorchCuda("2.9+cu128", "12.8", True)},
         "cupy-cuda13x does not fit torch, which uses CUDA 12", r"cupy-cuda12x>=13"),
        ({"packages": {"cupy-cuda12x": "13.6"}}, "cupy-cuda12x and cupy-cuda13x overwrite",
         "^pip uninstall -y cupy-cuda12x cupy-cuda13x && "),
        ({"require_cuda": RuntimeError("no NVRTC"), "device": "cpu"}, "no NVRTC", "as it says"),
        # What explains a refusal is said once.
        ({"require_cuda": RuntimeError("needs CuPy"), "packages": {"cupy-cuda13x": None},
          "device": "cpu"}, "CuPy is not installed", "cuda13"),
        ({"memlock": 65_536_000}, "Only 65.5 MB may be page-locked", "ulimit -l unlimited"),
        ({"gpu": {"pcie.link.width.current": "8"}}, "by 8 of its 16 PCIe lanes", "slot"),
        ({"gpu": {"pcie.link.width.current": "[N/A]"}}, "by 8 of its 16 PCIe lanes", "slot"),
        ({"cores": {0, 1}}, "no core of GPU 0's NUMA node 1", "numactl --cpunodebind=1"),
        ({"kernel_cache": None}, "numba cannot keep .* any folder", "NUMBA_CACHE_DIR"),
        ({"read_only": ["/home/me/cache"]}, "in /home/me/cache", "NUMBA_CACHE_DIR"),
        ({"environ": {"CUPY_CACHE_DIR": "/opt/c"}, "read_only": ["/opt/c"]}, "CuPy .* in /opt/c",
         "CUPY_CACHE_DIR"),
        ({"device": ValueError("PYG_DIRECT_DEVICE must"), "environ": {"PYG_DIRECT_DEVICE": "gpu"}},
         "'gpu' names no device", "unset PYG_DIRECT_DEVICE"),
    ],
)  # fmt: skip
def test_every_mismatch(changes: dict[str, Any], what: str, fix: str) -> None:
    found = problems(**changes)
    assert [bool(re.search(what, p.what) and re.search(fix, p.fix)) for p in found] == [True]


def test_a_device_that_cannot_be_used() -> None:
    found = problems(torch_cuda=CPU_TORCH, smi=False, driver="", pci_gpus=0)
    assert [p.what for p in found] == ["Loaders would use cuda, which cannot be used."]


def test_a_gpu_whose_node_the_system_does_not_tell() -> None:
    text = info.report(Fake(node="-1"))
    assert "GPU 0, NUMA node:       unknown (the system does not say)" in text
    assert "none found" in text


def test_a_machine_without_a_gpu() -> None:
    """No GPU is no problem, and neither is a CuPy that nobody uses or a small limit."""
    machine = Fake(torch_cuda=CPU_TORCH, smi=False, driver="", pci_gpus=0, device="cpu",
                   memlock=65536)  # fmt: skip
    text = info.report(machine)
    assert "problems:               none found" in text
    assert "GPU:                    none" in text
    assert "NVIDIA driver:          none" in text
    assert "Error" not in text, "nothing is broken, so nothing is unknown"
    assert "bandwidth, measured:    not measured" in text
    assert machine.asked_link == 0


def test_the_link_is_measured_only_when_asked_for_and_usable() -> None:
    for changes, bandwidth, asked in (({}, True, 1), ({}, False, 0),
                                 ({"require_cuda": RuntimeError("no")}, True, 0)):  # fmt: skip
        machine = Fake(**changes)
        info.report(machine, bandwidth=bandwidth)
        assert machine.asked_link == asked


def test_whatever_fails_the_report_does_not() -> None:
    class Broken(Machine):
        """Every question fails."""

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no answer\nwith details")

    names = [name for name in vars(Machine) if not name.startswith("_") and name != "environ"]
    for name in names:
        setattr(Broken, name, fail)
    text = info.report(Broken())
    assert text.count("unknown (RuntimeError: no answer)") >= 7
    assert "details" not in text
    for name in names:  # and one at a time
        machine = Fake()
        setattr(machine, name, fail)
        assert "device=None means" in info.report(machine)


def test_this_machine() -> None:
    """The real questions, in a process of their own: no CuPy, no context."""
    code = (
        "import sys, torch; from pyg_direct import info; text = info.report(bandwidth=False);"
        "assert 'device=None means' in text; print(text);"
        "assert torch.cuda.is_available() or 'cupy' not in sys.modules;"
        "assert not torch.cuda.is_initialized()"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True,
                          capture_output=True, text=True)  # fmt: skip
    assert "numba's kernel cache:   /" in done.stdout


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    info.main(["--no-bandwidth"])
    assert "problems:" in capsys.readouterr().out


@pytest.mark.gpu
def test_the_report_of_a_gpu() -> None:
    text = info.report()
    assert "GB/s with" in text
    assert "GPU 0:" in text


def test_a_gpu_without_its_driver_is_not_none() -> None:
    text = info.report(Fake(smi=False, pci_gpus=1, driver=""))
    assert "NVIDIA driver:          unknown (FileNotFoundError" in text


def test_commands_for_cupy_name_what_the_extras_name() -> None:
    """A message may name no extra: that would look for pyg-direct on a package index."""
    extras = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for major, wheel in CUPY_WHEELS.items():
        assert f'"{wheel}"' in extras, major
