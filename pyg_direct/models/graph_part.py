"""A part of a graph for a model to run on: some nodes, and those that they get messages from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData

from ..core.lazy_tensor import rows_of
from .inputs import is_edges, num_nodes_of, rows_in

SEEDS, HOPS = 4, 3  # of each node type
CHUNK = 1 << 20  # edges that are looked at together

Ids = dict[Any, Tensor]  # by type; None is that of a graph without types


def part_of(data: Any, arguments: Mapping[str, Any], most: int) -> dict[str, Any] | None:
    """Return the arguments of a forward for a part of a graph; None if they have no part.

    Args:
        data: the graph.
        arguments: of the forward, with edges: COO by edge type.
        most: edges of the part.
    """
    typed = isinstance(data, HeteroData)
    name = next((n for n in arguments if is_edges(n)), None)
    edges = {} if name is None else arguments[name] if typed else {None: arguments[name]}
    coo = [type(e) in (Tensor, EdgeIndex) and e.layout == torch.strided for e in edges.values()]
    if not coo or not all(coo):
        return None
    stores = {t: data[t] for t in data.node_types} if typed else {None: data}
    sizes = {t: num_nodes_of(store) or 0 for t, store in stores.items()}
    nodes, ids = neighbourhoods(edges, sizes, most)
    local = {}
    for key, taken in ids.items():
        pairs = torch.as_tensor(edges[key])[:, taken]
        ends = zip(pairs.cpu().contiguous(), _ends(key), strict=True)
        local[key] = torch.stack([torch.searchsorted(nodes[t], end) for end, t in ends])
    found: dict[str, Any] = {}
    for n, value in arguments.items():
        if is_edges(n):
            found[n] = local if typed else local[None]
            continue
        parts: dict[Any, Any] = {}
        for key, entry, of_edges, count in rows_in(data, n, value):
            parts[key] = entry
            if isinstance(entry, Tensor) and entry.dim() > 0:
                if count is None:
                    return None  # rows of neither
                parts[key] = rows_of(entry, (ids if of_edges else nodes)[key])
        found[n] = parts if isinstance(value, Mapping) else parts[None]
    return found


def neighbourhoods(
    edges: Mapping[Any, Tensor], sizes: dict[Any, int], most: int
) -> tuple[Ids, Ids]:
    """Return some nodes by type, with those that they get messages from, and edges by type.

    Args:
        edges: [2, E] by type.
        sizes: numbers of nodes by type.
        most: edges.

    Example: of 0 -> 1, 1 -> 2, 2 -> 0 and 3 -> 1, the node 2 takes 1 -> 2, then 0 -> 1 and 3 -> 1.
    """
    reached = {t: torch.zeros(n, dtype=torch.bool) for t, n in sizes.items()}
    for t, n in sizes.items():
        reached[t][torch.linspace(0, n - 1, min(n, SEEDS)).long()] = True
    ahead = {t: mask.clone() for t, mask in reached.items()}
    taken: dict[Any, list[Tensor]] = {key: [] for key in edges}
    for _ in range(HOPS):
        new = {t: torch.zeros_like(mask) for t, mask in reached.items()}
        for key, pairs in edges.items():
            source, target = _ends(key)
            ids = _ending_at(pairs[1], ahead[target])[:most]
            most -= len(ids)
            taken[key].append(ids)
            new[source][pairs[0][ids].cpu()] = True
        ahead = {t: mask & ~reached[t] for t, mask in new.items()}
        for t, mask in ahead.items():
            reached[t] |= mask
    nodes = {t: mask.nonzero().flatten() for t, mask in reached.items()}
    return nodes, {key: torch.cat(parts).sort().values for key, parts in taken.items()}


def _ends(key: Any) -> tuple[Any, Any]:
    return (None, None) if key is None else (key[0], key[-1])


def _ending_at(targets: Tensor, nodes: Tensor) -> Tensor:
    """Return which edges end at nodes of a mask."""
    if not bool(nodes.any()):
        return torch.empty(0, dtype=torch.int64)
    chunks: Any = torch.split(torch.as_tensor(targets), CHUNK)
    found = [nodes[chunk.cpu()].nonzero().flatten() + i * CHUNK for i, chunk in enumerate(chunks)]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)
