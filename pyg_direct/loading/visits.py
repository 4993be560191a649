"""How likely each node is in a batch of a loader, by its seeds, fan-outs and degrees."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler
from torch_geometric.sampler import NodeSamplerInput

from ..core.types import ONCE, BatchKey, SeedVisits
from ..ops.host import keys as rng
from ..ops.host.hottest import PRESAMPLED_BATCHES
from ..sampling.sampler import NeighborSampler, keyed
from .order import ClusterOrder, PartOrder

Doubles = npt.NDArray[np.float64]

SEEDS_WITHOUT_BATCH_SIZE = 1024  # of a batch, where a batch_sampler decides


class _Batches(NamedTuple):
    """The batches of an epoch: sizes, and how many there are of each."""

    num_seeds: int
    size: int  # of all but perhaps the last
    sizes: list[tuple[int, int]]

    @property
    def number(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.sizes)

    def mean(self, of_size: Any) -> Any:
        """Return the mean over the batches of a function of their size."""
        return sum(count / self.number * of_size(size) for size, count in self.sizes)


def why_no_visits(loader: Any) -> str:
    """Return the argument of a loader that `visits_of_batches` does not know; "" if there is none.

    Args:
        loader: of nodes or links.
    """
    sampler = loader._sampler
    if type(sampler) is not NeighborSampler:
        return f"neighbor_sampler= of {type(sampler).__name__}"
    graph = keyed(sampler)
    given, order = graph.settings, loader.sampler
    drawn = any(k >= 0 for hop in graph.fanouts() for k in hop)
    shuffled = type(order) is RandomSampler and not order.replacement
    known = shuffled and order.num_samples == loader._num_seeds()
    known = known or type(order) in (SequentialSampler, ClusterOrder, PartOrder)
    found = {
        "batch_sampler=": loader.batch_size is None,
        "sampler= of your own": not known,
        f"sampling={given.sampling!r}": given.sampling != "uniform",
        "time_attr=": graph.graph.node_times is not None,
        "disjoint=True": given.disjoint,
        "weight_attr=": graph.graph.csc.weights is not None and drawn,
        "exclude_seed_edges=": given.exclude_seed_edges is not None,
        "strict_negatives=True": given.strict_negatives,
        "transform_sampler_output=": loader.transform_sampler_output is not None,
        "cooperative=True": loader._split.cooperative,
    }
    return next((name for name, is_so in found.items() if is_so), "")


def visits_of_batches(loader: Any) -> dict[Any, Tensor]:
    """Return how likely each node is in a batch, float64 [N_t] by type.

    Args:
        loader: that `why_no_visits` has nothing against; else it is an estimate without that.
    """
    graph = keyed(loader._sampler)
    batches, inputs = _batches_of(loader), loader.input_data
    in_order = type(loader.sampler) is SequentialSampler
    of_nodes = isinstance(inputs, NodeSamplerInput)
    seeds: dict[Any, SeedVisits] = {}
    for kind, ids in _positions(inputs).items():
        num_nodes = graph.num_nodes_of(kind)
        share = _shares(ids, batches, num_nodes, in_order)
        times = ONCE
        if of_nodes and len(torch.unique(ids[1])) < ids.shape[1]:  # the ends of links are merged
            copies = np.bincount(ids[1].numpy(), minlength=num_nodes)
            often = copies * batches.mean(lambda size: size / batches.num_seeds)
            times = np.maximum(1.0, often / np.maximum(share, 1e-300))
        seeds[kind] = SeedVisits(share, times)
    for kind, missed in _missed_by_negatives(loader, batches):
        share = seeds[kind].share if kind in seeds else np.zeros(graph.num_nodes_of(kind))
        seeds[kind] = SeedVisits(1 - (1 - share) * missed)
    return graph.expected_visits(seeds, _found_in_hops(loader))


def presampled(
    loader: Any, sample: Callable[[Any, BatchKey], Any], again: bool = False
) -> Iterator[Any]:
    """Yield what is sampled for up to 64 batches, which changes nothing that is drawn later.

    Those of a loader that goes through its seeds in order are batches of it.

    Args:
        loader: of nodes or links.
        sample: takes a part of the loader's `input_data`, and a key.
        again: whether an epoch of fewer batches is sampled again, until there are so many.
    """
    number, generator = 0, torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):  # samplers of others' draw from torch's generator
        while number == 0 or (again and number < PRESAMPLED_BATCHES):
            for index in _parts(loader, generator):
                key = rng.derive(loader._progress.seed or 0, 0, number, rng.PRESAMPLE_DOMAIN)
                yield sample(loader.input_data[index], key)
                number += 1


def _parts(loader: Any, generator: torch.Generator) -> Sequence[Tensor]:
    """Return the positions of up to 64 batches of an epoch."""
    size, count = loader.batch_size or SEEDS_WITHOUT_BATCH_SIZE, loader._num_seeds()
    order = torch.arange(count)
    if type(loader.sampler) is not SequentialSampler:
        order = torch.randperm(count, generator=generator)
    parts = torch.split(order, size)
    if loader.drop_last and len(parts) > 1 and len(parts[-1]) < size:
        parts = parts[:-1]
    return parts[:: -(-len(parts) // PRESAMPLED_BATCHES)]


def _found_in_hops(loader: Any) -> dict[Any, list[float]] | None:
    """Return how many new nodes batches find in each hop, by node type; None without hops."""
    sampler = copy.copy(loader._sampler)
    kinds, hops = sampler.node_types, len(keyed(sampler).fanouts())
    if hops == 0 or loader._num_seeds() == 0:
        return None
    sampler.subgraph_type = "directional"  # of the same nodes; hops of the others are not counted
    found, batches = {kind: np.zeros(hops) for kind in kinds}, 0

    def sample(inputs: Any, key: BatchKey) -> Any:
        if isinstance(inputs, NodeSamplerInput):
            return sampler.sample_from_nodes(inputs, key=key)
        return sampler.sample_from_edges(inputs, loader.neg_sampling, key=key)

    for out in presampled(loader, sample, again=True):
        counts = out.num_sampled_nodes
        for kind in kinds:
            found[kind] += (counts if isinstance(counts, list) else counts[kind])[1:]
        batches += 1
    return {kind: (of_type / batches).tolist() for kind, of_type in found.items()}


def _batches_of(loader: Any) -> _Batches:
    count, size = loader._num_seeds(), loader.batch_size or SEEDS_WITHOUT_BATCH_SIZE
    full, rest = divmod(count, size)
    kept = rest > 0 and (full == 0 or not loader.drop_last)
    sizes = [(size, full), (rest, int(kept))]
    return _Batches(max(1, count), size, [pair for pair in sizes if pair[1] > 0] or [(0, 1)])


def _positions(inputs: Any) -> dict[Any, Tensor]:
    """Return for each type of seeds the positions in the input and their nodes, int64 [2, n].

    A position has a node once.
    """
    if isinstance(inputs, NodeSamplerInput):
        return {inputs.input_type: torch.stack([torch.arange(len(inputs.node)), inputs.node])}
    source, target = (None, None) if inputs.input_type is None else inputs.input_type[::2]
    place = torch.arange(len(inputs.row))
    if source != target:
        ends = ((source, inputs.row), (target, inputs.col))
        return {kind: torch.stack([place, ids]) for kind, ids in ends}
    twice = inputs.row == inputs.col
    ids = torch.cat([inputs.row, inputs.col[~twice]])
    return {source: torch.stack([torch.cat([place, place[~twice]]), ids])}


def _shares(ids: Tensor, batches: _Batches, num_nodes: int, in_order: bool) -> Doubles:
    """Return the share of the batches that have each node as a seed, float64 [num_nodes]."""
    place, node = ids.numpy()
    if in_order:
        number = place // batches.size
        met = np.unique((number * num_nodes + node)[number < batches.number])
        found: Doubles = np.bincount(met % max(1, num_nodes), minlength=num_nodes).astype(float)
        return found / batches.number
    copies = np.bincount(node, minlength=num_nodes)

    def share(size: int) -> Any:
        """Return how likely one of a node's positions is among `size` of all.

        What misses is the product over its c positions of 1 - size / (S - j), j < c; here to the
        power of c, with j in the middle.
        """
        middle = batches.num_seeds - (copies - 1) / 2
        miss = np.maximum(0.0, 1.0 - size / middle) ** copies
        miss[copies > batches.num_seeds - size] = 0.0
        return 1.0 - miss

    return np.asarray(batches.mean(share), np.float64)


def _missed_by_negatives(loader: Any, batches: _Batches) -> Iterator[tuple[Any, Doubles]]:
    """Yield, by node type, how likely no negative of a batch is each node, float64 [N_t]."""
    negatives = getattr(loader, "neg_sampling", None)
    if negatives is None:
        return
    links = loader.input_data.input_type
    source, target = (None, None) if links is None else links[::2]
    drawn = [(target, negatives.dst_weight)]
    if negatives.is_binary():
        drawn.insert(0, (source, negatives.src_weight))
    for kind, weight in drawn:
        num_nodes = keyed(loader._sampler).num_nodes_of(kind)
        share = np.full(num_nodes, 1.0 / max(1, num_nodes))
        if weight is not None:
            share = weight.detach().cpu().double().view(-1).numpy()
            share = share / share.sum()

        def missed(size: int, share: Any = share) -> Any:
            return (1.0 - share) ** math.ceil(size * negatives.amount)

        yield kind, batches.mean(missed)
