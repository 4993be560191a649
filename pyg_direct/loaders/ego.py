"""What loaders share whose batches hold a subgraph for each seed, with all edges within it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from ..batch.subgraph import rows_of_each
from ..core.arguments import check_dense, check_ids
from ..core.placing import Placing
from ..core.pyg import SparseTensor
from ..graph.verify import verified
from ..loading.options import threads_of_a_batch
from ..loading.seeds import node_seeds
from ..ops.host.lists import EgoGraphs, sorted_lists
from ..sampling.sampler import NeighborSampler, keyed
from .base import SubgraphLoader, check_homogeneous

UNNAMED = ("batch", "ptr")  # attributes of the graph that a batch of graphs has itself


class EgoLoader(SubgraphLoader):
    """A loader of disjoint subgraphs. Subclasses say in `_sample` which nodes are in them."""

    def _begin_around(
        self,
        data: Any,
        node_idx: Tensor | None,
        fanouts: list[int],
        replace: bool,
        placing: Placing,
        seed: int | None,
        prefetch: int,
        options: dict[str, Any],
        feature_dtype: torch.dtype | None,
    ) -> None:
        """Set up the graph and the seeds; the other arguments are those of `_begin`."""
        name = type(self).__name__
        check_homogeneous(data, name)
        self.data = copy.copy(data)
        self.is_sparse_tensor = "edge_index" not in data
        if self.is_sparse_tensor and not isinstance(data.get("adj_t"), SparseTensor):
            kind = f", not {type(data.adj_t).__name__}" if "adj_t" in data else ""
            raise ValueError(
                f"{name} needs a graph with edges: set data.edge_index, or data.adj_t to a "
                f"torch_sparse.SparseTensor{kind}."
            )
        check_dense("node_idx", node_idx)
        sampler = NeighborSampler(
            data,
            fanouts,
            disjoint=True,
            replace=replace,
            device="cpu",
            seed=seed,
            threads=threads_of_a_batch(options),
        )
        seeds = node_seeds(node_idx, None, data, sampler)
        if seeds is None:
            seeds = torch.arange(sampler.num_nodes)
        elif seeds.dtype == torch.bool:
            seeds = seeds.nonzero().view(-1)
        check_ids(seeds, sampler.num_nodes, "node_idx")
        self.node_idx = seeds
        self._lists = sorted_lists(verified(keyed(sampler).graph.csc))
        self._begin(self.data, sampler, len(seeds), placing, seed, prefetch, options, feature_dtype)
        self._tell_roles(sampler.num_nodes, keyed(sampler).ends.edge[None])

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        return {"loader": type(self).__name__, **self._law()}, [self.node_idx]

    def _joined(self, out: EgoGraphs) -> Any:
        """Gather the attributes of the subgraphs and join them to a batch of graphs."""
        bring, home = self._backend.memory.to_batch, torch.device("cpu")
        batch: Any = Batch()
        gatherer = self._gatherer()
        batch.batch, batch.ptr = bring(out.seed_of, home), bring(out.ptr, home)
        batch.root_n_id = bring(out.root, home)
        if self.is_sparse_tensor:
            batch.adj_t = bring(_adjacency(self.data.adj_t, out), home)
        else:
            batch.edge_index = bring(out.edge_index, self.data.edge_index.device)
        for name, value in self._attributes(out.node, out.edge, gatherer):
            if name not in UNNAMED:
                batch[name] = value
        labels = [attribute for attribute in self._roles_there().node if attribute.name == "y"]
        if labels:  # only of the seeds
            roots, given = out.node[out.root], {"y": self.data.y}
            batch.y = rows_of_each(given, labels, roots, self._counts[0], gatherer)["y"]
        self._recorder.assembled(batch, gatherer)
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
