"""How large batches are, how long they take, and how many of their rows a cache misses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from benchmarks.statistics import spread
from pyg_direct import NeighborLoader

SHARES = (0.05, 0.1, 0.2)  # rows that a cache holds, of all
WINDOWS = (1, 8, 32, 64, 256)
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "labor": {"sampling": "labor"},
    "labor, one layer": {"sampling": "labor", "layer_dependency": True},
}


def loader_of(data: Data, size: int, fanouts: list[int], **arguments: Any) -> NeighborLoader:
    """Return a loader over the training nodes, or all where there are none."""
    given = {"batch_size": size, "seed": 0, "device": "cpu", **arguments}
    if "order" not in given:
        given["shuffle"] = True
    return NeighborLoader(data, fanouts, **given)


def endless(loader: NeighborLoader) -> Iterator[Any]:
    """Iterate over epoch after epoch."""
    while True:
        yield from loader


def entries_read(data: Data, batch: Any, fanouts: list[int], degree: torch.Tensor) -> int:
    """Return how many entries of lists LABOR reads for a batch: those of lists that are cut."""
    found, read = 0, 0
    for hop, k in enumerate(fanouts):
        nodes = batch.n_id[found : found + batch.num_sampled_nodes[hop]]
        found += len(nodes)
        degrees = degree[nodes]
        read += int(degrees[degrees > k].sum())
    return read


def batches(data: Data, size: int, fanouts: list[int], rounds: int) -> list[dict[str, Any]]:
    """Make batches of each kind in turn, on one thread; return a row for each kind."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)  # times are of sampling
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    going = {k: endless(loader_of(bare, size, fanouts, **given)) for k, given in KINDS.items()}
    found: dict[str, dict[str, list[float]]] = {k: {} for k in KINDS}
    for iterator in going.values():
        next(iterator)
    for _ in range(rounds):
        for kind, iterator in going.items():
            start = perf_counter()
            batch = next(iterator)
            seconds = perf_counter() - start
            read = entries_read(bare, batch, fanouts, degree)
            values = {
                "nodes": batch.num_nodes,
                "edges": batch.edge_index.size(1),
                "milliseconds": 1e3 * seconds,
                "entries": read,
            }
            for name, value in values.items():
                found[kind].setdefault(name, []).append(value)
    torch.set_num_threads(threads)
    return [
        {"kind": kind, **{name: spread(samples) for name, samples in values.items()}}
        for kind, values in found.items()
    ]


class RecentRows:
    """A cache of the rows that were read last: those of the latest batches.

    Args:
        nodes: how many rows there are.
        size: how many it holds.
    """

    def __init__(self, nodes: int, size: int) -> None:
        self._size, self._time = size, 0
        self._used = np.zeros(nodes, np.int64)  # the batch that read a row last; 0: not held

    def misses(self, ids: np.ndarray) -> int:
        """Read the rows of a batch, and return how many were not held."""
        self._time += 1
        missed = int((self._used[ids] == 0).sum())
        self._used[ids] = self._time
        held = np.flatnonzero(self._used)
        if len(held) > self._size:
            over = len(held) - self._size
            self._used[held[np.argpartition(self._used[held], over - 1)[:over]]] = 0
        return missed


def cache_misses(
    data: Data, size: int, fanouts: list[int], number: int, windows: tuple[int, ...] = WINDOWS
) -> list[dict[str, Any]]:
    """Return rows of the share of the batches' rows that caches miss, once they are filled.

    The static cache holds the rows that uniform batches read most often.
    """
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    nodes = data.num_nodes
    visits = np.zeros(nodes, np.int64)
    for batch in islice(endless(loader_of(bare, size, fanouts)), number):
        visits[batch.n_id.numpy()] += 1
    hottest = np.argsort(-visits, kind="stable")
    rows = []
    kinds = [("uniform", 1), *(("labor", window) for window in windows)]
    for order in (None, "proximity"):
        for sampling, window in kinds:
            given: dict[str, Any] = {"sampling": sampling, "batch_dependency": window}
            if order is not None:
                given["order"] = order
            recent = {share: RecentRows(nodes, int(share * nodes)) for share in SHARES}
            static = {share: np.zeros(nodes, bool) for share in SHARES}
            for share, holds in static.items():
                holds[hottest[: int(share * nodes)]] = True
            read, missed = 0, {(kind, share): 0 for kind in ("lru", "static") for share in SHARES}
            batches_made = islice(endless(loader_of(bare, size, fanouts, **given)), number)
            for i, batch in enumerate(batches_made):
                ids = batch.n_id.numpy()
                counted = 2 * i >= number  # the first half fills the cache
                read += counted * len(ids)
                for share in SHARES:
                    missed["lru", share] += counted * recent[share].misses(ids)
                    missed["static", share] += counted * int((~static[share][ids]).sum())
            rows.append(
                {
                    "order": order or "shuffle",
                    "sampling": sampling,
                    "batch_dependency": window,
                    "rows_per_batch": read / (number - number // 2),
                    "missed": {f"{k} {share}": m / read for (k, share), m in missed.items()},
                }
            )
            print(rows[-1], flush=True)
    return rows
