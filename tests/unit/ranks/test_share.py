"""`share`: the same batches from memory that processes share, and nothing left of it."""

import contextlib
import copy
import gc
import io
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import hetero
import numpy as np
import pytest
import torch
from children import in_child
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToSparseTensor

import pyg_direct
from pyg_direct.graph import from_pyg
from pyg_direct.ranks import memory

NODES, EDGES = 60, 400


def homogeneous() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.rand(NODES, 3, generator=generator),
        edge_index=torch.randint(NODES, (2, EDGES), generator=generator),
        edge_attr=torch.rand(EDGES, 2, generator=generator),
        weight=torch.rand(EDGES, generator=generator),
        time=torch.randint(9, (NODES,), generator=generator),
        name="a graph",
    )


def batches(data, **options):
    seeds = ("a", None) if isinstance(data, HeteroData) else None
    if options.get("time_attr") is not None:
        options["input_time"] = torch.full((NODES,), 6)
    loader = pyg_direct.NeighborLoader(data, [4, 3], seeds, batch_size=16, seed=1, **options)
    return [batch.to_dict() for batch in loader]


def assert_same(found, expected) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert same(one, other), (one, other)


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def builds_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_):
        raise AssertionError("a CSC was built")

    monkeypatch.setattr(from_pyg, "compress", refused)


def handles() -> set[str]:
    """Return the shared memory of this package that this process has open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(f"{path.name} {os.readlink(path)}")
    return {name for name in found if "memfd:pyg_direct" in name}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (homogeneous, {}),
        (homogeneous, {"time_attr": "time"}),
        (homogeneous, {"weight_attr": "weight"}),
        (homogeneous, {"time_attr": "time", "weight_attr": "weight"}),
        (hetero.graph, {}),
    ],
    ids=["plain", "times", "weights", "both", "hetero"],
)
def test_batches_are_those_of_the_data(make, names, monkeypatch) -> None:
    expected = batches(make(), **names)
    shared = pyg_direct.share(make(), **names)
    builds_no_graph(monkeypatch)
    assert_same(batches(shared, **names), expected)


NAMES = {
    "plain": {},
    "times": {"time_attr": "time"},
    "weights": {"weight_attr": "weight"},
    "both": {"time_attr": "time", "weight_attr": "weight"},
}


@pytest.mark.parametrize("asked", NAMES)
@pytest.mark.parametrize("given", NAMES)
def test_loaders_with_other_attributes_get_the_same_batches_of_shared_data(given, asked) -> None:
    """The order by time is for those that ask for times."""
    shared = pyg_direct.share(homogeneous(), **NAMES[given])
    for more in ({}, {"subgraph_type": "induced"}, {"replace": True}):
        options = {**NAMES[asked], **more}
        assert_same(batches(shared, **options), batches(homogeneous(), **options))


@pytest.mark.parametrize("given", ["times", "both"])
def test_a_graph_that_is_shared_with_times_is_saved_in_its_own_order(given, tmp_path) -> None:
    pyg_direct.save(pyg_direct.share(homogeneous(), **NAMES[given]), tmp_path / "shared")
    pyg_direct.save(homogeneous(), tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "shared" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("names", [{}, {"time_attr": "time"}, {"weight_attr": "weight"}])
def test_a_process_that_gets_it_copies_nothing(names, monkeypatch) -> None:
    """Pickled as for a spawned process: what arrives is the same memory."""
    shared = pyg_direct.share(homogeneous(), **names)
    expected, before = batches(shared, **names), pickle.dumps(homogeneous())
    sent = bytes(ForkingPickler.dumps(shared))
    assert len(sent) < len(before) / 2, "it holds the graph"
    builds_no_graph(monkeypatch)
    arrived = ForkingPickler.loads(sent)
    assert_same(batches(arrived, **names), expected)
    arrived.x[3] = 7
    assert torch.equal(shared.x[3], torch.full((3,), 7.0))


def test_edge_index_is_that_of_the_data() -> None:
    for make in (homogeneous, hetero.graph):
        shared, data = pyg_direct.share(make()), make()
        for one, other in zip(shared.edge_stores, data.edge_stores, strict=True):
            assert torch.equal(one.edge_index.dense(), other.edge_index)
        assert list(shared.to_dict()) == list(data.to_dict())


def test_ids_keep_their_dtype() -> None:
    data = homogeneous()
    data.edge_index = data.edge_index.int()
    shared = pyg_direct.share(data)
    assert shared.edge_index.dtype == shared.edge_index.dense().dtype == torch.int32
    assert_same(batches(shared), batches(data))


def test_an_edge_index_of_pygs_own_class() -> None:
    data = homogeneous()
    expected = batches(data)
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(NODES, NODES))
    assert_same(batches(pyg_direct.share(data)), expected)


def test_all_tensors_are_shared_and_other_values_kept() -> None:
    data = homogeneous()
    data.parts = [torch.arange(3), {"deep": torch.ones(2)}]
    data.array, data.empty = np.arange(4), torch.empty(0, 3)
    data.narrow = pyg_direct.quantize(data.x, torch.int8)
    shared = pyg_direct.share(data)
    tensors = [shared.x, shared.parts[0], shared.parts[1]["deep"], shared.narrow.stored]
    assert all(tensor.is_shared() for tensor in [*tensors, shared.array])
    assert torch.equal(shared.array, torch.arange(4))
    assert torch.equal(shared.narrow.dense(), data.narrow.dense())
    assert shared.empty.shape == (0, 3)
    assert shared.name == "a graph"
    assert not data.x.is_shared()
    assert type(data.edge_index) is torch.Tensor, "the user's graph was changed"


def test_tensors_of_a_typed_graph_as_a_whole_are_shared() -> None:
    data = hetero.graph()
    data.table, data.parts = torch.arange(3), (torch.ones(2), "a text")
    shared = pyg_direct.share(data)
    assert torch.equal(shared.table, data.table)
    assert shared.parts[1] == "a text"
    assert all(tensor.is_shared() for tensor in (shared.table, shared.parts[0]))


def test_a_graph_without_edges() -> None:
    data = Data(x=torch.rand(4, 2), edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert_same(batches(pyg_direct.share(data)), batches(data))


def test_its_memory_is_freed() -> None:
    gc.collect()  # of tests before
    before = handles()
    shared = pyg_direct.share(homogeneous())
    arrived = ForkingPickler.loads(bytes(ForkingPickler.dumps(shared)))
    assert len(handles()) > len(before)
    del shared, arrived
    gc.collect()
    assert handles() <= before


def test_a_file_gets_plain_tensors(tmp_path: Path) -> None:
    shared, data = pyg_direct.share(homogeneous()), homogeneous()
    torch.save(shared, tmp_path / "graph.pt")
    loaded = torch.load(tmp_path / "graph.pt", weights_only=False)
    assert torch.equal(loaded.edge_index, data.edge_index)
    assert torch.equal(pickle.loads(pickle.dumps(shared)).x, data.x)
    assert torch.equal(copy.copy(shared).edge_index.dense(), data.edge_index)
    pyg_direct.save(shared, tmp_path / "saved")
    assert_same(
        [b["n_id"] for b in batches(pyg_direct.open(tmp_path / "saved"))],
        [b["n_id"] for b in batches(data)],
    )


def test_files_hold_no_memory_of_another_process() -> None:
    pickled = io.BytesIO()
    torch.save(pyg_direct.share(homogeneous()), pickled)
    assert b"Block" not in pickled.getvalue()


def test_a_forked_process_sees_what_another_writes() -> None:
    shared = pyg_direct.share(homogeneous())
    expected = batches(shared)

    def child() -> None:
        assert_same(batches(shared), expected)
        shared.x[:] = 5

    in_child(child)
    assert torch.equal(shared.x, torch.full((NODES, 3), 5.0))


def test_times_that_were_written_to_are_read_anew() -> None:
    shared, data = (pyg_direct.share(homogeneous(), time_attr="time"), homogeneous())
    for graph in (shared, data):
        graph.time += torch.arange(NODES) % 3
    assert_same(batches(shared, time_attr="time"), batches(data, time_attr="time"))


def test_shared_and_opened_data_are_returned_as_they_are(tmp_path: Path) -> None:
    shared = pyg_direct.share(homogeneous(), time_attr="time")
    pyg_direct.save(homogeneous(), tmp_path / "graph")
    opened = pyg_direct.open(tmp_path / "graph")
    assert pyg_direct.share(shared) is pyg_direct.share(shared, time_attr="time") is shared
    assert pyg_direct.share(opened) is opened
    with pytest.raises(ValueError, match="not with time_attr=None and weight_attr='weight'"):
        pyg_direct.share(shared, weight_attr="weight")
    with pytest.raises(ValueError, match="shared or opened already"):
        pyg_direct.share(lambda: opened)


def changed(**attributes):
    data = homogeneous()
    for name, value in attributes.items():
        data[name] = value
    return data


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (changed(a=torch.eye(3).to_sparse()), ValueError, r"data\.a cannot .*sparse"),
        (changed(a=torch.nn.Parameter(torch.ones(2))), ValueError, r"data\.a .* type Parameter"),
        (changed(a=torch.ones(2, requires_grad=True)), ValueError, r"data\.a .* gradient"),
        (changed(a=torch.ones(2, device="meta")), ValueError, r"data\.a .* lies on meta"),
        (changed(a={"b": torch.eye(3).to_sparse()}), ValueError, r"data\.a\['b'\] cannot"),
        ((None, None), TypeError, "got tuple"),
        (lambda: None, TypeError, "must return a Data or HeteroData, got NoneType"),
        (Data(x=torch.ones(2, 1), edge_attr=torch.ones(2, 1)), ValueError, "has no edges"),
    ],
)
def test_data_that_cannot_be_shared_are_refused_without_leaks(data, error, text) -> None:
    before = handles()
    with pytest.raises(error, match=text):
        pyg_direct.share(data)
    gc.collect()
    assert handles() <= before


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor support|invariant checks)")  # of torch
def test_a_sparse_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.adj_t cannot be shared"):
        pyg_direct.share(ToSparseTensor()(homogeneous()))


def test_too_little_memory_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(memory, "usable_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match=r"takes .* of shared memory, .* pyg_direct\.open"):
        pyg_direct.share(homogeneous())


def test_other_systems_are_told_of_files(monkeypatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(NotImplementedError, match=r"needs Linux.*pyg_direct\.save"):
        pyg_direct.share(homogeneous())


def test_ranks_without_a_group_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="after"):
        pyg_direct.share(homogeneous())


def test_memory_of_a_process_that_has_ended_is_not_taken_for_another() -> None:
    first, second = (memory.filled(torch.ones(size), "x") for size in (3, 4))
    offer = first.offer()._replace(handle=second.handle)
    with pytest.raises(OSError, match="is not the memory that was offered"):
        offer.block()
    taken = first.offer().block()
    assert torch.equal(taken.tensor(), torch.ones(3))
