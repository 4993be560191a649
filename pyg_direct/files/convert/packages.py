"""The packages of the extra `convert`, imported for conversions only."""

from __future__ import annotations

import importlib
from typing import Any


def convert_package(name: str) -> Any:
    """Import a module of DuckDB or pyarrow.

    Raises:
        ImportError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"A conversion needs {name.split('.')[0]}, which is not installed ({error}). Install "
            f"what conversions need: pip install duckdb pyarrow"
        ) from error
