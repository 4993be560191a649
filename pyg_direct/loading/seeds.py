"""Checks of `input_nodes` and `edge_label_index`, and their conversion to what PyG takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from ..core.arguments import check_input_id, shown
from ..core.pyg import DEFAULT_REL
from ..sampling.sampler import NeighborSampler, keyed
from ..sampling.time_bounds import check_bounds, check_windows, with_bounds

INT64 = np.dtype(np.int64)
ID_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def node_seeds(input_nodes: Any, input_id: Any, data: Any, sampler: Any) -> Any:
    """Return seed nodes as PyG takes them: a tensor or None; with their type if there are types.

    Ids are copied, as PyG copies the ends of links, so that what happens to the user's tensor later
    changes no batch.

    Raises:
        ValueError: no node type where the graph has some, a mask of the wrong length, a mask of
            integers (as many as there are nodes, of three nodes or more, and all of them 0 or 1),
            ids that are not integers of one dimension, or not one `input_id` for each.
    """
    counts = _num_nodes(data, sampler)
    local = isinstance(data, (Data, HeteroData))
    typed = isinstance(input_nodes, (str, tuple, list)) if counts is None else None not in counts
    if not typed:
        count = None if counts is None else counts[None]
        return _as_nodes(input_nodes, input_id, count, local)
    pair = (input_nodes, None) if isinstance(input_nodes, str) else input_nodes
    named = isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)
    if not named or (counts is not None and pair[0] not in counts):
        kinds = "" if counts is None else f" of {list(counts)}"
        raise ValueError(
            f"input_nodes must name a node type{kinds}, alone or as (type, nodes), got "
            f"{shown(input_nodes)}."
        )
    count = None if counts is None else counts[pair[0]]
    return pair[0], _as_nodes(pair[1], input_id, count, local)


def _num_nodes(data: Any, sampler: Any) -> dict[Any, int | None] | None:
    """Return how many nodes there are of each type; None where only a foreign sampler knows."""
    if isinstance(data, Data):
        return {None: data.num_nodes}
    if isinstance(data, HeteroData):
        return {key: data[key].num_nodes for key in data.node_types}
    if isinstance(sampler, NeighborSampler):
        return {key: keyed(sampler).num_nodes_of(key) for key in sampler.node_types}
    return None


def _as_nodes(input_nodes: Any, input_id: Any, num_nodes: int | None, local: bool) -> Tensor | None:
    if input_nodes is None:
        if num_nodes is None:
            raise ValueError(
                "input_nodes is needed, as ids or as a node type: the stores do not say which."
            )
        check_input_id(input_id, num_nodes)
        # PyG forgets the ids of seeds that are not listed, and does not count those in a store.
        return None if local and input_id is None else torch.arange(num_nodes)
    try:
        nodes = input_nodes if isinstance(input_nodes, Tensor) else torch.as_tensor(input_nodes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"input_nodes must be node ids or a bool mask of one dimension, got "
            f"{shown(input_nodes)}."
        ) from error
    if nodes.numel() == 0 and nodes.dim() == 1 and not isinstance(input_nodes, Tensor):
        nodes = nodes.to(torch.int64)  # an empty list has no dtype
    if nodes.dim() == 2 and nodes.size(1) == 1:
        nodes = nodes.squeeze(1)  # a column, as `mask.nonzero()` is
    if nodes.dtype not in (torch.bool, *ID_TYPES) or nodes.dim() != 1:
        raise ValueError(
            f"input_nodes must be node ids or a bool mask of one dimension, got {nodes.dtype} of "
            f"shape {tuple(nodes.shape)}."
        )
    if nodes.dtype == torch.bool:
        if num_nodes is not None and len(nodes) != num_nodes:
            raise ValueError(
                f"A mask for input_nodes needs {num_nodes} entries, one for each node, got "
                f"{len(nodes)}."
            )
        check_input_id(input_id, int(nodes.sum()))
        return nodes
    if _looks_like_a_mask(nodes, num_nodes):
        raise ValueError(
            f"input_nodes is {nodes.dtype} of {num_nodes} zeros and ones, one for each node, but "
            f"integers are taken as node ids: the seeds would be nodes 0 and 1 again and again. "
            f"Pass a mask as input_nodes.bool(). If these two nodes are meant, pass them once, and "
            f"their repeats by sampler=."
        )
    check_input_id(input_id, len(nodes))
    return nodes.to(torch.int64, copy=True)


def _looks_like_a_mask(nodes: Tensor, num_nodes: int | None) -> bool:
    """Whether integers are a mask: as many as there are nodes, and all of them 0 or 1.

    Of two nodes they may be all ids; of more, such ids would be nothing but repeats.
    """
    if num_nodes is None or not len(nodes) == num_nodes > 2:
        return False
    low, high = torch.aminmax(nodes)
    return int(low) >= 0 and int(high) <= 1


def link_seeds(edge_label_index: Any, data: Any, sampler: Any) -> Any:
    """Return seed links as PyG takes them: a tensor [2, num_links]; with their type if any.

    Raises:
        TypeError, ValueError: no edge type where the graph has some, no edges to take the links
            from, or links that are not integers of shape [2, num_links].
    """
    if isinstance(data, Data):
        return _edges(data, "data") if edge_label_index is None else _as_links(edge_label_index)
    if isinstance(edge_label_index, Tensor) and not isinstance(data, HeteroData):
        edge_label_index = (None, edge_label_index)  # stores without types
    key, links = _typed_links(edge_label_index)
    if isinstance(data, HeteroData):
        node_types: Any = data.node_types
        edge_types: Any = data.edge_types
    elif isinstance(sampler, NeighborSampler):
        node_types, edge_types = sampler.node_types, sampler.edge_types
    else:
        return key if links is None else (key, _as_links(links))
    key = _canonical(key, edge_types)
    ends = (None, None) if key is None else (key[0], key[-1])
    if not set(ends) <= set(node_types) or (links is None and key not in edge_types):
        raise ValueError(
            f"edge_label_index must name an edge type of {edge_types}, alone or as (type, links), "
            f"got {shown(edge_label_index)}."
        )
    if links is not None:
        return key, _as_links(links)
    return (key, _edges(data[key], f"data[{key}]")) if isinstance(data, HeteroData) else key


def _canonical(key: Any, edge_types: Any) -> Any:
    """Return an edge type in full; the middle may be left out where the ends say which."""
    if key is None or len(key) == 3:
        return None if key is None else tuple(key)
    between = [kind for kind in edge_types if kind and (kind[0], kind[-1]) == tuple(key)]
    return between[0] if len(between) == 1 else (key[0], DEFAULT_REL, key[1])


def _typed_links(given: Any) -> tuple[Any, Any]:
    """Return (edge type, links or None). In stores without types the type is None."""
    if isinstance(given, (tuple, list)):
        if len(given) in (2, 3) and all(isinstance(part, str) for part in given):
            return given, None
        if len(given) == 2:
            key, links = given
            named = isinstance(key, (tuple, list)) and len(key) in (2, 3)
            if (named and all(isinstance(part, str) for part in key)) or (
                key is None and links is not None
            ):
                return key, links
    raise ValueError(
        f"edge_label_index must name an edge type, alone or as (type, links), as the graph has "
        f"edge types, got {shown(given)}."
    )


def _edges(store: Any, name: str) -> Tensor:
    if "edge_index" not in store:
        raise ValueError(f"edge_label_index is needed: {name} has no edge_index to take them from.")
    return _as_links(store.edge_index)


def _as_links(links: Any) -> Tensor:
    if not isinstance(links, Tensor):
        raise TypeError(
            f"edge_label_index must be a tensor of shape [2, num_links], got {shown(links)}."
        )
    if links.dtype not in ID_TYPES or links.dim() != 2 or links.size(0) != 2:
        raise ValueError(
            f"edge_label_index must hold node ids of shape [2, num_links], got {links.dtype} of "
            f"shape {tuple(links.shape)}."
        )
    return links


def with_windows(seeds: Any, start: Any, end: Any, sampler: Any) -> Any:
    """Return the seeds of a loader, which know their windows if there are some.

    Args:
        seeds: a loader's `input_data`, nodes or links.
        start, end: `input_start_time` and `input_end_time`, as the user gave them.
        sampler: that will sample around them.

    Raises:
        ValueError: another sampler than ours, or one without times or with a window for all seeds;
            bounds that do not fit the seeds.
    """
    if start is None and end is None:
        return seeds
    if not isinstance(sampler, NeighborSampler) or not sampler.is_temporal:
        raise ValueError(
            "input_start_time and input_end_time need times to compare with: pass time_attr, or a "
            "pyg_direct.NeighborSampler that has it."
        )
    if start is not None and sampler.time_window is not None:
        raise ValueError(
            f"input_start_time and time_window={sampler.time_window} both say how old a neighbour "
            f"may be; pass one of them."
        )
    kind = seeds.input_type
    if isinstance(seeds, EdgeSamplerInput):
        kinds = (None, None) if kind is None else kind[::2]
        ends = list(zip(kinds, (seeds.row, seeds.col), strict=True))
    else:
        ends = [(kind, seeds.node)]
    bounds = check_bounds(start, end, len(ends[0][1]))
    for kind, nodes in ends:
        seed_time = keyed(sampler).seed_time(kind, nodes, seeds.time)
        assert seed_time is not None, "a temporal sampler knows it"
        check_windows(bounds, seed_time)
    return with_bounds(seeds, bounds)


def own_times(time: Tensor | None) -> Tensor | None:
    """Return the times of seeds in memory of our own: PyG keeps the user's, who may write to it."""
    return None if time is None else time.clone()


def integers(index: Any) -> Tensor:
    """Return the positions of a batch's seeds, int64 [n], from one of any shape.

    Raises:
        TypeError: something other than integers, which torch would cut off to such.
    """
    positions = index if isinstance(index, Tensor) else np.asarray(index)
    dtype = str(positions.dtype)
    if len(index) > 0 and dtype.removeprefix("torch.").rstrip("0123456789") not in ("int", "uint"):
        raise TypeError(
            f"The seeds of a batch are named by their positions, which must be integers, got "
            f"{dtype}: {shown(index)}. They come from sampler=, batch_sampler= or "
            f"loader(positions); of a mask, pass mask.nonzero().view(-1)."
        )
    return torch.as_tensor(positions, dtype=torch.int64).view(-1)


def seeds_at(seeds: Any, index: Any) -> Any:
    """Return the seeds of a batch, as ``seeds[index]`` does.

    Of a list of ints and seed nodes by NumPy, which for some hundred of them takes a third of the
    time.

    Args:
        seeds: a loader's `input_data`.
        index: positions, from `positions_of`.
    """
    positions = np.array(index) if type(index) is list else index
    try:
        if type(positions) is not np.ndarray or positions.dtype != INT64 or positions.ndim != 1:
            return seeds[integers(index)]
        if type(seeds) is not NodeSamplerInput:
            return seeds[torch.from_numpy(positions)]
        ids, times = seeds.input_id, seeds.time
        # Past the initialiser, which would only bring the tensors to the host, where they are.
        chosen = NodeSamplerInput.__new__(NodeSamplerInput)
        chosen.input_id = torch.from_numpy(positions) if ids is None else _at(ids, positions)
        chosen.node = torch.from_numpy(seeds.node.numpy()[positions])
        chosen.time = None if times is None else _at(times, positions)
        chosen.input_type = seeds.input_type
        return chosen
    except IndexError as error:
        nodes = getattr(seeds, "node", getattr(seeds, "row", None))
        if nodes is None:  # of a loader whose positions name themselves
            raise
        count = len(nodes)
        wrong = [at for at in integers(index).tolist() if not -count <= at < count]
        raise IndexError(
            f"A batch asks for position {wrong[0] if wrong else index}, but there are {count} "
            f"seeds, positions 0 to {count - 1}: places among the seeds, and not node ids."
        ) from error


def _at(values: Tensor, positions: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(values.numpy()[positions])
