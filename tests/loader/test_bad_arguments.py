"""Every argument has values that are wrong, and each is refused at once, by name."""

import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from graphs import example_graph
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling
from torch_geometric.testing import MyFeatureStore, MyGraphStore
from versions import IN_ORDER

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

NODES, EDGES = 12, 20
NAN, INF = float("nan"), float("inf")
NO_FLAGS = ("yes", 2, 0.5, None, torch.tensor(True), [])


def graph() -> Data:
    data = example_graph()
    data.time, data.weight = torch.arange(NODES), torch.rand(EDGES)
    data.short, data.shape2 = torch.rand(7), torch.ones(EDGES, 2)
    data.nan = torch.tensor([1.0, NAN] * (EDGES // 2))
    data.negative = torch.arange(EDGES) - 3
    return data


class Row:
    """A wrong value of an argument, beside other arguments that are right."""

    def __init__(self, value: Any, names: str = "", **beside: Any) -> None:
        self.value, self.names, self.beside = value, names, beside


def rows(table: dict[str, Iterable[Any]]) -> list[Any]:
    """Return (argument, row) for each; what is no `Row` is a value that is wrong alone."""
    return [
        pytest.param(name, case if isinstance(case, Row) else Row(case), id=f"{name}-{i}")
        for name, cases in table.items()
        for i, case in enumerate(cases)
    ]


TIMES = {"time_attr": "time"}
LINK = {**TIMES, "edge_label_time": torch.arange(EDGES)}
ONES = torch.ones(NODES)

# Of the sampler, and so of both loaders.
SAMPLING: dict[str, Iterable[Any]] = {
    "data": (None, "cora", 3, {"x": 1}, [1, 2], (graph(),), graph().edge_index,
             (MyGraphStore(), MyFeatureStore())),
    "num_neighbors": (None, 5, "all", 2.0, [1.5], [True], [None], ["a"], [[1]], [2**70], {"x": 3},
                      {("a", "to", "b"): [1]}, torch.tensor([1.5]), torch.tensor([[1]]), [1] * 256,
                      np.array([1.5])),
    "replace": NO_FLAGS,
    "subgraph_type": ("undirected", None, 3, True, ["induced"]),
    "disjoint": NO_FLAGS,
    "temporal_strategy": ("first", None, 3, True, ["last"]),
    "time_window": (-1, 1.5, "day", True, Row(3)),
    "sampling": ("poisson", None, 3, True, ["labor"], Row("labor", replace=True),
                 Row("labor", disjoint=True), Row("labor", **TIMES)),
    "layer_dependency": (*NO_FLAGS, True),
    "time_attr": ("when", 3, True, ["time"], "x", "name", "short", "weight"),
    "weight_attr": ("w", 3, True, ["weight"], "x", "name", "short", "shape2", "nan", "negative"),
    "is_sorted": (True, "yes", 2, 0.5, None),
    "directed": NO_FLAGS,
    "device": ("gpu", "mps", 1.5, -1, [0], "cuda:x"),
    "seed": ("1", 1.0, True, -1, 2**64, [1], torch.tensor(1)),
    "topology": ("gpu", None, 3, True, ["auto"]),
    "device_bytes": (-1, 1.5, "2", True, [1]),
}  # fmt: skip

# Of the sampler and of links.
EXCLUSION: dict[str, Iterable[Any]] = {
    "exclude_seed_edges": ("both", 1.5, 2, [1], ("a", "b", "c"), torch.tensor([0]),
                           Row(True, subgraph_type="bidirectional")),
    "strict_negatives": NO_FLAGS,
}  # fmt: skip

SAMPLER: dict[str, Iterable[Any]] = {
    **SAMPLING,
    **EXCLUSION,
    "device": ("gpu", 1.5, -1, [0], "cuda:x"),
    "share_memory": NO_FLAGS,
    "sample_direction": ("up", None, 3, True),
    "threads": (0, -1, 1.5, "2", None, True),
}

# Of both loaders; those of `DataLoader` are below.
LOADER: dict[str, Iterable[Any]] = {
    **SAMPLING,
    "transform": (3, "x", [len]),
    "transform_sampler_output": (3, "x", [len]),
    "filter_per_worker": ("yes", 2, 0.5),
    "neighbor_sampler": ("x", 3, object(), NeighborSampler, lambda index: index),
    "ids": ("gpu", None, 3, True, ["host"]),
    "batch_dependency": (0, -1, 1.5, "2", True, None, 8),
    "order": (
        "near",
        3,
        True,
        [0, 1],
        torch.zeros(3, dtype=torch.int64),
        ONES,
        Row("proximity", shuffle=True),
    ),
    "static_shapes": (
        3,
        None,
        "yes",
        [9, 9],
        {"rows": 9},
        {"nodes": -1},
        {"nodes": "9"},
        {"edges": 1.5},
        {"edges": {"a": 9}},
        Row(True, subgraph_type="bidirectional"),
        Row(True, transform_sampler_output=len),
    ),
    "prefetch": (-1, 1.5, True, None, "2", Row(3, prefetch_factor=4, num_workers=1)),
    "features": ("gpu", None, 3, True, ["auto"]),
    "gather_blocks": (0, -1, 1.5, "2", True, [1]),
    "cache": (-1, 1.5, "all", True, [1], float("nan")),
    "cache_policy": ("lru", 5, None, [1], "degree"),
    "gpu": ("cuda", 1, {"cache": 1}),
    "feature_dtype": (torch.float64, torch.int8, torch.float32, "float16", 16, [torch.float16]),
    "input_id": ("x", 3, [1, 2], torch.arange(5), torch.ones(EDGES), torch.zeros(2, 2)),
    "custom_cls": (3, "x", HeteroData, Data),
    "no_such_argument": (1,),
}

NODE: dict[str, Iterable[Any]] = {
    **LOADER,
    "input_nodes": (torch.tensor([0, NODES]), [3, -1], range(13), torch.tensor([1.0]), [0.5, 1],
                    torch.zeros(2, 2, dtype=torch.int64), torch.tensor(3), 3, "paper", {"a": 1},
                    ("paper", None), [None], object(), torch.tensor([1j]),
                    torch.ones(NODES - 1, dtype=torch.bool)),
    "input_start_time": (torch.arange(NODES), 3, "x", Row("x", **TIMES), Row([1] * NODES, **TIMES),
                         Row(torch.arange(5), **TIMES), Row(torch.rand(NODES), **TIMES),
                         Row(torch.full((NODES,), 2**40), **TIMES)),
    "input_end_time": (torch.arange(NODES), 3, "x", Row("x", **TIMES), Row([1] * NODES, **TIMES),
                         Row(torch.arange(5), **TIMES), Row(torch.rand(NODES), **TIMES),
                         Row(torch.full((NODES,), 2**40), **TIMES)),
    "input_time": (torch.arange(NODES), 3, "x", [1] * NODES, Row("x", **TIMES),
                   Row([1] * NODES, **TIMES), Row(torch.arange(5), **TIMES),
                   Row(torch.rand(NODES), **TIMES), Row(torch.tensor(3), **TIMES),
                   Row(torch.zeros(NODES, 2, dtype=torch.int64), **TIMES)),
}  # fmt: skip


def weights(mode: str, src: Any, dst: Any) -> NegativeSampling:
    return NegativeSampling(mode, 1, src, dst)


LINK: dict[str, Iterable[Any]] = {
    **LOADER,
    **EXCLUSION,
    "time_attr": ("time", *(Row(v, edge_label_time=torch.zeros(EDGES, dtype=torch.int64))
                            for v in ("when", 3, "x", "short", "weight"))),
    "edge_label_index": (torch.tensor([0, 1]), torch.zeros(3, 2, dtype=torch.int64),
                         torch.tensor([[0.5], [1]]), torch.tensor([[True], [False]]), [[0], [1]],
                         torch.tensor([[0], [NODES]]), torch.tensor([[-1], [0]]), "x", 3, object(),
                         ("a", "b"), (("a", "b"), None), np.zeros((2, 3), int)),
    "edge_label": ("x", 3, [0] * EDGES, torch.tensor(0.0), torch.zeros(3), torch.zeros(3, EDGES),
                   Row(torch.zeros(EDGES), neg_sampling="triplet"),
                   Row(torch.empty(0), neg_sampling="binary"), torch.empty(0)),
    "input_start_time": (torch.arange(EDGES), 3, "x", Row("x", **LINK), Row([1] * EDGES, **LINK),
                         Row(torch.arange(5), **LINK), Row(torch.rand(EDGES), **LINK),
                         Row(torch.full((EDGES,), 2**40), **LINK)),
    "input_end_time": (torch.arange(EDGES), 3, "x", Row("x", **LINK), Row([1] * EDGES, **LINK),
                         Row(torch.arange(5), **LINK), Row(torch.rand(EDGES), **LINK),
                         Row(torch.full((EDGES,), 2**40), **LINK)),
    "edge_label_time": (torch.arange(EDGES), Row("x", **TIMES), Row([1] * EDGES, **TIMES),
                        Row(torch.arange(5), **TIMES), Row(torch.rand(EDGES), **TIMES),
                        Row(torch.tensor(3), **TIMES),
                        Row(torch.zeros(EDGES, 2, dtype=torch.int64), **TIMES)),
    "neg_sampling": ("x", 3, True, ["binary"], {"mode": "x"}, {"amount": 1},
                     {"mode": "binary", "n": 1},
                     {"mode": "binary", "amount": -1}, {"mode": "binary", "amount": 0},
                     {"mode": "triplet", "amount": 1.5}, {"mode": "binary", "amount": "a"},
                     {"mode": "binary", "amount": NAN}, {"mode": "binary", "amount": INF},
                     weights("binary", torch.ones(3), None),
                     weights("binary", None, torch.ones(13)),
                     weights("binary", torch.ones(3), ONES), weights("triplet", None, ONES * NAN),
                     weights("triplet", None, ONES * INF), weights("triplet", None, -ONES),
                     weights("triplet", None, ONES * 0), weights("binary", [1] * NODES, None),
                     Row("triplet", neg_sampling_ratio=1.0)),
    "neg_sampling_ratio": (-1.0, NAN, INF, "x", True, [1.0], Row(1, neg_sampling="binary")),
}  # fmt: skip

# `DataLoader` finds some of these itself, by name; the others would only show in an epoch.
WORKER = {"num_workers": 1}
DATA_LOADER: dict[str, Iterable[Any]] = {
    "batch_size": (0, -1, 1.5, "5", True, None, [2]),
    "shuffle": ("yes", 2, 0.5, Row(True, "mutually exclusive", sampler=[0])),
    "sampler": (3, "x", len, Row([0], shuffle=True)),
    "batch_sampler": (3, "x", len, Row([[0]], batch_size=2)),
    "num_workers": (-1, 1.5, "2", None, True),
    "pin_memory": ("yes", 2, 0.5),
    "drop_last": ("yes", 1, None),
    "timeout": (-1, "1", None, True, NAN, [1]),
    "worker_init_fn": (3, "x"),
    "multiprocessing_context": ("spawn", Row("nonsense", **WORKER), Row(3, **WORKER)),
    "generator": (3, "x", torch.manual_seed),
    "prefetch_factor": (-1, 1.5, "2", 2, Row(-1, **WORKER), Row("2", **WORKER)),
    "persistent_workers": (True, "yes", Row("yes", **WORKER)),
    **{name: ("yes", 2) for name in IN_ORDER},
}
# PyG's loaders take these away before `DataLoader` sees them, as Lightning passes them.
DROPPED = {"dataset", "collate_fn"}
# Where torch pins; it is deprecated, and torch ignores it with a warning of its own.
TORCH_ALONE = {"pin_memory_device"}


def arguments_of(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind != p.VAR_KEYWORD} - {"self"}


def refuse(build: type, name: str, row: Row) -> None:
    arguments = {"data": graph(), "num_neighbors": [2, 2], **row.beside, name: row.value}
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        build(**arguments)
    text = str(caught.value)
    assert (row.names or name) in text, text


@pytest.mark.parametrize(("name", "row"), rows(SAMPLER))
def test_the_sampler_refuses(name: str, row: Row) -> None:
    refuse(NeighborSampler, name, row)


@pytest.mark.parametrize(("name", "row"), rows(NODE | DATA_LOADER))
def test_the_node_loader_refuses(name: str, row: Row) -> None:
    refuse(NeighborLoader, name, row)


@pytest.mark.parametrize(("name", "row"), rows(LINK | DATA_LOADER))
def test_the_link_loader_refuses(name: str, row: Row) -> None:
    refuse(LinkNeighborLoader, name, row)


@pytest.mark.parametrize(
    ("function", "table"),
    [
        (NeighborSampler.__init__, SAMPLER),
        (NeighborLoader.__init__, NODE),
        (LinkNeighborLoader.__init__, LINK),
        (NodeLoader.__init__, NODE),
        (LinkLoader.__init__, LINK),
        (DataLoader.__init__, DATA_LOADER),
    ],
    ids=["sampler", "node loader", "link loader", "NodeLoader", "LinkLoader", "DataLoader"],
)
def test_every_argument_has_a_row(function: Any, table: dict[str, Any]) -> None:
    elsewhere = DROPPED | TORCH_ALONE | {"node_sampler", "link_sampler"}
    assert arguments_of(function) - set(table) - elsewhere == set()


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader])
def test_right_values_of_all_checked_options_are_taken(loader: type) -> None:
    """So that no check refuses everything."""
    flags = {"replace": np.bool_(True), "disjoint": 1, "directed": True, "is_sorted": 0}
    options = {"shuffle": None, "timeout": 99.5, "pin_memory": False, **IN_ORDER}
    built = loader(
        graph(), (2, np.int32(-1)), **flags, **options, num_workers=1, batch_size=4,
        transform=lambda batch: batch, generator=torch.Generator(), weight_attr="weight",
        filter_per_worker=1, prefetch_factor=2, worker_init_fn=lambda number: None,
    )  # fmt: skip
    assert len(list(built)) == len(built)


@pytest.mark.pyg("neg_sampling_ratio")
@pytest.mark.parametrize("ratio", [0, 0.0, 2, 0.5, np.float32(1)])
def test_ratios_of_negatives_of_all_number_types_are_taken(ratio: Any) -> None:
    loader = LinkNeighborLoader(graph(), [2], neg_sampling_ratio=ratio, batch_size=EDGES)
    (batch,) = loader
    assert batch.edge_label_index.size(1) == EDGES * (1 + ratio)


def test_times_may_be_negative() -> None:
    data = graph()
    data.time -= 100
    times = {"time_attr": "time", "input_time": data.time - 5}
    assert len(list(NeighborLoader(data, [2], batch_size=4, **times))) == 3


# Graphs with types, in memory and in stores #######################################################

AB, BA = ("a", "to", "b"), ("b", "to", "a")


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.rand(10, 2), torch.rand(8, 2)
    data[AB].edge_index = torch.stack([torch.randint(10, (30,)), torch.randint(8, (30,))])
    data[BA].edge_index = data[AB].edge_index.flip(0)
    return data


def stores() -> tuple[MyFeatureStore, MyGraphStore]:
    data, features, edges = typed(), MyFeatureStore(), MyGraphStore()
    for name in data.node_types:
        features.put_tensor(data[name].x, group_name=name, attr_name="x", index=None)
    for key in data.edge_types:
        size = (data[key[0]].num_nodes, data[key[2]].num_nodes)
        edges.put_edge_index(tuple(data[key].edge_index), edge_type=key, layout="coo", size=size)
    return features, edges


ONE_LINK = torch.tensor([[1], [2]])
TYPED: dict[str, Iterable[Any]] = {
    "num_neighbors": ({AB: [1]}, {AB: [1], BA: [1, 2]}, {AB: [1], BA: [1], ("x", "y", "z"): [1]},
                      {AB: 1, BA: 1}, {"a": [1]}, {AB: [True], BA: [1]}, {AB: [1.5], BA: [1]}),
    "input_nodes": (None, "x", 3, torch.tensor([1]), ("x", None), ("a", None, 1), ["a", "b"],
                    ("a", [0.5]), ("a", torch.tensor([10])), ("b", [8]), {"a": None}, (1, 2),
                    ("a", torch.ones(3, dtype=torch.bool))),
    "edge_label_index": (None, "x", 3, [], ONE_LINK, (AB,), (None, ONE_LINK), (AB, [[1], [2]]),
                         (AB, torch.tensor([[10], [2]])), (AB, torch.tensor([[1], [8]])),
                         (AB, ONE_LINK.float()), ("a", "x"), ("a", "to", "c"), (1, 2),
                         (("b", "b"), None), (("x", "y", "z"), ONE_LINK)),
}  # fmt: skip


@pytest.mark.parametrize("make", [typed, stores])
@pytest.mark.parametrize(("name", "row"), rows(TYPED))
def test_types_are_refused(make: Any, name: str, row: Row) -> None:
    loader = LinkNeighborLoader if name == "edge_label_index" else NeighborLoader
    beside = {} if name == "edge_label_index" else {"input_nodes": "a"}
    row.beside = {"data": make(), **beside}
    refuse(loader, name, row)


@pytest.mark.parametrize("where", ["nodes", "edges"])
@pytest.mark.parametrize("change", [-1, 1])
def test_times_and_weights_of_another_length(where: str, change: int) -> None:
    data = typed()
    if where == "nodes":
        data["a"].time = torch.arange(10 + change)
    else:
        data[AB].time = torch.arange(30 + change)
    times = {"input_nodes": "a", "input_time": torch.arange(10), "time_attr": "time"}
    with pytest.raises(ValueError, match=r"time_attr='time' must .* one entry for each of \d+ "):
        NeighborLoader(data, [2], **times)
    data[AB].weight = torch.rand(30 + change)
    with pytest.raises(ValueError, match=r"weight_attr='weight' must .* of 30 edges"):
        NeighborLoader(data, [2], input_nodes="a", weight_attr="weight")


def test_a_custom_cls_that_is_no_class_is_refused() -> None:
    with pytest.raises(TypeError, match="custom_cls"):
        NeighborLoader(stores(), [2], input_nodes="a", custom_cls="Mine")
