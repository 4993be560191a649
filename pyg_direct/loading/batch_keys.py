"""Which key a `collate_fn` of the user's draws from: it is called with nothing but positions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..core.types import BatchKey
from ..ops.host import keys as rng


class _BatchKeys(threading.local):
    """The keys of the batch that a thread makes in an epoch."""

    key: BatchKey | None = None
    calls = 0

    @contextmanager
    def of(self, key: BatchKey) -> Iterator[None]:
        """Draw from a key meanwhile."""
        self.key, self.calls = key, 0
        try:
            yield
        finally:
            self.key = None

    def next(self) -> BatchKey | None:
        """Return the key of the batch, at later calls one derived from it; None outside of one."""
        if self.key is None:
            return None
        calls, self.calls = self.calls, self.calls + 1
        if calls == 0:
            return self.key
        return rng.derive(rng.as_seed(self.key), 0, calls, rng.CALL_DOMAIN)


batch_keys = _BatchKeys()
