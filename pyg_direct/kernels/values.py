"""Parts of numba's values in LLVM's code."""

from __future__ import annotations

from typing import Any


def array_field(context: Any, builder: Any, array_type: Any, array: Any, name: str) -> Any:
    """Return a field of an array, such as `data` or `shape`, from its value."""
    position = context.data_model_manager[array_type].get_field_position(name)
    return builder.extract_value(array, position)
