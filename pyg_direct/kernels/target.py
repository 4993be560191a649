"""What numba compiles kernels for: the CPU, knowing only what kernels use of Python and NumPy.

Before numba compiles anything it loads all that it knows (dictionaries, strings, random numbers,
SciPy's linear algebra), and for every addition it asks each of these whether it is meant; until the
first batch that took longer than the types of all kernels. numba's means for it are targets
(`target_extension`): ours loads integers, floats, ranges, tuples and arrays, and the rest only
where a kernel makes arrays or counts references.
"""

# mypy: disable-error-code="attr-defined,misc,name-defined,no-untyped-call"

from __future__ import annotations

import functools
from typing import Any

import numba
from numba.core import cpu, registry, typing
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_override,
    target_registry,
)

NAME = "pyg_direct"


class Kernels(CPU):
    """Names the target in numba's tables."""


class _Typing(typing.Context):
    """Types of what kernels do."""

    whole = False  # whether all that numba knows is loaded

    def load_additional_registries(self) -> None:
        """Load the types of arithmetic on whole arrays and of `math`, if they are asked for."""
        if self.whole:
            super().load_additional_registries()


class _Context(cpu.CPUContext):
    """Code of what kernels do."""

    def init(self) -> None:
        """Share the machine code of all functions with numba's own target."""
        shared = registry.cpu_target.target_context
        self.is32bit = shared.is32bit
        self._internal_codegen = shared.codegen()

    def load_additional_registries(self) -> None:
        """Load the code of integers, floats, ranges, tuples and arrays, or of all that there is."""
        if self.typing_context.whole:
            super().load_additional_registries()
        else:
            from numba.cpython import builtins, numbers, rangeobj, tupleobj  # noqa: F401
            from numba.np import arrayobj, npyimpl  # noqa: F401

    def refresh(self) -> None:
        """Load what has been registered since the last time; our own code comes before numba's."""
        from .elements import registry

        super().refresh()
        self.install_registry(registry)

    def post_lowering(self, module: Any, library: Any) -> None:
        """Link numba's runtime to a function that makes arrays or refers to them."""
        if self.enable_nrt:
            super().post_lowering(module, library)


class _Target(registry.CPUTarget):
    @functools.cached_property
    def _toplevel_target_context(self) -> _Context:
        return _Context(self.typing_context, NAME)

    @functools.cached_property
    def _toplevel_typing_context(self) -> _Typing:
        return _Typing()


class Dispatcher(registry.CPUDispatcher):
    """A function that is compiled for the types of its arguments."""

    targetdescr = _Target(NAME)

    def compile(self, sig: Any) -> Any:
        """Compile for the types of some arguments, or load what was compiled for them."""
        if self.targetoptions.get("_nrt", True):
            self.typingctx.whole = True
        with target_override(NAME):
            return super().compile(sig)


target_registry[NAME] = Kernels
dispatcher_registry[Kernels] = Dispatcher
jit_registry[Kernels] = functools.partial(numba.jit, _target=NAME)
