"""Rows of node attributes that ranks load in common: each by the rank that owns it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..batch.gather import Gatherer, tables_in
from ..batch.roles import KnownRoles, dtype_in_batch
from ..batch.sampled import NodesOfType
from ..core.arguments import check_ids, shown
from ..core.lazy_tensor import MOST_PARTS, OrderedTensor, keep_rows
from ..core.pyg import fields_of, stores_of
from ..core.quantized import QuantizedTensor, decode
from ..core.types import Table
from ..ops.backend import Backend
from ..ops.host.parts import RowNumbers
from ..ranks.channel import Channel
from ..ranks.split import HASH, Split
from ..ranks.windows import Terms
from .batches import BatchExchange, Maker
from .owners import Ints, check_parts, ranks_of
from .rows import (
    AskedRows,
    Blocks,
    Ownership,
    RowFetcher,
    RowLayout,
    RowTraffic,
)

SCALE = " scale"  # suffix of an attribute's name, of the factors of its rows


class _Table(NamedTuple):
    """Rows that travel: an attribute, or the factors of a quantized one."""

    name: str
    rows: Tensor
    positions: Tensor | None  # at which of the rows each node is; None for its id

    @property
    def layout(self) -> RowLayout:
        return RowLayout(self.rows.dtype, tuple(self.rows.shape[1:]))


def tables_to_share(store: Any, roles: KnownRoles, key: Any) -> list[_Table]:
    """Return what of the node attributes of a store travels: more than one number a node.

    Labels and masks have one number a node, and all ranks have them. What no backend gathers, such
    as tensors that ask for a gradient or NumPy's arrays, is read on each rank, too.
    """
    found, fields = list[_Table](), fields_of(store)
    for attribute in roles.of(key, store).node:
        value = fields[attribute.name]
        if attribute.dim != 0 or not tables_in(value) or value.dim() < 2:
            continue
        positions = value.positions if isinstance(value, OrderedTensor) else None
        stored = value.stored if isinstance(value, OrderedTensor) else value
        if isinstance(stored, QuantizedTensor):
            found.append(_Table(attribute.name, stored.stored, positions))
            if stored.scale is not None and stored.scale.dim() == 2:
                found.append(_Table(attribute.name + SCALE, stored.scale, positions))
        else:
            found.append(_Table(attribute.name, tables_in(stored)[0], positions))
    return found


class _OwnRows:
    """The rows that this rank owns, for `RowFetcher`: each is read once for all that ask for it.

    Args:
        data: read anew for each round, so it may be changed in between, but not what its rows are.
        backend: gathers.
        formats: T x the rows that travel, by name.
        rows: T x [N_t], the ids of all nodes.
        traffic: counts.
    """

    def __init__(
        self,
        data: Any,
        backend: Backend,
        formats: Sequence[Mapping[str, RowLayout]],
        rows: Sequence[Ints],
        traffic: RowTraffic,
    ) -> None:
        self._data, self._backend, self._formats, self._traffic = data, backend, formats, traffic
        self._roles = KnownRoles()
        none = np.zeros(1, np.bool_)
        self._numbers = [
            RowNumbers(len(ids) if of_type else 0, ids, none)
            for ids, of_type in zip(rows, formats, strict=True)
        ]

    def tables(self) -> None:
        """Return None: this rank's own rows are read beside those that others ask for."""

    def reading(self, t: int, owner: Ints, rows: Ints) -> Any:
        """Return a context that does nothing: the rows are in memory then."""
        return contextlib.nullcontext()

    def answer(self, asked: Sequence[AskedRows]) -> list[Blocks]:
        """Return the rows that each rank asks for."""
        blocks: list[list[Any]] = [[] for _ in asked]
        for t, numbers in enumerate(self._numbers):
            # As those of batches, for which the kernel is compiled.
            of_ranks = [by_part[0][t].astype(np.int64, copy=False) for by_part in asked]
            one_part = [(ids, np.zeros(len(ids), np.int16)) for ids in of_ranks]
            refs, (union,), _ = numbers.of_window(one_part)
            tables = [*map(Table, self._read(t, torch.from_numpy(union).long()))]
            self._traffic.loaded_rows += len(union) if tables else 0
            for of_rank, ref in zip(blocks, refs, strict=True):
                of_rank.append(self._backend.gather(tables, torch.from_numpy(ref).long()))
        return [[of_rank] for of_rank in blocks]

    def _read(self, t: int, ids: Tensor) -> list[Tensor]:
        """Return the rows of nodes of one type.

        Raises:
            ValueError: an attribute is not what it was when the ranks met.
        """
        formats = self._formats[t]
        if not formats:
            return []
        key, _ = types_of(self._data)[t]
        tables = tables_to_share(stores_of(self._data)[key], self._roles, key)
        if {table.name: table.layout for table in tables} != formats:
            raise ValueError(
                f"The attributes {list(formats)} that ranks share rows of have changed since the "
                f"loader was first iterated. Build a new loader over them on all ranks."
            )
        gatherer = Gatherer(self._backend)
        at = {id(p): gatherer.rows(p, ids) for _, _, p in tables if p is not None}
        return [
            gatherer.rows(rows, ids if positions is None else at[id(positions)])
            for _, rows, positions in tables
        ]


class RowsInCommon(BatchExchange):
    """Exchanges the rows of node attributes with the other ranks of a step.

    Args:
        data: the graph.
        split: among ranks.
        feature_dtype: of narrow attributes in batches; see `Gatherer`.

    Raises:
        ValueError, TypeError: arguments that do not fit it.
    """

    argument = "share_rows=True"  # that the user gave

    def __init__(self, data: Any, split: Split, feature_dtype: torch.dtype | None) -> None:
        super().__init__("rows that ranks share")
        if not isinstance(data, (Data, HeteroData)):
            raise ValueError(
                f"{self.argument} needs a Data or a HeteroData: a FeatureStore decides itself "
                f"where its rows come from."
            )
        self._data, self._feature_dtype = data, feature_dtype
        self._roles = KnownRoles()
        self._kinds = [kind for kind, _ in types_of(data)]
        self._counts = [count for _, count in types_of(data)]
        shared = (tables_to_share(stores_of(data)[kind], self._roles, kind) for kind in self._kinds)
        self.exchanged = {id(table.rows) for of_type in shared for table in of_type}
        self._parts: list[Ints] | None = None
        if isinstance(split.owners, str) and split.owners != HASH:
            raise ValueError(
                f"owners must be {HASH!r}, or a tensor with the part of each node (with node "
                f"types, a dict of such), got {shown(split.owners)}."
            )
        if not isinstance(split.owners, str):
            self._parts = check_parts(
                split.owners, "owners", self._kinds, self._counts, MOST_PARTS, repr(HASH)
            )
            self.orders = ("proximity", "parts")
        self._check_effect()

    def window_of(self, is_ahead: bool, completes_in_loop: bool) -> int:
        """See `BatchExchange`."""
        return super().window_of(is_ahead and not completes_in_loop, completes_in_loop)

    def begin(self, sampler: Any, backend: Backend, terms: Terms) -> int:
        """See `BatchExchange`; one rank has nobody to share rows with."""
        return 0 if terms.board is None else super().begin(sampler, backend, terms)

    def _check_effect(self) -> None:
        if not any(self._formats()):
            raise ValueError(
                f"{self.argument} would have no effect: no node attribute is a dense tensor with "
                f"more than one number a node."
            )

    def _formats(self) -> list[dict[str, RowLayout]]:
        stores = stores_of(self._data)
        return [
            {t.name: t.layout for t in tables_to_share(stores[kind], self._roles, kind)}
            for kind in self._kinds
        ]

    def _maker(self, channel: Channel, sampler: Any, backend: Backend, window: int) -> Maker:
        """See `BatchExchange`."""
        fetcher = self._fetcher(channel, backend, self._owners(channel))
        return Maker(fetcher.fetch, fetcher.traffic)

    def _owners(self, channel: Channel) -> list[Ints]:
        """Return the rank that owns each node, int16 [N_t] for each type."""
        return ranks_of(self._parts, self._counts, channel.size)

    def _fetcher(self, channel: Channel, backend: Backend, owners: list[Ints]) -> RowFetcher:
        """Return what fetches rows from the ranks that own them."""
        formats, traffic = self._formats(), RowTraffic()
        ownership = Ownership.by_rank(owners, channel.size)
        holder = _OwnRows(self._data, backend, formats, ownership.row, traffic)
        return RowFetcher(channel, ownership, formats, holder, traffic)

    def _said(self) -> dict[str, str]:
        parts = None if self._parts is None else b"".join(map(bytes, self._parts))
        owners = HASH if parts is None else hashlib.sha256(parts).hexdigest()
        return {"attributes": str(self._formats()), "nodes": str(self._counts), "owners": owners}

    def _check_same(self, said: Sequence[Any]) -> None:
        """See `BatchExchange`.

        Raises:
            ValueError: ranks have other rows, or other owners of them.
        """
        for rank, there in enumerate(said):
            for name, here in said[0].items():
                if there[name] != here:
                    raise ValueError(
                        f"{self.argument} needs the same {name} on all ranks: rank {rank} has "
                        f"{there[name]}, and rank 0 {here}."
                    )

    def bring_rows(self, nodes: Mapping[Any, NodesOfType], padded: bool = False) -> None:
        """Fetch the rows of the nodes of one batch, and keep them with their ids.

        Outside of an epoch, and where there is one rank, they are gathered as they always are.

        Args:
            nodes: by type.
            padded: whether some may be padding, which repeats the row of another node.

        Raises:
            IndexError: a node id out of range.
        """
        if self.place is None:
            return
        there = [nodes.get(kind) for kind in self._kinds]
        # `given` has -1 for padding, of which no rank has a row.
        ids = [n and (n.node if padded else n.given).cpu() for n in there]
        for node, count in zip(ids, self._counts, strict=True):
            if node is not None:
                check_ids(node, count, "ids of a batch")
        found = self.made([None if node is None else node.numpy() for node in ids])
        self._keep([n and n.node for n in there], found)

    def _keep(self, ids: Sequence[Tensor | None], found: Sequence[dict[str, Tensor]]) -> None:
        """Keep rows of nodes that were fetched with their ids; T x both."""
        stores = stores_of(self._data)
        for kind, node, rows in zip(self._kinds, ids, found, strict=True):
            if node is not None and rows:
                keep_rows(node, self._in_batch(fields_of(stores[kind]), rows))

    def _in_batch(self, given: Mapping[str, Any], rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows of attributes as batches have them."""
        made = {}
        for name, value in rows.items():
            if name.endswith(SCALE):
                continue
            attribute = given[name]
            stored = attribute.stored if isinstance(attribute, OrderedTensor) else attribute
            if isinstance(stored, QuantizedTensor):
                value = decode(value, rows.get(name + SCALE, stored.scale))
            made[name] = value.to(dtype_in_batch(attribute, self._feature_dtype))
        return made

    def part_of(self, node_type: Any, node: Tensor) -> Tensor:
        """Return the part of each node, int64 [n]."""
        assert self._parts is not None  # 'parts' is among `orders`
        part = self._parts[self._kinds.index(node_type)]
        return torch.from_numpy(part[node.numpy()]).to(torch.int64)


def types_of(data: Data | HeteroData) -> list[tuple[Any, int]]:
    """Return the node types of a graph, [None] if it is homogeneous, and their numbers of nodes."""
    if isinstance(data, HeteroData):
        return [(kind, int(data[kind].num_nodes)) for kind in data.node_types]
    return [(None, int(data.num_nodes or 0))]
