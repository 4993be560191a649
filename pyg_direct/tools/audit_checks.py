"""What `pyg_direct.audit` checks of one batch, from only the user's tensors and the batch.

Nothing here knows how neighbours are drawn: edges are looked up by `e_id` and nodes by `n_id`, so a
fault of a sampler, of a transform or of the data shows all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

NO_LIMIT = torch.iinfo(torch.int64).max


class Law(NamedTuple):
    """The rules that the batches of a loader obey."""

    data: Any  # `Data` or `HeteroData`
    input_type: Any  # of the seeds: None, a node type or an edge type
    fanouts: dict[Any, list[int]]  # by edge type and hop; empty: unknown
    replace: bool
    backward: bool  # whether edges are followed from their sources
    time_attr: str | None
    weight_attr: str | None
    reverse: Any  # the edge type whose edges back are left out, too; False: none
    links: bool
    bounds: Any  # (start, end) by position of the seed, int64 or None each
    window: int | None
    adaptive: bool  # whether fan-outs are those of metapaths, not of single nodes


class Found(NamedTuple):
    """The outcome of one check over some things of one kind."""

    check: str
    checked: int
    wrong: int
    example: str


class _EdgesDrawn(NamedTuple):
    """The edges of one type in a batch, in host memory."""

    kind: Any
    store: Any
    own: Any  # the store of the user's graph
    near: Any  # type of the nodes that edges were drawn for, and of their neighbours
    far: Any
    ends: Tensor  # int64 [2, edges], local ids, near and far


def at(data: Any, kind: Any) -> Any:
    """Return the store of a type; of a `Data`, which has the one type None, the `Data`."""
    return data if isinstance(data, Data) else data[kind]


def checks_of(law: Law, batch: Any) -> Iterator[Found]:
    """Yield the outcome of every check of a batch that its law and its attributes allow."""
    batch = _without_padding(batch)
    edge_types = [None] if isinstance(batch, Data) else batch.edge_types
    parts = []
    for kind in edge_types:
        store = at(batch, kind)
        if store.get("edge_index") is not None and store.get("e_id") is not None:
            ends = store.edge_index.cpu().to(torch.int64)
            near, far = (None, None) if kind is None else (kind[-1], kind[0])
            if law.backward:
                near, far = far, near
            else:
                ends = ends.flip(0)
            parts.append(_EdgesDrawn(kind, store, at(law.data, kind), near, far, ends))
    for part in parts:
        yield from _identity(law, batch, part)
        if law.fanouts and part.store.get("num_sampled_edges") is not None:
            yield from _counts(law, part)
    if law.adaptive:
        yield from _budgets(law, batch, parts)
    if law.time_attr is not None:
        yield from _times(law, batch, parts)
    if law.links:
        yield from _label_edges(law, batch, parts)


def _without_padding(batch: Data | HeteroData) -> Data | HeteroData:
    """Return a batch whose ids and edges are without the padding of ``static_shapes=``."""
    if not any("num_real_nodes" in store for store in batch.stores):
        return batch
    batch = copy.copy(batch)
    for store in batch.stores:
        for what, names in (("nodes", ("n_id", "batch")), ("edges", ("e_id", "edge_index"))):
            count, hops = store.get(f"num_real_{what}"), store.get(f"num_sampled_{what}")
            if count is None:
                continue
            if hops is not None:
                more = store[names[0]].numel() - int(count)
                store[f"num_sampled_{what}"] = [*hops[:-1], hops[-1] - more]
            for name in names:
                if name in store:
                    store[name] = store[name][..., : int(count)]
    return batch


def _found(check: str, wrong: Tensor, say: Any) -> Found:
    """Return an outcome; `say` describes the item at a place."""
    number = int(wrong.sum())
    example = say(int(wrong.nonzero()[0])) if number > 0 else ""
    return Found(check, len(wrong), number, example)


def _identity(law: Law, batch: Any, part: _EdgesDrawn) -> Iterator[Found]:
    """Edges are those of the graph, between the nodes that it says."""
    edge_index = part.own.get("edge_index")
    if edge_index is None:
        return
    e_id = part.store.e_id.cpu()
    expected = edge_index[:, e_id.to(edge_index.device)].cpu().to(torch.int64)
    near = at(batch, part.near).n_id.cpu()[part.ends[0]]
    far = at(batch, part.far).n_id.cpu()[part.ends[1]]
    got = torch.stack([near, far] if law.backward else [far, near])
    wrong = (expected != got).any(0)
    yield _found(
        "edges are those of the graph",
        wrong,
        lambda i: (
            f"edge {int(e_id[i])} of {_name(part.kind)} leads from {int(expected[0, i])} to "
            f"{int(expected[1, i])}, in the batch from {int(got[0, i])} to {int(got[1, i])}"
        ),
    )


def _counts(law: Law, part: _EdgesDrawn) -> Iterator[Found]:
    """No node has more edges of a hop than its fan-out, none twice, none of weight 0."""
    e_id, first = part.store.e_id.cpu(), 0
    weight = None if law.weight_attr is None else part.own.get(law.weight_attr)
    for hop, size in enumerate(part.store.num_sampled_edges):
        of_hop = slice(first, first + int(size))
        first += int(size)
        fanout, near = law.fanouts[part.kind][hop], part.ends[0, of_hop]
        count = torch.bincount(near) if len(near) > 0 else near
        there = count.nonzero().view(-1)
        if fanout >= 0 and not law.adaptive:
            yield _found(
                "counts obey the fan-outs",
                count[there] > fanout,
                lambda i, c=count, t=there, h=hop, k=fanout: (
                    f"node {int(t[i])} of the batch has {int(c[t[i]])} edges of "
                    f"{_name(part.kind)} in hop {h}, whose fan-out is {k}"
                ),
            )
        if not law.replace and len(near) > 0:
            pairs = torch.stack([near, e_id[of_hop]])
            order = torch.from_numpy(np.lexsort(pairs.numpy()))
            twice = (pairs[:, order[1:]] == pairs[:, order[:-1]]).all(0)
            yield _found(
                "no edge is drawn twice for a node",
                twice,
                lambda i, o=order, e=e_id[of_hop]: f"edge {int(e[o[i]])} of {_name(part.kind)}",
            )
        if weight is not None and fanout >= 0:
            drawn = weight[e_id[of_hop].to(weight.device)].cpu().view(-1)
            yield _found(
                "edges of weight 0 are not drawn",
                ~(drawn > 0),
                lambda i, e=e_id[of_hop], h=hop: f"edge {int(e[i])} of {_name(part.kind)}, hop {h}",
            )


def _budgets(law: Law, batch: Any, parts: list[_EdgesDrawn]) -> Iterator[Found]:
    """No hop has more edges of a type than the budgets of its metapaths hold together."""
    sizes = {kind: len(at(batch, kind).n_id) for part in parts for kind in part[3:5]}
    most = {kind: int(at(batch, kind).num_sampled_nodes[0]) for kind in sizes}
    for hop in range(max(map(len, law.fanouts.values()), default=0)):
        found = dict.fromkeys(sizes, 0)
        for part in parts:
            budget = most[part.near] * law.fanouts[part.kind][hop]
            size = int(part.store.num_sampled_edges[hop])
            found[part.far] += budget
            yield _found(
                "counts obey the fan-outs",
                torch.tensor([size > budget]),
                lambda _, p=part, s=size, b=budget, h=hop: (
                    f"{s} edges of {_name(p.kind)} in hop {h}, whose budgets are {b} together"
                ),
            )
        most = found


def _times(law: Law, batch: Any, parts: list[_EdgesDrawn]) -> Iterator[Found]:
    """No edge is later than any seed that its message reaches, or earlier than its window."""
    last: dict[Any, Tensor] = {}
    first: dict[Any, Tensor] = {}
    for kind, local, time, since in _seeds(law, batch):
        size = len(at(batch, kind).n_id)
        for limits, value in ((last, time), (first, None if since is None else -since)):
            if value is not None:
                limit = limits.setdefault(kind, torch.full((size,), NO_LIMIT))
                limit.scatter_reduce_(0, local, value, "amin")
    hops = max((len(hops) for hops in law.fanouts.values()), default=len(parts) + 8)
    for limits in (last, first):
        _spread(limits, batch, parts, hops if limits else 0)
    for part in parts:
        at_edges = _time_of(law, batch, part)
        if at_edges is None:
            continue
        for check, limits, sign in (
            ("no edge is later than its seed", last, 1),
            ("no edge is earlier than the window of its seed", first, -1),
        ):
            if part.near in limits:
                limit = limits[part.near][part.ends[0]]
                yield _found(
                    check,
                    (sign * at_edges > limit) & (limit != NO_LIMIT),
                    lambda i, p=part, t=at_edges, limit=limit, sign=sign: (
                        f"edge {int(p.store.e_id[i])} of {_name(p.kind)} has time "
                        f"{int(t[i])}, its seed's limit is {int(sign * limit[i])}"
                    ),
                )


def _spread(limits: dict[Any, Tensor], batch: Any, parts: list[_EdgesDrawn], hops: int) -> None:
    """Give each node the least limit of the seeds that it reaches within some hops."""
    for _ in range(hops - 1):
        before = {kind: limit.clone() for kind, limit in limits.items()}
        for part in parts:
            if part.near in before:
                size = len(at(batch, part.far).n_id)
                far = limits.setdefault(part.far, torch.full((size,), NO_LIMIT))
                far.scatter_reduce_(0, part.ends[1], before[part.near][part.ends[0]], "amin")


def _time_of(law: Law, batch: Any, part: _EdgesDrawn) -> Tensor | None:
    """Return the time of each edge: its own, or that of the neighbour; None: it has none."""
    name: Any = law.time_attr
    own, of_nodes = part.own.get(name), at(law.data, part.far).get(name)
    if part.kind is None:  # one store has them both
        own, of_nodes = (own, None) if law.data.is_edge_attr(name) else (None, of_nodes)
    if own is not None:
        return _on_host(own, part.store.e_id)
    if of_nodes is None:
        return None
    return _on_host(of_nodes, at(batch, part.far).n_id)[part.ends[1]]


def _on_host(values: Tensor, index: Tensor) -> Tensor:
    return values[index.to(values.device)].cpu().to(torch.int64).view(-1)


def _seeds(law: Law, batch: Any) -> Iterator[tuple[Any, Tensor, Tensor, Tensor | None]]:
    """Yield (node type, local ids, times, first times of their windows) of the seeds."""
    store = at(batch, law.input_type)
    if law.links:
        kinds = (None, None) if law.input_type is None else (law.input_type[0], law.input_type[-1])
        count = len(store.input_id)
        time = _times_of_links(law, batch)
        for kind, local in _label_ends(law, batch, kinds):
            number = torch.arange(len(local)) % count
            yield from _bounded(law, batch, kind, local, time, store.input_id.cpu()[number])
    else:
        size = int(store.batch_size)
        time, input_id = store.get("seed_time"), store.input_id.cpu()
        yield from _bounded(law, batch, law.input_type, torch.arange(size), time, input_id)


def _bounded(
    law: Law, batch: Any, kind: Any, local: Tensor, time: Tensor | None, input_id: Tensor
) -> Iterator[tuple[Any, Tensor, Tensor, Tensor | None]]:
    if time is None:
        own = at(law.data, kind).get(law.time_attr)
        if own is None:
            return
        time = own[at(batch, kind).n_id[local.to(own.device)]]
    time = time.cpu().to(torch.int64)
    time = time.repeat(-(-len(local) // len(time)))[: len(local)] if len(time) > 0 else time
    since = None if law.window is None else time - law.window
    start, end = law.bounds
    if end is not None:
        time = torch.minimum(time, end[input_id])
    yield kind, local, time, since if start is None else start[input_id]


def _times_of_links(law: Law, batch: Any) -> Tensor | None:
    """Return the times of seed links, then of negatives; of triplets, those of the links."""
    store = at(batch, law.input_type)
    time: Tensor | None = store.get("edge_label_time", store.get("seed_time"))
    if time is None and law.input_type is not None:  # of triplets
        time = at(batch, law.input_type[0]).get("seed_time")
    return time


def _label_ends(law: Law, batch: Any, kinds: Any) -> Iterator[tuple[Any, Tensor]]:
    """Yield (node type, local ids) of both ends of seed links and negatives, links first."""
    store = at(batch, law.input_type)
    if store.get("edge_label_index") is not None:
        yield from zip(kinds, store.edge_label_index.cpu(), strict=True)
        return
    src, dst = at(batch, kinds[0]), at(batch, kinds[1])
    yield kinds[0], src.src_index.cpu()
    yield kinds[1], dst.dst_pos_index.cpu()
    negative = dst.dst_neg_index.cpu()
    yield kinds[1], negative.view(len(src.src_index), -1).t().reshape(-1)


def _label_edges(law: Law, batch: Any, parts: list[_EdgesDrawn]) -> Iterator[Found]:
    """No seed link (and, where asked for, no edge back) is among the edges of its subgraph."""
    kinds = (None, None) if law.input_type is None else (law.input_type[0], law.input_type[-1])
    store = at(batch, law.input_type)
    count = len(store.input_id)
    ends = [local[:count] for _, local in _label_ends(law, batch, kinds)][:2]
    nodes = {kind: at(batch, kind).n_id.cpu() for kind in set(kinds)}
    node = [nodes[kind][local] for kind, local in zip(kinds, ends, strict=True)]
    time = _times_of_links(law, batch)
    for part in parts:
        for is_reverse in (False, True):
            wanted = law.reverse if is_reverse else law.input_type
            if wanted is False or part.kind != wanted:
                continue
            # (near, far) as the links have them: an edge's destination first.
            link = node if is_reverse != law.backward else node[::-1]
            group = at(batch, part.near).get("batch")
            groups = torch.zeros_like(part.ends[0]) if group is None else group.cpu()[part.ends[0]]
            edges = torch.stack([
                nodes[part.near][part.ends[0]], nodes[part.far][part.ends[1]], groups
            ])  # fmt: skip
            number = torch.zeros(count, dtype=torch.int64) if group is None else torch.arange(count)
            rows = torch.stack([*link, number])
            own_time = part.kind is None and law.time_attr and law.data.is_edge_attr(law.time_attr)
            if law.time_attr and part.kind is not None:
                own_time = part.own.get(law.time_attr) is not None
            if own_time and time is not None:
                at_edges = _time_of(law, batch, part)
                edges = torch.cat([edges, at_edges.view(1, -1)])  # type: ignore[union-attr]
                rows = torch.cat([rows, time.cpu()[:count].view(1, -1)])
            every = torch.cat([rows, edges], 1).t().contiguous()
            place: Tensor = torch.unique(every, dim=0, return_inverse=True)[1]
            wrong = torch.isin(place[count:], place[:count])
            name = "no edge back of a seed link is there" if is_reverse else "no seed link is there"
            yield _found(
                f"{name} for messages to go over",
                wrong,
                lambda i, p=part: f"edge {int(p.store.e_id[i])} of {_name(p.kind)}",
            )


def _name(kind: Any) -> str:
    return "the graph" if kind is None else str(kind)
