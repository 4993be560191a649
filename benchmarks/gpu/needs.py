"""What `benchmarks.gpu` can do without, and what is left out then."""

from __future__ import annotations

import importlib.util
import shutil

PYG_SAMPLERS = "pyg_lib or torch_sparse"
BUILT = "built"  # folder of packages that the stage `build` has built
# Modules, or names of which one is enough -> what needs them.
OPTIONAL = {
    "matplotlib": "the plot",
    "pytest": "stages tests and sanitizer",
    "hypothesis": "stages tests and sanitizer",
    "xdist": "stage tests (package pytest-xdist)",
    "pytest_timeout": "stage tests (package pytest-timeout)",
    "pynvml": "joules of the GPU, and stage tests (package nvidia-ml-py)",
    PYG_SAMPLERS: "stage pyg: PyG's own loader",
    "pylibwholegraph": "stage wholegraph",
}


class MissingError(Exception):
    """A stage needs what is not installed; the text says what."""


def is_there(modules: str) -> bool:
    """Whether one of some modules, named as in `OPTIONAL`, could be imported."""
    return any(importlib.util.find_spec(module) is not None for module in modules.split(" or "))


def missing() -> dict[str, str]:
    """Return what is not there, and what it would be for."""
    found = {modules: use for modules, use in OPTIONAL.items() if not is_there(modules)}
    if shutil.which("git") is None:
        found["git"] = "the commit of the code; a digest of the sources is in the result"
    return found


def need(*modules: str) -> None:
    """Raise unless all modules are there.

    Raises:
        MissingError: some are not; it names them.
    """
    lacking = [module for module in modules if not is_there(module)]
    if lacking:
        raise MissingError(f"not installed: {', '.join(lacking)}")
