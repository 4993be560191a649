"""What the rows of a value stand for: nodes of a type, edges of a type, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor


class CutError(ValueError):
    """A model that cannot be cut into one-hop message passing and row-wise work; says why."""


@dataclass(frozen=True)
class Nodes:
    """One row for each node of a type (None in a homogeneous graph), along dimension `dim`."""

    node_type: Any
    dim: int = 0


@dataclass(frozen=True)
class Edges:
    """One row for each edge of a type (None in a homogeneous graph), along dimension `dim`."""

    edge_type: Any
    dim: int = 0


@dataclass(frozen=True)
class Connectivity:
    """The ``edge_index`` of an edge type: int64 [2, number of edges], rows = (source, target)."""

    edge_type: Any


@dataclass(frozen=True)
class Constant:
    """The same value whichever rows are given: a parameter, a number, an option."""


@dataclass(frozen=True)
class Count:
    """The number of rows of a node or edge type, such as ``x.size(0)``."""

    of: Nodes | Edges


@dataclass(frozen=True)
class Whole:
    """A value of the whole graph: it cannot be computed from some of the rows."""

    reason: str


Space: TypeAlias = "Nodes | Edges | Connectivity | Constant | Count | Whole"


class Example(NamedTuple):
    """A small graph to try a model on: the forward arguments for all rows and for some of them.

    Node and edge types all differ in their numbers of rows, so that a size tells the type.
    """

    full: dict[str, Any]  # forward parameter -> value, or dict of values by node or edge type
    spaces: dict[str, Any]  # the same structure with spaces
    nodes: dict[Any, Tensor]  # node type -> int64, the rows of the part; sorted
    node_counts: dict[Any, int]
    edges: dict[Any, Tensor]  # edge type -> int64, the rows of the part; sorted
    edge_counts: dict[Any, int]

    def part(self, value: Any, space: Any) -> Any:
        """Return the rows of the part of a value."""
        if isinstance(space, dict):
            return {key: self.part(value[key], space[key]) for key in space}
        if isinstance(space, Nodes):
            return value.index_select(space.dim, self.nodes[space.node_type].to(value.device))
        if isinstance(space, Edges):
            return value.index_select(space.dim, self.edges[space.edge_type].to(value.device))
        if isinstance(space, Connectivity):
            return value[:, self.edges[space.edge_type].to(value.device)]
        return value


def spaces_of(inputs: Mapping[str, Any], levels: Mapping[str, Space] | None = None) -> Any:
    """Return the space of each argument of a forward, told by its name and shape.

    ``edge_index``, ``adj`` and ``adj_t`` (also with ``_dict``) are connectivity. A dict with node
    types as keys holds rows of nodes, one with edge types (triples) rows of edges. A tensor whose
    name contains ``edge`` and that has as many rows as there are edges holds rows of edges, another
    one with as many rows as there are nodes (``x`` tells, else the first tensor) rows of nodes. All
    else, and what has ``label`` in its name, is constant.

    Args:
        inputs: forward parameter -> value; tensors, or dicts of tensors by node or edge type.
        levels: spaces that are known, by parameter; they take precedence.
    """
    levels = levels or {}
    num_edges = next((_size(v, 1) for n, v in inputs.items() if is_connectivity(n, v)), None)
    rows = [
        inputs["x"] if isinstance(inputs.get("x"), Tensor) else None,
        *(v for n, v in inputs.items() if isinstance(v, Tensor) and "edge" not in n),
    ]
    num_nodes = next((_size(v, 0) for v in rows if v is not None), None)

    def space(name: str, key: Any, value: Any) -> Space:
        if not isinstance(value, Tensor):
            return Constant()
        if is_connectivity(name, value):
            return Connectivity(key)
        if "label" in name:  # edges to be predicted, and what is known about them
            return Constant()
        if isinstance(key, tuple):
            return Edges(key)
        if key is not None:
            return Nodes(key)
        if "edge" in name:
            return Edges(None) if _size(value, 0) == num_edges else Constant()
        return Nodes(None) if _size(value, 0) == num_nodes else Constant()

    return {
        name: levels[name]
        if name in levels
        else {key: space(name, key, v) for key, v in value.items()}
        if isinstance(value, Mapping)
        else space(name, None, value)
        for name, value in inputs.items()
    }


def is_connectivity(name: str, value: Any) -> bool:
    """Whether an argument of a forward is the edges of the graph (not those to be predicted)."""
    return name.removesuffix("_dict") in ("edge_index", "adj", "adj_t") and (
        isinstance(value, Tensor) and value.dim() == 2 and value.size(0) == 2
    )


def _size(value: Any, dim: int) -> int | None:
    return value.size(dim) if isinstance(value, Tensor) and value.dim() > dim else None


def leaves(value: Any, space: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (value, space) of an argument, or of the entries of a dict of them."""
    if isinstance(space, dict):
        for key in space:
            yield value[key], space[key]
    else:
        yield value, space


NODES, EDGES = 16, 40  # rows of the first type; the others have more, each another number


def make_example(
    inputs: Mapping[str, Any],
    spaces: Mapping[str, Any],
    seed: int = 0,
    device: torch.device | None = None,
) -> Example:
    """Take a few rows of each argument, and connect them at random.

    Values are the user's, so that categories and ids are in their ranges; edges are drawn, sorted
    by destination, with parallel ones and with nodes that have none. Uses no global random state.

    Args:
        inputs: forward parameter -> value, as for `spaces_of`. Only read.
        spaces: what `spaces_of` returned.
        seed: of the rows and edges that are drawn.
        device: where the values shall be; None for where `inputs` are.
    """
    draw = torch.Generator().manual_seed(seed)
    node_types: dict[Any, int] = {}
    edge_types: dict[Any, int] = {}
    all_spaces = [s for n in spaces for _, s in leaves(inputs[n], spaces[n])]
    for space in all_spaces:
        if isinstance(space, Nodes):
            node_types.setdefault(space.node_type, NODES + 3 * len(node_types))
        elif isinstance(space, (Edges, Connectivity)):
            edge_types.setdefault(space.edge_type, 0)
            for end in ends(space.edge_type):
                node_types.setdefault(end, NODES + 3 * len(node_types))
    first = max([EDGES, *(4 * n for n in node_types.values())])
    edge_types = {key: first + 3 * i for i, key in enumerate(edge_types)}

    def some(count: int) -> Tensor:
        return torch.randperm(count, generator=draw)[: count // 2 - 1].sort().values

    nodes = {key: some(count) for key, count in node_types.items()}
    edges = {key: some(count) for key, count in edge_types.items()}

    def taken(value: Any, space: Any) -> Any:
        if isinstance(space, dict):
            return {key: taken(value[key], space[key]) for key in space}
        if isinstance(space, Connectivity):
            src, dst = (node_types[end] for end in ends(space.edge_type))
            count = edge_types[space.edge_type]
            row = torch.randint(src, (count,), generator=draw)
            col = torch.randint(max(1, dst - 2), (count,), generator=draw).sort().values
            return torch.stack([row, col]).to(value.dtype).to(value.device)
        if isinstance(space, (Nodes, Edges)):
            if isinstance(space, Nodes):
                count = node_types[space.node_type]
            else:
                count = edge_types[space.edge_type]
            rows = value.size(space.dim)
            if rows == 0:
                shape = (*value.shape[: space.dim], count, *value.shape[space.dim + 1 :])
                return value.new_zeros(shape)
            index = torch.randint(rows, (count,), generator=draw).to(value.device)
            return value.detach().index_select(space.dim, index)
        if isinstance(value, Tensor):
            ids = not value.is_floating_point() and value.dtype != torch.bool
            return value.detach() % min(node_types.values()) if ids else value.detach().clone()
        return value

    full = {
        name: _moved(_distinct(taken(v, spaces[name]), spaces[name], draw), device)
        for name, v in inputs.items()
    }
    return Example(full, dict(spaces), nodes, node_types, edges, edge_types)


def _moved(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, dict):
        return {key: _moved(v, device) for key, v in value.items()}
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def _distinct(value: Any, space: Any, draw: torch.Generator) -> Any:
    """Make rows of floats differ, so that a row taken for another one is noticed."""
    if isinstance(space, dict):
        return {key: _distinct(value[key], space[key], draw) for key in space}
    if isinstance(space, (Nodes, Edges)) and value.is_floating_point():
        noise = torch.rand(value.shape, generator=draw).to(value)
        return value + noise * value.abs().mean().clamp(min=0.1)
    return value


def ends(edge_type: Any) -> tuple[Any, Any]:
    """Return the types of the source and of the destination of an edge type."""
    return (None, None) if edge_type is None else (edge_type[0], edge_type[-1])


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal, floats within the rounding of another order of summation."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        if not (first.is_floating_point() or first.is_complex()):
            return torch.equal(first, second)
        scale = float(first.abs().nan_to_num(0, 0, 0).max()) if first.numel() else 0.0
        return torch.allclose(
            first, second, rtol=1e-4, atol=1e-5 * max(1e-3, scale), equal_nan=True
        )
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    return type(first) is type(second) and bool(first == second)


def other_numbers(value: Any) -> Any:
    """Return other numbers for those of a tensor."""
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point():
        return value.flip(0) * -3 + 1.5 if value.dim() > 0 else value * -3 + 1.5
    return ~value if value.dtype is torch.bool else torch.zeros_like(value)


def space_by_behaviour(full: Any, part: Any, example: Example) -> Space | None:
    """Tell the space of a value from what an operation gave for all rows and for some of them.

    Returns None where the two do not fit together: the operation mixes rows.
    """
    if isinstance(full, Tensor) and isinstance(part, Tensor):
        if full.shape == part.shape:
            return Constant() if same(full, part) else None
        for space, index, count in _kinds(example):
            for dim in range(min(full.dim(), part.dim())):
                if full.size(dim) == count and part.size(dim) == len(index):
                    picked = full.index_select(dim, index.to(full.device))
                    return replace(space, dim=dim) if same(picked, part) else None
        return None
    if isinstance(full, (dict, list, tuple)) and type(full) is type(part):
        return _space_of_entries(full, part, example)
    if isinstance(full, int) and isinstance(part, int) and full != part:
        for space, index, count in _kinds(example):
            if (full, part) == (count, len(index)):
                return Count(space)
    return Constant() if same(full, part) else None


def _kinds(example: Example) -> Iterator[tuple[Nodes | Edges, Tensor, int]]:
    for node_type, index in example.nodes.items():
        yield Nodes(node_type), index, example.node_counts[node_type]
    for edge_type, index in example.edges.items():
        yield Edges(edge_type), index, example.edge_counts[edge_type]


def _space_of_entries(full: Any, part: Any, example: Example) -> Space | None:
    """Return the space that all entries of a container share, beside constants."""
    values: Callable[[Any], list[Any]] = lambda v: list(v.values() if isinstance(v, dict) else v)  # noqa: E731
    if len(full) != len(part):
        return None
    found = [
        space_by_behaviour(f, p, example) for f, p in zip(values(full), values(part), strict=True)
    ]
    kinds = {s for s in found if not isinstance(s, Constant)}
    if None in kinds:
        return None
    kinds = {replace(s, dim=0) if isinstance(s, (Nodes, Edges)) else s for s in kinds}
    of = {s.of if isinstance(s, Count) else s for s in kinds}
    rows = {s for s in of if isinstance(s, (Nodes, Edges))}
    if len(rows) > 1:
        return Whole("holds rows of several types")
    if not rows:
        return Constant()
    return (
        next(iter(rows)) if any(isinstance(s, (Nodes, Edges)) for s in kinds) else Count(rows.pop())
    )


def entry(value: Any, key: Any) -> Any:
    """Return arguments with each dict of rows in them reduced to one key."""
    if isinstance(value, dict) and key in value:
        return {key: value[key]}
    if isinstance(value, dict):
        return {name: entry(v, key) for name, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(entry(v, key) for v in value)
    return value
