"""`ops.backend.Memory` of the CPU: everything stays where it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ...core.types import Csc
from ..ids import IN_PLACE, Ids
from ..placement import Placement


class CpuMemory:
    """Host memory; nothing is copied or registered."""

    checks_reads = True  # `ops.cpu.checks`

    def __init__(self) -> None:
        self.placement = Placement(torch.device("cpu"))

    def place_graph(self, csc: Csc, topology: str = "auto", device_bytes: int | None = None) -> Csc:
        """Return `csc` as it is."""
        _refuse_device(topology, "topology")
        return csc

    def to_numpy(self, csc: Csc) -> Csc:
        """Return `csc` as it is."""
        return csc

    def place_tables(self, tables: Iterable[tuple[str, Tensor]], features: str = "auto") -> None:
        """Do nothing."""
        _refuse_device(features, "features")

    def readable(self, table: Tensor) -> Tensor | None:
        """Return `table` itself if it is in host memory."""
        return table if table.is_cpu else None

    def ids(self, on_host: bool) -> Ids:
        """Return what leaves all ids where they are."""
        return IN_PLACE

    def to_batch(self, value: Any, device: torch.device) -> Any:
        """Return a part of a batch on `device`: as in PyG, a batch is where its data is."""
        return value if value.device == device else value.to(device)

    def pin(self, batch: Any) -> Any:
        """Return a batch in page-locked memory, where torch has a GPU to copy it to."""
        can_pin = torch.cuda.is_available() and hasattr(batch, "pin_memory")
        return batch.pin_memory() if can_pin else batch


def _refuse_device(mode: str, name: str) -> None:
    if mode == "device":
        raise ValueError(
            f"{name}='device' needs a CUDA device, but batches are made on the CPU. Use "
            f"{name}='auto', or device='cuda'."
        )
