"""How every CPU kernel is compiled, and the instructions that numba does not offer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, event
from numba.extending import intrinsic

logger = logging.getLogger("pyg_direct")

F = TypeVar("F", bound=Callable[..., Any])


class _CompileNotice(event.Listener):
    """Says once that a kernel is being compiled, as the user waits for it.

    numba reports a compilation only where its cache on disk has no machine code.
    """

    def __init__(self) -> None:
        self.given = False

    def on_start(self, event: Any) -> None:
        """Log the notice if the kernel is ours."""
        function = event.data["dispatcher"].py_func
        if not self.given and function.__module__.startswith(__package__):
            self.given = True
            logger.warning(
                "Compiling CPU kernels, which takes some seconds once; they are cached on disk."
            )

    def on_end(self, event: Any) -> None:
        """Do nothing."""


event.register("numba:compile", _CompileNotice())


def kernel(function: F) -> F:
    """Compile `function` with numba: no GIL, C division, cached on disk.

    numba keeps the machine code beside the source or, in a read-only install, in the user's cache
    folder (`NUMBA_CACHE_DIR` overrides both). Where none of them can be written, the kernel is
    compiled anew in every process, and a warning says so once.
    """
    return _compiled(function, "never")


def inlined(function: F) -> F:
    """As `kernel`, but compiled into each kernel that calls it.

    Only then do loops around it become vector instructions.
    """
    return _compiled(function, "always")


def _compiled(function: F, inline: str) -> F:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "inline": inline}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        warnings.warn(
            "pyg_direct finds no writable folder for its compiled CPU kernels, so each process "
            "compiles them again, which takes some seconds. Set NUMBA_CACHE_DIR to a writable "
            "folder.",
            RuntimeWarning,
            stacklevel=3,
        )
        return numba.njit(**options)(function)


def _prefetch_line(builder: Any, address: Any) -> None:
    byte_pointer = ir.IntType(8).as_pointer()
    word = ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
    # The mangled name depends on whether LLVM's pointers are opaque.
    name = "llvm.prefetch.p0" if "ptr" in str(byte_pointer) else "llvm.prefetch.p0i8"
    function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
    read, keep_in_all_levels, data = word(0), word(3), word(1)
    arguments = [builder.bitcast(address, byte_pointer), read, keep_in_all_levels, data]
    builder.call(function, arguments)


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask the cache for the line of `array[index]` (1-D); never faults, so any index may be given.

    A random read costs a cache and often a TLB miss; asking some elements ahead lets them overlap.
    """
    signature = types.void(array, index)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        struct = context.make_array(sig.args[0])(context, builder, args[0])
        position = context.cast(builder, args[1], sig.args[1], types.intp)
        _prefetch_line(builder, builder.gep(struct.data, [position]))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def prefetch_address(typingctx: Any, address: Any) -> Any:
    """Ask the cache for the line at an address (int64)."""
    signature = types.void(types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _prefetch_line(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def copy_bytes(typingctx: Any, source: Any, target: Any, size: Any) -> Any:
    """Copy `size` bytes from one address (int64) to another; a constant size becomes plain moves.

    The C library's memcpy moves a row of some hundred bytes two to three times as fast as the loop
    that numba makes of an assignment.
    """
    signature = types.void(types.int64, types.int64, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        source, target = (builder.inttoptr(address, byte_pointer) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1, align=1)
        return context.get_dummy_value()

    return signature, codegen
