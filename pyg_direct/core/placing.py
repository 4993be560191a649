"""Where a user wants the batches, the topology and the features."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Placing(NamedTuple):
    """Where the user wants things: arguments of both loaders."""

    device: torch.device | str | int | None
    topology: str = "auto"
    features: str = "auto"
    device_bytes: int | None = None
    ids: str = "host"
    gather_blocks: int | None = None
    cache: str | int | float | None = None
    cache_policy: Any = "visits"
    cpu_for: str = ""  # the argument for which batches are made on the CPU, not a user's

    def given(self) -> tuple[str, ...]:
        """Return the names of the arguments, but for the device, that are not at their defaults."""
        defaults = {
            name: value for name, value in self._field_defaults.items() if name != "cpu_for"
        }
        return tuple(name for name, value in defaults.items() if getattr(self, name) != value)
