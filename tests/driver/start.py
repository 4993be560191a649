"""Prepares a process for the stand-in; runs any module as ``python -m`` does::

LD_PRELOAD=... STANDIN_SCHEDULE=lazy python -m tests.driver.start MODULE [ARGUMENT ...]
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from pathlib import Path
from unittest import mock

SUPPORT = Path(__file__).parents[1] / "support"


def install() -> None:
    """Let torch and CuPy of this process use the stand-in. Before anything uses CUDA."""
    if os.environ.get("STANDIN_TRACE_CONTEXT"):  # print who opens the context of that device
        faulthandler.register(signal.SIGUSR1, all_threads=False)
    sys.path.insert(0, str(SUPPORT))
    import torch  # noqa: F401, I001  its libraries are loaded first, as in a user's process
    import cupy_backends.cuda.api.runtime as linked

    from . import cupy_runtime

    cupy_runtime.redirect(str(linked.__file__))
    from pyg_direct.ops.cuda.cache_file import choose_cupy_folder

    choose_cupy_folder()  # as the package does before it imports CuPy
    import cupy

    # Compilers of torch, which the emulator imports, count devices, and torch forbids forks then.
    with mock.patch("torch.cuda.is_available", return_value=True):
        from . import modules, standin, torch_operations

    modules.run_natively(cupy)
    torch_operations.run_on_host()
    standin.set_schedule(os.environ.get("STANDIN_SCHEDULE", "eager"))


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
