"""`ShaDowKHopSampler`: the neighbourhood of every seed as a graph of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from typing_extensions import Unpack

from ..core.arguments import check_count, check_flag
from ..core.placing import Placing
from ..core.types import BatchKey
from ..loading.options import DEFAULT_PREFETCH, LoaderOptions, as_dict
from ..ops.host.lists import EgoGraphs, ego_graphs
from ..sampling.fanouts import MAX_HOPS
from ..sampling.sampler import keyed
from .ego import EgoLoader


class ShaDowKHopSampler(EgoLoader, torch_geometric.loader.ShaDowKHopSampler):
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
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        self.depth = check_count("depth", depth)
        if depth > MAX_HOPS:
            raise ValueError(f"depth must be {MAX_HOPS} hops at most, got {depth}.")
        self.num_neighbors = num_neighbors
        self.replace = check_flag("replace", replace)
        self._begin_around(
            data, node_idx, [num_neighbors] * depth, self.replace, Placing(device, ids=ids), seed,
            prefetch, as_dict(kwargs), feature_dtype,
        )  # fmt: skip

    def _sample(self, inputs: Tensor, key: BatchKey | None) -> EgoGraphs:
        sampler = keyed(self._sampler)
        found = sampler.sample([self.node_idx[inputs]], key or sampler.next_key())
        assert found.seed_of is not None  # as the sampler is disjoint
        threads = sampler.backend.threads
        return ego_graphs(found.node[0], found.seed_of[0], len(inputs), self._lists, threads)

    def filter_fn(self, out: EgoGraphs) -> Any:
        """Gather the attributes of the subgraphs and join them to a batch of graphs."""
        return self._joined(out)
