"""A batch over arrays that are mapped to files which memory has no room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import Csc, SampledGraph, SamplingPlan
from ..buffers import Resources
from .file_pages import FilePages
from .workspace import CpuWorkspace

Ints = npt.NDArray[Any]


class PagedWorkspace(CpuWorkspace):
    """As `CpuWorkspace`, where pages of the arrays are asked for before a hop reads them.

    All that a hop needs is asked for at once, so that the disk has many reads in flight, and what
    is missing all the same is read alone: see `file_pages`. The edges are the same.
    """

    def __init__(
        self, csc: Csc, plan: SamplingPlan, resources: Resources, pages: FilePages
    ) -> None:
        super().__init__(csc, plan, resources)
        self._is_plain = False  # a call for all hops leaves no time to ask for the pages of each
        self._pages = pages
        arrays = {name: torch.from_numpy(array) for name, array in csc.arrays()}
        self._tables = list(arrays.values())
        self._pointers = [arrays["indptr"]]
        self._of_edges = [
            arrays[name] for name in ("indices", "alias", "weight", "cumulative") if name in arrays
        ]

    def _another(self) -> PagedWorkspace:
        return PagedWorkspace(self._csc, self._plan, self._resources, self._pages)

    def plan(self, hop: int, skip: Sequence[Tensor | None] | None = None) -> None:
        """Count the edges of the hop; the pointers of its nodes are asked for."""
        with (
            self._pages.alone(self._tables),
            self._pages.reading(self._pointers, self._lists_at(hop)),
        ):
            super().plan(hop, skip)

    def sample_edges(self, hop: int) -> None:
        """Draw the edges of the hop; the pages in which lists begin are asked for.

        Most lists lie in one page or two.
        """
        starts = self._items[0, : int(self._item_base[-1])]
        with self._pages.alone(self._tables), self._pages.reading(self._of_edges, starts):
            super().sample_edges(hop)

    def _emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes."""
        with self._pages.alone(self._tables):
            return super()._emit_induced()

    def _lists_at(self, hop: int) -> Ints:
        """Return the places in `indptr` of the lists that a hop looks at, int64."""
        first, last = self._node_ptr[hop], self._node_ptr[hop + 1]
        places = [np.empty(0, np.int64)]
        for t, base in zip(self._dst_types, self._csc.indptr_base.tolist(), strict=True):
            begin = int(self._node_start[t])
            places.append(self._node[begin + first[t] : begin + last[t]].astype(np.int64) + base)
        return np.concatenate(places)
