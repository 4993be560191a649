"""GraphSAINT's samplers: subgraphs between drawn nodes, and how to weigh them."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from typing_extensions import Unpack

from ..batch.gather import Gatherer
from ..core.arguments import check_choice, check_count, check_flag, check_partner
from ..core.pyg import saint_file_of, torch_load
from ..core.types import BatchKey
from ..graph.verify import verified
from ..graph.weights import alias_table_of
from ..loading.options import BatchOptions, given, takes, threads_of_a_batch
from ..loading.prefetcher import Failure, Prefetcher
from ..ops.host import keys as rng
from ..ops.host.induced import InducedSubgraphs, sorted_lists
from ..ops.host.walks import by_weight
from ..sampling.sampler import NeighborSampler, keyed
from .base import SubgraphLoader, check_edges
from .walks import check_length, walker_over


class GraphSAINTSampler(SubgraphLoader, torch_geometric.loader.GraphSAINTSampler):
    """Drop-in replacement of `torch_geometric.loader.GraphSAINTSampler`, without `torch-sparse`.

    Each step draws nodes and gives all edges between them (Zeng et al., "GraphSAINT: Graph Sampling
    Based Inductive Learning Method", ICLR 2020). Nodes of a batch are in the order of their ids,
    edges in the order of their ends, as in PyG. Nodes are drawn and edges looked up on the CPU; on
    a GPU the attributes are gathered there and the batch arrives there.

    This is the base class: a subclass says in `_draw_nodes` how nodes are drawn.

    Args:
        data: `Data` with `edge_index`, without `node_norm` and `edge_norm`.
        batch_size: how many nodes, edges or walks a step draws, with replacement.
        num_steps: batches of an epoch.
        sample_coverage: for the coefficients `node_norm` and `edge_norm`: subgraphs are drawn until
            they hold this many nodes for each node of the graph. 0: no coefficients. As in PyG,
            `edge_norm` counts the source of an edge, where the paper has the destination.
        save_dir: folder where the coefficients are saved, and from where they are loaded if the
            file is there. The file's name and contents are PyG's.
        log: show the progress of counting.
        device: where batches arrive; see `pyg_direct.NeighborLoader`.
        ids: where your own attributes named `n_id`, `e_id` or `input_id` are, on the 'host' or the
            'device'; see `pyg_direct.NeighborLoader`.
        feature_dtype: what batches get narrow attributes in; see `pyg_direct.NeighborLoader`.
        seed: base seed of all draws, those for the coefficients too; see
            `pyg_direct.NeighborLoader`.
        prefetch: batches that each producer works ahead.
        **kwargs: of `torch.utils.data.DataLoader`; `num_workers` counts threads.

    Raises:
        ValueError, TypeError: a wrong argument; the message says which.

    Example:
        >>> class FirstNodes(pyg_direct.GraphSAINTSampler):
        ...     def _draw_nodes(self, key):
        ...         return torch.arange(10)
        >>> batch = next(iter(FirstNodes(data, batch_size=10)))
        >>> batch.num_nodes
        10
    """

    _at_positions = ""  # steps draw the same whatever their number

    @takes(BatchOptions)
    def __init__(
        self,
        data: Any,
        batch_size: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Unpack[BatchOptions],
    ) -> None:
        check_edges(data, type(self).__name__)
        for name in ("node_norm", "edge_norm"):
            if name in data:
                raise ValueError(f"data.{name} exists; it would be overwritten. Rename it.")
        if data.num_nodes == 0 or data.num_edges == 0:
            raise ValueError("There is nothing to draw from: data has no nodes or no edges.")
        self.num_steps = check_count("num_steps", num_steps, 1)
        self._batch_size = check_count("batch_size", batch_size, 1)
        self.sample_coverage = check_count("sample_coverage", sample_coverage)
        if save_dir is not None:
            check_partner("save_dir", "sample_coverage", self.sample_coverage)
        self.save_dir = save_dir
        self.log = check_flag("log", log)
        self.N, self.E = int(data.num_nodes), int(data.num_edges)
        self.data = data
        self._host_edges = data.edge_index.cpu()  # itself, if it is there
        # Grouped by source, so that a batch has PyG's order of edges.
        sampler = NeighborSampler(
            data, [], subgraph_type="induced", sample_direction="backward", device="cpu",
            seed=kwargs.get("seed"), threads=threads_of_a_batch(kwargs),
        )  # fmt: skip
        self._prepare_draws(sampler)
        graph = keyed(sampler).graph
        # What is drawn does not depend on the order of the lists.
        self._induced = InducedSubgraphs(sorted_lists(verified(graph.csc)), graph.id_dtype)
        self._begin(data, sampler, self.num_steps, given(type(self), kwargs))
        self._tell_roles(self.N, self.E)
        if self.sample_coverage > 0:
            self.node_norm, self.edge_norm = self._norms()

    def _prepare_draws(self, sampler: NeighborSampler) -> None:
        """Build what `_draw_nodes` needs; the graph of `sampler` is grouped by source."""

    def _draw_nodes(self, key: BatchKey) -> Tensor:
        """Return the ids of the nodes of one step, int64 [any number], each as often as drawn."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw one subgraph with a new key: (node ids, edge_index, edge ids)."""
        return self._subgraph(keyed(self._sampler).next_key())

    def _subgraph(self, key: BatchKey) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = self._between(self._draw_nodes(key))
        return found

    def _between(self, drawn: Tensor, with_ids: bool = True) -> Any:
        threads = keyed(self._sampler).backend.threads
        return self._induced.between(drawn, threads, with_ids)

    def _reads_edge_ids(self) -> bool:
        return self.sample_coverage > 0 or bool(self._roles_there().edge)

    def _ends(self, side: int, edge: Tensor) -> Tensor:
        """Return the sources (0) or destinations (1) of some edges, int64."""
        ends = torch.from_numpy(self._host_edges[side].numpy())  # also of an `EdgeIndex`
        found: Tensor = Gatherer(keyed(self._sampler).backend).rows(ends, edge, 0, self.E)
        return found.to(torch.int64)

    def _law(self) -> dict[str, Any]:
        return {"draws": self._batch_size}

    def _sample(self, inputs: Tensor, key: BatchKey | None) -> tuple[Tensor, Tensor, Tensor]:
        return self[0] if key is None else self._subgraph(key)

    def _sample_for_batch(self, inputs: Tensor, key: BatchKey) -> Any:
        own, kind = GraphSAINTSampler, type(self)
        if (
            kind._sample is not own._sample
            or kind._subgraph is not own._subgraph
            or getattr(self.filter_fn, "__func__", None) is not own.filter_fn
            or self._reads_edge_ids()
        ):
            return self._sample(inputs, key)
        return self._between(self._draw_nodes(key), with_ids=False)

    def filter_fn(self, out: tuple[Tensor, Tensor, Tensor | None]) -> Any:
        """Gather the attributes of a subgraph."""
        node, edge_index, edge = out
        batch = self.data.__class__()
        batch.num_nodes = len(node)
        gatherer = self._gatherer()
        batch.edge_index = self._backend.memory.to_batch(edge_index, self.data.edge_index.device)
        # `data` may have got attributes of edges since the batch was drawn without ids.
        ids = (lambda: self._between(node)[2]) if edge is None else edge
        for name, value in self._attributes(node, ids, gatherer):
            batch[name] = value
        if self.sample_coverage > 0:
            for name, value, index in (
                ("node_norm", self.node_norm, node),
                ("edge_norm", self.edge_norm, edge),
            ):
                batch[name] = self._backend.memory.to_batch(value[index], value.device)
        self._recorder.assembled(batch, gatherer)
        return batch

    def _norms(self) -> tuple[Tensor, Tensor]:
        """Return the coefficients: those of a file that PyG or we saved, else counted."""
        path = os.path.join(self.save_dir or "", saint_file_of(self))
        if self.save_dir is not None and os.path.exists(path):
            node_norm, edge_norm = torch_load(path)
            if node_norm.shape != (self.N,) or edge_norm.shape != (self.E,):
                raise ValueError(
                    f"{path} holds coefficients of {node_norm.numel()} nodes and "
                    f"{edge_norm.numel()} edges, but the graph has {self.N} and {self.E}. Remove "
                    f"the file, or choose another save_dir."
                )
            return node_norm, edge_norm
        norms = self._compute_norm()
        if self.save_dir is not None:
            torch.save(norms, path)
        return norms

    def _compute_norm(self) -> tuple[Tensor, Tensor]:
        """Count how often nodes and edges are drawn (section 3.2 of the paper), as PyG does.

        `node_norm` is (number of subgraphs) / (how many hold the node) / N, `edge_norm` is (how
        many hold the source) / (how many hold the edge).
        """
        node_count, edge_count = torch.zeros(self.N), torch.zeros(self.E)
        wanted, found, steps = self.N * self.sample_coverage, 0, 0
        seed = self._progress.seed
        base = rng.draw_seed(None) if seed is None else seed
        progress = _Bar(wanted) if self.log else None
        make = Prefetcher(self._subgraph, max(1, self.num_workers), 2 * self.num_workers + 1)
        try:
            while found < wanted:
                keys = (
                    rng.derive(base, 0, steps + i, rng.COVERAGE_DOMAIN)
                    for i in range(self.num_steps)
                )
                make.begin(keys)
                for _ in range(self.num_steps):
                    drawn = make.take()
                    if isinstance(drawn, Failure):
                        drawn.raise_once()
                    node, _, edge = drawn
                    node_count[node] += 1
                    edge_count[edge] += 1
                    found += len(node)
                    if progress is not None:
                        progress.move(len(node))
                steps += self.num_steps
        finally:
            make.close()
            if progress is not None:
                progress.close()
        edge_norm = (node_count[self._host_edges[0]] / edge_count).clamp_(0, 1e4)
        edge_norm[torch.isnan(edge_norm)] = 0.1
        node_count[node_count == 0] = 0.1
        return steps / node_count / self.N, edge_norm


class _Bar:
    """A progress bar by tqdm, which PyG depends on."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=total, desc="Compute GraphSAINT normalization")
        self.move, self.close = self._bar.update, self._bar.close


class GraphSAINTNodeSampler(GraphSAINTSampler, torch_geometric.loader.GraphSAINTNodeSampler):
    """GraphSAINT by nodes: draws `batch_size` edges uniformly, and takes their sources.

    So a node is drawn in proportion to its out-degree. See `GraphSAINTSampler`.

    Example:
        >>> loader = pyg_direct.GraphSAINTNodeSampler(data, batch_size=100, num_steps=3, seed=0)
        >>> [batch.num_nodes <= 100 for batch in loader]
        [True, True, True]
    """

    def _draw_nodes(self, key: BatchKey) -> Tensor:
        edge = rng.integers(key, 0, self._batch_size, self.E)
        return self._ends(0, edge)


class GraphSAINTEdgeSampler(GraphSAINTSampler, torch_geometric.loader.GraphSAINTEdgeSampler):
    """GraphSAINT by edges: draws `batch_size` edges with replacement, and takes both ends.

    Draws read one entry of an alias table that is built once (8 bytes for each edge), where PyG
    draws a random number for every edge of the graph for each edge of a batch.

    Args:
        data: see `GraphSAINTSampler`, as for all other arguments.
        batch_size: number of edges.
        *args: `num_steps`, `sample_coverage`, `save_dir`, `log`.
        edge_law: "pyg" draws the edge u->v in proportion to in-degree(u) + out-degree(v), as PyG
            does; "paper" to 1 / out-degree(u) + 1 / in-degree(v), as the paper has it (section
            3.4, for undirected graphs 1 / degree(u) + 1 / degree(v)).
        **kwargs: those by name only.

    Example:
        >>> loader = pyg_direct.GraphSAINTEdgeSampler(
        ...     data, batch_size=50, num_steps=3, edge_law="paper", seed=0
        ... )
        >>> [batch.num_nodes <= 100 for batch in loader]
        [True, True, True]
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *args: Any,
        edge_law: Literal["pyg", "paper"] = "pyg",
        **kwargs: Unpack[BatchOptions],
    ) -> None:
        self.edge_law = check_choice("edge_law", edge_law, ("pyg", "paper"))
        super().__init__(data, batch_size, *args, **kwargs)

    def _law(self) -> dict[str, Any]:
        return {**super()._law(), "edge_law": self.edge_law}

    def _prepare_draws(self, sampler: NeighborSampler) -> None:
        self._alias = alias_table_of(_edge_weights(self._host_edges, self.N, self.edge_law))

    def _draw_nodes(self, key: BatchKey) -> Tensor:
        drawn = by_weight(self._alias, self._batch_size, key)
        return torch.cat([self._ends(side, drawn) for side in (0, 1)])


def _edge_weights(edge_index: Tensor, num_nodes: int, edge_law: str) -> Any:
    """Return the weight of each edge for drawing it, float64 [E]."""
    row, col = edge_index
    out_degree = torch.bincount(row, minlength=num_nodes).to(torch.float64)
    in_degree = torch.bincount(col, minlength=num_nodes).to(torch.float64)
    if edge_law == "pyg":
        # An edge has its own ends in common with nothing else: the sum may be 0, never below.
        return (in_degree[row] + out_degree[col]).clamp_(min=1e-10).numpy()
    return (1.0 / out_degree[row] + 1.0 / in_degree[col]).numpy()


class GraphSAINTRandomWalkSampler(
    GraphSAINTSampler,
    torch_geometric.loader.GraphSAINTRandomWalkSampler,
):
    """GraphSAINT by walks: `batch_size` walks from uniformly drawn nodes, along the edges.

    Args:
        data: see `GraphSAINTSampler`, as for all other arguments.
        batch_size: number of walks.
        walk_length: steps of each walk.
        *args: `num_steps`, `sample_coverage`, `save_dir`, `log`.
        **kwargs: the same by name, and those by name only.

    Example:
        >>> loader = pyg_direct.GraphSAINTRandomWalkSampler(
        ...     data, batch_size=40, walk_length=2, num_steps=3, sample_coverage=5, log=False
        ... )
        >>> for batch in loader:
        ...     loss = F.cross_entropy(model(batch.x, batch.edge_index), batch.y, reduction="none")
        ...     loss = (loss * batch.node_norm)[batch.train_mask].sum()
    """

    def __init__(
        self, data: Any, batch_size: int, walk_length: int, *args: Any, **kwargs: Any
    ) -> None:
        self.walk_length = check_length(walk_length, name="walk_length")
        super().__init__(data, batch_size, *args, **kwargs)

    def _law(self) -> dict[str, Any]:
        return {**super()._law(), "walk_length": self.walk_length}

    def _prepare_draws(self, sampler: NeighborSampler) -> None:
        # One thread: batches are what runs in parallel.
        self._walker = walker_over(keyed(sampler).graph, threads=1)

    def _draw_nodes(self, key: BatchKey) -> Tensor:
        start = rng.integers(key, 0, self._batch_size, self.N)
        return self._walker.walk(start, self.walk_length, seed=key).view(-1)
