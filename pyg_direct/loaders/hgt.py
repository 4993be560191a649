"""`HGTLoader` and `HGTSampler`: nodes of every type, by their ties to what was drawn before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch_geometric.loader
import torch_geometric.sampler
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling
from torch_geometric.typing import NodeType
from typing_extensions import Unpack

from ..core.arguments import check_count, check_dense, check_ids, check_partner, shown
from ..core.types import BatchKey
from ..graph.verify import verified
from ..loading.options import LoaderOptions, given, takes
from ..loading.seeds import node_seeds
from ..ops.host.budget import Budgets
from ..sampling.sampler import NeighborSampler, keyed
from .base import CpuDrawnLoader, check_sampler

NumSamples = Sequence[int] | Mapping[NodeType, Sequence[int]]


class HGTSampler(NeighborSampler, torch_geometric.sampler.HGTSampler):  # type: ignore[misc]
    """Drop-in replacement of `torch_geometric.sampler.HGTSampler`, without `torch-sparse`.

    Hu et al., "Heterogeneous Graph Transformer" (WWW 2020), section 4.2: each node drawn adds
    1 / degree to the budget of its in-neighbours, for each edge type; in each hop `num_samples`
    nodes of every type are drawn, one after the other, each from those left in proportion to the
    square of their budgets. All types of a hop draw from the budgets that the hop before left. The
    subgraph has all edges between its nodes. Nodes of one hop come in the order in which the budget
    met them.

    PyG's version looks at 50 neighbours at most, drawn anew for the budgets and for the edges; here
    all count, as in the paper. Nodes are drawn and edges looked up on the CPU.

    Args:
        data: `HeteroData`.
        num_samples: nodes to draw of each type in each hop: a list for all types, or a dict with a
            list, of the same length, for every type.
        is_sorted: `edge_index` is sorted by column. Sorted edges are found without it, too.
        share_memory: accepted for PyG's sake; nothing is copied to other processes.
        seed: base seed of all draws; see `NeighborSampler`.

    Raises:
        NotImplementedError: `data` has no types.
        ValueError, TypeError: a wrong argument; the message says which.

    Example:
        >>> from torch_geometric.sampler import NodeSamplerInput
        >>> sampler = pyg_direct.HGTSampler(hetero, [16, 16], seed=0)
        >>> seeds = NodeSamplerInput(None, torch.arange(8), input_type="paper")
        >>> out = sampler.sample_from_nodes(seeds)
        >>> len(out.node["paper"]), len(out.node["institution"])  # 8 + 2 * 16, and all 10 of them
        (40, 10)
    """

    def __init__(
        self,
        data: HeteroData,
        num_samples: NumSamples,
        is_sorted: bool = False,
        share_memory: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        if not isinstance(data, HeteroData):
            raise NotImplementedError(
                f"HGTSampler needs a HeteroData, got {type(data).__name__}: HGT draws by node type."
            )
        super().__init__(
            data,
            [],
            subgraph_type="induced",
            is_sorted=is_sorted,
            share_memory=share_memory,
            device="cpu",
            seed=seed,
        )
        self._counts = _counts(num_samples, self.node_types)
        self.num_samples: Any = dict(zip(self.node_types, self._counts.T.tolist(), strict=True))
        self.num_hops = len(self._counts)
        self._budgets: deque[Budgets] = deque()

    def _sample(self, key: BatchKey, seed: Any, *rules: Any, **of_links: Any) -> Any:
        """Draw the nodes, and give all edges between them."""
        for kind, seeds in seed.items():
            check_ids(seeds, self._keyed.num_nodes_of(kind), "seeds")
        try:
            budgets = self._budgets.pop()
        except IndexError:
            budgets = Budgets(verified(self._keyed.graph.csc))
        nodes = budgets.draw([seed.get(kind) for kind in self.node_types], self._counts, key)
        self._budgets.append(budgets)  # not after an exception
        return super()._sample(key, dict(zip(self.node_types, nodes, strict=True)))

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        *,
        key: tuple[int, int] | None = None,
    ) -> Any:
        """Raise: HGT samples around nodes."""
        raise NotImplementedError("HGTSampler samples around nodes, not around edges.")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_budgets": deque()}


def _counts(num_samples: Any, node_types: Sequence[Any]) -> Any:
    """Return [hops, T] how many nodes to draw."""
    by_type = num_samples
    if not isinstance(num_samples, Mapping):
        by_type = dict.fromkeys(node_types, num_samples)
    lists = []
    for kind in node_types:
        if kind not in by_type or not isinstance(by_type[kind], (list, tuple)):
            raise ValueError(
                f"num_samples must be a list with a number for each hop, or a dict with such a "
                f"list for each node type of {list(node_types)}, got {shown(num_samples)}."
            )
        lists.append([check_count("num_samples", value) for value in by_type[kind]])
    unknown = sorted(set(by_type) - set(node_types))
    if unknown or len({len(values) for values in lists}) > 1:
        raise ValueError(
            f"num_samples needs lists of one length, for the node types {list(node_types)} alone, "
            f"got {shown(num_samples)}."
        )
    return np.array(lists, np.int64).T.reshape(-1, len(node_types))


class HGTLoader(CpuDrawnLoader, torch_geometric.loader.HGTLoader):  # type: ignore[misc]
    """Drop-in replacement of `torch_geometric.loader.HGTLoader`, without `torch-sparse`.

    The law is that of `HGTSampler`. On a GPU the attributes are gathered there and the batch
    arrives there.

    Args:
        data: `HeteroData`.
        num_samples: see `HGTSampler`.
        input_nodes: seeds: a node type, or (type, ids or bool mask).
        is_sorted: `edge_index` is sorted by column.
        transform: called with each finished batch.
        transform_sampler_output: called with each `SamplerOutput`, before features are gathered.
        filter_per_worker: gather and transform in the producers (True, the default) or in the
            thread that asks for the batch (False).
        device: where batches arrive; see `pyg_direct.NeighborLoader`.
        ids: where `n_id`, `e_id` and `input_id` are, on the 'host' or the 'device'; see
            `pyg_direct.NeighborLoader`.
        feature_dtype: what batches get narrow attributes in; see `pyg_direct.NeighborLoader`.
        seed: base seed of all draws; see `pyg_direct.NeighborLoader`.
        prefetch: batches that each producer works ahead.
        **kwargs: of `torch.utils.data.DataLoader`; `num_workers` counts threads.

    Raises:
        NotImplementedError: `data` has no types.
        ValueError, TypeError: a wrong argument; the message says which.
        IndexError: `input_nodes` out of range.

    Example:
        >>> seeds = ("paper", hetero["paper"].train_mask)
        >>> loader = pyg_direct.HGTLoader(hetero, [64, 64], seeds, batch_size=32, shuffle=True)
        >>> batch = next(iter(loader))
        >>> batch["paper"].batch_size
        32
    """

    @takes(LoaderOptions)
    def __init__(
        self,
        data: HeteroData,
        num_samples: NumSamples,
        input_nodes: Any,
        is_sorted: bool = False,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        filter_per_worker: bool | None = None,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        sampler = HGTSampler(data, num_samples, is_sorted, seed=kwargs.get("seed"))
        if kwargs.get("input_time") is not None:  # which PyG's initialiser takes as well
            check_partner("input_time", "time_attr, which HGTLoader does not have", False)
        check_dense("input_nodes", input_nodes)
        found = given(
            type(self),
            kwargs,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
        )
        self._prepare(data, [], {}, sampler, found)
        # Past the initialiser of PyG's HGTLoader, which would build a sampler of its own.
        torch_geometric.loader.NodeLoader.__init__(
            self,
            data,
            node_sampler=sampler,
            input_nodes=node_seeds(input_nodes, kwargs.get("input_id"), data, sampler),
            **found.passed_on,
        )
        seeds = self.input_data
        check_sampler(kwargs.get("sampler"), len(seeds.node), "seeds")
        check_ids(seeds.node, keyed(sampler).num_nodes_of(seeds.input_type), "input_nodes")

    def _sample(self, inputs: Any, key: BatchKey | None) -> Any:
        return cast(HGTSampler, self._sampler).sample_from_nodes(inputs, key=key)

    def _num_seeds(self) -> int:
        return int(self.input_data.node.numel())

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        seeds, sampler = self.input_data, cast(HGTSampler, self._sampler)
        arguments = {"loader": "HGTLoader", "input_type": str(seeds.input_type)}
        return {**arguments, "num_samples": str(sampler.num_samples)}, [seeds.node, seeds.input_id]
