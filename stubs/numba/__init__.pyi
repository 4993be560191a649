"""The few names of numba that this package uses; numba itself ships no types."""

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

__version__: str

def njit(
    *, nogil: bool = ..., cache: bool = ..., inline: str = ..., error_model: str = ...
) -> Callable[[_F], _F]: ...
