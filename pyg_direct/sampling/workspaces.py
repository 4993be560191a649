"""A pool of idle workspaces."""

from __future__ import annotations

import threading
from collections import OrderedDict
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
        self._idle: OrderedDict[Hashable, list[Workspace]] = OrderedDict()

    def take(self, kind: Hashable) -> Workspace | None:
        """Return an idle workspace of a kind, which is the caller's from now on, or None."""
        with self._lock:
            idle = self._idle.get(kind)
            return idle.pop() if idle else None

    def give_back(self, kind: Hashable, workspace: Workspace) -> None:
        """Keep a workspace for the next batch of its kind."""
        with self._lock:
            self._idle.setdefault(kind, []).append(workspace)
            self._idle.move_to_end(kind)
            while len(self._idle) > MAX_IDLE_KINDS:
                self._idle.popitem(last=False)

    def __reduce__(self) -> tuple[type[WorkspacePool], tuple[()]]:
        """Workspaces stay in their process."""
        return WorkspacePool, ()
