"""Where the arrays of a graph lie for a GPU: in its memory, or in host memory that it reads."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..core.units import size_text

logger = logging.getLogger("pyg_direct")

FREE_SHARE = 0.5  # of the free device memory: the rest is for the model and its batches

ON_DEVICE = "GPU memory"
REGISTERED = "host memory, registered where it lies"
PINNED_COPY = "host memory, a pinned copy"
STAGED = "host memory, selected by the CPU and copied for each batch"


class Row(NamedTuple):
    """Where one array was placed."""

    name: str
    nbytes: int
    place: str


@dataclass
class Placement:
    """Where each array lies, as ``loader.placement``; `str` gives a table.

    Args:
        device: where the batches are.
        budget_bytes: GPU memory that graph and features may take; None without a GPU.
        reason: why batches are on this device; "" if it is not known.
        gpu_arguments: arguments given that decide about GPU memory; on the CPU they do nothing.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [5], batch_size=10, device="cpu")
        >>> print(loader.placement)
        batches on cpu (device= names it)
    """

    device: torch.device
    budget_bytes: int | None = None
    rows: list[Row] = field(default_factory=list)
    reason: str = ""
    gpu_arguments: tuple[str, ...] = ()

    def add(self, row: Row) -> None:
        """Record where an array was placed, and log it."""
        self.rows.append(row)
        logger.info("%s: %s (%s)", row.name, row.place, size_text(row.nbytes))

    def __str__(self) -> str:
        budget = (
            "" if self.budget_bytes is None else f", at most {size_text(self.budget_bytes)} of it"
        )
        reason = f" ({self.reason})" if self.reason else ""
        lines = [f"batches on {self.device}{reason}{budget}"]
        width = max((len(row.name) for row in self.rows), default=0)
        lines += [f"  {r.name:<{width}}  {size_text(r.nbytes):>12}  {r.place}" for r in self.rows]
        if self.gpu_arguments and self.device.type == "cpu":
            lines.append(f"  no effect on the CPU: {', '.join(self.gpu_arguments)}")
        return "\n".join(lines)
