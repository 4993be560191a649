"""The few names of CuPy that this package uses."""

from collections.abc import Callable, Sequence

from . import cuda as cuda

__version__: str

class RawModule:
    def __init__(
        self,
        *,
        code: str,
        options: tuple[str, ...] = ...,
        name_expressions: Sequence[str] | None = ...,
    ) -> None: ...
    def get_function(self, name: str) -> Callable[..., None]: ...
