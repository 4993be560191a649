"""What PyG's tests of its loaders rely on, on graphs of our own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

NODES, EDGES, LINKS = 30, 90, 40
LOADERS = pytest.mark.parametrize("make", [NeighborLoader, LinkNeighborLoader])


def pairs(count: int, src: int = NODES, dst: int = NODES, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(n, (count,), generator=generator) for n in (src, dst)])


# Graphs of nodes alone ############################################################################


def alone(kind: str) -> Any:
    if kind == "typed":
        data = HeteroData()
        data["a"].num_nodes = NODES
        return data
    return Data(num_nodes=NODES) if kind == "count" else Data(x=torch.arange(NODES)[:, None])


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("kind", ["count", "features", "typed"])
@pytest.mark.parametrize("fanouts", [[], [3], [-1, -1]])
def test_a_graph_of_nodes_alone_gives_its_seeds(kind: str, fanouts: list[int]) -> None:
    data = alone(kind)
    seeds: Any = ("a", torch.arange(10)) if kind == "typed" else torch.arange(10)
    for batch in NeighborLoader(data, fanouts, seeds, batch_size=5):
        store = batch["a"] if kind == "typed" else batch
        assert store.n_id.tolist() == store.input_id.tolist()
        assert batch.num_nodes == store.batch_size == 5
        if kind == "features":
            assert batch.x[:, 0].tolist() == batch.n_id.tolist()
        if kind != "typed":
            assert "edge_index" not in batch  # as in PyG
            assert len(batch.e_id) == 0


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("kind", ["count", "features", "typed"])
def test_links_between_nodes_alone_have_their_ends(kind: str) -> None:
    links: Any = pairs(LINKS)
    given = (("a", "to", "a"), links) if kind == "typed" else links
    for batch in LinkNeighborLoader(alone(kind), [], given, batch_size=8):
        nodes = batch["a"] if kind == "typed" else batch
        store = batch["a", "to", "a"] if kind == "typed" else batch
        assert torch.equal(nodes.n_id[store.edge_label_index], links[:, store.input_id])
        assert batch.num_nodes == len(store.edge_label_index.unique())


LAWS: dict[str, dict[str, Any]] = {
    "times": {"time_attr": "time"},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "disjoint": {"disjoint": True},
    "replace": {"replace": True},
    "labor": {"sampling": "labor"},
    "adaptive": {"sampling": "adaptive"},
}


@pytest.mark.parametrize("law", list(LAWS))
def test_every_law_takes_a_graph_of_nodes_alone(law: str) -> None:
    data = Data(x=torch.ones(NODES, 2), time=torch.arange(NODES))
    loader = NeighborLoader(data, [2, 2], batch_size=10, **LAWS[law])
    assert [batch.num_nodes for batch in loader] == [10, 10, 10]


def test_a_sampler_of_nodes_alone_gives_them_in_both_directions() -> None:
    data = alone("features")
    seeds = NodeSamplerInput(None, torch.tensor([4, 2]))
    for direction in ("forward", "backward"):
        out = NeighborSampler(data, [2], sample_direction=direction).sample_from_nodes(seeds)
        assert out.node.tolist() == [4, 2]
        assert len(out.row) == len(out.col) == len(out.edge) == 0


# Calls, counts and links ##########################################################################


def graph() -> Data:
    return Data(x=torch.arange(NODES), edge_index=pairs(EDGES), edge_attr=torch.arange(EDGES))


@LOADERS
@pytest.mark.parametrize("filter_per_worker", [None, True, False])
def test_a_loader_that_is_called_takes_positions_of_any_shape(
    make: Any, filter_per_worker: bool | None
) -> None:
    data = graph()
    loader = make(data, [-1, -1], batch_size=4, filter_per_worker=filter_per_worker)
    batch = loader([[torch.tensor(3), torch.tensor(7)], [torch.tensor(1), torch.tensor(0)]])
    assert batch.input_id.tolist() == [3, 7, 1, 0]
    assert torch.equal(batch.x, batch.n_id)
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.edge_attr])


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_counts_of_each_hop_on_a_chain_with_a_branch(dtype: torch.dtype) -> None:
    """0 <- 1 <- 2 <- {3, 4}; 2 <- 5: with all neighbours, and seeds 0 and 6, which is alone."""
    edges = torch.tensor([[1, 2, 3, 4, 5], [0, 1, 2, 2, 2]], dtype=dtype)
    data = Data(edge_index=edges, num_nodes=7)
    (batch,) = NeighborLoader(data, [1, 2, 4], torch.tensor([0, 6]), batch_size=2)
    assert batch.num_sampled_nodes == [2, 1, 1, 3]
    assert batch.num_sampled_edges == [1, 1, 3]
    assert batch.edge_index.dtype == dtype
    typed = HeteroData()
    typed["a"].num_nodes = typed["b"].num_nodes = 7
    typed["a", "to", "b"].edge_index = typed["b", "to", "a"].edge_index = edges
    (batch,) = NeighborLoader(typed, [1, 2, 4], ("a", torch.tensor([0, 6])), batch_size=2)
    assert batch["a"].num_sampled_nodes == [2, 0, 1, 0]
    assert batch["b"].num_sampled_nodes == [0, 1, 0, 3]
    assert batch["b", "to", "a"].num_sampled_edges == [1, 0, 3]
    assert batch["a", "to", "b"].num_sampled_edges == [0, 1, 0]


@pytest.mark.parametrize("dtype", [None, torch.int64])
def test_labels_of_binary_negatives_have_the_dtype_of_those_given(
    dtype: torch.dtype | None,
) -> None:
    label = None if dtype is None else torch.ones(EDGES, dtype=dtype)
    loader = LinkNeighborLoader(
        graph(), [2], batch_size=10, edge_label=label, neg_sampling_ratio=1.0
    )
    for batch in loader:
        assert batch.edge_label.dtype == (dtype or torch.float32)
        assert batch.edge_label.tolist() == [1] * 10 + [0] * 10
