"""Hooks and fixtures that the whole suite shares."""

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

# Before torch loads OpenMP: threads that wait for the next tensor must not spin, for they take the
# cores from the other processes of the suite, and tests' tensors are small.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch_geometric.loader
import torch_geometric.typing
from determined_pyg import determine
from emulator import emulated, give_to_loaders
from hypothesis import HealthCheck, Phase, settings

import pyg_direct
from pyg_direct.ops.cuda.backend import CudaBackend
from tests.tiers import Tiers

REQUIRE_GPU = "PYG_DIRECT_REQUIRE_GPU"
PRODUCERS_END_SECONDS = 20.0  # how long a test may take to end the threads of its loaders

# The same examples in every run, so that a failure can be seen again. With the slow tests,
# `--hypothesis-profile=thorough` takes more of them; `random` looks for new ones.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("fixed"), max_examples=40)
settings.register_profile("random", settings.get_profile("thorough"), derandomize=False)
# For planted faults: that an example fails is enough, and a small one takes long to find.
settings.register_profile(
    "planted",
    settings.get_profile("fixed"),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
settings.load_profile("fixed")

FAILED = pytest.StashKey[bool]()
LEFT_BEHIND = pytest.StashKey[set[threading.Thread]]()

NEEDS_TORCH_SPARSE = "PyG's own sampler needs torch_sparse (or pyg-lib), which is not installed"


# Modules whose cases on the emulated device are slow tests: `tests/kernels`, the contract and the
# recorded batches compare it with the CPU among the default ones.
EMULATED_IN_SLOW = {
    "test_exclude_seed_edges", "test_extreme_arguments", "test_hetero_full",
    "test_link", "test_one_body", "test_user_memory", "test_weighted",
}  # fmt: skip


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int | None:
    """Return one worker more than cores for `-n auto`: many tests wait, for ranks and time limits.

    None leaves it to pytest-xdist, whose variable tells another number.
    """
    named = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return None if named else (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tiers())


def on_emulated_device(item: pytest.Item) -> bool:
    """Whether a test is the case "cuda" of one that runs on each backend."""
    call = getattr(item, "callspec", None)
    return call is not None and "cuda" in call.id.split("-")


@pytest.hookimpl(tryfirst=True)  # before the marks select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests; skip `gpu` tests without a CUDA device, unless a GPU was promised.

    Then they fail. Tests that fork ranks come first, as torch refuses a backward in a fork of a
    process in which one ran with the emulated device there: its engine has threads from then on.
    """
    items.sort(key=lambda item: not hasattr(getattr(item, "module", None), "run_ranks"))
    for item in items:
        if on_emulated_device(item) and item.path.stem in EMULATED_IN_SLOW:
            item.add_marker(pytest.mark.slow)
    if torch.cuda.is_available() or os.environ.get(REQUIRE_GPU) == "1":
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Take what was imported out of garbage collections, which many tests wait for.

    Collections meanwhile would take half of the time, and find nothing.
    """
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


SKIPPED_FOR = {  # what reasons name -> what to say of these tests
    ("torch_sparse", "torch-sparse", "pyg-lib", "pyg_lib"): "compare with PyG's own samplers: "
    "install torch_sparse or pyg-lib, as PyG's installation page says, and run them again",
    (
        "CUDA device",
    ): "need a GPU: PYG_DIRECT_REQUIRE_GPU=1 python -m pytest -m gpu where there is one",
}


def skipped_lines(reasons: Iterable[str]) -> list[str]:
    """Return how many tests were skipped for want of what, and how to run them."""
    reasons = list(reasons)
    counts = {
        text: sum(any(name in reason for name in names) for reason in reasons)
        for names, text in SKIPPED_FOR.items()
    }
    return [f"{count} skipped tests {text}." for text, count in counts.items() if count]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how to run what a plain run of the tests skips."""
    skipped = terminalreporter.stats.get("skipped", [])
    for line in skipped_lines(str(report.longrepr) for report in skipped):
        terminalreporter.write_line(line)


def pytest_runtest_setup(item: pytest.Item) -> None:
    promised = item.get_closest_marker("gpu") is not None and os.environ.get(REQUIRE_GPU) == "1"
    if promised and not torch.cuda.is_available():
        pytest.fail(f"{REQUIRE_GPU}=1, but torch sees no CUDA device", pytrace=False)


def producers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("pyg_direct-producer")}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail the test that leaves producer threads behind, and show where they stand.

    A test that failed keeps its loaders: pytest holds the frames of its traceback.
    """
    yield
    known = item.config.stash.setdefault(LEFT_BEHIND, set())
    deadline = time.monotonic() + PRODUCERS_END_SECONDS
    while (new := producers() - known) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    known |= new
    if new and not item.stash.get(FAILED, False):
        frames = sys._current_frames()
        places = [
            f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in new
            if thread.ident in frames
        ]
        pytest.fail("producers are left:\n" + "\n".join(places), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def fixed_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test the same random state, whatever ran before, and the CPU as its device."""
    torch.default_generator.manual_seed(12345)
    monkeypatch.setenv("PYG_DIRECT_DEVICE", "cpu")  # also where there is a GPU


@pytest.fixture(autouse=True)
def small_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let accelerated models run their own way on batches that would be too small for it."""
    for name in ("COST_OF_BATCH", "COST_OF_CALL"):
        monkeypatch.setattr(f"pyg_direct.models.training.costs.{name}", 0)


@pytest.fixture(scope="session")
def pyg_loader() -> Iterator[type]:
    """PyG's `NeighborLoader`, made deterministic; skips where PyG has no sampler to run."""
    if not (torch_geometric.typing.WITH_TORCH_SPARSE or torch_geometric.typing.WITH_PYG_LIB):
        pytest.skip(NEEDS_TORCH_SPARSE)
    with pytest.MonkeyPatch.context() as patch:
        determine(patch)
        yield torch_geometric.loader.NeighborLoader


@pytest.fixture
def emulated_loaders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CudaBackend]]:
    """Make our loaders and samplers sample on an emulated CUDA device; see `give_to_loaders`."""
    with emulated() as backend:
        yield give_to_loaders(backend, monkeypatch, to_host=True)


@pytest.fixture(params=["pyg", "cpu", "cuda"])
def loader_class(request: pytest.FixtureRequest) -> Iterator[type]:
    """One test body over PyG's class, ours on the CPU, and ours on an emulated CUDA device.

    PyG shows that the body states PyG's contract.
    """
    if request.param == "pyg":
        yield request.getfixturevalue("pyg_loader")
        return
    given = request.getfixturevalue("emulated_loaders") if request.param == "cuda" else None
    yield pyg_direct.NeighborLoader
    assert given != [], "the test did not reach the emulated device"


@pytest.fixture(params=["cpu", "cuda"])
def each_backend(request: pytest.FixtureRequest) -> str:
    """One test body over our two backends, for what PyG does not do here; CUDA is emulated."""
    if request.param == "cuda":
        request.getfixturevalue("emulated_loaders")
    return request.param
