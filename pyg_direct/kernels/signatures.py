"""What numba knows of the types of functions, with what it has found out already."""

# mypy: disable-error-code="attr-defined,misc,no-untyped-call"

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.typing import Context


class KernelTyping(Context):
    """numba's own context, with a memory.

    numba resolves each addition anew, which means to try all that was ever declared for ``+``,
    strings and dates included, and looks each up under all options of the compiler.
    """

    _signatures: dict[Any, Any] = {}  # noqa: RUF012  of a function and the types of its arguments

    def __init__(self, shared: Context) -> None:
        self.__dict__ = shared.__dict__  # all that is declared later, too

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call."""
        is_kernel = isinstance(func, types.Dispatcher)  # which has to be compiled
        # Some arguments are constants, of which 1 and 1.0 are the same, or slices.
        if kws or is_kernel or not all(isinstance(argument, types.Type) for argument in args):
            return super().resolve_function_type(func, args, kws)
        call = func, tuple(args)
        signature = self._signatures.get(call)
        if signature is None:
            signature = super().resolve_function_type(func, args, kws)
            if signature is not None:
                self._signatures[call] = signature
        return signature
