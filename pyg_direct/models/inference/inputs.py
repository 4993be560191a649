"""Which attributes of the data are the arguments of a model's forward."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import torch_geometric.nn
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ...core.lazy_tensor import LazyTensor
from ...graph.compressed import compressed_graph
from ...graph.from_pyg import check_ends

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
                f"takes it as an option. Include it or leave it out: "
                f"inputs={(*wanted, *undecided)} or inputs={tuple(wanted)}."
            )
    found: dict[str, Any] = {}
    for parameter, source in wanted.items():
        if by_name and parameter not in by_name and len(by_name) == len(parameters):
            raise ValueError(
                f"inputs names {parameter!r}, which is not a parameter of the forward: it has "
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
        found[parameter] = _with_tensors(parameter, value)
    return found


def _with_tensors(name: str, value: Any) -> Any:
    """Return an argument with tensors for NumPy arrays, in the same memory."""
    if isinstance(value, Mapping):
        return {key: _with_tensors(f"{name}[{key!r}]", entry) for key, entry in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "biufc" or not value.dtype.isnative:
        raise TypeError(
            f"{name} is a NumPy array of {value.dtype}, a dtype that torch does not have. Convert "
            f"it to numbers, for example by {name}.astype('float32')."
        )
    with warnings.catch_warnings():  # nothing writes to a memory map that was opened for reading
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(value if min(value.strides, default=0) >= 0 else value.copy())


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
        if name in store and isinstance(store[name], (Tensor, np.ndarray))
    }
    return found or None


def rows_in(data: Any, name: str, value: Any) -> Iterator[tuple[Any, Any, bool, int | None]]:
    """Yield the entries of an argument by type, and how many rows each has to have.

    Yields:
        Type, entry, whether its rows are of edges, and their number; None if that is not known.
    """
    for key, entry in value.items() if isinstance(value, Mapping) else [(None, value)]:
        of_edges = isinstance(key, tuple) or (key is None and "edge" in name)
        store = None if "label" in name else _store(data, key)
        count = None if store is None else store.num_edges if of_edges else num_nodes_of(store)
        yield key, entry, of_edges, count


def check_rows(data: Any, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for a tensor whose rows are not as many as the nodes or edges."""
    for name, value in arguments.items():
        for key, entry, of_edges, expected in rows_in(data, name, value):
            tensor = isinstance(entry, Tensor) and entry.dim() > 0
            if tensor and expected is not None and len(entry) != expected:
                full = name if key is None else f"{name}[{key!r}]"
                kind = "edges" if of_edges else "nodes"
                raise ValueError(
                    f"{full} has {len(entry)} rows, but the graph has {expected} {kind}."
                )


def _store(data: Any, key: Any) -> Any:
    if not isinstance(data, HeteroData):
        return data if key is None else None
    return data[key] if key in data.node_types or key in data.edge_types else None


def edges_of(data: Any, parameter: str) -> Any:
    """Return what a parameter for edges gets; of a heterogeneous graph, by edge type.

    The edges of saved graphs are decoded, after their lists were checked.
    """
    saved = compressed_graph(data, None, None)
    if saved is not None:
        _ = saved.verified
    if not isinstance(data, HeteroData):
        return _edges_in(data, parameter, (num_nodes_of(data),) * 2, "data")
    found = {}
    for key in data.edge_types:
        size = num_nodes_of(data[key[0]]), num_nodes_of(data[key[2]])
        found[key] = _edges_in(data[key], parameter, size, f"data[{key!r}]")
    return found


def num_nodes_of(store: Any) -> int | None:
    """Return the number of nodes, which PyG counts by the edges where nothing else tells it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count: int | None = store.num_nodes
    return count


def _edges_in(store: Any, parameter: str, size: tuple[Any, Any], of: str) -> Any:
    for name in (parameter.removesuffix("_dict"), *EDGE_NAMES):
        if name in store:
            value = store[name]
            if name == "edge_index":
                check_ends(value, size, f"{of}.edge_index")
            return value.dense() if isinstance(value, LazyTensor) else value
    raise ValueError(
        f"The forward takes {parameter!r}, but the data has none of {', '.join(EDGE_NAMES)}."
    )


def check_data(data: Any) -> None:
    """Raise a TypeError or ValueError unless `data` is a graph with its attributes in memory."""
    if not isinstance(data, (Data, HeteroData)):
        raise TypeError(
            f"data must be a torch_geometric.data.Data or HeteroData, got {type(data).__name__}. "
            f"Memory-mapped tensors are fine as attributes: torch.from_file, or torch.from_numpy "
            f"of a NumPy memory map."
        )
    if "cooperation" in data:
        raise ValueError(
            "data is one rank's part of a cooperative batch, and lacks in-edges of other ranks' "
            "nodes. Pass the whole graph, or call accelerate(model, loader) on the batch."
        )


TYPED_LAYERS = torch_geometric.nn.HeteroConv, torch_geometric.nn.HGTConv, torch_geometric.nn.HANConv


@contextlib.contextmanager
def naming_types(model: torch.nn.Module, data: Any) -> Iterator[None]:
    """Say so where a forward fails that seems to be for a graph without types, or only for types.

    Raises:
        ValueError: in place of what the forward raised, which is its cause.
    """
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        name, typed = type(model).__name__, isinstance(data, HeteroData)
        names = inspect.signature(model.forward).parameters
        for_types = any(
            isinstance(part, (*TYPED_LAYERS, torch.fx.GraphModule, torch.nn.ModuleDict))
            for part in model.modules()
        ) or any(parameter.endswith("_dict") for parameter in names)
        if typed == for_types:
            raise
        if typed:
            raise ValueError(
                f"The forward of {name} failed on a HeteroData, which gives it dicts by type for "
                f"{', '.join(names)}: {error} Make the model one for types by "
                f"torch_geometric.nn.to_hetero(model, data.metadata()), or pass a Data."
            ) from error
        raise ValueError(
            f"The forward of {name} failed on a Data, which gives it tensors, and seems to take "
            f"dicts by type: {error} Pass a HeteroData."
        ) from error
