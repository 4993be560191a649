"""Which attributes of the data are the arguments of a model's forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..graph.from_pyg import Graph
from .spaces import Connectivity, Constant, Edges, Nodes, Space

Inputs: TypeAlias = "Sequence[str] | Mapping[str, Any] | None"

EDGE_NAMES = ("edge_index", "adj_t", "adj")


def arguments_of(model: torch.nn.Module, data: Any, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of ``model(...)`` by parameter, without the edges.

    Args:
        model: whose forward is asked for its parameters.
        data: `Data` or `HeteroData`.
        inputs: parameters to pass, or a dict of parameter -> name of the attribute, tensor, dict of
            tensors by type, or constant. None passes the parameters that have no default.

    Returns:
        Tensors, dicts of tensors by type, and constants; None for the edges.

    Raises:
        ValueError: an argument that the data does not have, or parameters with a default for which
            the data has an attribute, while `inputs` says nothing about them.
        TypeError: a forward with parameters that cannot be passed by name.
    """
    parameters = inspect.signature(model.forward).parameters
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    hetero = isinstance(data, HeteroData)
    if isinstance(inputs, Mapping):
        wanted = dict(inputs)
    elif inputs is not None:
        wanted = {name: name for name in inputs}
    else:
        if not by_name:
            raise TypeError(
                f"The forward of {type(model).__name__} names no parameters, so inputs= must: for "
                f"example inputs=('x', 'edge_index')."
            )
        wanted = {n: n for n, p in by_name.items() if p.default is inspect.Parameter.empty}
        undecided = [
            n for n in by_name if n not in wanted and _attribute(data, n, hetero) is not None
        ]
        if undecided:
            raise ValueError(
                f"The data has {', '.join(undecided)}, and the forward of {type(model).__name__} "
                f"takes it as an option. Say whether it is to be used: "
                f"inputs={(*wanted, *undecided)} or inputs={tuple(wanted)}."
            )
    found: dict[str, Any] = {}
    for parameter, source in wanted.items():
        if by_name and parameter not in by_name and len(by_name) == len(parameters):
            raise ValueError(
                f"inputs names {parameter!r}, which is no parameter of the forward: it has "
                f"{', '.join(by_name)}."
            )
        if is_edges(parameter):
            found[parameter] = None
            continue
        value = _attribute(data, source, hetero) if isinstance(source, str) else source
        if value is None:
            raise ValueError(
                f"The forward of {type(model).__name__} takes {parameter!r}, which the data does "
                f"not have. Pass inputs={{{parameter!r}: ...}} with an attribute's name or a value."
            )
        found[parameter] = value
    return found


def is_edges(parameter: str) -> bool:
    """Whether a parameter takes the edges of the graph."""
    return parameter.removesuffix("_dict") in EDGE_NAMES


def _attribute(data: Any, name: str, hetero: bool) -> Any:
    """Return an attribute; of a heterogeneous graph, a dict by type."""
    if not hetero:
        if is_edges(name):
            return data
        return data.get(name, None)
    name = name.removesuffix("_dict")
    if is_edges(name):
        return data
    found = {
        key: store[name]
        for key, store in [*data.node_items(), *data.edge_items()]
        if name in store and isinstance(store[name], Tensor)
    }
    return found or None


def stand_ins(graph: Graph, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with tensors of the right shape for the edges, which take no memory."""
    sizes = dict(zip(graph.edge_types, _edge_counts(graph), strict=True))
    edges = {
        key: torch.zeros(1, 1, dtype=graph.id_dtype).expand(2, size) for key, size in sizes.items()
    }
    one = edges[None] if list(edges) == [None] else edges
    return {name: one if is_edges(name) else value for name, value in arguments.items()}


def levels_of(graph: Graph, arguments: Mapping[str, Any]) -> dict[str, Space]:
    """Return the spaces of the arguments as the data tells them; checks their lengths.

    Raises:
        ValueError: a tensor with another number of rows than its type has nodes or edges.
    """
    nodes = dict(zip(graph.node_types, map(int, graph.csc.num_nodes), strict=True))
    edges = dict(zip(graph.edge_types, _edge_counts(graph), strict=True))
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if is_edges(name):
            found[name] = (
                Connectivity(None) if list(edges) == [None] else {k: Connectivity(k) for k in edges}
            )
        elif isinstance(value, Mapping):
            found[name] = {
                k: _level(f"{name}[{k!r}]", k, v, nodes, edges) for k, v in value.items()
            }
        elif isinstance(value, Tensor):
            found[name] = _level(name, None, value, nodes, edges)
        else:
            found[name] = Constant()
    return found


def _level(
    name: str, key: Any, value: Tensor, nodes: Mapping[Any, int], edges: Mapping[Any, int]
) -> Space:
    of_edges = isinstance(key, tuple) or (key is None and "edge" in name)
    expected = edges.get(key) if of_edges else nodes.get(key)
    if expected is None or value.dim() == 0:
        return Constant()
    if len(value) != expected:
        kind = "edges" if of_edges else "nodes"
        raise ValueError(f"{name} has {len(value)} rows, but the graph has {expected} {kind}.")
    return Edges(key) if of_edges else Nodes(key)


def _edge_counts(graph: Graph) -> list[int]:
    base = graph.csc.edge_base
    return [int(last - first) for first, last in pairwise(base)]


def check_data(data: Any) -> None:
    """Raise TypeError unless `data` is a graph with its attributes in memory."""
    if not isinstance(data, (Data, HeteroData)):
        raise TypeError(
            f"data must be a torch_geometric.data.Data or HeteroData, got {type(data).__name__}. "
            f"Memory-mapped tensors are fine as attributes: torch.from_file, or torch.from_numpy "
            f"of a NumPy memory map."
        )
