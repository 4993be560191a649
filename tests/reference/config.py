"""A whole configuration of a loader: its graph, its seeds and its options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

import pyg_direct

KINDS = ("a", "b")
RELATIONS = (("a", "to", "a"), ("b", "of", "a"), ("a", "rev_of", "b"))
LATEST = 9  # times are below
LAWS = (  # arguments of samplers
    "replace", "disjoint", "subgraph_type", "time_attr", "temporal_strategy", "time_window",
    "weight_attr",
)  # fmt: skip


class Config(NamedTuple):
    """A whole configuration; a failing one is printed as a line to paste."""

    nodes: int = 10
    edges: int = 30
    width: int = 3  # of rows, in elements of 8 bytes
    seed: int = 0
    typed: bool = False  # nodes of `KINDS`, edges of `RELATIONS`
    ids: str = "int64"
    hub: bool = False  # whether half of all edges lead to node 0
    sorted: bool = False
    times: str = ""  # of "node" or "edge"
    weighted: bool = False  # with some weights of 0
    partial: bool = False  # whether one type has neither times nor weights
    saved: str = ""  # opened from files: saved "plain", with its times and weights as "tables", or
    # also with its rows in another order, "moved"
    fanouts: tuple[int, ...] = (2, 2)
    by_type: bool = False  # whether each relation has fan-outs of its own
    replace: bool = False
    disjoint: bool = False
    induced: bool = False
    backward: bool = False  # from sources to destinations, of seed nodes
    strategy: str = "uniform"
    window: int | None = None
    bounds: str = ""  # seeds have windows of their own: "start", "end" or "both"
    own_times: bool = False  # seed nodes have the times of the nodes
    links: str = ""  # seeds are links: "plain", with "binary" negatives, or with "triplet"
    across: bool = False  # whether links are of an edge type between two node types
    amount: float = 1.0  # of negatives
    exclude: str = ""  # "self" or "reverse"
    batch_size: int = 4
    workers: int = 0

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The node types; None is that of a homogeneous graph."""
        return KINDS if self.typed else (None,)

    @property
    def relations(self) -> tuple[Any, ...]:
        """The edge types, in the order of the data."""
        return RELATIONS if self.typed else (None,)

    @property
    def link_type(self) -> Any:
        """The edge type of seed links."""
        return self.relations[int(self.across and self.typed)]

    @property
    def apart(self) -> bool:
        """Whether each seed has a subgraph of its own."""
        return self.disjoint or self.times != ""

    @property
    def takes_times(self) -> bool:
        """Whether seeds have the times of their nodes, and none are given."""
        return self.own_times and self.times == "node" and not self.links

    def size_of(self, kind: Any) -> int:
        """Return the number of nodes of a type."""
        return self.nodes // 2 + 1 if kind == "b" else self.nodes

    def fanouts_of(self, relation: Any) -> tuple[int, ...]:
        """Return the fan-outs of an edge type, hop by hop."""
        shift = self.relations.index(relation) % len(self.fanouts) if self.by_type else 0
        return self.fanouts[shift:] + self.fanouts[:shift]

    def graph(self, folder: Path) -> Data | HeteroData:
        """Return the graph, opened from a new folder if it is to be saved."""
        data = self._in_memory()
        if not self.saved:
            return data
        named = {} if self.saved == "plain" else {"time_attr": self.time_attr}
        if named and self.weighted:
            named["weight_attr"] = "weight"
        order = "degree" if self.saved == "moved" else None
        pyg_direct.save(data, folder / "graph", row_order=order, **named)
        return pyg_direct.open(folder / "graph")

    @property
    def time_attr(self) -> str | None:
        """The name of the times."""
        return {"": None, "node": "time", "edge": "edge_time"}[self.times]

    def _in_memory(self) -> Data | HeteroData:
        random = np.random.default_rng(self.seed)
        data: Any = HeteroData() if self.typed else Data()
        for kind in self.kinds:
            store, count = store_of(data, kind), self.size_of(kind)
            store.x = torch.from_numpy(random.random((count, self.width)))
            store.num_nodes = count
            if self.times == "node" and not (self.partial and kind == "b"):
                store.time = torch.from_numpy(random.integers(0, LATEST, count))
        for relation in self.relations:
            self._add_edges(data, relation, random)
        return data  # type: ignore[no-any-return]

    def _add_edges(self, data: Any, relation: Any, random: np.random.Generator) -> None:
        source, target = ends_of(relation)
        count = self.edges if relation in (None, RELATIONS[0]) else self.edges // 2
        ends = np.stack([random.integers(0, self.size_of(k), count) for k in (source, target)])
        if self.hub:
            ends[1, ::2] = 0
        if relation == RELATIONS[2]:  # so that links have reverse edges to leave out
            ends[:, ::3] = data[RELATIONS[1]].edge_index.flip(0)[:, ::3].numpy()
        if self.sorted:
            ends = ends[:, ends[1].argsort(kind="stable")]
        store, partial = (
            store_of(data, relation),
            self.partial and relation == RELATIONS[self.seed % 3],
        )
        store.edge_index = torch.from_numpy(ends).to(getattr(torch, self.ids))
        store.edge_attr = torch.arange(count)
        if self.times == "edge" and not partial:
            store.edge_time = torch.from_numpy(random.integers(0, LATEST, count))
        if self.weighted and not partial:
            store.weight = torch.from_numpy(random.integers(0, 3, count)).double()

    def seeds(self, data: Any) -> Tensor:
        """Return the seed nodes [n], three more than nodes, or the seed links [2, n].

        Some are there twice; some links are edges, and the last three may be none.
        """
        if not self.links:
            return torch.arange(self.nodes + 3) * 7 % self.nodes
        source, target = (self.size_of(kind) for kind in ends_of(self.link_type))
        others = torch.stack([torch.arange(3) % source, torch.arange(3) * 2 % target])
        edges = store_of(data, self.link_type).edge_index[:, :10].long()
        return torch.cat([edges, others], 1)

    def times_of(self, seeds: Tensor, data: Any) -> Tensor:
        """Return the time of each seed, int64 [n]; of links at edges with times, mostly theirs."""
        times = (torch.arange(seeds.size(-1)) * 5 + self.seed) % (LATEST + 2)
        if self.takes_times:
            return store_of(data, self.kinds[0]).time[seeds]  # type: ignore[no-any-return]
        store = store_of(data, self.link_type)
        if self.links and "edge_time" in store:
            own = store.edge_time[: seeds.size(1) - 3][: len(times)]
            times[: len(own)] = torch.where(torch.arange(len(own)) % 3 == 2, times[: len(own)], own)
        return times

    def bounds_of(self, seeds: Tensor, data: Any) -> tuple[Tensor | None, Tensor | None]:
        """Return the first and the last time that each seed reaches."""
        times, number = self.times_of(seeds, data), torch.arange(seeds.size(-1))
        return (
            times - 2 - number % 4 if self.bounds in ("start", "both") else None,
            times - number % 3 if self.bounds in ("end", "both") else None,
        )

    def loader(self, build: Any, data: Any) -> Any:
        """Return a loader over the graph: `build` is of nodes or of links, as the seeds are."""
        seeds, fanouts = self.seeds(data), list(self.fanouts)
        options: dict[str, Any] = {"replace": self.replace, "disjoint": self.disjoint}
        if self.induced:
            options["subgraph_type"] = "induced"
        if self.times:
            options["time_attr"] = self.time_attr
            options["temporal_strategy"] = self.strategy
            options["time_window"] = self.window
            options["input_start_time"], options["input_end_time"] = self.bounds_of(seeds, data)
            if not self.takes_times:
                name = "edge_label_time" if self.links else "input_time"
                options[name] = self.times_of(seeds, data)
        if self.weighted:
            options["weight_attr"] = "weight"
        if self.links:
            options["edge_label_index"] = (self.link_type, seeds) if self.typed else seeds
            if self.links == "triplet":
                options["neg_sampling"] = NegativeSampling("triplet", math.ceil(self.amount))
            else:
                options["edge_label"] = torch.arange(seeds.size(1)) % 3
                if self.links == "binary":
                    options["neg_sampling"] = NegativeSampling("binary", self.amount)
            if self.exclude:
                options["exclude_seed_edges"] = self.exclude
        else:
            options["input_nodes"] = (KINDS[0], seeds) if self.typed else seeds
        if self.by_type and self.typed:
            fanouts = {kind: list(self.fanouts_of(kind)) for kind in reversed(RELATIONS)}
        if self.backward:
            laws = {name: options.pop(name) for name in LAWS if name in options}
            options["neighbor_sampler"] = pyg_direct.NeighborSampler(
                data, fanouts, sample_direction="backward", seed=self.seed, **laws
            )
        return build(
            data, fanouts, batch_size=self.batch_size, num_workers=self.workers, seed=self.seed,
            **options,
        )  # fmt: skip


def store_of(data: Any, key: Any) -> Any:
    """Return the store of a node type or an edge type; None is that of a homogeneous graph."""
    return data if key is None else data[key]


def ends_of(relation: Any) -> tuple[Any, Any]:
    """Return the types of the sources and of the destinations of an edge type."""
    return (None, None) if relation is None else (relation[0], relation[-1])
