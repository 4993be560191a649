"""Makes the CUDA runtime that is linked into CuPy jump to the stand-in's, in process memory.

CuPy's wheels hold a static copy of the runtime, which no LD_PRELOAD replaces, and whose functions
their symbol table names. No file is changed.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from . import standin

PAGE_BYTES = 4096
JUMP_BYTES = 12
WRITABLE_CODE = 7  # PROT_READ | PROT_WRITE | PROT_EXEC


def redirect(library: str) -> int:
    """Redirect the runtime's functions inside a loaded library, and return how many there were.

    Raises:
        RuntimeError: the library holds none.
    """
    base = min(
        int(line.split("-")[0], 16)
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(library)
    )
    redirected = 0
    for name, (offset, nbytes) in _functions(library).items():
        function = getattr(standin.runtime, name, None)
        if function is not None and nbytes >= JUMP_BYTES:
            _write_jump(base + offset, ctypes.cast(function, ctypes.c_void_p).value or 0)
            redirected += 1
    if redirected == 0:
        raise RuntimeError(f"{library} names no function of the CUDA runtime.")
    return redirected


def _functions(library: str) -> dict[str, tuple[int, int]]:
    """Return offset and length of the functions cuda* of a library."""
    command = ["nm", "--defined-only", "--print-size", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {}
    for line in listed.stdout.splitlines():
        parts = line.split()
        if len(parts) == 4 and parts[2] in "tT" and parts[3].startswith("cuda"):
            found[parts[3]] = int(parts[0], 16), int(parts[1], 16)
    return found


def _write_jump(address: int, target: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    first = address // PAGE_BYTES * PAGE_BYTES
    nbytes = address + JUMP_BYTES - first
    if libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(nbytes), WRITABLE_CODE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    code = b"\x48\xb8" + target.to_bytes(8, "little") + b"\xff\xe0"  # mov rax, target; jmp rax
    ctypes.memmove(address, code, JUMP_BYTES)
