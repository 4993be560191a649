"""An argument whose meaning hangs on another one is refused without it, by name."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

NODES, EDGES = 8, 20
AA = ("a", "to", "a")
PARTITION = torch.arange(NODES) % 2


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES, (2, EDGES), generator=generator)
    return Data(edge_index=edge_index, num_nodes=NODES, time=torch.arange(NODES))


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].num_nodes = NODES
    data[AA].edge_index = graph().edge_index
    return data


def hops(build: Any, data: Any = None, **arguments: Any) -> Any:
    return build(graph() if data is None else data, [2], **arguments)


ALONE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    f"{name} {argument}": (build, argument, arguments)
    for name, build in (
        ("sampler", NeighborSampler),
        ("nodes", NeighborLoader),
        ("links", LinkNeighborLoader),
    )
    for argument, arguments in (
        ("temporal_strategy='last'", {"temporal_strategy": "last"}),
        ("time_window", {"time_window": 3}),
        ("layer_dependency=True", {"sampling": "adaptive", "layer_dependency": True}),
        ("directed=False", {"directed": False, "subgraph_type": "bidirectional"}),
    )
} | {
    "typed last": (
        NeighborLoader, "temporal_strategy='last'",
        {"data": typed(), "input_nodes": "a", "temporal_strategy": "last"},
    ),
    "strict_negatives": (LinkNeighborLoader, "strict_negatives=True", {"strict_negatives": True}),
    "no ratio": (
        LinkNeighborLoader, "strict_negatives=True",
        {"strict_negatives": True, "neg_sampling_ratio": 0},
    ),
    "times of links": (LinkNeighborLoader, "edge_label_time", {
        "edge_label_time": torch.arange(EDGES), "neighbor_sampler": NeighborSampler(graph(), [2]),
    }),
    "times of nodes": (NeighborLoader, "input_time", {
        "input_time": torch.arange(NODES), "neighbor_sampler": NeighborSampler(graph(), [2]),
    }),
    "windows": (NeighborLoader, "input_end_time", {"input_end_time": torch.arange(NODES)}),
    "windows of links": (
        LinkNeighborLoader, "input_start_time", {"input_start_time": torch.arange(EDGES)},
    ),
    "excluding sampler": (NeighborLoader, "exclude_seed_edges", {
        "neighbor_sampler": NeighborSampler(graph(), [2], exclude_seed_edges=True),
    }),
    "strict sampler": (NeighborLoader, "strict_negatives", {
        "neighbor_sampler": NeighborSampler(graph(), [2], strict_negatives=True),
    }),
    "batch_dependency": (NeighborLoader, "batch_dependency=4", {"batch_dependency": 4}),
    "cache_policy": (NeighborLoader, "cache_policy", {"cache_policy": "degree"}),
}  # fmt: skip


@pytest.mark.parametrize("case", list(ALONE))
@pytest.mark.filterwarnings("ignore:directed=False is deprecated")
def test_an_argument_of_sampling_without_its_partner_is_refused(case: str) -> None:
    build, argument, arguments = ALONE[case]
    with pytest.raises(ValueError, match=f"^(input_start_time and )?{argument}"):
        hops(build, **arguments)


FAMILY: dict[str, tuple[Any, str]] = {
    "hgt": (
        lambda: pyg_direct.HGTLoader(typed(), [2], "a", input_time=torch.arange(NODES)),
        "input_time",
    ),
    **{
        f"saint {cls.__name__}": (
            lambda cls=cls, arguments=arguments: cls(graph(), 2, *arguments, save_dir="somewhere"),
            "save_dir",
        )
        for cls, arguments in (
            (pyg_direct.GraphSAINTNodeSampler, ()),
            (pyg_direct.GraphSAINTEdgeSampler, ()),
            (pyg_direct.GraphSAINTRandomWalkSampler, (2,)),
        )
    },
    "cluster filename": (
        lambda: pyg_direct.ClusterData(graph(), 2, filename="x", partition=PARTITION),
        "filename",
    ),
    "cluster recursive": (
        lambda: pyg_direct.ClusterData(graph(), 2, recursive=True, partition=PARTITION),
        "recursive=True",
    ),
    "shadow": (
        lambda: pyg_direct.ShaDowKHopSampler(graph(), 1, 2, tail="drop"),
        "tail",
    ),
    "pagerank": (lambda: pyg_direct.PageRankLoader(graph(), 2, owners="hash"), "owners"),
}


@pytest.mark.parametrize("case", list(FAMILY))
def test_an_argument_of_another_loader_without_its_partner_is_refused(case: str) -> None:
    build, argument = FAMILY[case]
    with pytest.raises(ValueError, match=f"^{argument}"):
        build()


def test_a_sampler_without_times_is_not_set_to_the_last() -> None:
    sampler = NeighborSampler(graph(), [2])
    with pytest.raises(ValueError, match="temporal_strategy='last' has no meaning without"):
        sampler.temporal_strategy = "last"
    sampler.temporal_strategy = "uniform"


@pytest.mark.parametrize("as_dict", [False, True])
def test_weights_of_the_sources_of_triplets_are_said_to_have_no_effect(as_dict: bool) -> None:
    """They are those of the links. PyG's own programs pass both weights."""
    given = {"mode": "triplet", "src_weight": torch.ones(NODES), "dst_weight": torch.ones(NODES)}
    with pytest.warns(UserWarning, match="src_weight has no effect with mode='triplet'"):
        hops(LinkNeighborLoader, neg_sampling=given if as_dict else NegativeSampling(**given))


def test_options_beside_their_partners_are_taken() -> None:
    """So that no check refuses everything; values that are PyG's defaults need no partner."""
    times = {"time_attr": "time", "temporal_strategy": "last"}
    assert len(hops(NeighborLoader, **times)) == NODES
    assert len(hops(LinkNeighborLoader, edge_label_time=torch.arange(EDGES), **times)) == EDGES
    assert len(hops(NeighborLoader, temporal_strategy="uniform", time_window=None)) == NODES
    negatives = NegativeSampling("binary", 1, torch.ones(NODES))
    assert len(hops(LinkNeighborLoader, neg_sampling=negatives)) == EDGES
    assert len(pyg_direct.HGTLoader(typed(), [2], "a", input_time=None)) == NODES
