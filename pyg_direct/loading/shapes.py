"""Batches of one shape: what they are padded to, and the padding.

A batch gets more nodes, after its own, that repeat the row of one node, and more edges, after its
own, between these nodes. They send no messages to the nodes of the batch, so a model without
sums or means over all rows computes the same for those. The edges are divided evenly among the
nodes, as some layers take memory by the largest degree, and none is a self-loop, as others remove
those first, and then would have edges of another number in each batch.

Example: a batch of the nodes [7, 3, 9] with the edges 1 -> 0 and 2 -> 0, padded to 6 nodes and 6
edges, has the ids [7, 3, 9, -1, -1, -1], rows of the nodes [7, 3, 9, 7, 7, 7], and the edges
1 -> 0, 2 -> 0, 4 -> 3, 4 -> 3, 5 -> 4 and 3 -> 5, of which the last four have the attributes of the
first.

On a CUDA device `cuda/emit.cu` writes the same padding, by counts that stay on the device. Such a
batch is a `LateBatch` until it is handed out, when its counts are on the host, too: one that does
not fit is made again at a larger step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput

from ..batch.sampled import EdgesOfType, NodesOfType, Sampled
from ..core.arguments import check_count, shown
from ..core.pyg import SPARSE, SubgraphType, stores_of
from ..core.types import BatchKey, Ends, ExtendedKey, Sizes
from ..ops.buffers import new_tensor
from ..sampling.sampler import NeighborSampler, keyed
from .progress import Progress
from .recorder import Made, Recorder
from .stages import BatchTask, LateBatch
from .visits import presampled

STEP = 1.25  # by which all sizes grow where a batch is larger
DEVIATIONS = 2  # standard deviations of the sampled batches, above the largest of them
LEAST = 8  # nodes or edges, also of a type that no sampled batch has, but the graph has


class PaddedLoader:
    """The part of a loader of neighbourhoods that tells what its batches are padded to."""

    _shapes: StaticShapes | None
    _progress: Progress

    @property
    def static_shapes(self) -> dict[str, Any] | None:
        """What all batches are padded to, by "nodes" and "edges", and by type if there are types.

        None without ``static_shapes=``. Another loader takes it as that argument. If it is asked
        for before the first epoch, up to 64 batches are sampled.
        """
        shapes = self._shapes
        return None if shapes is None else shapes.as_given(self, max(self._progress.size_steps))


class StaticShapes:
    """The envelope that all batches of a loader are padded to.

    At step k its sizes are 1.25^k times those of step 0. A batch that does not fit the step of its
    epoch is padded to the first step that it fits, and epochs that begin after it was handed out
    have that step. So the shape of a batch depends on the batches before it, and not on threads.

    Args:
        given: True, or sizes of step 0 by "nodes" and "edges", which are dicts by type if the graph
            has types. What is missing is measured.
        ends: the numbers of nodes and edges in the graph.

    Raises:
        ValueError: something else, or sizes of another type.
    """

    def __init__(self, given: Any, ends: Ends) -> None:
        if given is not True and not isinstance(given, Mapping):
            raise ValueError(f"static_shapes must be a bool or a dict, got {shown(given)}.")
        sizes = {} if given is True else given
        if not set(sizes) <= {"nodes", "edges"}:
            raise ValueError(
                f"static_shapes must have no keys but 'nodes' and 'edges', got {shown(sizes)}."
            )
        self._given = Ends(
            _checked("nodes", sizes.get("nodes"), ends.node),
            _checked("edges", sizes.get("edges"), ends.edge),
        )
        self._ends = ends
        self._first: Ends | None = None

    @property
    def must_measure(self) -> bool:
        """Whether sizes of some types are not given."""
        return any(
            kind not in given
            for given, there in zip(self._given, self._ends, strict=True)
            for kind in there
        )

    def as_given(self, loader: Any, step: int) -> dict[str, Any]:
        """Return what batches are padded to at a step, as a user gives it."""
        by_type = zip(("nodes", "edges"), self.sizes(loader, step), strict=True)
        return {name: sizes.get(None, sizes) for name, sizes in by_type}

    def _parts_of(self, loader: Any, inputs: Any, key: BatchKey) -> Sampled:
        out = loader._sample_for_batch(inputs, key)
        return out if type(out) is Sampled else loader._checked(out)

    def sizes(self, loader: Any, step: int) -> Ends:
        """Return what batches are padded to at a step; at the first call batches are sampled."""
        if self._first is None:
            self._first = self._measured(loader)
        return self._sizes(step)

    def _sizes(self, step: int) -> Ends:
        assert self._first is not None, "`sizes` was called first"
        parts = zip(self._first, self._ends, strict=True)
        return Ends(*(self._at(step, *sizes) for sizes in parts))

    def _fitting(self, own: Ends, least: int) -> int:
        """Return the first step, from one on, that a batch of so many nodes and edges fits."""
        need, step = self._needed(own), least
        while not _fits(need, self._sizes(step)):
            step += 1
        return step

    def _at(self, step: int, first: Mapping[Any, int], there: Mapping[Any, int]) -> dict[Any, int]:
        """Return sizes at a step, given those of step 0, and how many the graph has."""
        if step == 0:
            return dict(first)
        return {t: math.ceil(max(n, 1) * STEP**step) if there[t] else 0 for t, n in first.items()}

    def _measured(self, loader: Any) -> Ends:
        """Return the sizes of step 0: those that were given, or what up to 64 batches need."""
        found: list[tuple[int, Ends]] = []
        if self.must_measure:
            for sampled in presampled(loader, partial(self._parts_of, loader)):
                found.append((_num_seeds(sampled), self._needed(self._own(sampled))))
        most = max((seeds for seeds, _ in found), default=0)
        needs = [need for seeds, need in found if seeds == most]  # not of a last batch of fewer

        def size_of(part: int, kind: Any) -> int:
            if self._ends[part][kind] == 0:  # nothing is there that padding could repeat
                return 0
            if kind in self._given[part]:
                return self._given[part][kind]
            sizes = [need[part][kind] for need in needs]
            return max(LEAST, math.ceil(max(sizes) + DEVIATIONS * float(np.std(sizes))))

        return Ends(*({t: size_of(part, t) for t in self._ends[part]} for part in range(2)))

    def _own(self, sampled: Sampled) -> Ends:
        """Return how many nodes and edges a batch has, of each type of the graph."""
        nodes, edges = sampled.nodes, sampled.edges
        return Ends(
            {t: nodes[t].node.numel() if t in nodes else 0 for t in self._ends.node},
            {t: edges[t].edge_index.shape[1] if t in edges else 0 for t in self._ends.edge},
        )

    def _needed(self, own: Ends) -> Ends:
        """Return the least sizes that a batch can be padded to; edges of padding need two nodes."""
        return Ends({t: n + 2 * (self._ends.node[t] > 0) for t, n in own.node.items()}, own.edge)

    def key_of(self, loader: Any, task: BatchTask) -> BatchKey:
        """Return the key of a task; with the sizes if nobody waits for the counts of its batch."""
        if not (loader._backend.waits_for_counts and may_come_late(loader)):
            return task.key
        sizes = (list(by_type.values()) for by_type in self.sizes(loader, task.sizes.step))
        return ExtendedKey.of(task.key, sizes=Sizes(*sizes))

    def padded(self, loader: Any, out: Any, task: BatchTask) -> Any:
        """Return what was sampled for a task, with padding."""
        sampled = out if type(out) is Sampled else loader._checked(out)
        if sampled.padded is not None:
            sampled.later = partial(self.late, loader._recorder, task, sampled)
            return sampled
        step = self.pad(loader, sampled, task.sizes.step)
        if step > task.sizes.step:
            task.sizes.larger[task.number] = step
        return sampled

    def late(
        self, recorder: Recorder, task: BatchTask, sampled: Sampled, batch: object, made: Made
    ) -> LateBatch:
        """Return a batch whose counts have begun to be copied to the host.

        Args:
            recorder: of the loader.
            task: that the batch was made for.
            sampled: its nodes and edges, whose counts by hop are lists to be filled.
            batch: of them.
            made: from `Recorder.assembled`.
        """

        def settle() -> BatchTask | None:
            assert sampled.padded is not None, "else the counts were known"
            parts: Any = sampled.nodes, sampled.edges
            hops = sampled.padded.read()
            found = [list(zip(*of, strict=True)) for of in zip(parts, hops, strict=True)]
            own = Ends(*({kind: sum(by_hop) for kind, by_hop in of} for of in found))
            step = self._fitting(own, task.sizes.step)
            if step > task.sizes.step:
                task.sizes.larger[task.number] = step
                return task._replace(sizes=task.sizes._replace(step=step))
            for part, of, real, sizes in zip(parts, found, own, self._sizes(step), strict=True):
                for kind, by_hop in of:
                    part[kind].num_sampled[:] = _last_more(by_hop, sizes[kind] - real[kind])
            recorder.settled(made, own)
            return None

        return LateBatch(batch, settle)

    def pad(self, loader: Any, sampled: Sampled, least: int) -> int:
        """Pad a batch, and return its step.

        Args:
            loader: whose batch it is.
            sampled: its nodes and edges, which are replaced.
            least: the least step.
        """
        own = self._own(sampled)
        self.sizes(loader, least)  # which are measured at the first call
        step = self._fitting(own, least)
        sizes = self._sizes(step)
        sampled.own, device = own, loader._backend.device
        subgraphs = _num_seeds(sampled)
        added = {t: (own.node[t], size) for t, size in sizes.node.items()}
        sampled.edges = {
            t: _padded_edges(
                sampled.edges_of(t, device), size, *(added[end] for end in _ends_of(t))
            )
            for t, size in sizes.edge.items()
        }
        sampled.nodes = {
            t: _padded_nodes(sampled.nodes_of(t, device), size, subgraphs)
            for t, size in sizes.node.items()
        }
        return step


def may_come_late(loader: Any) -> bool:
    """Whether no more is to be known of a batch, before it is handed out, than its sizes."""
    graph = keyed(loader._sampler)
    of_links = isinstance(loader.input_data, EdgeSamplerInput)
    return (
        loader.transform is None
        and loader.filter_per_worker
        and loader._exchange is None
        and loader._samples_directly()
        and graph.settings.subgraph_type == SubgraphType.directional
        and not (of_links and graph.disjoint)  # whose subgraphs are numbered anew
    )


def _num_seeds(sampled: Sampled) -> int:
    """Return of how many seeds or links a batch is; as many subgraphs are in a disjoint one."""
    count: int = sampled.metadata[0].numel()
    return count


def _fits(need: Ends, sizes: Ends) -> bool:
    return all(
        size <= there[kind]
        for here, there in zip(need, sizes, strict=True)
        for kind, size in here.items()
    )


def _ends_of(kind: Any) -> tuple[Any, Any]:
    """Return the node types of an edge type."""
    return (None, None) if kind is None else (kind[0], kind[-1])


def _padded_nodes(found: NodesOfType, size: int, subgraph: int) -> NodesOfType:
    node, count = found.node, found.node.numel()
    row = node[:1] if count > 0 else 0
    return NodesOfType(
        _longer(node, size, row),
        _longer(found.given, size, -1),
        None if found.batch is None else _longer(found.batch, size, subgraph),
        _last_more(found.num_sampled, size - count),
    )


def _padded_edges(
    found: EdgesOfType, size: int, sources: tuple[int, int], destinations: tuple[int, int]
) -> EdgesOfType:
    """Return the edges of a type with padding.

    Args:
        found: of the batch.
        size: how many edges to return.
        sources: the first node of the type that is padding, and the number of all nodes.
        destinations: the same of the destinations, which are those of the type `found`.
    """
    edge, count = found.edge, found.edge_index.shape[1]
    edge_index = _longer(found.edge_index, size, 0)
    more, (first, end) = size - count, destinations
    place = torch.arange(more, device=edge_index.device) * (end - first) // max(1, more)
    edge_index[1, count:] = first + place
    edge_index[0, count:] = sources[0] + (place + 1) % max(1, sources[1] - sources[0])
    row = 0 if edge is None or count == 0 else edge[:1]
    return EdgesOfType(
        edge_index,
        None if edge is None else _longer(edge, size, row),
        None if found.given is None else _longer(found.given, size, -1),
        _last_more(found.num_sampled, size - count),
    )


def _longer(tensor: Tensor, size: int, fill: Any) -> Tensor:
    """Return a tensor whose last dimension has `size` elements, the new ones `fill`."""
    longer = new_tensor((*tensor.shape[:-1], size), tensor.dtype, tensor.device)
    count = tensor.shape[-1]
    longer[..., :count], longer[..., count:] = tensor, fill
    return longer


def _last_more(counts: list[int] | None, more: int) -> list[int] | None:
    """Return the counts of the hops with padding in the last one, which `trim_to_layer` drops."""
    return None if counts is None else [*counts[:-1], counts[-1] + more]


def _checked(name: str, given: Any, there: Mapping[Any, int]) -> dict[Any, int]:
    """Return sizes by type as the user gave them.

    Raises:
        ValueError: not a number, or one for each of some types.
    """
    if given is None:
        return {}
    by_type = given if isinstance(given, Mapping) else {None: given}
    if not set(by_type) <= set(there):
        wanted = "an int" if None in there else f"a dict of ints by type, of {list(there)}"
        raise ValueError(f"static_shapes[{name!r}] must be {wanted}, got {shown(given)}.")
    return {kind: check_count(f"static_shapes[{name!r}]", size) for kind, size in by_type.items()}


def static_shapes_of(
    given: Any, loader: Any, data: Any, options: Mapping[str, Any]
) -> StaticShapes:
    """Return what the batches of a loader are padded to.

    Raises:
        ValueError: wrong sizes, or an argument of the loader that batches of one shape cannot have.
    """
    sampler = loader._site.sampler
    if not isinstance(sampler, NeighborSampler):
        raise ValueError(
            f"static_shapes needs pyg_direct's own NeighborSampler, got neighbor_sampler= of "
            f"class {type(sampler).__name__}. Leave one of them out."
        )
    settings = keyed(sampler).settings
    stored = isinstance(data, (Data, HeteroData))
    sparse = stored and any(name in store for store in stores_of(data).values() for name in SPARSE)
    refused = {
        "a graph in stores": not stored,
        "adj_t or adj, whose entries are not padded,": sparse,
        "cooperative=True": loader._split.cooperative,
        "a graph in parts": loader._exchange is not None and not loader._split.share_rows,
        "transform_sampler_output=": bool(options.get("transform_sampler_output")),
        "subgraph_type='bidirectional'": settings.subgraph_type == SubgraphType.bidirectional,
    }
    for what, is_so in refused.items():
        if is_so:
            raise ValueError(f"static_shapes cannot be used with {what}. Leave one of them out.")
    shapes = StaticShapes(given, keyed(sampler).ends)
    if shapes.must_measure and options.get("batch_sampler") is not None:
        raise ValueError(
            "static_shapes=True samples batches of batch_size seeds to see how large they are, and "
            "there is a batch_sampler=. Give the sizes: static_shapes={'nodes': ..., 'edges': ...}."
        )
    return shapes
