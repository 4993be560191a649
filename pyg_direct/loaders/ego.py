"""`ShaDowKHopSampler` and `PageRankLoader`: a subgraph for each seed, with all edges within it."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Batch
from typing_extensions import Unpack

from ..batch.subgraph import rows_of_each
from ..core.arguments import check_count, check_dense, check_flag, check_ids, check_share, shown
from ..core.pyg import SparseTensor
from ..core.types import BatchKey
from ..graph.verify import verified
from ..loading.options import Given, LoaderOptions, given, takes, threads_of_a_batch
from ..loading.seeds import node_seeds
from ..ops.host.induced import EgoGraphs, SortedLists, ego_graphs, sorted_lists
from ..ops.host.walks import Contexts, contexts_of
from ..sampling.fanouts import MAX_HOPS
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
        given: Given,
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
            seed=given.seed,
            threads=threads_of_a_batch(given.passed_on),
        )
        seeds = node_seeds(node_idx, None, data, sampler)
        if seeds is None:
            seeds = torch.arange(sampler.num_nodes)
        elif seeds.dtype == torch.bool:
            seeds = seeds.nonzero().view(-1)
        check_ids(seeds, sampler.num_nodes, "node_idx")
        self.node_idx = seeds
        self._lists = sorted_lists(verified(keyed(sampler).graph.csc))
        self._begin(self.data, sampler, len(seeds), given)
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

    @takes(LoaderOptions)
    def __init__(
        self,
        data: Any,
        depth: int,
        num_neighbors: int,
        node_idx: Tensor | None = None,
        replace: bool = False,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        self.depth = check_count("depth", depth)
        if depth > MAX_HOPS:
            raise ValueError(f"depth must be {MAX_HOPS} hops at most, got {depth}.")
        self.num_neighbors = num_neighbors
        self.replace = check_flag("replace", replace)
        found, fanouts = given(type(self), kwargs), [num_neighbors] * depth
        self._begin_around(data, node_idx, fanouts, self.replace, found)

    def _sample(self, inputs: Tensor, key: BatchKey | None) -> EgoGraphs:
        sampler = keyed(self._sampler)
        found = sampler.sample([self.node_idx[inputs]], key or sampler.next_key())
        assert found.seed_of is not None  # as the sampler is disjoint
        threads = sampler.backend.threads
        return ego_graphs(found.node[0], found.seed_of[0], len(inputs), self._lists, threads)

    def filter_fn(self, out: EgoGraphs) -> Any:
        """Gather the attributes of the subgraphs and join them to a batch of graphs."""
        return self._joined(out)


LARGE_CONTEXT = 1 << 16  # which may be larger than the graph
LEAST_ALPHA = 0.001  # pushes go on for about log(1 / tolerance) / alpha rounds
LEAST_TOLERANCE = 1e-15  # below, residuals are what rounding leaves, and may never fall further


class _Found(NamedTuple):
    """A batch before its attributes are gathered."""

    graphs: EgoGraphs
    context: Tensor  # int64 [seeds, k], places in `graphs.node`; 0 where the mask is False
    mask: Tensor  # bool [seeds, k]
    score: Tensor  # float32 [nodes]


class PageRankLoader(EgoLoader):
    """The k nodes of highest personalised PageRank around each seed, as contexts and as subgraphs.

    The PageRank is that of a walk which goes from a node to a random in-neighbour, from where
    messages come, and back to the seed with the chance `alpha` in each step, or where there are no
    in-neighbours. It is approximated from below by forward push (Andersen, Chung and Lang, "Local
    Graph Partitioning using PageRank Vectors", FOCS 2006), which reads at most the seed's in-degree
    + 1 / (alpha * tolerance) edges for a seed, whatever the graph; in an undirected one no value is
    more than `tolerance` * degree too low. Nothing is drawn: a seed has the same context in every
    batch. On a GPU, contexts are found on the CPU, and the batch arrives on the GPU.

    A batch is a PyG `Batch` of a graph for each seed, with at most k nodes in the order of their
    ids, and all edges between them. Beside `x` and the other attributes (`y` of the seeds alone),
    it has, for b seeds and n nodes in all:

    * `context`: int64 [b, k], the nodes of each seed as rows of the batch: the seed, then by
      falling PageRank, so a column is a position. ``batch.x[batch.context]`` is [b, k, F].
    * `context_mask`: bool [b, k], False where a context has fewer nodes; `context` is 0 there.
    * `pagerank`: float32 [n], of each node for the seed of its graph.
    * `n_id`: int64 [n], the nodes' ids, or the rows of your own `n_id`.
    * `root_n_id`: int64 [b], the rows of the seeds.

    Args:
        data: `Data` with `edge_index`, or with `adj_t`, a `torch_sparse.SparseTensor`.
        k: nodes of a context at most, the seed among them.
        node_idx: seeds, as ids or as a bool mask [num_nodes]; None for all nodes.
        alpha: in [0.001, 1). The smaller, the farther contexts reach.
        tolerance: in [1e-15, 1]. The smaller, the more exact, and the longer it takes.
        device, ids, feature_dtype, prefetch: see `pyg_direct.NeighborLoader`.
        seed: of `shuffle`; see `pyg_direct.NeighborLoader`.
        **kwargs: of `torch.utils.data.DataLoader`, and those for ranks; `num_workers` counts
            threads.

    Raises:
        ValueError, TypeError: a wrong argument, or a graph with types; the message says which.
        IndexError: `node_idx` out of range.

    Example:
        >>> loader = pyg_direct.PageRankLoader(data, k=16, batch_size=32)
        >>> batch = next(iter(loader))
        >>> batch.x[batch.context].shape, batch.y.shape
        (torch.Size([32, 16, 16]), torch.Size([32]))
        >>> encoder = torch.nn.TransformerEncoderLayer(16, nhead=4, batch_first=True)
        >>> padding = ~batch.context_mask
        >>> out = encoder(batch.x[batch.context], src_key_padding_mask=padding)[:, 0]  # of seeds
        >>> out.shape
        torch.Size([32, 16])
    """

    @takes(LoaderOptions)
    def __init__(
        self,
        data: Any,
        k: int,
        node_idx: Tensor | None = None,
        alpha: float = 0.15,
        tolerance: float = 1e-4,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        self.k = check_count("k", k, least=1)
        self.alpha = check_share("alpha", alpha)
        self.tolerance = check_share("tolerance", tolerance)
        if self.tolerance < LEAST_TOLERANCE:
            raise ValueError(
                f"tolerance must be {LEAST_TOLERANCE} or more, got {shown(tolerance)}."
            )
        if not LEAST_ALPHA <= self.alpha < 1:
            raise ValueError(f"alpha must be in [{LEAST_ALPHA}, 1), got {shown(alpha)}.")
        check_homogeneous(data, type(self).__name__)
        if self.k > max(data.num_nodes, LARGE_CONTEXT):
            raise ValueError(
                f"k must be at most the number of nodes, {data.num_nodes}, got {self.k}."
            )
        self._begin_around(data, node_idx, [], False, given(type(self), kwargs))

    def _law(self) -> dict[str, Any]:
        return {"k": self.k, "alpha": self.alpha, "tolerance": self.tolerance}

    def _sample(self, inputs: Tensor, key: BatchKey | None) -> _Found:
        threads = keyed(self._sampler).backend.threads
        law = (self.k, self.alpha, self.tolerance)
        return _found(
            contexts_of(self._lists, self.node_idx[inputs], *law, threads), self._lists, threads
        )

    def filter_fn(self, out: _Found) -> Any:
        """Gather the attributes, and add the contexts."""
        batch = self._joined(out.graphs)
        bring, home = self._backend.memory.to_batch, torch.device("cpu")
        if "n_id" not in batch:  # the user's own, of the same nodes
            batch.n_id = out.graphs.node if self._host_ids else bring(out.graphs.node, home)
        batch.context, batch.context_mask = bring(out.context, home), bring(out.mask, home)
        batch.pagerank = bring(out.score, home)
        return batch


def _found(contexts: Contexts, lists: SortedLists, threads: int) -> _Found:
    """Return the subgraphs of contexts, and where the nodes of the contexts are in them."""
    node, seed_of, score, mask = contexts
    number = mask.sum(1)
    begin = number.cumsum(0) - number
    is_seed = torch.zeros(len(node), dtype=torch.bool)
    is_seed[begin] = True
    order = torch.cat([begin, (~is_seed).nonzero().view(-1)])  # `ego_graphs` takes seeds first
    graphs = ego_graphs(node[order], seed_of[order], len(mask), lists, threads)
    by_place = torch.from_numpy(np.lexsort((node.numpy(), seed_of.numpy())))
    place = torch.empty_like(by_place)
    place[by_place] = torch.arange(len(place))
    context = torch.zeros(mask.shape, dtype=torch.int64)
    context[mask] = place
    return _Found(graphs, context, mask, score[by_place])
