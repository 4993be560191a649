"""NVRTC through ctypes: compiles kernels for any architecture, without a GPU or a driver."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import tempfile
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
# What `cupy.RawModule` adds to the options that it is given.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
CACHE_VARIABLE = "PYG_DIRECT_NVRTC_CACHE"


class Nvrtc:
    """One version of NVRTC. What it compiled is kept on disk, for other tests and later runs.

    Args:
        library: path of `libnvrtc.so.*`. Its builtins lie beside it, and are found there.
    """

    def __init__(self, library: Path) -> None:
        for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(str(library))
        self._identity = (library.name, library.stat().st_size, self.version())

    def version(self) -> tuple[int, int]:
        """Return the version, such as (12, 9)."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def architectures(self) -> list[int]:
        """Return what it compiles for, of `ARCHITECTURES`: 75 for sm_75."""
        number = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(number)))
        values = (ctypes.c_int * number.value)()
        self._check(self._library.nvrtcGetSupportedArchs(values))
        return [value for value in ARCHITECTURES if value in values]

    def cubin(self, text: str, architecture: int, *options: str) -> bytes:
        """Compile a source text to machine code.

        Raises:
            ValueError: the compiler's log.
        """
        return self._kept(text, f"sm_{architecture}", options, "CUBIN")

    def ptx(self, text: str, *options: str) -> str:
        """Compile a source text to PTX."""
        return self._kept(text, "compute_75", options, "PTX").rstrip(b"\0").decode()

    def _kept(self, text: str, target: str, options: tuple[str, ...], kind: str) -> bytes:
        key = repr((self._identity, text, target, options, kind))
        path = _cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.{kind.lower()}"
        if path.exists():
            return path.read_bytes()
        code = self._compile(text, target, options, kind)
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        part.write_bytes(code)
        part.replace(path)  # atomic: other processes compile the same at the same time
        return code

    def _compile(self, text: str, target: str, options: Iterable[str], kind: str) -> bytes:
        nvrtc, program = self._library, ctypes.c_void_p()
        self._check(
            nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None)
        )
        try:
            flags = [f"--gpu-architecture={target}", *options]
            array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            if nvrtc.nvrtcCompileProgram(program, len(flags), array) != 0:
                raise ValueError(self._log(program))
            size = ctypes.c_size_t()
            self._check(getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
            code = ctypes.create_string_buffer(size.value)
            self._check(getattr(nvrtc, f"nvrtcGet{kind}")(program, code))
            return code.raw
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetProgramLog(program, log))
        return log.value.decode(errors="replace")

    def _check(self, status: int) -> None:
        if status != 0:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(
                f"NVRTC failed: {self._library.nvrtcGetErrorString(status).decode()}."
            )


def _cache_folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "pyg_direct-nvrtc"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def installed() -> Nvrtc:
    """Return the NVRTC of the environment."""
    return Nvrtc(path())


def path() -> Path:
    """Return the path of the NVRTC of the environment, which is in one of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for library in libraries(Path(folder) for folder in folders):
        return library
    raise RuntimeError(
        "NVRTC is missing: pip install nvidia-cuda-nvrtc-cu12 (it needs no GPU and no driver)."
    )


def libraries(folders: Iterable[Path]) -> Iterable[Path]:
    """Yield the libnvrtc of NVIDIA's wheels: of CUDA 12 and before, and of CUDA 13."""
    for folder in folders:
        for pattern in ("cuda_nvrtc/lib/libnvrtc.so.*", "cu[0-9]*/lib/libnvrtc.so.*"):
            yield from sorted(folder.glob(pattern))
