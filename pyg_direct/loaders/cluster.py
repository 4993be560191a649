"""`ClusterData` and `ClusterLoader`: parts of a graph, and batches of several parts."""

from __future__ import annotations

import copy
import os
from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from typing_extensions import Unpack

from ..batch.roles import roles_in
from ..batch.subgraph import entries_of, swapped_ends
from ..core.arguments import check_count, check_flag, check_partner, shown
from ..core.pyg import Partition, ptr2index, store_of
from ..core.quantized import QuantizedTensor, narrow_rows
from ..core.types import BatchKey
from ..graph.coo_to_csc import undirected
from ..loading.options import LoaderOptions, given, takes
from ..sampling.sampler import NeighborSampler, keyed
from .base import SubgraphLoader, check_edges

MANY_PARTS = 1 << 16  # so many, and empty ones, of any graph
PygClusterData = torch_geometric.loader.ClusterData  # also while `swapped()` renames it


class ClusterData(PygClusterData):
    """Drop-in replacement of `torch_geometric.loader.ClusterData`, without a package of PyG's.

    Chiang et al., "Cluster-GCN" (KDD 2019). The parts are METIS's, from the package `pymetis`
    (extra `cluster`), or any partition of the nodes that you have. Saved parts are PyG's files.

    METIS is given the graph without directions and parallel edges, and works in memory: see
    `docs/guides/every_loader.md` for how much.

    Args:
        data: `Data` with `edge_index`.
        num_parts: number of parts.
        recursive: recursive bisection instead of k-way partitioning.
        save_dir: folder where the parts are saved, and from where they are loaded if they are
            there.
        filename: name of the file in ``save_dir/part_<num_parts>``.
        log: say on stderr when partitioning begins and ends.
        keep_inter_cluster_edges: ``cluster_data[i]`` has the edges to other parts, too.
        sparse_format: 'csr' keeps edges by source, 'csc' by destination.
        partition: int64 [num_nodes], the part of each node, in [0, num_parts), instead of METIS's.

    Raises:
        ImportError: neither `partition` nor `pymetis`.
        ValueError, TypeError: a wrong argument; the message says which.

    Example:
        >>> partition = torch.arange(data.num_nodes) % 10  # leave it out for METIS
        >>> parts = pyg_direct.ClusterData(data, num_parts=10, partition=partition)
        >>> parts[0].num_nodes
        30
    """

    def __init__(
        self,
        data: Any,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: Literal["csr", "csc"] = "csr",
        *,
        partition: Tensor | None = None,
    ) -> None:
        check_edges(data, "ClusterData")
        if check_count("num_parts", num_parts, 1) > max(data.num_nodes, MANY_PARTS):
            raise ValueError(
                f"num_parts must be at most the number of nodes, {data.num_nodes}, got {num_parts}."
            )
        for name, flag in (("recursive", recursive), ("log", log)):
            check_flag(name, flag)
        check_flag("keep_inter_cluster_edges", keep_inter_cluster_edges)
        if sparse_format not in ("csr", "csc"):
            raise ValueError(f"sparse_format must be 'csr' or 'csc', got {shown(sparse_format)}.")
        if filename is not None:
            check_partner("filename", "save_dir", save_dir)
        if partition is not None:
            _check_partition(partition, num_parts, data.num_nodes)
            if recursive:  # beside save_dir it is a part of the file's name
                check_partner("recursive=True beside partition=", "save_dir", save_dir)
            folder = f"part_{num_parts}{'_recursive' if recursive else ''}"
            path = os.path.join(save_dir or "", folder, filename or "metis.pt")
            if save_dir is not None and os.path.exists(path):
                raise ValueError(
                    f"{path} holds parts, so partition= would be ignored. Remove the file, or "
                    f"choose another filename."
                )
        self._given = partition
        # A saved file holds this class, which torch.load refuses unless it is told to trust it.
        torch.serialization.add_safe_globals([Partition])
        super().__init__(
            data, num_parts, recursive, save_dir, filename, log, keep_inter_cluster_edges,
            sparse_format,
        )  # fmt: skip
        self._given = None

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        """Return the part of each node."""
        if self._given is not None:
            return self._given.to(edge_index.device, torch.int64)
        if self.num_parts == 1:
            return edge_index.new_zeros(num_nodes)
        try:
            import pymetis
        except ImportError as error:
            raise ImportError(
                "ClusterData partitions by METIS: pip install pymetis. "
                "Or pass the part of each node as partition=."
            ) from error
        pointers, neighbours = undirected(edge_index.cpu().numpy(), num_nodes)
        graph = pymetis.CSRAdjacency(pointers, neighbours)
        _, parts = pymetis.part_graph(self.num_parts, graph, recursive=self.recursive)
        return torch.tensor(parts, dtype=torch.int64, device=edge_index.device)

    def _permute_data(self, data: Any, partition: Partition) -> Any:
        """Bring attributes into the order of the parts; tables of `quantize` stay as narrow.

        Raises:
            ValueError: saved parts of another graph.
        """
        nodes, edges = partition.node_perm.numel(), partition.edge_perm.numel()
        if (nodes, edges) != (data.num_nodes, data.num_edges):
            raise ValueError(
                f"The saved parts are of {nodes} nodes and {edges} edges, but the graph has "
                f"{data.num_nodes} and {data.num_edges}. Remove the file, or choose another "
                f"save_dir."
            )
        out = _with_entries(data, partition.node_perm, partition.edge_perm, (nodes, edges))
        out.edge_index = None  # as in PyG: `partition` has them
        return out

    def __getitem__(self, idx: int) -> Data:
        """Return one part with the edges within it; with `keep_inter_cluster_edges`, those of it.

        PyG tells attributes of edges by their names here, as the edges are not part of `data`.
        """
        parts = self.partition
        first, last = int(parts.partptr[idx]), int(parts.partptr[idx + 1])
        begin, end = int(parts.indptr[first]), int(parts.indptr[last])
        owner = ptr2index(parts.indptr[first : last + 1] - begin)
        other, edge = parts.index[begin:end], torch.arange(begin, end, device=parts.index.device)
        if not self.keep_inter_cluster_edges:
            inside = (other >= first) & (other < last)
            owner, other, edge = owner[inside], other[inside] - first, edge[inside]
        node = torch.arange(first, last, device=edge.device)
        out: Data = _with_entries(self.data, node, edge, _counts(parts))
        if "num_nodes" in out:
            out.num_nodes = last - first
        ends = (owner, other) if parts.sparse_format == "csr" else (other, owner)
        out.edge_index = torch.stack(ends)
        return out


def _counts(parts: Partition) -> tuple[int, int]:
    """Return the numbers of nodes and edges of a graph in parts."""
    return parts.node_perm.numel(), parts.index.numel()


def _with_entries(data: Data, node: Tensor, edge: Tensor, counts: tuple[int, int]) -> Any:
    """Return a copy of a graph of so many nodes and edges with the entries of some of them."""
    out, roles = copy.copy(data), roles_in(store_of(data, None), counts)
    for attributes, index in zip(roles, (node, edge), strict=True):
        for role in attributes:
            value = data[role.name]
            narrow = isinstance(value, QuantizedTensor)
            chosen = narrow_rows(value, index) if narrow else entries_of(value, index, role.dim)
            out[role.name] = chosen
    return out


def _check_partition(partition: Any, num_parts: int, num_nodes: int) -> None:
    integers = isinstance(partition, Tensor) and not (
        partition.is_floating_point() or partition.dtype == torch.bool
    )
    if not integers or partition.shape != (num_nodes,):
        raise ValueError(
            f"partition must hold one integer for each of {num_nodes} nodes, got "
            f"{shown(partition)}."
        )
    low, high = (int(part) for part in partition.aminmax()) if num_nodes > 0 else (0, 0)
    if low < 0 or high >= num_parts:
        raise ValueError(f"partition must hold parts in [0, {num_parts}), got {low} to {high}.")


class ClusterLoader(SubgraphLoader, torch_geometric.loader.ClusterLoader):
    """Drop-in replacement of `torch_geometric.loader.ClusterLoader`.

    A batch has the nodes of `batch_size` parts, part by part, and all edges between them. Edges are
    looked up on the CPU; on a GPU the attributes are gathered there and the batch arrives there.

    Args:
        cluster_data: a `ClusterData`, ours or PyG's.
        device: where batches arrive; see `pyg_direct.NeighborLoader`.
        ids: where your own attributes named `n_id`, `e_id` or `input_id` are, on the 'host' or the
            'device'; see `pyg_direct.NeighborLoader`.
        feature_dtype: what batches get narrow attributes in; see `pyg_direct.NeighborLoader`.
        seed: base seed of `shuffle`; see `pyg_direct.NeighborLoader`.
        prefetch: batches that each producer works ahead.
        **kwargs: of `torch.utils.data.DataLoader`; `num_workers` counts threads.

    Example:
        >>> partition = torch.arange(data.num_nodes) % 10
        >>> parts = pyg_direct.ClusterData(data, num_parts=10, partition=partition)
        >>> loader = pyg_direct.ClusterLoader(parts, batch_size=2, shuffle=True, seed=0)
        >>> [batch.num_nodes for batch in loader]
        [60, 60, 60, 60, 60]
    """

    _at_positions = "parts"

    @takes(LoaderOptions)
    def __init__(
        self,
        cluster_data: PygClusterData,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        if not isinstance(cluster_data, PygClusterData):
            raise TypeError(
                f"cluster_data must be a ClusterData, got {type(cluster_data).__name__}."
            )
        self.cluster_data = cluster_data
        self.data = cluster_data.data
        parts = cluster_data.partition
        ends = [ptr2index(parts.indptr), parts.index]
        by_source = parts.sparse_format == "csr"
        graph = Data(
            edge_index=torch.stack(ends if by_source else ends[::-1]).cpu(),
            num_nodes=parts.node_perm.numel(),
        )
        sampler = NeighborSampler(
            graph,
            [],
            subgraph_type="induced",
            sample_direction="backward" if by_source else "forward",
            device="cpu",
            seed=kwargs.get("seed"),
        )
        self._bounds = parts.partptr.cpu()
        self._begin(self.data, sampler, len(cluster_data), given(type(self), kwargs))
        self._tell_roles(*_counts(parts))

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        return {"loader": type(self).__name__}, [self._bounds]

    def _sample(self, inputs: Tensor, key: BatchKey | None) -> Any:
        first, last = self._bounds[inputs].tolist(), self._bounds[inputs + 1].tolist()
        node = torch.cat([torch.arange(a, b) for a, b in zip(first, last, strict=True)])
        return node, keyed(self._sampler).sample([node], BatchKey(0, 0))  # nothing is drawn

    def filter_fn(self, out: Any) -> Data:
        """Gather the attributes of the parts."""
        node, found = out
        partition = self.cluster_data.partition
        ends = found.edge_index[0]
        if partition.sparse_format == "csr":
            ends = swapped_ends(ends)
        batch: Data = copy.copy(self.data)
        gatherer = self._gatherer()
        for name, value in self._attributes(node, found.edge[0], gatherer):
            batch[name] = value
        if "num_nodes" in self.data:
            batch.num_nodes = len(node)
        batch.edge_index = self._backend.memory.to_batch(ends, partition.index.device)
        self._recorder.assembled(batch, gatherer)
        return batch
