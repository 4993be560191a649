"""A model that is another one in all but its forward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

M = TypeVar("M", bound=torch.nn.Module)


def with_forward(plain: M, forward: Callable[[Any, Any], Any], more: dict[str, Any]) -> M:
    """Return an object of a subclass of a model's class that shares the model's attributes.

    Args:
        plain: the model.
        forward: gets the arguments as a tuple and a dict.
        more: attributes of the subclass.
    """
    kind: Any = type(plain)
    uncompiled = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]

    @functools.wraps(plain.forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        # The wrapper of `disable` takes time at each step, so it is entered only where it matters.
        return (uncompiled if torch.compiler.is_compiling() else forward)(args, kwargs)

    def forward_of(made: Any) -> Any:
        names = dict(made.named_children()).get("parametrizations", ())
        missing = [name for name in names if not hasattr(type(plain), name)]
        if missing:
            raise RuntimeError(
                f"A parametrization of {missing[0]!r} was registered on an accelerated model: that "
                f"changes its class, and not that of the plain one. Register it on the model "
                f"before accelerate(), or on model.acceleration.plain."
            )
        return run

    body = {
        # A property, as some models have a forward among their own attributes (PyG's Sequential).
        "forward": property(forward_of),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        **more,
    }
    made: Any = object.__new__(type(kind.__name__, (kind,), body))
    # One dict, so that modes and attributes that are set on one are those of the other.
    object.__setattr__(made, "__dict__", plain.__dict__)
    return cast(M, made)
