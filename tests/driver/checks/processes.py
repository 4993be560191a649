"""Several processes, forks, devices that fail, and the end of the interpreter: see children.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

Outcomes = Iterator[tuple[str, str]]
LIMIT_SECONDS = 1200  # of a child, which takes ten seconds on an idle machine
DONE = "all is well"  # the last line of a child
TORCH_ABORTED, ABORTED = "torch ended the process", -6


def everywhere(schedule: str) -> dict[str, str]:
    """Return variables with which every Python process that starts prepares itself."""
    paths = (str(Path(__file__).parents[1] / "everywhere"), os.environ["PYTHONPATH"])
    return {
        "STANDIN_EVERYWHERE": "1",
        "STANDIN_SCHEDULE": schedule,
        "PYTHONPATH": os.pathsep.join(paths),
    }


def children(schedule: str, *arguments: list[str], **variables: str) -> list[str]:
    """Run children at the same time, and return what each ended with, "" if all was well."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.driver.start", "tests.driver.children", *each],
            env=os.environ | {"STANDIN_SCHEDULE": schedule} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for each in arguments
    ]
    return [_ended(child) for child in children]


def _ended(child: subprocess.Popen[str]) -> str:
    try:
        output, _ = child.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return "did not end"
    if child.returncode == ABORTED and "instance of 'c10::AcceleratorError'" in output:
        return TORCH_ABORTED
    lines = output.strip().splitlines()
    if child.returncode == 0 and DONE in lines:
        return ""
    return f"ended with {child.returncode}: {' / '.join(lines[-3:])}"


def exit_with_batches_under_way(schedule: str) -> Outcomes:
    """The interpreter ends while producers work and batches are not taken."""
    for place in ("default", "2 workers", "persistent"):
        yield place, children(schedule, ["end_with_batches_under_way", place])[0]


def unwritable_caches(schedule: str) -> Outcomes:
    """No folder can be made for compiled kernels of CuPy, nor for what the package keeps."""
    for folder in ("/dev/null/none", "/proc/none"):
        given = {"CUPY_CACHE_DIR": folder, "XDG_CACHE_HOME": folder, "HOME": folder}
        yield folder, children(schedule, ["make_batches"], **given)[0]


def forks(schedule: str) -> Outcomes:
    """A process forked before CUDA was used may use it, one forked after has the CPU."""
    yield "before", children(schedule, ["fork_before"])[0]
    yield "after", children(schedule, ["fork_after"])[0]


def failed_device(schedule: str) -> Outcomes:
    """After an illegal access every batch raises; nothing waits for ever.

    Or torch ends the process: it does so while it frees a tensor that a stream was recorded for.
    """
    for place in ("host", "2 workers"):
        ended = children(schedule, ["go_on_after_a_fault", place])[0]
        yield place, "" if ended.startswith(TORCH_ABORTED) else ended


def distributed(schedule: str) -> Outcomes:
    """DDP over gloo: two processes, each with batches on a device of its own."""
    return _of_two_ranks(schedule, "train")


def placed_by_ranks(schedule: str) -> Outcomes:
    """Two processes exchange rows and hops of batches, which arrive on a device of each."""
    return _of_two_ranks(schedule, "place_together")


def cooperative(schedule: str) -> Outcomes:
    """Two processes compute batches that they make together, each on a device of its own.

    Outputs and gradients are those of one process on the CPU. An exchange waits once, for a stream.
    """
    return _of_two_ranks(schedule, "compute_together")


def _of_two_ranks(schedule: str, child: str) -> Outcomes:
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = children(schedule, *([child, str(rank), store] for rank in (0, 1)))
    for rank, problem in enumerate(ranks):
        yield f"rank {rank}", problem


def foreign_allocator(schedule: str) -> Outcomes:
    """Torch's allocator is another one, which knows nothing of streams, as RMM's."""
    for kind in ("node", "heterogeneous", "link", "node, quantized"):
        yield kind, children(schedule, ["use_a_foreign_allocator", kind])[0]


CHECKS = (
    foreign_allocator,
    unwritable_caches,
    exit_with_batches_under_way,
    forks,
    failed_device,
    distributed,
    placed_by_ranks,
    cooperative,
)
