"""PyG data in shared memory: each tensor and each array of the CSC is a block of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..core.private_torch import writes_to
from ..core.pyg import graph_fields_of, shallow_copy, stores_of
from ..core.quantized import QuantizedTensor
from ..core.types import Csc
from ..graph.compressed import CompressedGraph, CscEdgeIndex, compressed_graph
from ..graph.from_pyg import graph_of
from ..ops.products import on_host
from .memory import Block, filled

NAME = "a graph in shared memory"
Names = tuple[str | None, str | None]  # of the times and of the weights


class _Edges(NamedTuple):
    """Stands for the `edge_index` of one relation."""

    relation: int


class _Narrow(NamedTuple):
    """Stands for a `QuantizedTensor`."""

    stored: Any
    scale: Any


@dataclass(frozen=True)
class SharedData:
    """A graph whose tensors and arrays are blocks of shared memory, or offers of such."""

    data: Any
    csc: Csc
    node_types: Any
    edge_types: Any
    names: Names
    id_dtype: torch.dtype

    def replaced(self, function: Callable[[Any], Any]) -> SharedData:
        """Return it with what a function gives for blocks and offers."""
        csc = self.csc.with_arrays({n: function(array) for n, array in self.csc.arrays()})
        data = _with_values(self.data, lambda value, name: function(value))
        return replace(self, data=data, csc=csc)

    def opened(self) -> Any:
        """Return PyG data over blocks."""
        data = _with_values(self.data, lambda value, name: _tensor_of(value))
        found = {
            (key, name): store[name]
            for key, store in stores_of(data).items()
            for name in self.names
            if name is not None and name in store
        }
        graph = _graph(self.csc, self.node_types, self.edge_types, self.names, self.id_dtype, found)
        for store in data.edge_stores:
            store["edge_index"] = CscEdgeIndex(graph, store["edge_index"].relation)
        return data


@dataclass(frozen=True, kw_only=True)
class SharedGraph(CompressedGraph):
    """A graph in shared memory."""

    blocks: Csc  # `csc` with the blocks that its arrays lie in


def _graph(
    blocks: Csc, node_types: Any, edge_types: Any, names: Any, id_dtype: Any, attributes: Any
) -> SharedGraph:
    return SharedGraph(
        name=NAME,
        csc=blocks.with_arrays({n: block.tensor().numpy() for n, block in blocks.arrays()}),
        node_types=node_types,
        edge_types=edge_types,
        time_attr=names[0],
        weight_attr=names[1],
        attributes=attributes,
        versions={key: writes_to(value) for key, value in attributes.items()},
        id_dtype=id_dtype,
        blocks=blocks,
    )


def _handed_over(graph: SharedGraph) -> Any:
    """Pickle a graph for another process of this machine."""
    names = (graph.time_attr, graph.weight_attr)
    types = (graph.node_types, graph.edge_types)
    return _graph, (graph.blocks, *types, names, graph.id_dtype, graph.attributes)


def _index_handed_over(index: CscEdgeIndex) -> Any:
    if isinstance(index.graph, SharedGraph):
        return CscEdgeIndex, (index.graph, index.relation)
    return index.__reduce_ex__(2)


# What processes are started with is pickled by this class, and files by others: they get an
# ordinary `edge_index`.
ForkingPickler.register(SharedGraph, _handed_over)
ForkingPickler.register(CscEdgeIndex, _index_handed_over)


def shared_data_of(data: Any, names: Names) -> SharedData:
    """Return a graph in new shared memory."""
    if not isinstance(data, (Data, HeteroData)):
        data = data()
        if not isinstance(data, (Data, HeteroData)):
            raise TypeError(
                f"The function given to share must return a Data or HeteroData, got "
                f"{type(data).__name__}."
            )
        if compressed_graph(data, None, None) is not None:
            raise ValueError(
                "The function given to share returns a graph that is shared or opened already. Let "
                "each process pyg_direct.open it."
            )
    for key, store in stores_of(data).items():
        if wrong := [name for name in ("adj", "adj_t") if name in store]:
            raise ValueError(
                f"{_label(key, wrong[0])} cannot be shared: share takes graphs with edge_index. "
                f"Replace it by that."
            )
    data = shallow_copy(data)  # of a function's result nothing else is left
    graph = graph_of(data, time_attr=names[0], weight_attr=names[1])
    types, id_dtype = (list(graph.node_types), list(graph.edge_types)), graph.id_dtype
    for r, store in enumerate(data.edge_stores):
        store["edge_index"] = _Edges(r)
    csc = graph.csc
    arrays = csc.arrays()
    csc = csc.with_arrays({n: filled(torch.from_numpy(a), f"The graph's {n}") for n, a in arrays})
    del graph, arrays
    return SharedData(_with_values(data, _into_memory), csc, *types, names, id_dtype)


def _with_values(data: Any, function: Callable[[Any, str], Any]) -> Any:
    """Return a copy of PyG data with what a function gives for values, and for those in them."""
    data = shallow_copy(data)
    for key, store in stores_of(data).items():
        for name in list(store.keys()):
            store[name] = _mapped(store[name], function, _label(key, name))
    if isinstance(data, HeteroData):
        for name, value in graph_fields_of(data).items():
            data[name] = _mapped(value, function, _label(None, name))
    return data


def _mapped(value: Any, function: Callable[[Any, str], Any], name: str) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_mapped(entry, function, name) for entry in value)
    if type(value) is dict:
        return {key: _mapped(entry, function, f"{name}[{key!r}]") for key, entry in value.items()}
    return function(value, name)


def _into_memory(value: Any, name: str) -> Any:
    """Return a block for a tensor or array of numbers, and everything else as it is.

    Raises:
        ValueError: a tensor that cannot be shared.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.asarray(value))
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, QuantizedTensor):
        scale = None if value.scale is None else filled(value.scale, name)
        return _Narrow(filled(value.stored, name), scale)
    problem = None
    if not on_host(value):
        problem = f"lies on {value.device}; move it to the CPU first"
    elif type(value) is not Tensor:
        problem = f"is of type {type(value).__name__}, and not a plain tensor"
    elif value.layout != torch.strided or value.is_quantized:
        problem = f"is {value.layout} {value.dtype}, and not dense"
    elif value.requires_grad:
        problem = "requires a gradient, which processes do not share; detach() it first"
    if problem is not None:
        raise ValueError(f"{name} cannot be shared: it {problem}.")
    return filled(value, name)


def _tensor_of(value: Any) -> Any:
    """Return a block as a tensor, and everything else as it is."""
    if isinstance(value, _Narrow):
        scale = None if value.scale is None else value.scale.tensor()
        return QuantizedTensor(value.stored.tensor(), scale)
    return value.tensor() if isinstance(value, Block) else value


def _label(key: Any, name: str) -> str:
    """Return what a user calls an attribute."""
    return f"data.{name}" if key is None else f"data[{key!r}].{name}"
