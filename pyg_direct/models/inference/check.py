"""A comparison of what `inference` computes with the model itself.

A graph with few nodes and edges is compared whole. Of a larger one some nodes are taken with those
that they get messages from, and both ways compute the outputs for this part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData

from ...core.lazy_tensor import LazyTensor, rows_of
from ...core.private_torch import tree_map
from ..lazy.modes import Generators, eagerly, evaluating
from ..training.certificate import different_outputs, leaves_of
from ..training.undo import NotComparable, Undo
from .inputs import is_edges, num_nodes_of, rows_in

logger = logging.getLogger("pyg_direct")

MOST_EDGES = 1 << 15  # that the model itself gets; likewise of nodes of a whole graph
BYTES_OF_EDGE = 1 << 14  # that it may take

Run = Callable[[torch.nn.Module, Mapping[str, Any]], Any]


class Check:
    """What a model itself gives, to be compared with what `inference` computes.

    Args:
        model: in evaluation it is copied, so it is as before afterwards.
        data: the graph.
        arguments: of the forward, with edges.
        memory_bytes: that the run may take; None for any.
        narrow: whether layers are kept in a narrow dtype, which alone may change the outputs by
            much: what is compared is a run of its own without it then.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        data: Any,
        arguments: Mapping[str, Any],
        memory_bytes: int | None,
        narrow: bool,
    ) -> None:
        self._model = model
        most = MOST_EDGES
        if memory_bytes is not None:
            most = min(most, memory_bytes // BYTES_OF_EDGE)
        self._is_whole = max(num_nodes_of(data) or 0, data.num_edges) <= most
        self._is_apart = narrow or not self._is_whole
        self._given: Mapping[str, Any] = arguments
        self._expected: Any = None
        with self._leaving_out():
            if not self._is_whole:
                part = part_of(data, arguments, most)
                if part is None:
                    raise NotComparable("its arguments have no rows for nodes and edges")
                self._given = part
            self._expected = leaves_of(self._plain())

    def of_part(self, run: Run) -> None:
        """Compare what a run computes with a copy of the model, if it is not the whole run that is.

        Raises:
            RuntimeError: the outputs differ.
        """
        found: Any = None
        with self._leaving_out():
            if self._is_apart and self._expected is not None:
                with self._copy() as twin:
                    found = run(twin, self._given)
        if found is not None:
            self._compare(found)

    def of_whole(self, found: Any) -> None:
        """Compare the outputs of the run, if the graph is small.

        Raises:
            RuntimeError: they differ.
        """
        if not self._is_apart and self._expected is not None:
            self._compare(found)

    def _compare(self, found: Any) -> None:
        reason = different_outputs(leaves_of(found), self._expected)
        if not reason:
            return
        if different_outputs(leaves_of(self._plain()), self._expected):
            self._leave_out("run twice, its outputs differ")
            return
        which = "" if self._is_whole else " on the subgraph around some nodes"
        name = type(self._model).__name__
        raise RuntimeError(
            f"inference() and {name} give different outputs{which}: {reason}. Call the model "
            f"itself, on the whole graph or on batches. certify=False skips this check."
        )

    def _plain(self) -> Any:
        """Return the outputs of the model itself."""
        with self._copy() as twin, evaluating(twin), torch.no_grad(), eagerly():
            device = next((p.device for p in twin.parameters()), torch.device("cpu"))
            before = Generators([])
            out = twin(**tree_map(lambda v: _plain_tensor(v, device), dict(self._given)))
            if Generators([]).differing(before):
                raise NotComparable("it draws random numbers")
        return out

    @contextmanager
    def _copy(self) -> Iterator[torch.nn.Module]:
        """Lend a copy of the model; what can be reached from both is as before afterwards."""
        undo = Undo(self._model, for_copies=True)
        try:
            twin = undo.copy_of(self._model)
            with undo.watching():
                yield twin
        finally:
            undo.restore()

    @contextmanager
    def _leaving_out(self) -> Iterator[None]:
        """Go on without a comparison where there can be none."""
        try:
            yield
        except NotComparable as error:
            self._leave_out(str(error))
        except Exception as error:  # the run raises it as well, unless it is due to the part
            logger.info("inference() is not compared with the model itself: %s", error)
            self._expected = None

    def _leave_out(self, why: str) -> None:
        self._expected = None
        name = type(self._model).__name__
        logger.warning("inference() is not compared with %s itself: %s", name, why)


def _plain_tensor(value: Any, device: torch.device) -> Any:
    if isinstance(value, LazyTensor):
        value = value.dense()
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


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
