"""Builds the stand-ins with g++ for the CUDA wheels of the environment that runs this.

::

    python -m tests.driver.build FOLDER

Names and versions of symbols are read from those wheels, on which torch depends.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "library"
# All else is in libcuda.so.1, with which the runtime is linked.
RUNTIME_ONLY = {"runtime_api", "graphs_api"}


def build(folder: Path) -> None:
    """Build both libraries in a folder, which may be moved.

    A process is to have them by LD_PRELOAD, as RPATH of torch's wheels wins over LD_LIBRARY_PATH.

    Raises:
        RuntimeError: a source does not compile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    toolkit, name = _toolkit()
    driver, runtime = folder / "libcuda.so.1", folder / name
    # Headers named crt/ are not in the wheel of the runtime, but in triton's.
    triton = _package_folder("triton") / "backends" / "nvidia"
    header = (toolkit / "include" / "cuda.h").read_text(errors="replace")
    (version,) = re.findall(r"^#define CUDA_VERSION (\d+)", header, re.M)
    compile_ = [
        "g++",
        "-std=c++17",
        "-O1",
        "-g",
        "-fPIC",
        "-Wall",
        "-Wextra",
        f"-DSTANDIN_CUDA_VERSION={version}",
        f"-I{folder}",
        f"-I{SOURCES}",
        f"-isystem{toolkit / 'include'}",
        f"-isystem{triton / 'include'}",
    ]
    versioned = dict(re.findall(r"^\s*#define (cu[A-Z]\w*)\s+(cu[A-Z]\w*_v\d)\s*$", header, re.M))
    _write_versioned_names(folder / "versioned_names.h", versioned)
    objects: dict[str, Path] = {}
    for source in sorted(SOURCES.glob("*.cpp")):
        objects[source.stem] = folder / f"{source.stem}.o"
        _run([*compile_, "-c", source, "-o", objects[source.stem]])

    ours = [path for name, path in objects.items() if name not in RUNTIME_ONLY]
    declared = re.findall(r"CUresult CUDAAPI (cu[A-Z]\w*)\s*\(", header)
    stubs = folder / "driver_stubs.cpp"
    names = {versioned.get(name, name) for name in declared} - _defined(ours)
    _write_stubs(stubs, names, "standin::not_supported(#name)")
    _run([*compile_, "-shared", "-Wl,-soname,libcuda.so.1", "-o", driver, *ours, stubs, "-ldl"])

    theirs = [path for name, path in objects.items() if name in RUNTIME_ONLY]
    real, stubs = toolkit / "lib" / name, folder / "runtime_stubs.cpp"
    names = _defined([real], "-D") - _defined(theirs)
    _write_stubs(stubs, names, "standin::keep_error(standin::not_supported(#name))")
    versions = folder / "versions.txt"  # the loader checks them
    versions.write_text(f"{name} {{ global: cuda*; __cuda*; local: *; }};\n")
    _run(
        [
            *compile_,
            "-shared",
            f"-Wl,-soname,{name}",
            f"-Wl,--version-script={versions}",
            "-o",
            runtime,
            *theirs,
            stubs,
            driver,
            "-Wl,-rpath,$ORIGIN",
        ]
    )


def _toolkit() -> tuple[Path, str]:
    """Return where headers and runtime of CUDA lie, and the runtime's file name.

    Wheels of CUDA 12 have a folder each, those of CUDA 13 share one.
    """
    wheels = _package_folder("nvidia")
    for folder, name in (("cu13", "libcudart.so.13"), ("cuda_runtime", "libcudart.so.12")):
        if (wheels / folder / "lib" / name).exists():
            return wheels / folder, name
    raise RuntimeError(f"No CUDA runtime in {wheels}: the environment needs a torch with CUDA.")


def _package_folder(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"No package {name} here: the environment needs a torch with CUDA.")
    return Path(next(iter(found.submodule_search_locations)))


def _write_versioned_names(path: Path, versioned: dict[str, str]) -> None:
    lines = "".join(f'    {{"{a}", "{b}"}},\n' for a, b in sorted(versioned.items()))
    path.write_text(
        "#pragma once\n#include <map>\n#include <string>\n"
        f"static const std::map<std::string, std::string> kVersionedNames = {{\n{lines}}};\n"
    )


def _write_stubs(path: Path, names: Iterable[str], error: str) -> None:
    """Write functions that count their call and return an error, as C++."""
    path.write_text(
        '#include "standin.h"\n'
        "#define STUB(name) \\\n"
        '  extern "C" __attribute__((visibility("default"))) int name() \\\n'
        f"  {{ return {error}; }}\n" + "".join(f"STUB({name})\n" for name in sorted(names))
    )


def _defined(objects: Sequence[Path], *options: str) -> set[str]:
    """Return the names of the functions that objects or libraries define, without versions."""
    listed = _run(["nm", *options, *objects])
    return {line.split()[-1].split("@")[0] for line in listed.splitlines() if " T " in line}


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[-4000:]}")
    print(done.stderr[-4000:], end="", file=sys.stderr)
    return done.stdout


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
