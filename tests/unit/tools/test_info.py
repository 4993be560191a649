"""The report names what is there, every mismatch with its fix, and never fails."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from pyg_direct.ops.cuda.cache_file import cache_file
from pyg_direct.ops.cuda.compiler import CUPY_WHEELS, NVIDIA_WHEELS
from pyg_direct.tools import info
from pyg_direct.tools.doctor.bandwidth import HostBandwidth, Rate
from pyg_direct.tools.doctor.facts import UNLIMITED, Machine, TorchCuda, find_out

SPEED = HostBandwidth(
    (Rate(256, 100, (2e-9,)), Rate(512, 100, (1e-9,))), Rate(0, 100, (4e-9,)), 0.03
)


def nvml(**changes: Any) -> Any:
    """Return a stand-in for pynvml over one GPU; its functions give `changes`, or raise them."""
    answers: dict[str, Any] = {
        "Init": None, "Shutdown": None, "SystemGetDriverVersion": "580.159.03",
        "DeviceGetCount": 1, "DeviceGetHandleByIndex": 0, "DeviceGetName": "NVIDIA H200",
        "DeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096, free=146_800_640_000),
        "DeviceGetCudaComputeCapability": (9, 0),
        "DeviceGetCurrPcieLinkGeneration": 1, "DeviceGetMaxPcieLinkGeneration": 5,
        "DeviceGetCurrPcieLinkWidth": 16, "DeviceGetMaxPcieLinkWidth": 16,
        "DeviceGetMemoryAffinity": [2], "DeviceGetCpuAffinity": [0b1_0000_1100, 1],
    }  # fmt: skip
    assert set(changes) <= set(answers)

    def function(answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    functions = {f"nvml{name}": function(answer) for name, answer in {**answers, **changes}.items()}
    others = ("NVMLError_LibraryNotFound", "NVML_AFFINITY_SCOPE_NODE")
    assert all(hasattr(pynvml, name) for name in functions)
    return SimpleNamespace(**functions, **{name: getattr(pynvml, name) for name in others})


OLD_DRIVER = nvml(SystemGetDriverVersion="535.54.03")
NO_DRIVER = nvml(Init=pynvml.NVMLError_LibraryNotFound())
NO_NVML = ModuleNotFoundError("No module named 'pynvml'")


class Fake(Machine):
    """A machine with a GPU where everything fits; arguments change that."""

    def __init__(self, **changes: Any) -> None:
        self.asked_link = 0
        self.environ = changes.pop("environ", {})
        self.packages = {"numba": "0.61", "numpy": "2.1", "cupy-cuda13x": "14.2.0"}
        self.packages |= changes.pop("packages", {})
        self.answers = {
            "torch_cuda": TorchCuda("2.11.0+cu130", "13.0", True), "require_cuda": None,
            "memlock": UNLIMITED, "cores": {0, 1, 2, 3}, "kernel_cache": "/home/me/cache",
            "device": "cuda", "bandwidth": SPEED, "pci_gpus": 1, "read_only": (),
            "bfloat16": ["amx_bf16", "avx512_bf16"],
            "checks": [("uniform", True), ("gather", True)],
            "available_bytes": 102_400_000_000, "nvml": nvml(), "nvidia_of_torch": (None, None),
        }  # fmt: skip
        assert set(changes) <= set(self.answers)
        self.answers |= changes

    def package(self, name: str) -> str:
        if self.packages.get(name) is None:
            raise PackageNotFoundError(name)
        return self.packages[name]

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

    def nvml(self) -> Any:
        return self._answer("nvml")

    def nvidia_of_torch(self) -> tuple[str | None, str | None]:
        return self._answer("nvidia_of_torch")

    def available_bytes(self) -> int:
        return self._answer("available_bytes")

    def pci_gpus(self) -> int:
        return self._answer("pci_gpus")

    def memlock(self) -> int:
        return self._answer("memlock")

    def cores(self) -> set[int]:
        return self._answer("cores")

    def bfloat16(self) -> list[str]:
        return self._answer("bfloat16")

    def kernel_cache(self) -> str | None:
        return self._answer("kernel_cache")

    def device(self) -> str:
        return self._answer("device")

    def checks(self) -> list[tuple[str, bool]]:
        return self._answer("checks")

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
        "GPU 0:                  NVIDIA H200, 150.8 GB, 146.8 GB free, compute capability 9.0",
        "GPU 0, PCIe:            generation 1 of 5 (lower when idle), x16 of x16",
        "GPU 0, NUMA node:       1",
        "'auto' may take:        73.4 GB of GPU memory",
        "bandwidth, measured:    100.0 GB/s with 512 threads, 100.0 GB/s with 512; "
        "copy engine 25.0 GB/s",
        "bfloat16 on the CPU:    amx_bf16, avx512_bf16: "
        "torch.autocast('cpu', torch.bfloat16) may gain",
        "available RAM:          102.4 GB",
        "may be page-locked:     unlimited",
        "numba's kernel cache:   /home/me/cache",
        "PYG_DIRECT_DEVICE:      not set",
        "device=None means:      cuda, in a process with tensors there; else cpu",
    ):
        assert line in text.splitlines(), text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], "no instructions for it, so torch.autocast gains nothing"),
        (OSError("no /proc"), "unknown (OSError: no /proc)"),
    ],
)
def test_a_cpu_without_bfloat16(found, text) -> None:
    assert f"bfloat16 on the CPU:    {text}" in info.report(Fake(bfloat16=found)).splitlines()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flags\t\t: fpu avx512_bf16 sse\nflags : avx512_bf16 amx_bf16\n", ["avx512_bf16"]),
        ("Features : fp asimd bf16 i8mm\n", ["bf16"]),
        ("flags : fpu\n", []),
    ],
)
def test_bfloat16_of_all_cores(text, found, monkeypatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: text)
    assert Machine().bfloat16() == found


CPU_TORCH = TorchCuda("2.13.0+cpu", None, False)
BLIND_TORCH = TorchCuda("2.11.0+cu130", "13.0", False)


@pytest.mark.parametrize(
    ("changes", "meaning"),
    [
        ({"torch_cuda": CPU_TORCH}, "cpu, as torch 2.13.0+cpu was built without CUDA"),
        ({"torch_cuda": BLIND_TORCH}, "cpu, as torch finds no CUDA device"),
        ({"torch_cuda": OSError("no")}, "cpu, as torch could not be asked: unknown (OSError: no)"),
        (
            {"require_cuda": RuntimeError("needs CuPy")},
            "cpu, as the GPU cannot be used: RuntimeError: needs CuPy",
        ),
        ({"environ": {"PYG_DIRECT_DEVICE": "cpu"}}, "cpu, as PYG_DIRECT_DEVICE says"),
    ],
)
def test_the_report_says_why_loaders_stay_on_the_cpu(changes: dict[str, Any], meaning: str) -> None:
    text = info.report(Fake(device="cpu", **changes))
    assert f"device=None means:      {meaning}" in text.splitlines(), text


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"torch_cuda": CPU_TORCH, "device": "cpu"}, "built without CUDA", "reinstall torch"),
        ({"torch_cuda": BLIND_TORCH, "nvml": OLD_DRIVER, "device": "cpu"},
         "535.54.03 is too old: .* CUDA 13.0, which needs 580", "update the driver"),
        ({"torch_cuda": BLIND_TORCH, "device": "cpu"}, "torch does not", "dmesg"),
        ({"torch_cuda": BLIND_TORCH, "device": "cpu", "environ": {"CUDA_VISIBLE_DEVICES": ""}},
         "CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE_DEVICES"),
        ({"torch_cuda": BLIND_TORCH, "device": "cpu", "nvml": NO_DRIVER},
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
        ({"require_cuda": RuntimeError("no NVRTC"), "device": "cpu"}, "no NVRTC", "the message"),
        # What explains a refusal is said once.
        ({"require_cuda": RuntimeError("needs CuPy"), "packages": {"cupy-cuda13x": None},
          "device": "cpu"}, "CuPy is not installed", "cuda13"),
        ({"memlock": 65_536_000}, "Only 65.5 MB may be page-locked", "ulimit -l unlimited"),
        ({"nvml": nvml(DeviceGetCurrPcieLinkWidth=8)}, "by 8 of its 16 PCIe lanes", "slot"),
        ({"cores": {0, 1}}, "no core of GPU 0's NUMA node 1", "numactl --cpunodebind=1"),
        ({"kernel_cache": None}, "numba cannot keep .* any folder", "NUMBA_CACHE_DIR"),
        ({"read_only": ["/home/me/cache"]}, "in /home/me/cache", "NUMBA_CACHE_DIR"),
        ({"environ": {"CUPY_CACHE_DIR": "/opt/c"}, "read_only": ["/opt/c"]}, "CuPy .* in /opt/c",
         "CUPY_CACHE_DIR"),
        ({"read_only": [str(cache_file(""))]}, "cannot be kept in .*pyg_direct", "XDG_CACHE_HOME"),
        ({"device": ValueError("PYG_DIRECT_DEVICE must"), "environ": {"PYG_DIRECT_DEVICE": "gpu"}},
         "'gpu' names no device", "unset PYG_DIRECT_DEVICE"),
    ],
)  # fmt: skip
def test_every_mismatch_is_one_problem_with_its_fix(
    changes: dict[str, Any], what: str, fix: str
) -> None:
    found = problems(**changes)
    assert [bool(re.search(what, p.what) and re.search(fix, p.fix)) for p in found] == [True]


def test_an_unusable_device_variable_is_a_problem() -> None:
    found = problems(torch_cuda=CPU_TORCH, nvml=NO_DRIVER, pci_gpus=0)
    assert [p.what for p in found] == ["Loaders would use cuda, which cannot be used."]


def test_a_gpu_without_known_numa_node_is_reported_as_unknown() -> None:
    text = info.report(Fake(nvml=nvml(DeviceGetMemoryAffinity=[0])))
    assert "GPU 0, NUMA node:       unknown (the system does not say)" in text
    assert "none found" in text


def test_unsupported_queries_of_a_gpu_are_reported_as_unknown() -> None:
    """As of a vGPU, which has no PCIe link."""
    no = pynvml.NVMLError_NotSupported()
    names = [name for name in vars(nvml()) if name.startswith("nvmlDeviceGet")]
    changes = {name.removeprefix("nvml"): no for name in names}
    changes |= {"DeviceGetCount": 1, "DeviceGetHandleByIndex": 0}
    text = info.report(Fake(nvml=nvml(**changes)))
    assert text.count("unknown (NVMLError_NotSupported") == 10
    assert "NVIDIA driver:          580.159.03" in text
    assert "problems:               none found" in text


def test_without_nvidia_ml_py_torch_tells_the_names() -> None:
    listed = "GPU 0: NVIDIA H200\nGPU 1: NVIDIA A10"
    text = info.report(Fake(nvml=NO_NVML, nvidia_of_torch=("580.159.03", listed)))
    assert "NVIDIA driver:          580.159.03" in text
    assert "GPU 1:                  NVIDIA A10, unknown (pip install nvidia-ml-py)" in text
    assert "problems:               none found" in text
    text = info.report(Fake(nvml=NO_NVML, pci_gpus=0, torch_cuda=CPU_TORCH, device="cpu"))
    assert "NVIDIA driver:          none" in text
    assert "GPU:                    none" in text


def test_this_machine_without_nvidia_ml_py(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of torch that are asked exist, and find what there is."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    facts = find_out(Machine(), bandwidth=False)
    assert isinstance(facts.gpus, list)
    assert facts.has_gpu or not facts.usable


def test_a_machine_without_a_gpu() -> None:
    """No GPU is no problem, and neither is an unused CuPy or a small limit."""
    nothing = {"torch_cuda": CPU_TORCH, "nvml": NO_DRIVER, "pci_gpus": 0, "device": "cpu"}
    machine = Fake(**nothing, memlock=65536)
    text = info.report(machine)
    assert "CuPy's kernel cache" in text
    assert "problems:               none found" in text
    assert "GPU:                    none" in text
    assert "NVIDIA driver:          none" in text
    assert "Error" not in text, "nothing is broken, so nothing is unknown"
    assert machine.asked_link == 0
    text = info.report(Fake(**nothing, packages={"cupy-cuda13x": None}))
    for name in ("bandwidth", "same as on the CPU", "page-locked", "CuPy's kernel cache"):
        assert name not in text, "there is nothing to tell without a GPU"


def test_the_link_is_measured_only_when_asked_for_and_usable() -> None:
    for changes, bandwidth, asked in (({}, True, 1), ({}, False, 0),
                                 ({"require_cuda": RuntimeError("no")}, True, 0)):  # fmt: skip
        machine = Fake(**changes)
        info.report(machine, bandwidth=bandwidth)
        assert machine.asked_link == asked


def test_a_gpu_with_wrong_batches_is_a_problem() -> None:
    assert "same as on the CPU:     pass: uniform" in info.report(Fake())
    wrong = Fake(checks=[("uniform", True), ("gather", False)])
    assert "same as on the CPU:     FAIL: gather" in info.report(wrong)
    (problem,) = problems(checks=wrong.checks())
    assert problem.what == "The GPU gives other batches than the CPU: gather."
    (problem,) = problems(checks=RuntimeError("misaligned address"))
    assert "misaligned address" in problem.what
    assert "same as on the CPU:     not checked" in info.report(Fake(), bandwidth=False)


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


@pytest.mark.slow
def test_a_report_of_this_machine_imports_no_pyg_and_makes_no_context() -> None:
    """The real questions, in a process of their own: no PyG, no CuPy, no context."""
    code = (
        "import sys, torch; from pyg_direct import info; text = info.report(bandwidth=False);"
        "assert 'device=None means' in text; print(text);"
        "assert 'torch_geometric' not in sys.modules;"
        "assert torch.cuda.is_available() or 'cupy' not in sys.modules;"
        "assert not torch.cuda.is_initialized()"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True,
                          capture_output=True, text=True)  # fmt: skip
    assert "numba's kernel cache:   /" in done.stdout


def test_the_info_command_prints_problems(capsys: pytest.CaptureFixture[str]) -> None:
    info.main(["--no-bandwidth"])
    assert "problems:" in capsys.readouterr().out


@pytest.mark.gpu
def test_the_report_of_a_gpu() -> None:
    text = info.report()
    assert "GB/s with" in text
    assert "GPU 0:" in text


def test_a_gpu_without_its_driver_is_not_none() -> None:
    text = info.report(Fake(nvml=NO_DRIVER, pci_gpus=1))
    assert "NVIDIA driver:          unknown (1 GPU on the PCI bus, but no NVML)" in text


def test_commands_for_cupy_name_what_the_extras_name() -> None:
    """A message may name no extra: that would look for pyg-direct on a package index."""
    extras = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    for major, wheel in CUPY_WHEELS.items():
        assert f'"{wheel}"' in extras, major


def test_extras_hold_the_wheels_that_messages_name() -> None:
    """The compiler's wheels: each extra has those of its major version, and messages the same."""
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    for major in (12, 13):
        wheels = [wheel for wheel in extras[f"cuda{major}"] if wheel.startswith("nvidia-cuda-")]
        assert sorted(wheels) == sorted(NVIDIA_WHEELS[major])
        assert CUPY_WHEELS[major] in extras[f"cuda{major}"]
    assert set(NVIDIA_WHEELS) == set(CUPY_WHEELS) == {12, 13}


def test_gpus_listed_only_by_torch_are_reported() -> None:
    """Without NVML and nvidia-smi, as in some containers: name, memory and capability are known."""
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=141_000_000_000, major=9, minor=0)
    of_torch = TorchCuda("2.11.0+cu130", "13.0", True, (gpu, gpu))
    text = info.report(Fake(nvml=NO_NVML, torch_cuda=of_torch, pci_gpus=0))
    assert "GPU 0:                  NVIDIA H200 (as torch says, NVML does not list it), 141" in text
    assert "compute capability 9.0" in text
    assert "GPU 1:" in text
    assert "NVIDIA driver:          unknown (torch uses one, but its version" in text
    assert "problems:               none found" in text
    in_sight = info.report(Fake(nvml=NO_NVML, torch_cuda=of_torch, pci_gpus=1))
    assert "problems:               none found" in in_sight


@pytest.mark.parametrize(("arguments", "measures"), [([], True), (["--no-bandwidth"], False)])
def test_the_command_measures_unless_it_is_told_not_to(
    arguments: list[str], measures: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(info, "report", lambda bandwidth: f"measured: {bandwidth}")
    info.main(arguments)
    assert capsys.readouterr().out == f"measured: {measures}\n"
