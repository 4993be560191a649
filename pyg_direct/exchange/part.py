"""A part of a graph, as the rank that holds it reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.types import BatchKey, Frontier, SamplingPlan, Table
from ..files.arrays import map_array
from ..files.header import InvalidGraphFileError, has_header
from ..files.open import graph_in
from ..files.parts import EDGE_IDS, PartedGraph, part_folder, read_part
from ..graph.coo_to_csc import narrow
from ..ops.backend import Backend
from ..ops.buffers import shared_pool
from ..ops.cpu import file_pages
from ..ops.host.parts import Drawn, ids_at

Ints = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

Items = Sequence[tuple[Ints, Ints]]
"""Of each node type the rows of frontier nodes in the part, and their local ids in the batch."""


class Answer(NamedTuple):
    """What a part drew for the frontier nodes of one batch."""

    drawn: Drawn
    columns: list[Bytes]  # rows [e_r, bytes] of the attributes of the edges, relation by relation


class Part:
    """Draws the neighbours of the nodes that a part owns, and has the rows of their attributes.

    Args:
        graph: the partition.
        number: of the part.
        backend: draws.
        plan: of the whole graph. Its draws do not depend on subgraphs, so it is not disjoint here.

    Raises:
        InvalidGraphFileError: the part is missing, of another partition, or damaged.
    """

    def __init__(
        self, graph: PartedGraph, number: int, backend: Backend, plan: SamplingPlan
    ) -> None:
        folder = part_folder(graph.folder, number)
        if not folder.is_dir() or not has_header(folder):
            raise InvalidGraphFileError(
                f"{folder} is missing, which this rank holds: rank r of W holds the parts p with "
                f"p mod W = r. Copy it here, beside the other files of the partition."
            )
        header = read_part(folder, number, graph.manifest)
        csc = backend.memory.place_graph(graph_in(folder, header, {}).csc)
        self._types = len(graph.node_types)
        self._csc, self._work = csc, backend.workspace(csc, plan._replace(disjoint=False))
        self._number, self._backend, self._pages = number, backend, file_pages.FilePages()
        self._ids: torch.dtype = torch.from_numpy(csc.indices[:0]).dtype
        files = [group.attributes for group in header.edges]
        self._edge_ids = [map_array(folder, arrays[EDGE_IDS]).numpy() for arrays in files]
        self.rows = [
            [map_array(folder, group.attributes[name]) for name in nodes.parted]
            for group, nodes in zip(header.nodes, graph.manifest.nodes, strict=False)
        ]
        most = max((edges.num_edges for edges in graph.manifest.edges), default=0)
        self._edge_dtype = getattr(torch, np.dtype(narrow(most)).name)  # of ids in all relations
        self._columns = [
            [as_bytes(map_array(folder, arrays[name])) for name in edges.parted]
            for arrays, edges in zip(files, graph.manifest.edges, strict=True)
        ]

    def draw(self, hop: int, items: Items, key: BatchKey) -> Answer:
        """Draw for frontier nodes of one batch.

        Raises:
            ValueError: rows that the part does not have, or a damaged file.
        """
        node = [torch.from_numpy(rows).to(self._ids) for rows, _ in items]
        local = [torch.from_numpy(np.ascontiguousarray(local)) for _, local in items]
        none = [torch.empty(0, dtype=dtype) for dtype in (self._ids, torch.int32)]
        whole = range(self._types)
        frontier = Frontier(
            [*node, *(none[0] for _ in whole)], [*local, *(none[1] for _ in whole)], None
        )
        picks = self._work.draw(hop, frontier, key)
        counts, position = picks.counts.numpy(), picks.position
        assert position is not None  # `draw` gives positions
        ends = edge_ends(counts, [len(node[t]) for t in self._csc.dst_type.tolist()])
        edge = shared_pool().empty((len(position),), self._edge_dtype).numpy()
        columns = list[Bytes]()
        for r, (first, last) in enumerate(pairwise(ends)):
            at, base = position.numpy()[first:last], int(self._csc.edge_base[r])
            ids_at(self._edge_ids[r], at, base, edge[first:last])
            columns += [table[at - base] for table in self._columns[r]]
        return Answer(Drawn(counts, picks.source.numpy(), edge), columns)

    def gather(self, t: int, rows: Ints) -> list[Tensor]:
        """Return rows of each attribute of a node type.

        Raises:
            IndexError: the part has no such row.
        """
        return self._backend.gather([*map(Table, self.rows[t])], torch.from_numpy(rows).long())

    def reading(self, t: int, owner: Ints, rows: Ints) -> contextlib.AbstractContextManager[None]:
        """Ask for the pages of those rows that are in this part; as a context, to copy them in.

        Args:
            t: the node type.
            owner: [n], the part of each row.
            rows: [n].
        """
        least = file_pages.MIN_TABLE_BYTES
        large = [table for table in self.rows[t] if table.nbytes >= least]
        if not large:
            return contextlib.nullcontext()
        return self._pages.reading(large, rows[owner == self._number].astype(np.int64))


def as_bytes(table: Tensor) -> Bytes:
    """Return a dense table [N, ...] as the bytes of its rows, uint8 [N, bytes], in its memory."""
    row = int(np.prod(table.shape[1:], dtype=np.int64)) * table.itemsize
    if table.numel() == 0:  # torch views no such table
        return np.empty((len(table), row), np.uint8)
    rows: Bytes = table.view(-1).view(torch.uint8).view(-1, row).numpy()
    return rows


def edge_ends(counts: Ints, items: Sequence[int]) -> list[int]:
    """Return where the edges of each relation begin, and where they end: R + 1 numbers.

    Args:
        counts: edges of each item, relation by relation.
        items: of each relation.

    Example: counts = [2, 0, 1] with two items of the first relation and one of the second give
    [0, 2, 3].
    """
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return ends[np.cumsum([0, *items])].tolist()  # type: ignore[no-any-return]
