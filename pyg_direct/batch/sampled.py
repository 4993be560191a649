"""A sampled subgraph by type, from our own sampler or any other.

Programs index their own CPU tensors with the ids in a batch (`n_id`, `e_id`, `input_id`), which a
CUDA index cannot do, while a CPU index works on CUDA tensors, too. So ids that were sampled on a
GPU are copied back. The copies begin as soon as the ids exist, on the stream that sampled them, and
run beside the gather.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from ..core.cooperation import Cooperation
from ..core.private_torch import viewed_by
from ..core.types import Ends, Padded, SampledGraph, maker
from ..ops.ids import Ids


class NodesOfType(NamedTuple):
    """The nodes of one type; without any where a sampler left them out."""

    node: Tensor  # int64 [n], on the device of the batch
    given: Tensor  # the same where it was sampled
    batch: Tensor | None = None  # int64 [n], the subgraph of each
    num_sampled: list[int] | None = None  # of each hop
    real: Tensor | None = None  # int64 [], how many are not padding; of `Sampled.padded`


class EdgesOfType(NamedTuple):
    """The edges of one type; without any where a sampler left them out."""

    edge_index: Tensor  # [2, e], local ids of sources and destinations, on the device of the batch
    edge: Tensor | None  # int64 [e], columns of the user's `edge_index`; None if they are not known
    given: Tensor | None  # `edge` where it was sampled
    num_sampled: list[int] | None = None  # of each hop
    original: Tensor | None = None  # [2, e], of a bidirectional subgraph
    real: Tensor | None = None  # as of nodes


new_nodes, new_edges = maker(NodesOfType), maker(EdgesOfType)


@dataclass(frozen=True, eq=False)
class Reused:
    """Where the rows of layer 1 of a batch come from, and which of them go to the table."""

    schedule: int  # number of the schedule (`loading/reusing.py`) that decided it
    batch: int  # number among the batches of the schedule, from 1 on
    certified: bool  # all rows are computed, with their own gradients
    first: int  # rows before are of nodes that earlier hops expanded
    end: int  # rows from here on come from the table,
    read: int  # up to here; rows from here on are of nodes that the last hop found
    slots: Tensor  # int64 [read - end], their rows in the table
    computed_by: Tensor  # int64 [read - end], the batches that compute them
    fresh: Tensor  # int64 [n], rows before `end` that go to the table, ascending
    fresh_slots: Tensor  # int64 [n], rows in the table
    refreshed: Tensor  # int64 [m], rows before `end` whose gradients are divided by the share
    cut: Tensor  # int64 [k], rows before `end` that get no gradient
    edges: int  # that reused rows would have had


@dataclass
class Sampled:
    """A subgraph whose attributes are to be gathered."""

    nodes: dict[Any, NodesOfType]  # by node type; of a homogeneous graph, by None
    edges: dict[Any, EdgesOfType]
    metadata: Any  # what the sampler says of the seeds
    output: SamplerOutput | HeteroSamplerOutput | None = None  # None of a subgraph of our own
    is_typed: bool = False
    cooperation: Cooperation | None = None  # of a batch that ranks make together
    reused: Reused | None = None  # rows that a model has from earlier steps
    ids: Ids | None = None  # brings its ids to the batch, if that has begun
    own: Ends | None = None  # how many nodes and edges are not padding, if some may be
    padded: Padded | None = None  # where that is not known yet
    later: Callable[..., object] | None = None  # then makes a `LateBatch` of the batch

    def parts(self) -> tuple[Any, ...]:
        """Return what its tensors are in, for `tensors_of`."""
        return (self.nodes, self.edges, self.metadata, self.output)

    def bring(self, device: torch.device, bring: Callable[[Tensor], Tensor]) -> None:
        """Bring to the device of the batch what was sampled elsewhere; see `of_output`."""
        here = partial(_here, device, bring)
        for key, nodes in self.nodes.items():
            self.nodes[key] = nodes._replace(node=here(nodes.node), batch=here(nodes.batch))
        for kind, edges in self.edges.items():
            moved = here(edges.edge_index), here(edges.edge)
            self.edges[kind] = edges._replace(edge_index=moved[0], edge=moved[1])

    def nodes_of(self, key: Any, device: torch.device) -> NodesOfType:
        """Return the nodes of a type, which the sampler may not have reached."""
        found = self.nodes.get(key)
        return NodesOfType(_none(device), _none(None)) if found is None else found

    def edges_of(self, key: Any, device: torch.device) -> EdgesOfType:
        """Return the edges of a type, which the sampler may not have reached."""
        found = self.edges.get(key)
        if found is None:
            return EdgesOfType(_none(device).view(2, 0), _none(device), _none(None))
        return found


def of_graph(
    graph: SampledGraph, node_types: Sequence[Any], edge_types: Sequence[Any], metadata: Any
) -> Sampled:
    """Return a subgraph of our own sampler, whose edges were followed from their destinations."""
    node, seed_of, edge_index, edge, num_nodes, num_edges, padded = graph
    nodes, edges = {}, {}
    node_id, edge_id = (node, edge) if padded is None else (padded.node_id, padded.edge_id)
    for t, kind in enumerate(node_types):
        seeds = None if seed_of is None else seed_of[t]
        # An induced subgraph has no hops.
        counts = None if num_edges is None else num_nodes[t]
        real = None if padded is None else padded.real_nodes[t]
        nodes[kind] = new_nodes((node[t], node_id[t], seeds, counts, real))
    for r, kind in enumerate(edge_types):
        hops = None if num_edges is None else num_edges[r]
        real = None if padded is None else padded.real_edges[r]
        edges[kind] = new_edges((edge_index[r], edge[r], edge_id[r], hops, None, real))
    return Sampled(nodes, edges, metadata, is_typed=node_types[0] is not None, padded=padded)


def of_output(
    out: SamplerOutput | HeteroSamplerOutput,
    device: torch.device,
    bring: Callable[[Tensor], Tensor],
) -> Sampled:
    """Return what any sampler of PyG's interface gave, with its tensors on `device`.

    Args:
        out: of the sampler, with tensors on any device.
        device: of the batch.
        bring: copies a tensor to `device`. Called once for each that is needed there and is not.
    """
    is_typed = isinstance(out, HeteroSamplerOutput)

    def by_type(field: str) -> dict[Any, Any]:
        value = getattr(out, field)
        return (value or {}) if is_typed else {None: value}

    here = partial(_here, device, bring)
    node, seed_of, edge = by_type("node"), by_type("batch"), by_type("edge")
    num_nodes, num_edges = by_type("num_sampled_nodes"), by_type("num_sampled_edges")
    row, col = by_type("row"), by_type("col")
    orig_row, orig_col = by_type("orig_row"), by_type("orig_col")
    result = Sampled({}, {}, out.metadata, out, is_typed)
    for key in {**node, **seed_of, **num_nodes}:
        if node.get(key) is None:
            found = result.nodes_of(key, device)
        else:
            found = NodesOfType(here(node[key]), node[key])
        seeds = here(seed_of.get(key))
        result.nodes[key] = found._replace(batch=seeds, num_sampled=num_nodes.get(key))
    for key in {**row, **num_edges}:
        if row.get(key) is None:
            links = result.edges_of(key, device)
        else:
            ids = edge.get(key)
            links = EdgesOfType(here(_stack(row[key], col[key])), here(ids), ids)
        if orig_row.get(key) is not None and orig_col.get(key) is not None:
            links = links._replace(original=here(torch.stack([orig_row[key], orig_col[key]])))
        result.edges[key] = links._replace(num_sampled=num_edges.get(key))
    return result


def of_parts(field: Any, parts: Mapping[Any, Any], choose: Callable[[Any], Tensor]) -> Any:
    """Return a field like a sampler's, by type or not, with what `choose` takes of each part."""
    if isinstance(field, dict):
        return {k: None if value is None else choose(parts[k]) for k, value in field.items()}
    return None if field is None else choose(parts[None])


def _here(device: torch.device, bring: Callable[[Tensor], Tensor], tensor: Any) -> Any:
    return tensor if tensor is None or tensor.device == device else bring(tensor)


def _none(device: torch.device | None) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=device)


def _stack(row: Tensor, col: Tensor) -> Tensor:
    """Return [row; col], without a copy where they are adjacent in memory, as in our outputs."""
    size, both = row.numel(), viewed_by(row)
    if size == 0:  # what two empty tensors lie in cannot be seen, and a copy would be a launch
        return row.new_empty((2, 0))
    if both is not None and both is viewed_by(col) and both.shape == (2, size):
        first, second = both.data_ptr(), both.data_ptr() + row.nbytes
        if both.is_contiguous() and (row.data_ptr(), col.data_ptr()) == (first, second):
            return both
    adjacent = (
        row.data_ptr() + row.nbytes == col.data_ptr()
        and size == col.numel()
        and row.dtype == col.dtype
        and row.is_contiguous()
        and col.is_contiguous()
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    )
    return row.as_strided((2, size), (size, 1)) if adjacent else torch.stack([row, col])


NAMES = frozenset(["n_id", "e_id", "input_id"])
COPIES = "_host_ids"  # of a sampler's output, where copies that have begun wait for the batch


def begin_copies(out: Any, ids: Ids) -> None:
    """Begin to copy the node and edge ids of a sampled subgraph, for the batch that it becomes.

    Copies are known by the tensor they are of, so that one that is replaced meanwhile, as by a
    `transform_sampler_output`, is copied anew.
    """
    found: list[Tensor | None] = []
    if type(out) is Sampled:
        found = [part.given for part in out.nodes.values()]
        found += [part.given for part in out.edges.values()]
    elif isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
        found = [
            tensor
            for field in (out.node, out.edge)
            for tensor in (field.values() if isinstance(field, dict) else [field])
        ]
        setattr(out, COPIES, ids)
    ids.begin(tensor for tensor in found if tensor is not None)
