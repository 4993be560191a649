"""What PyG's loader promises of every batch, checked in plain Python, one line per promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data


class Config(NamedTuple):
    """A whole configuration; a failing one is printed as a line to paste."""

    nodes: int = 10
    edges: int = 30
    seed: int = 0
    ids: str = "int64"
    hub: bool = False  # whether half of all edges lead to node 0
    sorted: bool = False
    times: str = ""  # "node" or "edge"
    weighted: bool = False  # with some weights of 0
    fanouts: tuple[int, ...] = (2, 2)
    replace: bool = False
    disjoint: bool = False
    strategy: str = "uniform"
    window: int | None = None
    batch_size: int = 4
    workers: int = 0

    def graph(self) -> Data:
        """Return the graph."""
        random = np.random.default_rng(self.seed)
        ends = random.integers(0, self.nodes, (2, self.edges))
        if self.hub:
            ends[1, ::2] = 0
        if self.sorted:
            ends = ends[:, ends[1].argsort(kind="stable")]
        data = Data(
            edge_index=torch.from_numpy(ends).to(getattr(torch, self.ids)),
            num_nodes=self.nodes,
            x=torch.from_numpy(random.random((self.nodes, 3))),
            edge_attr=torch.arange(self.edges),
        )
        if self.times:
            count = self.nodes if self.times == "node" else self.edges
            data.time = torch.from_numpy(random.integers(0, 9, count))
        if self.weighted:
            data.weight = torch.from_numpy(random.integers(0, 3, self.edges)).double()
        return data

    def loader(self, build: Any, data: Data) -> Any:
        """Return a loader over the graph, with three seeds more than nodes, some twice."""
        seeds = torch.arange(self.nodes + 3) % self.nodes
        options: dict[str, Any] = {"replace": self.replace, "disjoint": self.disjoint}
        if self.times:
            options["time_attr"] = "time"
            options["temporal_strategy"] = self.strategy
            options["time_window"] = self.window
            options["input_time"] = (seeds * 5 + self.seed) % 11
        if self.weighted:
            options["weight_attr"] = "weight"
        return build(
            data, list(self.fanouts), input_nodes=seeds, batch_size=self.batch_size,
            num_workers=self.workers, seed=self.seed, **options,
        )  # fmt: skip


def broken(config: Config, build: Any) -> list[str]:
    """Return which promises the batches of an epoch break."""
    data = config.graph()
    loader = config.loader(build, data)
    found, first = [], 0
    for batch in loader:
        size = min(config.batch_size, config.nodes + 3 - first)
        positions = list(range(first, first + size))
        found += [f"batch at {first}: {what}" for what in _broken(config, data, batch, positions)]
        first += size
    if first != config.nodes + 3:
        found.append("the epoch is not whole")
    return found


def _broken(config: Config, data: Data, batch: Any, positions: list[int]) -> Iterator[str]:
    n_id, e_id = batch.n_id.tolist(), batch.e_id.tolist()
    row, col = batch.edge_index.tolist()
    seeds, apart = [p % config.nodes for p in positions], config.disjoint or bool(config.times)
    group = batch.batch.tolist() if apart else [0] * len(n_id)
    if n_id[: len(seeds)] != seeds or batch.batch_size != len(seeds):
        yield "the seeds do not come first"
    yield from _wrong_rows(data, batch, positions)
    if any(group[u] != group[v] for u, v in zip(row, col, strict=True)):
        yield "an edge between subgraphs"
    nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
    if sum(nodes) != len(n_id) or sum(edges) != len(e_id) or nodes[0] != len(seeds):
        yield "num_sampled"
    # Numbers go by first discovery.
    known = {(group[i], n_id[i]): i for i in reversed(range(len(seeds)))}
    for u in row:
        known.setdefault((group[u], n_id[u]), len(seeds) + len(known) - _distinct(group, seeds))
        if known[group[u], n_id[u]] != u:
            yield f"node {u} has another number"
            return
    # What each node of a frontier may take.
    first = at = 0
    for hop, k in enumerate(config.fanouts):
        end, taken = first + nodes[hop], {}
        for i in range(at, at + edges[hop]):
            taken.setdefault(col[i], []).append(e_id[i])
        if any(not first <= v < end for v in taken):
            yield f"hop {hop} leads to no node of its frontier"
        for v in range(first, end):
            yield from _of_node(config, data, taken.get(v, []), n_id[v], positions[group[v]], k)
        first, at = end, at + edges[hop]


def _wrong_rows(data: Data, batch: Any, positions: list[int]) -> Iterator[str]:
    n_id, e_id = batch.n_id.tolist(), batch.e_id.tolist()
    row, col = batch.edge_index.tolist()
    source, target = data.edge_index.tolist()
    if batch.input_id.tolist() != positions:
        yield "input_id"
    if not torch.equal(batch.x, data.x[batch.n_id]):
        yield "x is not that of the nodes"
    if not torch.equal(batch.edge_attr, batch.e_id):
        yield "edge_attr is not that of the edges"
    if [n_id[i] for i in row] != [source[e] for e in e_id]:
        yield "e_id does not lead from row"
    if [n_id[i] for i in col] != [target[e] for e in e_id]:
        yield "e_id does not lead to col"


def _distinct(group: list[int], seeds: list[int]) -> int:
    return len({(group[i], seed) for i, seed in enumerate(seeds)})


def _of_node(
    config: Config, data: Data, taken: list[int], node: int, position: int, k: int
) -> Iterator[str]:
    possible = (data.edge_index[1] == node).nonzero().view(-1).tolist()
    if config.times:
        times = data.time if config.times == "edge" else data.time[data.edge_index[0].long()]
        time, limit = times.tolist(), (position % config.nodes * 5 + config.seed) % 11
        least = -1 if config.window is None else limit - config.window
        possible = [e for e in possible if least <= time[e] <= limit]
        possible.sort(key=lambda e: time[e])  # stable
        if config.strategy == "last" and k >= 0:
            possible = possible[max(0, len(possible) - k) :]
    if config.weighted and k >= 0:
        possible = [e for e in possible if data.weight[e] > 0]
    name = f"node {node} of seed {position}"
    if not set(taken) <= set(possible):
        yield f"{name} takes {taken} of {possible}"
    if k < 0:
        if taken != possible:
            yield f"{name} takes {taken}, not all in order of {possible}"
    elif config.replace:
        if len(taken) != (k if possible else 0):
            yield f"{name} takes {len(taken)} with replacement, not {k}"
    elif len(taken) != min(k, len(possible)) or len(set(taken)) != len(taken):
        yield f"{name} takes {taken} of {possible}, not {k}"
