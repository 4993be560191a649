"""What a batch may not ask the driver for, but where there is a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

# Beginnings of the names of what is counted.
UNWANTED = (
    "copy: pageable",
    "copy, blocking",
    "copy: device to pageable",
    "wait of the host: device",
    "wait of the host: stream",
    "wait of the host: event, spinning",
    "torch's kernel",
)
ADAPTIVE = (
    "what the budgets of metapaths leave is found by operations of torch's on integers, and the "
    "host waits for their sizes a few times a hop"
)
REASONS = {
    "heterogeneous, adaptive": ADAPTIVE,
    "heterogeneous, adaptive, temporal": ADAPTIVE,
    "node, bidirectional": (
        "edges in both directions are made by torch's `sort` and `index`, as PyG makes them, and "
        "neither waits for the device"
    ),
    "node, edges by hop": (
        "where the edges of each node begin, which accelerated models want, is found by a kernel "
        "of torch's for CSR matrices, which waits for nothing"
    ),
}
"""Kinds of loaders whose batches launch kernels of torch's, and why; `ADAPTIVE` ones wait, too."""


def unwanted(kind: str, numbers: Mapping[str, float]) -> Iterator[str]:
    """Yield what a batch asked for without a reason.

    Args:
        kind: of loader.
        numbers: of each counted thing, a batch.
    """
    for name, number in numbers.items():
        reason = REASONS.get(kind, "")
        has_reason = reason == ADAPTIVE or (reason and name.startswith("torch's kernel"))
        if name.startswith(UNWANTED) and not has_reason:
            yield f"{number:g} a batch: {name}"
