"""A pool of idle workspaces."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable

from ..ops.backend import Workspace

MAX_IDLE_KINDS = 4  # such as training and validation, each on two streams


class WorkspacePool:
    """Idle workspaces by kind, those of the kinds that were used last. Thread-safe.

    Each holds a table over all nodes, so the kinds that were not used for longest, as after
    `num_neighbors` was set anew, are freed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Hashable, list[Workspace]] = {}
        self._used: dict[Hashable, int] = {}  # the larger, the later a kind was used
        self._uses = itertools.count()

    def take(self, kind: Hashable) -> Workspace | None:
        """Return an idle workspace of a kind, which is the caller's from now on, or None."""
        try:
            return self._idle[kind].pop()  # of no other thread from then on, without a lock
        except (KeyError, IndexError):
            return None

    def give_back(self, kind: Hashable, workspace: Workspace) -> None:
        """Keep a workspace for the next batch of its kind."""
        self._used[kind] = next(self._uses)
        idle = self._idle.get(kind)
        if idle is None:
            with self._lock:
                idle = self._idle.setdefault(kind, [])
                while len(self._idle) > MAX_IDLE_KINDS:
                    oldest = min(self._idle, key=lambda other: self._used.get(other, 0))
                    del self._idle[oldest]
                    self._used.pop(oldest, None)
        idle.append(workspace)

    def __reduce__(self) -> tuple[type[WorkspacePool], tuple[()]]:
        """Workspaces stay in their process."""
        return WorkspacePool, ()
