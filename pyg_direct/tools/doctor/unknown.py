"""In place of what could not be found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """Why a question has no answer."""

    why: str

    def __str__(self) -> str:
        return f"unknown ({self.why})"


def ask(function: Callable[..., T], *arguments: Any) -> T | Unknown:
    """Return what a function returns, or why it does not."""
    try:
        return function(*arguments)
    except Exception as error:  # of whatever kind: a report must not fail
        return Unknown(f"{type(error).__name__}: {error}".splitlines()[0])
