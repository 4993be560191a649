"""A progress bar for work on files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Advance = Callable[[int], None]
"""Is called with the number of edges and rows that were done since the last call."""


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int | None], Advance]]:
    """Give a function that begins a bar of some edges and rows (None: unknown)."""
    from tqdm import tqdm  # which PyG depends on

    with contextlib.ExitStack() as stack:
        yield lambda total: stack.enter_context(tqdm(total=total, unit="", unit_scale=True)).update
