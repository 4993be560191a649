"""`ShaDowKHopSampler`: the neighbourhood of every seed as a graph of its own."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Batch

from ..batch.subgraph import attributes_of
from ..core.arguments import check_count, check_flag, check_ids
from ..core.pyg import SparseTensor
from ..core.types import BatchKey
from ..graph.verify import verified
from ..loading.options import DEFAULT_PREFETCH, threads_of_a_batch
from ..loading.seeds import node_seeds
from ..loading.site import Placing
from ..ops.host.lists import EgoGraphs, ego_graphs, sorted_lists
from ..sampling.sampler import NeighborSampler, keyed
from .base import SubgraphLoader, check_homogeneous

UNNAMED = ("batch", "ptr")  # attributes of the graph that a batch of graphs has itself


class ShaDowKHopSampler(SubgraphLoader, torch_geometric.loader.ShaDowKHopSampler):
    """Drop-in replacement of `torch_geometric.loader.ShaDowKHopSampler`, without `torch-sparse`.

    Around each node of a batch, `depth` hops of at most `num_neighbors` in-neighbours are drawn,
    every subset equally likely; the batch holds, for each node, all edges between the nodes found
    for it, as a disjoint graph (Zeng et al., "Decoupling the Depth and Scope of Graph Neural
    Networks", NeurIPS 2021). The neighbours are drawn and the edges looked up on the CPU; on a GPU
    the attributes are gathered there and the batch arrives there.

    Edges are found by searching the lists of neighbours, each sorted by id, for the nodes of the
    subgraph. Where the lists are not sorted (edges sorted by destination, then by source, are), a
    sorted copy is kept: up to 16 bytes for each edge.

    Two things differ from PyG. A node that several paths lead to is expanded once, in the hop after
    it was found first, where PyG draws its neighbours again for each path. And PyG's attribute
    `adj_t` is not made from `edge_index`, as it needs `torch-sparse`.

    Args:
        data: `Data` with `edge_index`, or with `adj_t`, a `torch_sparse.SparseTensor`.
        depth: number of hops, 0 or more.
        num_neighbors: neighbours of each node in each hop; negative for all.
        node_idx: seeds, as ids or as a bool mask [num_nodes]; None for all nodes.
        replace: draw neighbours with replacement.
        device: where batches arrive; see `pyg_direct.NeighborLoader`.
        ids: where your own attributes named `n_id`, `e_id` or `input_id` are, on the 'host' or the
            'device'; see `pyg_direct.NeighborLoader`.
        feature_dtype: what batches get narrow attributes in; see `pyg_direct.NeighborLoader`.
        seed: base seed of all draws; see `pyg_direct.NeighborLoader`.
        prefetch: batches that each producer works ahead.
        **kwargs: of `torch.utils.data.DataLoader`; `num_workers` counts threads.

    Raises:
        ValueError, TypeError: a wrong argument; the message says which.
        IndexError: `node_idx` out of range.

    Example:
        >>> loader = pyg_direct.ShaDowKHopSampler(data, depth=2, num_neighbors=5, batch_size=64)
        >>> batch = next(iter(loader))
        >>> out = model(batch.x, batch.edge_index)[batch.root_n_id]
        >>> out.shape
        torch.Size([64, 4])
    """

    def __init__(
        self,
        data: Any,
        depth: int,
        num_neighbors: int,
        node_idx: Tensor | None = None,
        replace: bool = False,
        *,
        device: torch.device | str | int | None = None,
        ids: str = "host",
        feature_dtype: torch.dtype | None = None,
        seed: int | None = None,
        prefetch: int = DEFAULT_PREFETCH,
        **kwargs: Any,
    ) -> None:
        check_homogeneous(data, "ShaDowKHopSampler")
        self.data = copy.copy(data)
        self.depth = check_count("depth", depth)
        self.num_neighbors = num_neighbors
        self.replace = check_flag("replace", replace)
        self.is_sparse_tensor = "edge_index" not in data
        if self.is_sparse_tensor and "adj_t" not in data:
            raise ValueError("ShaDowKHopSampler needs a graph with edges: set data.edge_index.")
        sampler = NeighborSampler(
            data,
            [num_neighbors] * depth,
            disjoint=True,
            replace=replace,
            device="cpu",
            seed=seed,
            threads=threads_of_a_batch(kwargs),
        )
        seeds = node_seeds(node_idx, None, data, sampler)
        if seeds is None:
            seeds = torch.arange(sampler.num_nodes)
        elif seeds.dtype == torch.bool:
            seeds = seeds.nonzero().view(-1)
        check_ids(seeds, sampler.num_nodes, "node_idx")
        self.node_idx = seeds
        self._lists = sorted_lists(verified(keyed(sampler).graph.csc))
        placing = Placing(device, ids=ids)
        self._begin(self.data, sampler, len(seeds), placing, seed, prefetch, kwargs, feature_dtype)

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        return {"loader": type(self).__name__}, [self.node_idx]

    def _sample(self, inputs: Tensor, key: BatchKey | None) -> EgoGraphs:
        sampler = keyed(self._sampler)
        found = sampler.sample([self.node_idx[inputs]], key or sampler.next_key())
        assert found.seed_of is not None  # as the sampler is disjoint
        threads = sampler.backend.threads
        return ego_graphs(found.node[0], found.seed_of[0], len(inputs), self._lists, threads)

    def filter_fn(self, out: EgoGraphs) -> Any:
        """Gather the attributes of the subgraphs and join them to a batch of graphs."""
        bring, home = self._backend.memory.to_batch, torch.device("cpu")
        batch: Any = Batch()
        batch.batch, batch.ptr = bring(out.seed_of, home), bring(out.ptr, home)
        batch.root_n_id = bring(out.root, home)
        if self.is_sparse_tensor:
            batch.adj_t = bring(_adjacency(self.data.adj_t, out), home)
        else:
            batch.edge_index = bring(out.edge_index, self.data.edge_index.device)
        labels = self.data.y if "y" in self.data else None
        ends = self.data.num_nodes, self.data.num_edges
        of_nodes = isinstance(labels, Tensor) and labels.size(0) == ends[0]
        gatherer = self._gatherer()
        for name, value in attributes_of(self.data, ends, out.node, out.edge, gatherer):
            if name in UNNAMED:
                continue
            if name == "y" and of_nodes:  # only of the seeds
                roots = bring(out.node[out.root], self._backend.device)
                value = gatherer.rows(labels, roots, 0, ends[0])
            batch[name] = value
        return batch


def _adjacency(adj_t: Any, out: EgoGraphs) -> Any:
    """Return the edges of the subgraphs as a SparseTensor [destination, source] like `adj_t`."""
    value = adj_t.storage.value()
    size = out.node.numel()
    return SparseTensor(
        row=out.edge_index[1],
        col=out.edge_index[0],
        value=None if value is None else value[out.edge],
        sparse_sizes=(size, size),
    )
