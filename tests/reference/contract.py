"""What PyG's loaders promise of every batch, checked in plain Python, one line per promise."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import Config, ends_of, store_of

MISSING = -1
HOP_COUNTS = {"num_sampled_nodes", "num_sampled_edges"}


def broken(config: Config, build: Any) -> list[str]:
    """Return which promises the batches of an epoch break."""
    with tempfile.TemporaryDirectory() as folder:
        return _broken(config, build, config.graph(Path(folder)))


def _broken(config: Config, build: Any, data: Any) -> list[str]:
    loader, total = config.loader(build, data), config.seeds(data).size(-1)
    found, first = [], 0
    for batch in loader:
        positions = list(range(first, min(first + config.batch_size, total)))
        checks = _Checks(config, data, batch, positions)
        found += [f"batch at {first}: {what}" for what in checks.broken()]
        first += len(positions)
    if first != total:
        found.append("the epoch is not whole")
    return found


class _Checks:
    """The checks of one batch.

    A node is known by its type and its local id. Its tree is the seed that it was found from: 0 of
    all nodes, unless each seed has a subgraph of its own.
    """

    def __init__(self, config: Config, data: Any, batch: Any, positions: list[int]) -> None:
        self.config, self.data, self.batch, self.positions = config, data, batch, positions
        self.n_id = {kind: store_of(batch, kind).n_id.tolist() for kind in config.kinds}
        self.e_id = {kind: store_of(batch, kind).e_id.tolist() for kind in config.relations}
        self.ends = {kind: self._lists(kind, batch).tolist() for kind in config.relations}
        self.given = config.seeds(data)
        self.limit = config.times_of(self.given, data)[positions].tolist()
        bounds = config.bounds_of(self.given, data)
        start, end = (None if one is None else one[positions].tolist() for one in bounds)
        window = config.window
        if start is None:
            start = [MISSING if window is None else time - window for time in self.limit]
        self.times = list(zip(start, end or self.limit, strict=True))  # of edges, by seed
        self.tree: dict[Any, list[int]] = {kind: [] for kind in config.kinds}
        self.sources = len(positions)  # of links, with those of negatives

    def broken(self) -> Iterator[str]:
        """Yield the promises that are broken, those first without which others mean nothing."""
        yield from self._rows()
        try:
            yield from self._links() if self.config.links else self._nodes()
            yield from self._induced() if self.config.induced else self._hops()
        except BrokenError as error:
            yield str(error)

    def _ends_of(self, relation: Any) -> tuple[Any, Any]:
        """Return the types of the neighbours and of the nodes that they are drawn for."""
        source, target = ends_of(relation)
        return (target, source) if self.config.backward else (source, target)

    def _lists(self, relation: Any, data: Any) -> Tensor:
        """Return the neighbours of a graph or a batch and the nodes they are of, [2, E]."""
        edges: Tensor = store_of(data, relation).edge_index
        return edges.flip(0) if self.config.backward else edges

    def _rows(self) -> Iterator[str]:
        """Attributes, ids and ends are those of the graph."""
        for kind, n_id in self.n_id.items():
            store = store_of(self.batch, kind)
            if not torch.equal(store.x, store_of(self.data, kind).x[store.n_id]):
                yield f"x is not that of the nodes {kind or ''}"
            if len(n_id) != store.num_nodes:
                yield "num_nodes"
            if store.n_id.dtype != torch.int64:
                yield "dtype of n_id"
        for kind, e_id in self.e_id.items():
            store, (row, col) = store_of(self.batch, kind), self.ends[kind]
            (source, target), (src, dst) = self._lists(kind, self.data), self._ends_of(kind)
            if not torch.equal(store.edge_attr, store_of(self.data, kind).edge_attr[store.e_id]):
                yield f"edge_attr is not that of the edges {kind or ''}"
            given = store_of(self.data, kind).edge_index.dtype
            if (store.e_id.dtype, store.edge_index.dtype) != (torch.int64, given):
                yield "dtype of e_id or edge_index"
            if [self.n_id[src][i] for i in row] != source[e_id].tolist():
                yield f"e_id does not lead from row {kind or ''}"
            if [self.n_id[dst][i] for i in col] != target[e_id].tolist():
                yield f"e_id does not lead to col {kind or ''}"

    def _nodes(self) -> Iterator[str]:
        """Seed nodes come first, as they were given."""
        kind = self.config.kinds[0]
        store, seeds = store_of(self.batch, kind), self.given[self.positions].tolist()
        if store.batch_size != len(seeds) or store.input_id.tolist() != self.positions:
            yield "batch_size or input_id"
        given = self.config.times and not self.config.takes_times
        if ("seed_time" in store) != bool(given) or (
            given and store.seed_time.tolist() != self.limit
        ):
            yield "seed_time"
        yield from self._seeds({kind: seeds}, {kind: list(range(len(seeds)))})

    def _links(self) -> Iterator[str]:
        """The ends of links come first; negatives are as many as asked for, and named as such."""
        config, links = self.config, len(self.positions)
        src, dst = ends_of(config.link_type)
        store = store_of(self.batch, config.link_type)
        if store.input_id.tolist() != self.positions:
            yield "input_id"
        negatives = 0 if config.links == "plain" else math.ceil(links * config.amount)
        if config.links == "triplet":
            negatives = links * math.ceil(config.amount)
            row, col = store_of(self.batch, src).src_index, store_of(self.batch, dst).dst_pos_index
            wrong = store_of(self.batch, dst).dst_neg_index
            shape = (links, negatives // links) if negatives > links else (links,)
            if wrong.shape != shape:
                yield f"{tuple(wrong.shape)} negatives"
            # A column of negatives is one of each link.
            col = torch.cat([col, wrong.t().reshape(-1)])
            times = [store_of(self.batch, kind).get("seed_time") for kind in (src, dst)]
        else:
            row, col = store.edge_label_index
            labels = torch.tensor(self.positions) % 3 + int(config.links == "binary")
            if store.edge_label.tolist() != labels.tolist() + [0] * negatives:
                yield "edge_label"
            times = [store.get("edge_label_time")]
        if config.times and any(t is None or t[:links].tolist() != self.limit for t in times):
            yield "times of the links"
        self.sources = links if config.links == "triplet" else links + negatives
        if (len(row), len(col)) != (self.sources, links + negatives):
            raise BrokenError(f"{len(row)} sources and {len(col)} destinations")
        rows = [self.n_id[src][i] for i in row.tolist()]
        cols = [self.n_id[dst][i] for i in col.tolist()]
        if [rows[:links], cols[:links]] != self.given[:, self.positions].tolist():
            yield "the links are others"
        yield from self._ends(src, dst, rows, cols, (row, col))

    def _ends(
        self, src: Any, dst: Any, rows: list[int], cols: list[int], local: tuple[Tensor, Tensor]
    ) -> Iterator[str]:
        """Ends are seeds: those of a type each once, in order; or all, each with its subgraph."""
        if not self.config.apart:
            given = {src: rows + cols} if src == dst else {src: rows, dst: cols}
            seeds = {kind: sorted(set(ids)) for kind, ids in given.items()}
            yield from self._seeds(seeds, {kind: [0] * len(ids) for kind, ids in seeds.items()})
            return
        total = len(rows) + len(cols)
        if src == dst:
            first, seeds, trees = len(rows), {src: rows + cols}, {src: list(range(total))}
        else:
            first, seeds = 0, {src: rows, dst: cols}
            trees = {src: list(range(len(rows))), dst: list(range(len(rows), total))}
        wanted = [list(range(len(rows))), list(range(first, first + len(cols)))]
        if [part.tolist() for part in local] != wanted:
            yield "ends of links are not seeds of their own"
        yield from self._seeds(seeds, trees)

    def _seeds(self, seeds: dict[Any, list[int]], trees: dict[Any, list[int]]) -> Iterator[str]:
        for kind, n_id in self.n_id.items():
            mine = seeds.get(kind, [])
            if n_id[: len(mine)] != mine:
                yield f"the seeds {kind or ''} do not come first"
            if not self.config.induced:  # PyG has no counts then
                counts = self._counts(kind, "num_sampled_nodes", len(n_id))
                if counts[0] != len(mine):
                    yield f"num_sampled_nodes: {counts[0]} seeds"
            self.tree[kind] = trees.get(kind, []) if self.config.apart else [0] * len(mine)

    def _counts(self, kind: Any, name: str, total: int) -> list[int]:
        counts: list[int] = [int(n) for n in store_of(self.batch, kind)[name]]
        if sum(counts) != total:
            raise BrokenError(f"{name} of {kind or 'all'}: {counts}, not {total}")
        return counts

    def _hops(self) -> Iterator[str]:
        """Hop by hop: numbers go by first discovery, and each node takes what it may."""
        config, kinds = self.config, self.config.kinds
        nodes = {k: self._counts(k, "num_sampled_nodes", len(self.n_id[k])) for k in kinds}
        edges = {
            r: self._counts(r, "num_sampled_edges", len(self.e_id[r])) for r in config.relations
        }
        known = {kind: dict[tuple[int, int], int]() for kind in kinds}
        for kind, trees in self.tree.items():
            for i, tree in enumerate(trees):  # later copies of a seed are the source of no edge
                known[kind].setdefault((tree, self.n_id[kind][i]), i)
        past, first = dict.fromkeys(config.relations, 0), dict.fromkeys(kinds, 0)
        for hop in range(len(config.fanouts)):
            end = {kind: first[kind] + nodes[kind][hop] for kind in kinds}
            for relation in config.relations:
                dst = self._ends_of(relation)[1]
                span = range(past[relation], past[relation] + edges[relation][hop])
                past[relation] = span.stop
                taken = self._discover(relation, span, known, range(first[dst], end[dst]))
                for v in range(first[dst], end[dst]):
                    yield from self._of_node(relation, v, taken.get(v, []), hop)
            first = end
            if any(len(self.tree[k]) != first[k] + nodes[k][hop + 1] for k in kinds):
                raise BrokenError(f"hop {hop} found other nodes than num_sampled_nodes")
        yield from self._subgraphs()

    def _discover(
        self, relation: Any, span: range, known: Any, frontier: range
    ) -> dict[int, list[int]]:
        """Number the sources of some edges, and return what each destination takes."""
        (row, col), (src, dst) = self.ends[relation], self._ends_of(relation)
        taken = dict[int, list[int]]()
        if [col[i] for i in span] != sorted(col[i] for i in span):
            raise BrokenError("edges are not grouped by their node")
        for i in span:
            u, v = row[i], col[i]
            if v not in frontier:
                raise BrokenError(f"an edge leads to no node of the frontier {frontier}")
            tree, number = self.tree[dst][v], len(self.tree[src])
            if known[src].setdefault((tree, self.n_id[src][u]), number) != u:
                raise BrokenError(
                    f"node {u} {src or ''} has another number, or is of another subgraph"
                )
            if u == number:
                self.tree[src].append(tree)
            taken.setdefault(v, []).append(self.e_id[relation][i])
        return taken

    def _subgraphs(self) -> Iterator[str]:
        """`batch` tells the seed, or the link, that each node was found from."""
        for kind, trees in self.tree.items():
            if not self.config.apart:
                if "batch" in store_of(self.batch, kind):
                    yield f"batch {kind or ''} where nodes are shared"
            else:
                wanted = [self._number_of(tree) for tree in trees]
                if store_of(self.batch, kind).batch.tolist() != wanted:
                    yield f"batch {kind or ''}"

    def _number_of(self, tree: int) -> int:
        """Return which seed node or link of the batch a subgraph belongs to."""
        return tree % self.sources % len(self.positions)

    def _induced(self) -> Iterator[str]:
        """All edges between nodes, of the seed's times, are there: by destination, in order."""
        apart = self.config.apart
        if any(not HOP_COUNTS.isdisjoint(store.keys()) for store in self.batch.stores):
            yield "counts of hops"
        group = {
            kind: store_of(self.batch, kind).batch.tolist() if apart else [0] * len(n_id)
            for kind, n_id in self.n_id.items()
        }
        for relation in self.config.relations:
            src, dst = self._ends_of(relation)
            local = dict[tuple[int, int], int]()
            for i, key in enumerate(zip(group[src], self.n_id[src], strict=True)):
                local.setdefault(key, i)
            lists, time = (
                self._lists(relation, self.data).t().tolist(),
                self._times(relation),
            )
            wanted = [
                (local[of, source], v, e)
                for v, (of, node) in enumerate(zip(group[dst], self.n_id[dst], strict=True))
                for e, (source, target) in enumerate(lists)
                if target == node and (of, source) in local
                if time is None or self.times[of][0] <= time[e] <= self.times[of][1]
            ]
            if time is not None:
                wanted.sort(key=lambda edge: (edge[1], time[edge[2]]))  # stable
            if list(zip(*self.ends[relation], self.e_id[relation], strict=True)) != wanted:
                yield f"edges {relation or ''} are not those between the nodes"

    def _of_node(self, relation: Any, v: int, taken: list[int], hop: int) -> Iterator[str]:
        """A node takes as many as the fan-out says of the edges that it may take."""
        config, store = self.config, store_of(self.data, relation)
        k, dst = config.fanouts_of(relation)[hop], self._ends_of(relation)[1]
        node, link = self.n_id[dst][v], self._number_of(self.tree[dst][v])
        possible = (self._lists(relation, self.data)[1] == node).nonzero().view(-1).tolist()
        left_out = self._left_out(relation, link)
        possible = [e for e in possible if e not in left_out]
        if config.weighted and "weight" in store and k >= 0:
            possible = [e for e in possible if store.weight[e] > 0]
        time = self._times(relation)
        if time is not None:
            first, last = self.times[link]
            possible = [e for e in possible if first <= time[e] <= last]
            possible.sort(key=lambda e: time[e])  # stable
            if config.strategy == "last" and k >= 0:
                possible = possible[max(0, len(possible) - k) :]
        name = f"hop {hop}, node {node} {dst or ''} of {link}, {relation or ''}"
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

    def _times(self, relation: Any) -> list[int] | None:
        """Return the time of each edge: its own, or that of its source."""
        store = store_of(self.data, relation)
        if self.config.times == "edge":
            return store.edge_time.tolist() if "edge_time" in store else None
        nodes = store_of(self.data, self._ends_of(relation)[0])
        if self.config.times == "node" and "time" in nodes:
            return nodes.time[self._lists(relation, self.data)[0].long()].tolist()  # type: ignore[no-any-return]
        return None

    def _left_out(self, relation: Any, link: int) -> set[int]:
        """Return the edges that are the links of the batch, or the own one of a subgraph."""
        config = self.config
        if not config.exclude:
            return set()
        back = {
            None: None,
            ("a", "to", "a"): ("a", "to", "a"),
            ("b", "of", "a"): ("a", "rev_of", "b"),
        }
        reverse = back[config.link_type] if config.exclude == "reverse" else MISSING
        left_out, time = set(), self._times(relation) if config.times == "edge" else None
        edges = store_of(self.data, relation).edge_index.t().tolist()
        for i in [link] if config.apart else range(len(self.positions)):
            u, v = self.given[:, self.positions[i]].tolist()
            pairs = [[u, v]] if relation == config.link_type else []
            pairs += [[v, u]] if relation == reverse else []
            for e, pair in enumerate(edges):
                if pair in pairs and (time is None or time[e] == self.limit[i]):
                    left_out.add(e)
        return left_out


class BrokenError(Exception):
    """A promise without which the others cannot be looked at."""
