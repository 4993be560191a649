"""`PageRankLoader`: the nodes that matter most to each seed, for graph transformers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from ..core.arguments import check_count, check_share, shown
from ..core.placing import Placing
from ..core.types import BatchKey
from ..loading.options import DEFAULT_PREFETCH, LoaderOptions, as_dict
from ..ops.host.lists import EgoGraphs, SortedLists, ego_graphs
from ..ops.host.pagerank import Contexts, contexts_of
from ..sampling.sampler import keyed
from .base import check_homogeneous
from .ego import EgoLoader

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

    def __init__(
        self,
        data: Any,
        k: int,
        node_idx: Tensor | None = None,
        alpha: float = 0.15,
        tolerance: float = 1e-4,
        *,
        device: torch.device | str | int | None = None,
        ids: str = "host",
        feature_dtype: torch.dtype | None = None,
        seed: int | None = None,
        prefetch: int = DEFAULT_PREFETCH,
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
        self._begin_around(
            data, node_idx, [], False, Placing(device, ids=ids), seed, prefetch, as_dict(kwargs),
            feature_dtype,
        )  # fmt: skip

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
