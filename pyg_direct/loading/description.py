"""What `repr(loader)` says, and what is said to those who would build a loader anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.types import Ends
from ..core.units import size_text
from ..ops.placement import Placement


def describe(
    name: str, ends: Ends | None, num_seeds: int, arguments: dict[str, Any], placement: Placement
) -> str:
    """Return one line: what a loader loads, how, and where it makes its batches.

    Args:
        name: of the class.
        ends: the numbers of nodes and edges; None if only a foreign sampler knows them.
        num_seeds: of an epoch.
        arguments: what else to print, by name.
        placement: where batches are, and arrays, if they were placed.

    Example: ``NeighborLoader(12 nodes, 20 edges, 5 seeds, num_neighbors=[2, 3], batch_size=2,
    device=cpu)``.
    """
    parts = []
    if ends is not None:
        parts += [_count(ends.node, "nodes"), _count(ends.edge, "edges")]
    parts.append(f"{num_seeds:,} seeds")
    parts += [f"{key}={value}" for key, value in arguments.items()]
    parts.append(f"device={placement.device}")
    places: dict[str, int] = {}
    for row in placement.rows:
        places[row.place] = places.get(row.place, 0) + row.nbytes
    parts += [f"{size_text(nbytes)} in {place}" for place, nbytes in places.items()]
    return f"{name}({', '.join(parts)})"


def _count(numbers: Mapping[Any, int], what: str) -> str:
    total = f"{sum(numbers.values()):,} {what}"
    return total if None in numbers else f"{total} of {len(numbers)} types"


def rebuilding_by_lightning(name: str) -> str:
    """Return what to say when Lightning begins to build a loader of a class anew."""
    return (
        f"Lightning would build this {name} anew, with a sampler of its own (for the ranks of DDP, "
        f"or to predict), and does not know its arguments. Write one of: (1) to fit and validate, "
        f"{name}(..., split_by_rank=True), wherever it is built; (2) 'from pyg_direct import "
        f"{name}' at the top of the file, and build the loader in a hook such as train_dataloader; "
        f"(3) there, sampler=torch.utils.data.DistributedSampler(range(num_seeds)); (4) for nodes, "
        f"LightningNodeData(loader='custom', node_sampler=pyg_direct.NeighborSampler(...)). "
        f"Trainer(use_distributed_sampler=False) trains every rank on all seeds of its loader."
    )
