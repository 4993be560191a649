"""How every CPU kernel is compiled, and the instructions that numba does not offer."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import caching, cgutils, event
from numba.extending import intrinsic

logger = logging.getLogger("pyg_direct")

F = TypeVar("F", bound=Callable[..., Any])


# The entry for C that is left out takes time to compile, and nobody calls it.
FOR_ALL: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class Compiling:
    """How long this process has compiled kernels and read them from disk, in whichever threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Begin and end of each compilation or loading that is over, their seconds in all, and when
        # one that goes on began: one value, for other threads.
        self.state: tuple[Any, float, Any] = ((), 0.0, None)
        self._depth = 0  # a kernel compiles the kernels that it calls

    def seconds(self, until: float) -> float:
        """Return these seconds until a time of `perf_counter`, also an earlier one."""
        past, over, began = self.state
        if past and until < past[-1][1]:
            over = sum(min(end, until) - begin for begin, end in past if begin < until)
        return over if began is None else over + max(0.0, until - began)

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self.state = (*self.state[:2], perf_counter())

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                (past, over, began), end = self.state, perf_counter()
                self.state = ((*past, (began, end)), over + end - began, None)


COMPILING = Compiling()


class _Compilation(event.Listener):
    """Says once that a kernel is being compiled, as the user waits for it, and holds the collector.

    numba reports a compilation only where its cache on disk has no machine code, and compiles in
    one thread at a time. It makes so many objects that Python's garbage collector runs again and
    again over all that torch and PyG have loaded, which took a quarter of the time.
    """

    def __init__(self) -> None:
        self.given = self._collected = False
        self._depth = 0  # of numba's, whose compilations are of one thread at a time

    def on_start(self, event: Any) -> None:
        """Log the notice, and stop the collector."""
        if not _is_ours(event):
            return
        if not self.given:
            self.given = True
            times = "in each process" if _Cache.warned else "once; they are cached on disk"
            logger.warning("Compiling CPU kernels, which takes some seconds %s.", times)
        COMPILING.__enter__()
        self._depth += 1
        if self._depth == 1:
            self._collected = gc.isenabled()
            gc.disable()

    def on_end(self, event: Any) -> None:
        """Let the collector run again, unless the user had stopped it."""
        if not _is_ours(event):
            return
        COMPILING.__exit__()
        self._depth -= 1
        if self._depth == 0 and self._collected:
            gc.enable()


def _is_ours(event: Any) -> bool:
    """Whether a kernel of this package is compiled, and not one of the user's."""
    # None of a function made by `exec` where no module is named.
    module: str | None = event.data["dispatcher"].py_func.__module__
    return module is not None and module.startswith(__package__)


event.register("numba:compile", _Compilation())


def kernel(function: F) -> F:
    """Compile `function` with numba: no GIL, C division, cached on disk.

    numba keeps the machine code beside the source or, in a read-only install, in the user's cache
    folder (`NUMBA_CACHE_DIR` overrides both). Where none of them can be written, the kernel is
    compiled anew in every process, and a warning says so once.
    """
    return _cached(_compiled(function), function)


def light_kernel(function: F) -> F:
    """As `kernel`, without counting who refers to arrays: small batches take some percent less.

    The caller holds them while it waits. Neither the kernel nor what it calls can make arrays:
    numba refuses to compile that.
    """
    return _cached(_compiled(function, _nrt=False), function)


def helper(function: F) -> F:
    """Compile `function` for kernels to call, with which its code is kept; see `entry`."""
    return _compiled(function, _nrt=False, no_cpython_wrapper=True)


def entry(of: F) -> F:
    """Return a kernel that does what a helper does, for Python to call."""
    function: Any = of
    return light_kernel(function.py_func)  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """As `helper`, but compiled into each kernel that calls it.

    Only then do loops around it become vector instructions.
    """
    return _compiled(function, inline="always", no_cpython_wrapper=True)


@functools.cache
def _add_runtime_symbols() -> bool:
    """Tell LLVM where the functions are that compiled kernels call; False if numba hides them.

    They count references to arrays, and are all that our kernels call of numba.
    """
    try:
        from numba.core.runtime import _nrt_python

        found = {
            name if name.startswith("_") else f"NRT_{name}": address
            for name, address in _nrt_python.c_helpers.items()
        }
    except (ImportError, AttributeError):
        return False
    for name, address in found.items():
        binding.add_symbol(name, address)
    return True


@functools.cache
def source_stamp(folder: Path = Path(__file__).parent) -> tuple[tuple[str, int, int], ...]:
    """Return what changes with the text of any kernel in a folder."""
    files = sorted(folder.glob("*.py"))
    return tuple((path.name, (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files)


class _Cache(caching.FunctionCache):
    """numba's cache on disk, which knows all kernels' text, loads quickly, and never raises.

    numba's own looks at the file of the kernel, not at those of what it calls. It loads all that
    the compiler knows of Python and NumPy before it reads machine code, which needs none of it:
    that took longer than everything else in the first batch of a process. And a damaged file is an
    error in every process, until somebody deletes it.
    """

    warned = False

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        cache: Any = self
        self._load = cache._load_overload
        cache._cache_file._source_stamp = source_stamp()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code of a signature, or None if it has to be compiled."""
        try:
            with COMPILING:
                if not _add_runtime_symbols():
                    target_context.refresh()
                found: Any = self._load(sig, target_context)
        except Exception as error:
            # Types of an earlier version of this package or of numba may be gone: as expected.
            if not isinstance(error, (AttributeError, ImportError)):
                self._warn(error)
            with contextlib.suppress(Exception):
                self.flush()  # begin a new index, so that the next process finds one that is whole
            return None
        # Where processes compile at once, signatures may share a file: numba has no lock.
        return found if found is not None and found.signature.args == tuple(sig) else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code of a signature, if that is possible."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        _warn_once(
            f"The compiled CPU kernels in {self.cache_path} cannot be read or written "
            f"({type(error).__name__}: {error}), so they are compiled again, which takes some "
            f"seconds. Delete the folder, or set NUMBA_CACHE_DIR to a writable one."
        )


def _warn_once(message: str) -> None:
    if not _Cache.warned:
        _Cache.warned = True
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _compiled(function: F, **options: Any) -> F:
    return numba.njit(**FOR_ALL, **options)(function)


def _cached(compiled: Any, function: F) -> F:
    try:
        compiled._cache = _Cache(function)  # what cache=True does, with a cache of our own
    except AttributeError:  # a numba whose cache has other parts: it serves as it is
        compiled.enable_caching()
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _warn_once(
            "pyg_direct finds no writable folder for its compiled CPU kernels, so each process "
            "compiles them again, which takes some seconds. Set NUMBA_CACHE_DIR to a writable "
            "folder."
        )
    return compiled  # type: ignore[no-any-return]


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
    """Prefetch the cache line of `array[index]` (1-D); never faults, so any index may be given.

    A random read costs a cache miss and often a TLB miss; prefetching lets several overlap.
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
    """Prefetch the cache line at an address (int64)."""
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


@intrinsic
def load(typingctx: Any, address: Any, index: Any) -> Any:
    """Return element `index` of an array of int64 that is at an address."""
    signature = types.int64(types.int64, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(array, [args[1]]))

    return signature, codegen


@intrinsic
def store(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """Write `value` as element `index` of an array of numbers of its type that is at an address."""
    signature = types.void(types.int64, types.int64, value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = context.get_data_type(sig.args[2])
        array = builder.inttoptr(args[0], kind.as_pointer())
        builder.store(args[2], builder.gep(array, [args[1]]))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def widened(typingctx: Any, value: Any) -> Any:
    """Return a number as a float: an integer (uint16) is the bits of a bfloat16."""
    if not isinstance(value, types.Integer):
        return value(value), lambda context, builder, sig, args: args[0]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.shl(builder.zext(args[0], word), word(16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(value), codegen


@intrinsic
def as_float(typingctx: Any, bits: Any) -> Any:
    """Return the float32 whose bits are given (uint32)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@intrinsic
def as_bits(typingctx: Any, number: Any) -> Any:
    """Return the bits of a float32 (uint32)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Return the number of the lowest bit of a word that is set; the word is not 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))  # true: the word is not 0

    return word(word), codegen


@intrinsic
def count_ones(typingctx: Any, word: Any) -> Any:
    """Return how many bits of a word are set."""
    return word(word), lambda context, builder, sig, args: builder.ctpop(args[0])
