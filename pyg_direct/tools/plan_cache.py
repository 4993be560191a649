"""Which rows of a batch a cache on the GPU would find, by its policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.units import blocks_of_row, size_text
from ..ops.host.hottest import LINE_BYTES, SLOT_BYTES, Candidate, hottest_rows

POINTS = 20  # of a curve, beside that of no cache
CERTAIN = 0.01  # standard error of the hits, up to which they are called predicted

NodeIds = Mapping[Any, Sequence[Tensor]]
"""The ids of batches by node type, a tensor for each batch; those of a batch are distinct."""


class CachedRows(NamedTuple):
    """What a cache holds, and what it finds of some batches.

    Attributes:
        rows: that it holds.
        found: float64 [batches, 3], what it finds of each: rows, bytes, and requests of 128 bytes.
        asked: float64 [batches, 3], what each asks for.
    """

    rows: int
    found: Tensor
    asked: Tensor

    @property
    def hits(self) -> float:
        """The share of the requests that it saves."""
        return float(self.found[:, 2].sum() / self.asked[:, 2].sum().clamp(min=1))

    @property
    def error(self) -> float:
        """The standard error of `hits`, from how batches differ."""
        shares = self.found[:, 2] / self.asked[:, 2].clamp(min=1)
        return float(shares.std()) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0


def cached_rows(
    node_ids: NodeIds,
    visits: Mapping[Any, Tensor],
    row_bytes: Mapping[Any, int],
    room_bytes: int,
    share: float = 1.0,
) -> CachedRows:
    """Return what a cache finds that takes its rows as those of the loaders do.

    Args:
        node_ids: of batches, which the policy should not have seen.
        visits: how often the policy expects each node, float64 [N_t] by type.
        row_bytes: of the features, by type; 0 for none.
        room_bytes: GPU memory of the cache.
        share: bytes of a cached row, by those of the row.
    """
    kinds = [kind for kind, values in visits.items() if row_bytes[kind] and len(values)]
    tables = [
        Candidate(str(kind), _table(visits[kind], row_bytes[kind] * share), visits[kind])
        for kind in kinds
    ]
    batches = len(next(iter(node_ids.values())))
    found, asked = torch.zeros(2, batches, 3, dtype=torch.float64)
    held = 0
    for kind, rows in zip(kinds, hottest_rows(tables, room_bytes), strict=True):
        width, held = row_bytes[kind], held + len(rows)
        costs = torch.tensor([1, width, blocks_of_row(width, LINE_BYTES)], dtype=torch.float64)
        cached = torch.zeros(len(visits[kind]), dtype=torch.bool)
        cached[rows] = True
        for i, ids in enumerate(node_ids[kind]):
            found[i] += int(cached[ids].sum()) * costs
            asked[i] += len(ids) * costs
    return CachedRows(held, found, asked)


def _table(visits: Tensor, row_bytes: float) -> Tensor:
    """Return a tensor without memory that has the size of a table."""
    shape = (len(visits), max(1, int(row_bytes)))
    return torch.empty(shape, dtype=torch.uint8, device="meta")


def cache_curve(
    node_ids: NodeIds, visits: Mapping[Any, Tensor], row_bytes: Mapping[Any, int], share: float
) -> tuple[Tensor, Tensor]:
    """Return sizes of caches in bytes up to that of all rows, and the hits of each, [points]."""
    whole = sum(
        len(values) * (int(row_bytes[kind] * share) + SLOT_BYTES) for kind, values in visits.items()
    )
    sizes = torch.linspace(0, whole, POINTS + 1, dtype=torch.float64).ceil()
    hits = [cached_rows(node_ids, visits, row_bytes, int(n), share).hits for n in sizes.tolist()]
    return sizes, torch.tensor(hits, dtype=torch.float64)


def policies_text(policies: Mapping[str, CachedRows], doubt: str) -> list[str]:
    """Return a line for each policy, behind one that says what they are.

    Args:
        policies: what a cache finds, by `cache_policy`.
        doubt: why these are not predictions for the user's batches; "" if they are.
    """
    batches = len(next(iter(policies.values())).found)
    error = max(cached.error for cached in policies.values())
    if not doubt and error > CERTAIN:
        doubt = "batches differ much"
    what = f"an estimate: {doubt}" if doubt else "predicted for seeds among all nodes"
    lines = [
        f"rows of a batch by cache_policy=, of {batches} batches that none was made of ({what}):"
    ]
    for policy, cached in policies.items():
        rows, nbytes, _ = cached.found.mean(0).tolist()
        all_rows, all_bytes, _ = cached.asked.mean(0).tolist()
        reads = float((cached.asked - cached.found).mean(0)[2])
        lines.append(
            f"  {policy}: {100 * cached.hits:.1f} % hits (+- {200 * cached.error:.1f}), "
            f"{rows:,.0f} rows and {size_text(int(nbytes))} from GPU memory, "
            f"{all_rows - rows:,.0f} rows and {size_text(int(all_bytes - nbytes))} "
            f"in {reads:,.0f} reads over PCIe"
        )
    return lines
