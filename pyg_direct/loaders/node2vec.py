"""`Node2Vec` with walks that need no compiled extension, and a loader over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import Node2Vec as PygNode2Vec
from typing_extensions import Unpack

from ..core.arguments import check_count
from ..core.pyg import maybe_num_nodes
from ..core.types import BatchKey
from ..graph.from_pyg import check_edge_index
from ..loading.options import DrawOptions, given, takes
from ..ops.host import keys as rng
from ..sampling.sampler import NeighborSampler, keyed
from .base import SubgraphLoader
from .walks import RandomWalker, check_law, check_length


class WalkOptions(DrawOptions, total=False):
    """Keyword arguments of `Node2Vec.loader`, for type checkers."""

    batch_size: int | None


class Node2Vec(PygNode2Vec):
    """Drop-in replacement of `torch_geometric.nn.Node2Vec`, without `pyg-lib`.

    A real subclass: parameters, losses and `state_dict` are PyG's. Walks and negatives are drawn on
    the CPU by `pyg_direct.random_walk`, with node2vec's exact law, from the key of the batch.

    Args:
        edge_index: int64 [2, num_edges].
        embedding_dim: size of each embedding.
        walk_length: number of nodes of a walk, its start included.
        context_size: number of nodes of a window over a walk, `walk_length` at most.
        walks_per_node: walks from each node of a batch.
        p: return parameter, above 0; see `pyg_direct.random_walk`.
        q: in-out parameter, above 0.
        num_negative_samples: random walks over all nodes for each walk.
        num_nodes: number of nodes; None for one more than the largest id.
        sparse: make sparse gradients of the embedding.

    Raises:
        ValueError: a wrong argument; the message says which.

    Example:
        >>> model = pyg_direct.Node2Vec(data.edge_index, 16, walk_length=10, context_size=5)
        >>> for pos_rw, neg_rw in model.loader(batch_size=128, shuffle=True, seed=0):
        ...     loss = model.loss(pos_rw, neg_rw)
        >>> model().shape  # the embeddings
        torch.Size([300, 16])
    """

    def __init__(
        self,
        edge_index: Tensor,
        embedding_dim: int,
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        num_negative_samples: int = 1,
        num_nodes: int | None = None,
        sparse: bool = False,
    ) -> None:
        # Past PyG's initialiser, which ends in an ImportError without pyg-lib.
        torch.nn.Module.__init__(self)
        check_edge_index(edge_index, "edge_index")
        walk_length = check_length(walk_length, name="walk_length")
        if check_count("context_size", context_size, 1) > walk_length:
            raise ValueError(
                f"context_size must be walk_length at most, got {context_size} and {walk_length}."
            )
        self.num_nodes = maybe_num_nodes(edge_index, num_nodes)
        data = Data(edge_index=edge_index.cpu(), num_nodes=self.num_nodes)
        self._walker = RandomWalker(data)
        check_law(p, q)
        self.EPS = 1e-15
        self.embedding_dim = embedding_dim
        self.walk_length = walk_length - 1
        self.context_size = context_size
        self.walks_per_node = check_count("walks_per_node", walks_per_node, 1)
        self.p = p
        self.q = q
        self.num_negative_samples = check_count("num_negative_samples", num_negative_samples)
        self.embedding = torch.nn.Embedding(self.num_nodes, embedding_dim, sparse=sparse)
        self.embedding.reset_parameters()

    @takes(WalkOptions)
    def loader(self, **kwargs: Any) -> Node2VecLoader:
        """Return a loader of (positive, negative) walks, int64 [windows, context_size] each.

        Args:
            **kwargs: of `torch.utils.data.DataLoader`; `num_workers` counts threads. And `device`,
                where the walks arrive, `seed`, base seed of the walks, the negatives and `shuffle`,
                and `prefetch`; see `pyg_direct.NeighborLoader`.
        """
        return Node2VecLoader(self, **kwargs)

    def pos_sample(self, batch: Tensor) -> Tensor:
        """Return the windows of walks from the nodes `batch`."""
        return self._positive(batch, _new_key())

    def neg_sample(self, batch: Tensor) -> Tensor:
        """Return the windows of sequences that begin at `batch` and continue anywhere."""
        return self._negative(batch, _new_key())

    def sample(self, batch: list[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Return positive and negative windows for the nodes `batch`."""
        return self._sample_with(torch.as_tensor(batch, dtype=torch.int64), _new_key())

    def _sample_with(self, batch: Tensor, key: BatchKey) -> tuple[Tensor, Tensor]:
        """Sample as a function of `key`."""
        return self._positive(batch, key), self._negative(batch, key)

    def _positive(self, batch: Tensor, key: BatchKey) -> Tensor:
        start = batch.repeat(self.walks_per_node)
        return self._windows(self._walker.walk(start, self.walk_length, self.p, self.q, seed=key))

    def _negative(self, batch: Tensor, key: BatchKey) -> Tensor:
        start = batch.repeat(self.walks_per_node * self.num_negative_samples).cpu()
        size = len(start) * self.walk_length
        rest = rng.integers(key, 0, size, self.num_nodes).view(len(start), self.walk_length)
        return self._windows(torch.cat([start.view(-1, 1), rest], dim=-1))

    def _windows(self, walks: Tensor) -> Tensor:
        """Return all runs of `context_size` nodes, those that begin first in all walks first."""
        return torch.cat(list(walks.unfold(1, self.context_size, 1).unbind(1)))


class Node2VecLoader(SubgraphLoader):
    """Batches of walks of a `Node2Vec`, made by threads; what `Node2Vec.loader` returns."""

    _at_positions = "nodes"

    @takes(WalkOptions)
    def __init__(self, model: Node2Vec, **kwargs: Unpack[WalkOptions]) -> None:
        graph = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=model.num_nodes)
        self.data = graph
        self._model = model
        sampler = NeighborSampler(graph, [], device="cpu", seed=kwargs.get("seed"))  # for the keys
        self._begin(graph, sampler, model.num_nodes, given(Node2VecLoader, kwargs))

    def _law(self) -> dict[str, Any]:
        names = ("walk_length", "context_size", "walks_per_node", "num_negative_samples", "p", "q")
        return {name: getattr(self._model, name) for name in names}

    def _sample(self, inputs: Tensor, key: BatchKey | None) -> tuple[Tensor, Tensor]:
        return self._model._sample_with(inputs, key or keyed(self._sampler).next_key())

    def filter_fn(self, out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Bring the walks where they are wanted."""
        memory = self._backend.memory
        positive, negative = (memory.to_batch(part, torch.device("cpu")) for part in out)
        if self.pin_memory:
            positive, negative = memory.pin(positive), memory.pin(negative)
        return positive, negative


def _new_key() -> BatchKey:
    return rng.derive(rng.draw_seed(None), 0, 0, rng.WALK_DOMAIN)
