"""Print, as JSON, what a CuPy without a driver makes of our kernels; run in a process of its own.

    python cupy_child.py FOLDER_OF_CUPY LIBRARY_OF_NVRTC FILE_OF_MODULES

The modules are a list of {"name", "text", "options", "kernels"}, as JSON, so that nothing but CuPy
is imported here. Replaced are only the two things that ask the driver: which GPU is there, and
loading machine code.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import sys
from pathlib import Path
from typing import Any

ARCHITECTURE = "90"


class LoadedModule:
    """Takes machine code as `cupy.cuda.function.Module` does, and keeps it."""

    cubin = b""
    mapping: Any = None

    def load(self, cubin: bytes) -> None:
        self.cubin = cubin

    def _set_mapping(self, mapping: Any) -> None:
        self.mapping = mapping


def main(folder: str, library: str, given: str) -> None:
    for builtins in Path(library).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    sys.path.insert(0, folder)
    import cupy
    from cupy.cuda import compiler, function

    compiled = 0
    # CuPy 14 has another one behind the public name.
    private = "_compile_using_nvrtc_no_warning"
    name = private if hasattr(compiler, private) else "compile_using_nvrtc"
    original = getattr(compiler, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return original(*arguments, **named)

    setattr(compiler, name, counted)
    compiler._get_arch_for_options_for_nvrtc = lambda arch=None: (
        f"-arch=sm_{ARCHITECTURE}", "cubin",
    )  # fmt: skip
    compiler.function.Module = LoadedModule
    build = compiler._compile_with_cache_cuda
    extra = {"cache_dir": None} if "cache_dir" in inspect.signature(build).parameters else {}

    def built(text: str, options: tuple[str, ...], **named: Any) -> bytes:
        module = build(text, options, ARCHITECTURE, **extra, **named)
        assert isinstance(module, LoadedModule)
        return module.cubin

    modules = json.loads(Path(given).read_text())
    missing, passes = [], []
    for _ in range(2):
        before = compiled
        for module in modules:
            cubin = built(module["text"], tuple(module["options"]))
            for kernel in module["kernels"]:
                if b".text." + kernel.encode() + b"\0" not in cubin:
                    missing.append(f"{module['name']}: {kernel}")
        passes.append(compiled - before)
    named = "template <class T> __global__ void f(T *a) { *a = 1; }"
    before = compiled
    for _ in range(2):
        built(named, (), name_expressions=("f<int>",))
    result = {
        "version": cupy.__version__,
        "compiled": passes,  # in the first pass, and in the second one
        "with_name_expressions": compiled - before,  # of two
        "missing": missing,
        "packing": packing(function),
    }
    print(json.dumps(result))


def packing(function: Any) -> dict[str, str]:
    """Return the error of a launch by the kind of its argument: packed, or refused before."""
    import numpy as np

    launch = function.Function.__new__(function.Function)  # of no module

    class Stream:
        ptr = 0

    kinds = {"u64": np.uint64(1), "i64": np.int64(-1), "i32": np.int32(-1), "u32": np.uint32(1),
             "object": object()}  # fmt: skip
    errors = {}
    for name, value in kinds.items():
        try:
            launch((1, 1, 1), (1, 1, 1), (value,), stream=Stream())
        except Exception as error:
            errors[name] = type(error).__name__
    return errors


if __name__ == "__main__":
    main(*sys.argv[1:])
