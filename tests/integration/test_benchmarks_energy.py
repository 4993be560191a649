"""Readers of energy, on counters as they were recorded, and where there are none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.energy import GPU, PROCESSOR, Meter, NotReadableError, Nvml, Rapl, open_meter
from benchmarks.training.end_to_end import energy_lines

RANGE = 262_143_328_850  # microjoules, of a package


def domain(root: Path, folder: str, name: str, energy: int) -> Path:
    """Write a domain as Linux shows it, and return the file of its counter."""
    place = root / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (place / "energy_uj").write_text(f"{energy}\n")
    return place / "energy_uj"


def test_packages_and_their_memory_are_added(tmp_path: Path) -> None:
    first = domain(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    core = domain(tmp_path, "intel-rapl:0:0", "core", 500_000)
    memory = domain(tmp_path, "intel-rapl:0:1", "dram", 2_000_000)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 3_000_000)
    everything = domain(tmp_path, "intel-rapl:2", "psys", 9_000_000)
    rapl = Rapl(tmp_path)
    before = rapl.read()
    for file, energy in (
        (first, 2_500_000), (core, 900_000), (memory, 2_250_000), (second, 3_000_001),
        (everything, 99_000_000),
    ):  # fmt: skip
        file.write_text(str(energy))
    assert rapl.joules(before, rapl.read()) == pytest.approx(1.750001)


def test_joules_are_right_after_a_counter_wraps_around(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", RANGE - 4_000_000)
    rapl = Rapl(tmp_path)
    before = rapl.read()
    file.write_text("1000000")
    assert rapl.joules(before, rapl.read()) == pytest.approx(5.0)


def test_missing_counters_of_the_processor_are_an_error_that_names_them(tmp_path: Path) -> None:
    with pytest.raises(NotReadableError, match="no package of RAPL"):
        Rapl(tmp_path / "missing")
    domain(tmp_path, "intel-rapl:0:0", "core", 1)
    with pytest.raises(NotReadableError, match="no package of RAPL"):
        Rapl(tmp_path)


def test_a_counter_without_permission_is_reported_as_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on most systems for all but root."""
    domain(tmp_path, "intel-rapl:0", "package-0", 1)
    read = Path.read_text

    def refused(path: Path, *given: Any, **named: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *given, **named)

    monkeypatch.setattr(Path, "read_text", refused)
    meter = open_meter(gpu=False, root=tmp_path)
    assert "Permission denied" in meter.not_readable[PROCESSOR]
    assert meter.joules(meter.read(), meter.read()) == {}


class NvmlError(Exception):
    pass


def nvml(*shown: int | Exception) -> Any:
    """Return a module whose counter shows these values, one after the other."""
    values = iter(shown)

    def energy(_: Any) -> int:
        value = next(values)
        if isinstance(value, Exception):
            raise value
        return value

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )


def test_a_gpu_counts_millijoules() -> None:
    gpu = Nvml(nvml(7, 5_000, 12_500))
    assert gpu.joules(gpu.read(), gpu.read()) == pytest.approx(7.5)


def test_a_gpu_without_a_counter_is_reported_as_not_readable(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 1)
    meter = open_meter(gpu=True, root=tmp_path, nvml=nvml(NvmlError("Not Supported")))
    assert meter.not_readable == {GPU: "NVML: Not Supported"}
    assert set(meter.read().shown) == {PROCESSOR}


def test_the_meter_adds_nothing_up_across_names(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    meter = open_meter(gpu=True, root=tmp_path, nvml=nvml(0, 1_000, 3_000))
    before = meter.read()
    file.write_text("1500000")
    after = meter.read()
    assert meter.joules(before, after) == pytest.approx({PROCESSOR: 0.5, GPU: 2.0})
    assert after.seconds >= before.seconds
    assert isinstance(meter, Meter)


def test_the_report_says_what_was_read() -> None:
    joules = {"processor": {"median": 30.0, "p25": 29.0, "p75": 31.0, "n": 3}}
    row = {"contestant": "ours", "num_workers": 2, "wall_s": {"median": 2.0}, "joules": joules}
    result = {"energy_not_readable": {}, "tasks": [{"name": "SAGE", "rows": [row]}]}
    text = "\n".join(energy_lines(result))
    assert "processor 30 (29 to 31) J an epoch, 15 W" in text
    result = {"energy_not_readable": {"processor": "denied"}, "tasks": []}
    assert "not readable (denied): CPU time" in "\n".join(energy_lines(result))
    assert energy_lines({"tasks": []}) == []
