"""One graph for all loaders over the same tensors, such as those for training and validation.

Known by the identity of the tensors and by torch's count of their changes in place, and freed with
the last sampler that holds it. What NumPy writes is not counted, so sums of all entries are
compared, too: what decides is what the tensors hold, and where.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.private_torch import writes_to
from ..core.pyg import stores_of
from ..core.threads import MIN_EDGES_PER_THREAD, available_cores, split
from .attributes import find
from .from_pyg import Graph, graph_of

BLOCK = 1 << 14  # entries of a row that have a sum of their own; what a sum needs fits the caches
ODD_NUMBERS = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, BLOCK) * 2 + 1
Longs = npt.NDArray[np.int64]

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


class _Part(NamedTuple):
    """A tensor that a graph was made of, and a digest of its entries."""

    tensor: weakref.ref[Tensor]
    digest: Longs

    def is_same(self, now: _Part) -> bool:
        """Whether both describe one tensor with the same entries."""
        return self.tensor() is now.tensor() and np.array_equal(self.digest, now.digest)


class _KnownGraph(NamedTuple):
    """A graph that some sampler holds, and what it was made of."""

    graph: weakref.ref[Graph]
    parts: list[_Part]


_graphs: dict[Any, _KnownGraph] = {}  # by the arguments, and the identity and state of the tensors


def shared_graph_of(
    data: Any,
    is_sorted: bool = False,
    time_attr: str | None = None,
    weight_attr: str | None = None,
    backward: bool = False,
) -> Graph:
    """Return `graph_of` data, or the graph that another sampler made of the same tensors.

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
    _graphs[key] = _KnownGraph(weakref.ref(graph, partial(_forget, key)), parts)
    return graph


def _forget(key: Any, graph: weakref.ref[Graph]) -> None:
    """Drop the entry of a graph that was freed, unless there is a newer one."""
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
    stores = stores_of(data)
    nodes = {key: store for key, store in stores.items() if not isinstance(key, tuple)}
    edges = {key: store for key, store in stores.items() if not isinstance(key, str)}
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
        and not value.is_meta
        and value.dim() > 0
        and value.element_size() in WORDS
        and not value.is_inference()
    )


def _state(tensor: Tensor) -> tuple[Any, ...]:
    """Return the count of changes in place, and all that may change without being counted."""
    return writes_to(tensor), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _digest(tensor: Tensor) -> Longs:
    """Return a digest of all entries and of their address: a sum for each `BLOCK` entries.

    Reads the tensor once, by threads of our own and not by torch's, as OpenMP's do not survive a
    fork. A word is multiplied by the odd number of its place, so exchanged words change the sum.
    Floats are taken as integers: no rounding hides a change.
    """
    words = tensor.detach().view(WORDS[tensor.element_size()]).cpu().numpy()
    words = np.moveaxis(words, int(np.argmax(words.shape)), -1)
    length = words.shape[-1]
    blocks = -(-length // BLOCK)
    sums = np.empty((*words.shape[:-1], blocks), np.int64)
    threads = available_cores() if length >= MIN_EDGES_PER_THREAD else 1
    for at in np.ndindex(words.shape[:-1]):
        split(blocks, threads, partial(_sum_blocks, words[at], sums[at]))
    return sums


def _sum_blocks(words: npt.NDArray[Any], sums: Longs, first: int, last: int) -> None:
    """Fill sums[first:last] with those of the blocks of `words`, one after the other."""
    scratch = np.empty(BLOCK, np.int64)
    for block in range(first, last):
        part = words[block * BLOCK : (block + 1) * BLOCK]
        mixed = scratch[: len(part)]
        # The upper half is folded into the lower one first, as multiplication moves bits only up:
        # two signs that change would cancel out.
        np.right_shift(part, 32, out=mixed, dtype=np.int64)
        np.bitwise_xor(mixed, part, out=mixed)
        np.multiply(mixed, ODD_NUMBERS[: len(part)], out=mixed)
        sums[block] = mixed.sum()
