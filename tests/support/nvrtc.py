"""NVRTC through ctypes: compiles kernels for any architecture, without a GPU or a driver."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path


@cache
def _library() -> ctypes.CDLL:
    for library in _wheel_libraries():
        return ctypes.CDLL(str(library))
    raise RuntimeError(
        "NVRTC is missing: pip install nvidia-cuda-nvrtc-cu12 (it needs no GPU and no driver)."
    )


def _wheel_libraries() -> Iterable[Path]:
    """Yield the libnvrtc of NVIDIA's wheels: of CUDA 12 and before, and of CUDA 13."""
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for pattern in ("cuda_nvrtc/lib/libnvrtc.so.*", "cu*/lib/libnvrtc.so.*"):
            yield from sorted(Path(folder).glob(pattern))


def version() -> tuple[int, int]:
    """Return the version of NVRTC."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def architectures() -> list[int]:
    """Return what NVRTC compiles for: 75 for sm_75."""
    number = ctypes.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(ctypes.byref(number)))
    values = (ctypes.c_int * number.value)()
    _check(_library().nvrtcGetSupportedArchs(values))
    return list(values)


def compile_text(text: str, names: Iterable[str], architecture: int, *options: str) -> list[str]:
    """Compile a source text to machine code and return the lowered names of `names`.

    Raises:
        ValueError: the compiler's log.
    """
    nvrtc, program = _library(), ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    )
    try:
        names = list(names)
        for name in names:
            _check(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        flags = [f"--gpu-architecture=sm_{architecture}", *options]
        array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        if nvrtc.nvrtcCompileProgram(program, len(flags), array) != 0:
            raise ValueError(_log(program))
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        assert size.value > 0
        return [_lowered(program, name) for name in names]
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def assembly(text: str, name: str, *options: str) -> str:
    """Compile one kernel to PTX and return it."""
    nvrtc, program = _library(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None))
    try:
        _check(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        flags = ["--gpu-architecture=compute_75", *options]
        array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        _check(nvrtc.nvrtcCompileProgram(program, len(flags), array))
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
        ptx = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetPTX(program, ptx))
        return ptx.value.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _lowered(program: ctypes.c_void_p, name: str) -> str:
    lowered = ctypes.c_char_p()
    _check(_library().nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)))
    return (lowered.value or b"").decode()


def _log(program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(_library().nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    _check(_library().nvrtcGetProgramLog(program, log))
    return log.value.decode(errors="replace")


def _check(status: int) -> None:
    if status != 0:
        _library().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC failed: {_library().nvrtcGetErrorString(status).decode()}.")
