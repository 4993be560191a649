"""Checks of the suite itself: a missing GPU is noticed, and the stored batches are complete."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import pytest
import torch
from data import make_expectations as stored
from graphs import REAL_GRAPHS, example_graph

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.sampling.sampler import keyed
from tests import tiers


class Item:
    """As much of a `pytest.Item` as the hooks look at."""

    def __init__(self, *markers: str) -> None:
        self.markers = {name: getattr(pytest.mark, name).mark for name in markers}

    def get_closest_marker(self, name: str) -> Any:
        return self.markers.get(name)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.markers[marker.name] = marker.mark


@pytest.mark.parametrize(
    ("cuda", "required", "skipped", "failed"),
    [(False, "", True, False), (False, "1", False, True), (True, "", False, False),
     (True, "1", False, False)],
)  # fmt: skip
def test_gpu_tests_are_skipped_or_fail(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, required: str, skipped: bool, failed: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setenv(conftest.REQUIRE_GPU, required)
    gpu, other = Item("gpu"), Item("slow")
    conftest.pytest_collection_modifyitems([gpu, other])
    assert ("skip" in gpu.markers) == skipped
    assert "skip" not in other.markers
    conftest.pytest_runtest_setup(other)
    if failed:
        with pytest.raises(pytest.fail.Exception, match="no CUDA device"):
            conftest.pytest_runtest_setup(gpu)
    else:
        conftest.pytest_runtest_setup(gpu)


@pytest.mark.parametrize(
    ("module", "case", "slow"),
    [("test_link", "cuda-True", True), ("test_link", "cpu-True", False),
     ("test_temporal", "cuda", False)],
)  # fmt: skip
def test_products_on_the_emulated_device_are_slow(module: str, case: str, slow: bool) -> None:
    item = Item()
    item.path, item.callspec = Path(f"{module}.py"), SimpleNamespace(id=case)  # type: ignore[attr-defined]
    conftest.pytest_collection_modifyitems([item])
    assert ("slow" in item.markers) == slow


def test_a_default_test_may_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tiers.FOLDER, raising=False)
    with pytest.raises(RuntimeError, match=r"does what default tests do not: subprocess.Popen"):
        subprocess.run(["true"], check=True)


def test_cases_on_the_emulated_device_are_full() -> None:
    assert tiers.is_emulated("a.py::f[3-cuda]")
    assert tiers.is_emulated("a.py::f[emulated]")
    assert not tiers.is_emulated("a.py::test_cuda[cpu]")


def test_the_list_of_full_tests_is_as_short_as_it_can_be() -> None:
    quick, busy = tiers.Cost(0.01, 0.01, ""), tiers.Cost(0.5, 0.5, "")
    waits, forks = tiers.Cost(0.01, 5.0, ""), tiers.Cost(0.01, 0.01, "os.fork")
    costs = {
        "a.py::f[1]": busy, "a.py::f[2]": waits, "a.py::g": quick, "a.py::h[1]": quick,
        "a.py::h[2]": forks, "a.py::h[cuda]": forks, "b.py::f": busy, "b.py::g[1]": forks,
    }  # fmt: skip
    assert tiers.listed(costs) == ["a.py::f", "a.py::h[2]", "b.py"]
    assert tiers.best({"f": busy}, {"f": forks, "g": quick}) == {"f": forks, "g": quick}


def test_full_tests_that_are_listed_exist() -> None:
    lines = tiers.LIST.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        file, _, test = line.partition("[")[0].partition("::")
        function = test.rpartition("::")[2]
        assert f"def {function}" in (tiers.ROOT / file).read_text(encoding="utf-8"), line


def test_each_backend_is_the_one_that_samples(each_backend: str) -> None:
    loaders = NeighborLoader(example_graph(), [2]), NeighborSampler(example_graph(), [2])
    for backend in (keyed(loaders[0].node_sampler).backend, keyed(loaders[1]).backend):
        assert isinstance(backend, CudaBackend if each_backend == "cuda" else CpuBackend)


def test_stored_batches_are_complete() -> None:
    expected = json.loads(stored.TARGET.read_text())
    assert set(expected["real"]) == set(REAL_GRAPHS)
    for batches in expected["real"].values():
        assert len(batches) == stored.NUM_BATCHES
        for batch in batches:
            assert {"edge_index", "n_id", "e_id", "input_id", "batch_size"} <= set(batch)
    for batches in expected["example"].values():
        assert [batch["batch_size"] for batch in batches] == [5, 5, 2]
        assert {"x", "y", "train_mask", "edge_attr", "name"} <= set(batches[0])


def test_digest_sees_dtype_shape_and_elements() -> None:
    value = torch.arange(6)
    others = [value.int(), value.view(2, 3), value.flip(0), value[:5]]
    assert len({stored.digest(v) for v in [value, *others]}) == 5
    assert stored.digest(value.view(2, 3).t()) == stored.digest(value.view(2, 3).t().contiguous())
