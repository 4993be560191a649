"""Each bad argument gives an error that names it; what is odd but legal gives PyG's result."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from graphs import assert_same_epoch, example_graph, papers_and_authors
from torch_geometric.data import Data
from torch_geometric.datasets import FakeDataset
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

from pyg_direct import NeighborLoader, NeighborSampler


def graph(**changes: Any) -> Data:
    data = example_graph()
    for key, value in changes.items():
        data[key] = value
    return data


def with_edge(position: tuple[int, int], value: int, dtype: torch.dtype = torch.int64) -> Data:
    edge_index = example_graph().edge_index.to(dtype).clone()
    edge_index[position] = value
    return graph(edge_index=edge_index)


Case = tuple[Callable[[], dict[str, Any]], Any, str | None]  # arguments, error, message

BAD_DATA: dict[str, Case] = {
    "source out of range": (
        lambda: {"data": with_edge((0, 4), 12)}, ValueError,
        r"edge_index\[0, 4\] is 12, but .* in \[0, 12\)",
    ),
    "destination out of range": (
        lambda: {"data": with_edge((1, 7), 12)}, ValueError, r"edge_index\[1, 7\] is 12",
    ),
    "negative source": (lambda: {"data": with_edge((0, 0), -1)}, ValueError, r"edge_index\[0, 0\]"),
    "negative destination": (
        lambda: {"data": with_edge((1, 19), -5, torch.int32)}, ValueError, r"edge_index\[1, 19\]",
    ),
    "float edge_index": (
        lambda: {"data": graph(edge_index=example_graph().edge_index.float())}, ValueError,
        r"edge_index must be int64 or int32, got torch.float32",
    ),
    "int16 edge_index": (
        lambda: {"data": graph(edge_index=example_graph().edge_index.short())}, ValueError,
        r"edge_index must be int64 or int32",
    ),
    "bool edge_index": (
        lambda: {"data": graph(edge_index=example_graph().edge_index.bool())}, ValueError,
        r"edge_index must be int64 or int32",
    ),
    "transposed edge_index": (
        lambda: {"data": graph(edge_index=example_graph().edge_index.t())}, ValueError,
        r"edge_index must be a tensor of shape \[2, num_edges\], got \(20, 2\)",
    ),
    "flat edge_index": (
        lambda: {"data": Data(edge_index=torch.arange(6), num_nodes=6)}, ValueError,
        r"edge_index must be a tensor of shape",
    ),
    "edge_index of three dimensions": (
        lambda: {"data": Data(edge_index=torch.zeros(2, 3, 1, dtype=torch.int64), num_nodes=6)},
        ValueError, r"edge_index must be a tensor of shape",
    ),
    "unsorted edges called sorted": (
        lambda: {"is_sorted": True}, ValueError, r"is_sorted=True, but .*edge_index",
    ),
    "dense adj_t": (
        lambda: {"data": Data(adj_t=torch.eye(3), num_nodes=3)}, ValueError, r"adj_t must be a",
    ),
    "a list of graphs": (
        lambda: {"data": [example_graph(), example_graph(), example_graph()]}, ValueError,
        r"got a list of 3 graphs. Pass one of them, or join them",
    ),
    "a data set": (
        lambda: {"data": FakeDataset(num_graphs=2)}, ValueError,
        r"got the data set FakeDataset of 2 graphs. Pass one of them, as dataset\[0\]",
    ),
    "adj_t of blocks": (
        lambda: {"data": Data(adj_t=torch.eye(4).to_sparse_bsr((2, 2)), num_nodes=4)}, ValueError,
        r"adj_t must be a sparse matrix .*got a torch.sparse_bsr tensor. Store the edges as edge_i",
    ),
    "an id too large in a CSR matrix": (
        lambda: {"data": Data(adj_t=torch.eye(5).to_sparse_csr(), num_nodes=4)}, ValueError,
        r"data.adj_t has 5 destinations, but there are 4 nodes",
    ),
    "a weight of no dimension": (
        lambda: {"data": graph(w=torch.tensor(2.0)), "weight_attr": "w"}, ValueError,
        r"weight_attr='w': data.w must hold one weight for each edge, got \(\)",
    ),
    "not a graph": (lambda: {"data": "cora"}, (ValueError, NotImplementedError), r"str|Data"),
}  # fmt: skip

BAD_SEEDS: dict[str, Case] = {
    "too large": (
        lambda: {"input_nodes": torch.tensor([0, 12])}, IndexError,
        r"input_nodes must be node ids in \[0, 12\), got 12",
    ),
    "negative": (lambda: {"input_nodes": [3, -1]}, IndexError, r"input_nodes .* got -1"),
    "negative, and almost a mask": (
        lambda: {"input_nodes": [-1, 0, 1] * 4}, IndexError, r"input_nodes .* got -1",
    ),
    "range too long": (lambda: {"input_nodes": range(13)}, IndexError, r"input_nodes"),
    "float": (
        lambda: {"input_nodes": torch.tensor([1.0])}, ValueError,
        r"input_nodes must be node ids or a bool mask .* got torch.float32",
    ),
    "floats in a list": (lambda: {"input_nodes": [0.5, 1]}, ValueError, r"input_nodes"),
    "two dimensions": (
        lambda: {"input_nodes": torch.zeros(2, 2, dtype=torch.int64)}, ValueError, r"input_nodes",
    ),
    "one id alone": (lambda: {"input_nodes": torch.tensor(3)}, ValueError, r"input_nodes"),
    "a mask of uint8": (
        lambda: {"input_nodes": torch.arange(12, dtype=torch.uint8) % 2}, ValueError,
        r"torch.uint8 of 12 zeros and ones.*input_nodes.bool\(\)",
    ),
    "short mask": (
        lambda: {"input_nodes": torch.ones(11, dtype=torch.bool)}, ValueError,
        r"mask for input_nodes needs 12 entries.*got 11",
    ),
    "long mask": (
        lambda: {"input_nodes": torch.ones(13, dtype=torch.bool)}, ValueError, r"input_nodes",
    ),
}  # fmt: skip

BAD_SAMPLING: dict[str, Case] = {
    "float fan-out": (
        lambda: {"num_neighbors": [2, 1.5]}, ValueError,
        r"num_neighbors must hold integers .*got 1.5",
    ),
    "bool fan-out": (lambda: {"num_neighbors": [True]}, ValueError, r"num_neighbors .* got True"),
    "string fan-out": (lambda: {"num_neighbors": ["all"]}, ValueError, r"num_neighbors"),
    "None as fan-out": (lambda: {"num_neighbors": [None]}, ValueError, r"num_neighbors"),
    "a fan-out for each type": (
        lambda: {"num_neighbors": {("a", "to", "a"): [2]}}, ValueError, r"num_neighbors",
    ),
    "too many hops": (
        lambda: {"num_neighbors": [1] * 256}, ValueError, r"num_neighbors may have 255 hops",
    ),
    "a fan-out beyond int64": (
        lambda: {"num_neighbors": [2**70]}, (ValueError, OverflowError), r"num_neighbors",
    ),
    "subgraph_type": (
        lambda: {"subgraph_type": "undirected"}, ValueError, r"subgraph_type|SubgraphType",
    ),
    "temporal_strategy": (
        lambda: {"temporal_strategy": "first"}, ValueError, r"temporal_strategy must be",
    ),
    "no such time_attr": (lambda: {"time_attr": "when"}, ValueError, r"time_attr='when'"),
    "no such weight_attr": (lambda: {"weight_attr": "w"}, ValueError, r"weight_attr='w'"),
}  # fmt: skip

BAD_OPTIONS: dict[str, Case] = {
    "rows of a CSC matrix": (
        lambda: {"data": graph(x=torch.eye(12).to_sparse_csc())}, ValueError,
        r"data.x has the layout torch.sparse_csc.*Use data.x.to_sparse_csr\(\)",
    ),
    "seed as text": (lambda: {"seed": "1"}, TypeError, r"seed must be an int or None, got str"),
    "seed as float": (lambda: {"seed": 1.0}, TypeError, r"seed must be an int"),
    "seed as bool": (lambda: {"seed": True}, TypeError, r"seed must be an int"),
    "negative seed": (lambda: {"seed": -1}, ValueError, r"seed must be in \[0, 2\*\*64\)"),
    "seed too large": (lambda: {"seed": 2**64}, ValueError, r"seed must be in"),
    "negative prefetch": (lambda: {"prefetch": -1}, ValueError, r"prefetch must be an int"),
    "float prefetch": (lambda: {"prefetch": 1.5}, ValueError, r"prefetch must be an int"),
    "bool prefetch": (lambda: {"prefetch": True}, ValueError, r"prefetch must be an int"),
    "prefetch twice": (
        lambda: {"prefetch": 3, "prefetch_factor": 4, "num_workers": 1}, ValueError,
        r"prefetch=3 and prefetch_factor=4 contradict",
    ),
    "no such device": (
        lambda: {"device": "gpu"}, ValueError, r"device must be 'cpu', 'cuda'.*'gpu'",
    ),
    "a device of another kind": (
        lambda: {"device": "mps"}, ValueError, r"device must be 'cpu', 'cuda'.*'mps'",
    ),
    "device as float": (lambda: {"device": 1.5}, ValueError, r"device"),
    "unknown keyword": (
        lambda: {"fanout": [2]}, TypeError, r"fanout",
    ),
    "negative num_workers": (lambda: {"num_workers": -1}, ValueError, r"num_workers"),
    "no batching": (lambda: {"batch_size": None}, ValueError, r"batch_size=None"),
    "batch_size zero": (lambda: {"batch_size": 0}, ValueError, r"batch_size"),
    "batch_size as text": (lambda: {"batch_size": "5"}, (TypeError, ValueError), r"batch_size"),
    "shuffle beside sampler": (
        lambda: {"shuffle": True, "sampler": [0]}, ValueError, r"mutually exclusive",
    ),
    "input_id of another length": (
        lambda: {"input_nodes": [1, 2], "input_id": torch.tensor([1])},
        (ValueError, AssertionError), None,
    ),
}  # fmt: skip


# Making one says, once in a process, that it is in beta.
BETA = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")


@pytest.mark.pyg("data", "is_sorted", "kwargs", "input_nodes", "batch_size")
@BETA
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=k) for t in (BAD_DATA, BAD_SEEDS, BAD_SAMPLING, BAD_OPTIONS)
             for k, c in t.items()],
)  # fmt: skip
def test_refused_by_the_loader(case: Case) -> None:
    make, error, message = case
    arguments = {"data": None, "num_neighbors": [2, 2], "batch_size": 4} | make()
    if arguments["data"] is None:
        arguments["data"] = example_graph()
    with pytest.raises(error, match=message):
        NeighborLoader(**arguments)


@pytest.mark.pyg("data")
@BETA
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=k) for t in (BAD_DATA, BAD_SAMPLING) for k, c in t.items()]
)
def test_refused_by_the_sampler(case: Case) -> None:
    make, error, message = case
    arguments = {"data": example_graph(), "num_neighbors": [2, 2]} | make()
    with pytest.raises(error, match=message):
        NeighborSampler(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sample_direction": "up"}, ValueError, "sample_direction must be"),
        ({"seed": -1}, ValueError, "seed must be"),
    ],
)
def test_options_of_the_sampler(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        NeighborSampler(example_graph(), [2], **arguments)


def test_input_time_needs_what_is_not_there_yet() -> None:
    with pytest.raises((NotImplementedError, ValueError), match="time"):
        list(NeighborLoader(example_graph(), [2], input_time=torch.arange(12)))


def test_positions_out_of_range_when_called() -> None:
    loader = NeighborLoader(example_graph(), [2], input_nodes=[3, 4])
    with pytest.raises(IndexError, match="position 2, but there are 2 seeds"):
        loader([2])


def test_ids_of_uint8() -> None:
    """They are refused only where they can hardly be ids; masks of bool are what is meant then."""
    loader = NeighborLoader(example_graph(), [2], input_nodes=torch.tensor([0, 1, 1]).byte())
    assert loader.input_data.node.tolist() == [0, 1, 1]


@pytest.mark.parametrize("wrong", [3, "x", None, 2.5, {("paper", "cites", "paper"): 3}])
def test_fan_outs_of_a_wrong_type_for_a_graph_with_types(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"num_neighbors must be a list with .*dict of"):
        NeighborSampler(papers_and_authors(), wrong)


def test_seeds_of_the_sampler_are_checked() -> None:
    sampler = NeighborSampler(example_graph(), [2])
    for bad in (12, -1, 2**40):
        with pytest.raises(IndexError, match=r"seeds must be node ids in \[0, 12\)"):
            sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, bad])))


def test_num_neighbors_set_later_is_checked_too() -> None:
    loader = NeighborLoader(example_graph(), [2])
    with pytest.raises(ValueError, match="num_neighbors"):
        loader.node_sampler.num_neighbors = [0.5]


@pytest.mark.pyg("neighbor_sampler")
@pytest.mark.parametrize(
    "given",
    [
        {"replace": True}, {"disjoint": True}, {"subgraph_type": "induced"}, {"is_sorted": True},
        {"time_attr": "y"}, {"weight_attr": "edge_attr"}, {"temporal_strategy": "last"},
        {"directed": False},
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_sampling_arguments_beside_a_sampler(given: dict[str, Any]) -> None:
    """PyG would ignore them."""
    data = example_graph()
    with pytest.raises(ValueError, match=rf"neighbor_sampler= .*{next(iter(given))}"):
        NeighborLoader(data, [2], neighbor_sampler=NeighborSampler(data, [2]), **given)


def test_the_device_variable_must_name_a_device_and_yields_to_the_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYG_DIRECT_DEVICE", "toaster")
    with pytest.raises(ValueError, match=r"PYG_DIRECT_DEVICE must be 'cpu', 'cuda'.*'toaster'"):
        NeighborLoader(example_graph(), [2])
    NeighborLoader(example_graph(), [2], device="cpu")  # the argument goes first


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")  # PyG
def test_a_graph_of_unknown_size() -> None:
    with pytest.raises(ValueError, match="number of nodes is unknown"):
        NeighborSampler(Data(), [2])


# Ids from others' hands: an error, never a read of foreign memory ################################


@pytest.mark.parametrize(("field", "bad"), [("node", 12), ("node", -1), ("edge", 20)])
def test_ids_from_transform_sampler_output_are_checked(
    loader_class: type, field: str, bad: int
) -> None:
    """PyG raises an IndexError; here a wrong id must not become an address."""

    def spoil(out: SamplerOutput) -> SamplerOutput:
        ids = getattr(out, field).clone()
        ids[-1] = bad
        setattr(out, field, ids)
        return out

    loader = loader_class(example_graph(), [-1], transform_sampler_output=spoil, batch_size=3)
    with pytest.raises(
        (IndexError, RuntimeError), match=r"Cannot gather row|out of (bounds|range)"
    ):
        loader([0, 1, 2])


def test_an_x_shortened_under_the_loader_is_an_error(loader_class: type) -> None:
    """The number of nodes is inferred from x, so the rows left still count as node-level."""
    data = example_graph()
    loader = loader_class(data, [-1], batch_size=3)
    loader([0, 1, 2])
    data.x = data.x[:5].clone()
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        loader([7, 4, 8])


# Odd, but legal ###################################################################################


def test_a_loader_without_seeds_has_no_batches(loader_class: type) -> None:
    for none in ([], torch.empty(0, dtype=torch.int64), torch.zeros(12, dtype=torch.bool)):
        loader = loader_class(example_graph(), [2], input_nodes=none, batch_size=3)
        assert len(loader) == 0
        assert list(loader) == []


def test_an_empty_batch() -> None:
    batch = NeighborLoader(example_graph(), [2, 2], input_nodes=[1, 2])([])
    assert batch.batch_size == 0
    assert batch.x.shape == (0, 3)
    assert batch.edge_index.shape == (2, 0)
    assert batch.num_sampled_nodes == [0, 0, 0]


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
def test_a_graph_without_nodes(kind: str, disjoint: bool) -> None:
    data = Data(x=torch.empty(0, 3), edge_index=torch.empty(2, 0, dtype=torch.int64))
    loader = NeighborLoader(data, [2], batch_size=3, subgraph_type=kind, disjoint=disjoint)
    assert list(loader) == []
    batch = loader([])
    assert (batch.batch_size, batch.num_nodes, batch.num_edges) == (0, 0, 0)


def test_one_node_with_a_loop(loader_class: type) -> None:
    data = Data(x=torch.ones(1, 1), edge_index=torch.tensor([[0], [0]]))
    batch = loader_class(data, [3, 3])([0])
    assert batch.n_id.tolist() == [0]
    assert batch.edge_index.tolist() == [[0], [0]]


@pytest.mark.pyg("batch_size")
def test_a_batch_larger_than_the_seeds(loader_class: type) -> None:
    (batch,) = loader_class(example_graph(), [-1], batch_size=10**6)
    assert batch.batch_size == 12


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_numpy_integers_as_fan_outs_and_seed(kind: type) -> None:
    one = NeighborLoader(example_graph(), [kind(2), kind(-1)], batch_size=4, seed=kind(3))
    other = NeighborLoader(example_graph(), [2, -1], batch_size=4, seed=3)
    assert assert_same_epoch(one, other) == 3


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "cpu:0"])
def test_ways_to_name_the_cpu(device: Any) -> None:
    batch = next(iter(NeighborLoader(example_graph(), [2], device=device)))
    assert batch.x.device.type == "cpu"


def test_input_nodes_as_an_array(loader_class: type) -> None:
    loader = loader_class(example_graph(), [-1], input_nodes=np.array([3, 5]), batch_size=2)
    assert next(iter(loader)).n_id[:2].tolist() == [3, 5]


def test_zero_seeds_in_a_list_of_floats_is_still_wrong() -> None:
    with pytest.raises(ValueError, match="input_nodes"):
        NeighborLoader(example_graph(), [2], input_nodes=torch.empty(0))


def test_a_device_without_a_backend() -> None:
    data = Data(num_nodes=2, edge_index=torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match=r"device must be 'cpu', 'cuda'.*'meta'"):
        NeighborSampler(data, [1], device="meta")
