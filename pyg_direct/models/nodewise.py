"""Models that cannot be cut, on batches of nodes with their complete neighbourhoods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HeteroConv

from ..graph.from_pyg import Graph
from ..loaders.loader import NeighborLoader
from .inputs import is_edges, levels_of, stand_ins
from .spaces import Connectivity, CutError, ends, make_example, same
from .tracer import is_message_passing, one_thread

BATCH_SIZE = 256


def run_nodewise(
    model: torch.nn.Module,
    data: Data | HeteroData,
    graph: Graph,
    arguments: Mapping[str, Any],
    allocate: Any,
    progress: bool,
) -> Any:
    """Compute a model's outputs for all nodes, each with all nodes that reach it.

    Args:
        model: in evaluation mode; returns a tensor [N, ...], or a dict of them by node type.
        data: the graph, with its edges.
        graph: the same, compressed.
        arguments: of the forward, from `arguments_of`.
        allocate: called with a node type (None), a shape and a dtype, returns the result's table.
        progress: show a progress bar.

    Raises:
        CutError: batches of nodes would give other numbers, as the model takes statistics of the
            whole graph.
    """
    with one_thread():
        hops = _hops(model, graph, arguments)
    stored, given = _as_data(arguments, arguments), cast(Any, data)
    for key in graph.edge_types:
        source = given if key is None else given[key]
        target = stored if key is None else stored[key]
        for name in ("edge_index", "adj_t", "adj"):
            if name in source:
                target[name] = source[name]
    for kind, count in zip(graph.node_types, graph.csc.num_nodes.tolist(), strict=True):
        (stored if kind is None else stored[kind]).num_nodes = count
    return _run(model, stored, arguments, hops, allocate, progress)


def _hops(model: torch.nn.Module, graph: Graph, arguments: Mapping[str, Any]) -> int:
    """Return how many hops of neighbours the model needs, checked on a small graph."""
    device = next((p.device for p in model.parameters()), None)
    given, levels = stand_ins(graph, arguments), levels_of(graph, arguments)
    example = make_example(given, levels, device=device)
    full = dict(example.full)
    for name, value in full.items():
        space = example.spaces[name]
        if isinstance(space, dict):
            full[name] = {key: _narrowed(value[key], space[key], example) for key in space}
        else:
            full[name] = _narrowed(value, space, example)
    data = _as_data(full, example.full)
    for key, count in example.node_counts.items():
        (data if key is None else data[key]).num_nodes = count
    with _counted(model) as calls:
        expected = model(**full)
    if not isinstance(expected, (Tensor, dict)):
        raise CutError(f"The model returns {type(expected).__name__}, not rows of nodes.")
    for hops in (len(calls), len(calls) + 1):  # one more for layers that normalise by degree
        found = _run(model, data, full, hops, lambda _, s, d: torch.empty(s, dtype=d), False, 1)
        if same(expected, found):
            return hops
    raise CutError(
        f"{type(model).__name__} takes statistics of the whole graph, so that batches of nodes "
        f"give other numbers, too. Run it on the whole graph."
    )


def _narrowed(value: Any, space: Any, example: Any) -> Any:
    """Return edges from nodes nearby, so that a few hops do not reach the whole example."""
    if not isinstance(space, Connectivity):
        return value
    sources, targets = (example.node_counts[end] for end in ends(space.edge_type))
    position = torch.arange(value.size(1))
    col = position % targets
    row = (col * sources // targets + 1 + position // targets % 2) % sources
    return torch.stack([row, col])[:, col.argsort(stable=True)].to(value)


class _counted:  # noqa: N801
    """Collects the rounds of message passing of one forward."""

    def __init__(self, model: torch.nn.Module) -> None:
        inside = {
            id(m) for h in model.modules() if isinstance(h, HeteroConv) for m in h.convs.values()
        }
        self._calls: list[None] = []
        count = lambda *_: self._calls.append(None)  # noqa: E731
        self._handles: list[Any] = []
        for module in model.modules():
            if isinstance(module, HeteroConv):
                self._handles.append(module.register_forward_pre_hook(count))
            elif is_message_passing(module) and id(module) not in inside:
                self._handles.append(cast(Any, module).register_propagate_forward_pre_hook(count))

    def __enter__(self) -> list[None]:
        return self._calls

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _as_data(arguments: Mapping[str, Any], all_arguments: Mapping[str, Any]) -> Any:
    """Return a graph with the arguments as attributes, so that a loader selects their rows."""
    hetero = any(isinstance(value, dict) for value in all_arguments.values())
    data: Any = HeteroData() if hetero else Data()
    for name, value in arguments.items():
        attribute = "edge_index" if is_edges(name) else f"argument_{name}"
        if isinstance(value, Mapping):
            for key, entry in value.items():
                data[key][attribute] = entry
        elif isinstance(value, Tensor):
            data[attribute] = value
    return data


def _run(
    model: torch.nn.Module,
    data: Any,
    arguments: Mapping[str, Any],
    hops: int,
    allocate: Any,
    progress: bool,
    batch_size: int = BATCH_SIZE,
) -> Any:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    tables: dict[Any, Tensor] = {}
    kinds: Iterable[Any] = [None] if isinstance(data, Data) else data.node_types
    for kind in kinds:
        count = data.num_nodes if kind is None else data[kind].num_nodes
        loader = NeighborLoader(
            data,
            [-1] * hops,
            input_nodes=None if kind is None else (kind, None),
            batch_size=batch_size,
            device=device,
        )
        first = 0
        for batch in _shown(loader, progress):
            rows = model(**_call(batch, arguments))
            rows = rows if kind is None else rows.get(kind)
            if rows is None:  # a type that the model gives nothing for
                break
            last = first + (batch if kind is None else batch[kind]).batch_size
            if kind not in tables:
                tables[kind] = allocate(kind, (count, *rows.shape[1:]), rows.dtype)
            tables[kind][first:last] = rows[: last - first]
            first = last
    return tables.get(None, tables)


def _shown(loader: NeighborLoader, progress: bool) -> Iterable[Any]:
    if not progress:
        return loader
    from tqdm import tqdm

    bar: Iterable[Any] = tqdm(loader, desc="Inference by nodes", unit="batch")
    return bar


def _call(batch: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the forward for a batch."""
    found: dict[str, Any] = {}
    hetero = isinstance(batch, HeteroData)
    for name, value in arguments.items():
        if is_edges(name):
            found[name] = batch.collect("edge_index") if hetero else batch.edge_index
        elif isinstance(value, Mapping):
            found[name] = {key: batch[key][f"argument_{name}"] for key in value}
        else:
            found[name] = batch.get(f"argument_{name}", value) if not hetero else value
    return found
