"""One graph for all loaders over the same tensors, such as those for training and validation.

Known by the identity of the tensors and by torch's count of their changes in place, and freed with
the last sampler that holds it. What NumPy writes is not counted, so sums of all entries are
compared, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .attributes import find
from .from_pyg import Graph, graph_of

SUMS = 16384  # of each row of a tensor
COMPARED_ENTRIES = 2048  # of each row, evenly spread
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


class _Part(NamedTuple):
    """A tensor that a graph was made of, and what it held."""

    tensor: weakref.ref[Tensor]
    digest: Tensor

    def is_same(self, now: _Part) -> bool:
        """Whether both are of one tensor, which held the same entries."""
        return self.tensor() is now.tensor() and torch.equal(self.digest, now.digest)


class _Shared(NamedTuple):
    """A graph that some sampler holds, and what it was made of."""

    graph: weakref.ref[Graph]
    parts: list[_Part]


_graphs: dict[Any, _Shared] = {}  # by the arguments, and the identity and state of the tensors


def shared_graph_of(
    data: Any,
    is_sorted: bool = False,
    time_attr: str | None = None,
    weight_attr: str | None = None,
    backward: bool = False,
) -> Graph:
    """As `graph_of` for a sampler, or the graph that another sampler has made of the same tensors.

    Plain tensors are known again: `edge_index`, times and weights. Other layouts, remote
    stores, and numbers of nodes that follow from the edges are converted anew.
    """
    convert = partial(graph_of, data, is_sorted, time_attr, weight_attr, backward, checks_ids=True)
    described = _described(data, time_attr, weight_attr)
    if described is None:
        return convert()
    sizes, tensors = described
    key = (
        type(data), is_sorted, time_attr, weight_attr, backward, sizes,
        tuple((name, id(tensor), *_state(tensor)) for name, tensor in tensors),
    )  # fmt: skip
    parts = [_Part(weakref.ref(tensor), _digest(tensor)) for _, tensor in tensors]
    found = _graphs.get(key)
    graph = None if found is None else found.graph()
    if found is not None and graph is not None and all(map(_Part.is_same, found.parts, parts)):
        return graph
    graph = convert()
    _graphs[key] = _Shared(weakref.ref(graph, partial(_forget, key)), parts)
    return graph


def _forget(key: Any, graph: weakref.ref[Graph]) -> None:
    """Drop what is known of a graph that was freed, unless there is a newer one."""
    found = _graphs.get(key)
    if found is not None and found.graph is graph:
        _graphs.pop(key, None)


def _described(
    data: Any, time_attr: str | None, weight_attr: str | None
) -> tuple[Any, list[tuple[Any, Tensor]]] | None:
    """Return the numbers of nodes and the named tensors that a graph is made of.

    None if something else decides what the graph is.
    """
    names = [name for name in (time_attr, weight_attr) if name is not None]
    if not isinstance(data, (Data, HeteroData)) or not all(isinstance(n, str) for n in names):
        return None
    nodes = {None: data._store} if isinstance(data, Data) else dict(data.node_items())
    edges = {None: data._store} if isinstance(data, Data) else dict(data.edge_items())
    if any("adj" in store or "adj_t" in store for store in edges.values()):
        return None
    if not all("num_nodes" in store or "x" in store for store in nodes.values()):
        return None  # PyG would count them in the edges, with a warning
    tensors = [(key, store.get("edge_index")) for key, store in edges.items()]
    tensors += [found for name in names for found in _named(data, name)]
    if not all(_is_countable(tensor) for _, tensor in tensors):
        return None
    return tuple((key, store.num_nodes) for key, store in nodes.items()), tensors


def _named(data: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield the values of an attribute by type, both where it is of nodes and where of edges."""
    for group in find(data, name):
        yield from (((key, name), found.value) for key, found in group.items())


def _is_countable(value: Any) -> bool:
    """Whether a value is a plain tensor whose changes in place torch counts."""
    return (
        type(value) is Tensor
        and value.layout == torch.strided
        and value.dim() > 0
        and value.element_size() in WORDS
        and not value.is_inference()
    )


def _state(tensor: Tensor) -> tuple[Any, ...]:
    """Return the count of changes in place, and what changes without being counted."""
    return tensor._version, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _digest(tensor: Tensor) -> Tensor:
    """Return what differs if any entry does: sums over entries `SUMS` apart, and some entries.

    Reads the tensor once. Floats are summed as integers: no rounding hides a change.
    """
    words = tensor.detach().view(WORDS[tensor.element_size()])
    whole = words.size(-1) // SUMS
    blocks = words[..., : whole * SUMS].reshape(*words.shape[:-1], whole, SUMS)
    sums = blocks.sum(-2)
    rest = words[..., whole * SUMS :]
    some = words[..., :: max(1, words.size(-1) // COMPARED_ENTRIES)]
    return torch.cat([sums, rest, some], dim=-1)
