"""The environments of the stand-in's processes: torch and CuPy for a CUDA, 7 GB each."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER_VARIABLE = "PYG_DIRECT_DRIVER_FOLDER"
# What is in an environment, by major version of CUDA: torch from PyPI is CUDA 13 from 2.11 on.
TORCH = {12: "torch==2.8.0", 13: "torch==2.11.0"}
CUPY = {  # the first is in the environment, others lie in folders beside it
    12: ("14.2.0", "13.6.0"),
    13: ("14.2.0",),
}
OTHERS = (
    "torch_geometric",
    "numba",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "psutil",
    "scipy",
    "tqdm",
    "nvidia-ml-py",
)


class Environment:
    """A virtual environment, the libraries of the stand-in, and caches, all in one folder.

    Args:
        folder: where they are, or will be.
        cuda: major version.
        python: of an environment that is there already; None makes one in the folder.
    """

    def __init__(self, folder: Path, cuda: int, python: Path | None = None) -> None:
        self.folder, self._cuda = folder.resolve() / f"cuda-{cuda}", cuda
        self._ready = self.folder / "ready"
        self._given = python is not None
        self.python = python or self.folder / "venv" / "bin" / "python"
        self._wheel, (self._cupy, *self._others) = f"cupy-cuda{cuda}x", CUPY[cuda]

    def make(self) -> None:
        """Install what is missing: 7 GB, which takes some minutes once.

        Raises:
            subprocess.CalledProcessError: a wheel cannot be had.
        """
        if not self._given and not self._ready.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _run([sys.executable, "-m", "venv", self.python.parents[1]])
            _run([self.python, "-m", "pip", "install", "--quiet", TORCH[self._cuda]])
            cupy = f"{self._wheel}=={self._cupy}"
            _run([self.python, "-m", "pip", "install", "--quiet", cupy, *OTHERS])
            self._ready.touch()
        for version in self._others:
            target = self._cupy_folder(version)
            if not target.exists():
                wheels = [f"{self._wheel}=={version}", "fastrlock"]
                _run(
                    [
                        self.python,
                        "-m",
                        "pip",
                        "install",
                        "--quiet",
                        "--no-deps",
                        "--target",
                        target,
                        *wheels,
                    ]
                )

    def _cupy_folder(self, version: str) -> Path:
        return self.folder / f"cupy-{version}"

    def build(self) -> str:
        """Build the stand-in if its sources are new, and return LD_PRELOAD."""
        here = ROOT / "tests" / "driver"
        sources = [here / "build.py", *sorted((here / "library").iterdir())]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
        libraries = self.folder / f"libraries-{digest}"
        if not libraries.exists():
            part = Path(tempfile.mkdtemp(dir=self.folder))
            _run([self.python, "-m", "tests.driver.build", part])
            part.rename(libraries)
        return f"{libraries / 'libcuda.so.1'}:{libraries / f'libcudart.so.{self._cuda}'}"

    def variables(self, preload: str, cupy: str = "") -> dict[str, str]:
        """Return the variables of a process over the stand-in.

        Args:
            preload: from `build`.
            cupy: version, one of `CUPY`; "" for that of the environment.
        """
        caches, here = self.folder / "caches", cupy or self._cupy
        paths = [str(self._cupy_folder(cupy))] * (here != self._cupy) + [str(ROOT)]
        return os.environ | {
            "LD_PRELOAD": preload,
            "PYTHONPATH": os.pathsep.join(paths),
            "CUPY_CACHE_DIR": str(caches / f"cupy-{here}"),
            "XDG_CACHE_HOME": str(caches / f"user-{here}"),
            "PYG_DIRECT_EMULATOR_CACHE": str(caches / "emulator"),
            "NUMBA_CACHE_DIR": str(caches / "numba"),
            "OMP_NUM_THREADS": "1",
        }

    def gigabytes(self) -> float:
        """Return what lies in the folder, without the caches, and in the environment."""
        folders = [self.python.parents[1], *map(self._cupy_folder, self._others)]
        files = (path for folder in folders for path in folder.rglob("*"))
        return sum(f.lstat().st_size for f in files if not f.is_dir()) / 1e9


def default_folder() -> Path:
    """Return the folder that PYG_DIRECT_DRIVER_FOLDER names, or one in the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "pyg_direct-driver"


def _run(command: list[str | Path]) -> None:
    print("+", *command, file=sys.stderr, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)
