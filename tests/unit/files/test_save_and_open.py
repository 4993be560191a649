"""Saved graphs: what comes back, and that loaders give the batches they give in memory."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import assert_same_batch, example_graph, fields, graphs, load_real_graph
from hypothesis import given, settings
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler, quantize
from pyg_direct.files import save as save_module
from pyg_direct.files.arrays import ArrayWriter
from pyg_direct.files.directory import ARRAY_NAME, FileNames, NewDirectory
from pyg_direct.files.generate import PowerLaw, generate
from pyg_direct.files.header import FILE_NAME, HEADER
from pyg_direct.graph.compressed import CscEdgeIndex
from pyg_direct.graph.from_pyg import graph_of


def attributed_graph() -> Data:
    """Return 200 nodes and 2,000 edges with attributes of all kinds."""
    generator = torch.Generator().manual_seed(0)
    nodes, edges = 200, 2000
    return Data(
        x=torch.randn(nodes, 5, generator=generator),
        half=torch.randn(nodes, 3, generator=generator).to(torch.bfloat16),
        y=torch.arange(nodes),
        mask=torch.arange(nodes) % 2 == 0,
        time=torch.randint(50, (nodes,), generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_attr=torch.randn(edges, 2, generator=generator, dtype=torch.float64),
        weight=torch.rand(edges, generator=generator) * (torch.arange(edges) % 7 > 0),
        when=torch.randint(50, (edges,), generator=generator),
        title="a graph",
        numbers=[1, 2.5, None],
    )


def typed_graph() -> HeteroData:
    """Return two node types and three edge types; one node type has times."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData(year=2026)
    data["paper"].x = torch.randn(100, 4, generator=generator)
    data["paper"].time = torch.randint(20, (100,), generator=generator)
    data["author"].x = torch.randn(60, 3, generator=generator)
    data["author"].num_nodes = 60
    for key, sizes in {
        ("author", "writes", "paper"): (60, 100),
        ("paper", "by", "author"): (100, 60),
        ("paper", "cites", "paper"): (100, 100),
    }.items():
        ends = [torch.randint(size, (400,), generator=generator) for size in sizes]
        data[key].edge_index = torch.stack(ends)
        data[key].number = torch.arange(400)
    return data


def opened(data: Any, tmp_path: Any, **options: Any) -> Any:
    pyg_direct.save(data, tmp_path / "graph", **options)
    return pyg_direct.open(tmp_path / "graph", verify=True)


def by_destination(data: Any) -> Any:
    """Return the graph with its edges in the order in which they are saved."""
    data = copy.copy(data)
    for store in data.edge_stores:
        order = torch.sort(store.edge_index[1], stable=True).indices
        for key, value in store.items():
            if store.is_edge_attr(key):
                store[key] = value[:, order] if key == "edge_index" else value[order]
    return data


def assert_same_epoch(ours: Any, theirs: Any) -> None:
    batches = list(zip(ours, theirs, strict=True))
    assert batches
    for one, other in batches:
        left, right = fields(one), fields(other)
        assert left.keys() == right.keys()
        for key in left:
            if isinstance(left[key], torch.Tensor):
                assert torch.equal(left[key], right[key]), key
                assert left[key].dtype == right[key].dtype, key
            else:
                assert left[key] == right[key], key


def test_attributes_come_back_as_they_were(tmp_path: Any) -> None:
    data = attributed_graph()
    data.array = np.arange(200) % 3 == 0
    back, expected = opened(data, tmp_path), by_destination(data)
    assert back.num_nodes == 200
    assert back.num_edges == 2000
    for key in ("x", "half", "y", "mask", "time", "edge_attr", "weight", "when"):
        assert back[key].dtype == data[key].dtype, key
        assert torch.equal(back[key], expected[key]), key
    assert torch.equal(back.edge_index.dense(), expected.edge_index)
    assert torch.equal(back.array, torch.from_numpy(data.array))
    assert back.title == "a graph"
    assert back.numbers == [1, 2.5, None]
    assert back.is_edge_attr("edge_attr")
    assert back.is_node_attr("x")
    assert back.validate()


def test_a_typed_graph_comes_back(tmp_path: Any) -> None:
    data, back = typed_graph(), opened(typed_graph(), tmp_path)
    assert isinstance(back, HeteroData)
    assert back.metadata() == data.metadata()
    assert back.year == 2026
    expected = by_destination(data)
    for key in data.edge_types:
        assert torch.equal(back[key].edge_index.dense(), expected[key].edge_index)
        assert torch.equal(back[key].number, expected[key].number)
    assert torch.equal(back["paper"].time, data["paper"].time)
    assert back["author"].num_nodes == 60


@given(data=graphs())
@settings(max_examples=40, deadline=None)
def test_any_graph_gives_the_batches_it_gives_in_memory(
    data: Data, tmp_path_factory: pytest.TempPathFactory
) -> None:
    back = opened(data, tmp_path_factory.mktemp("saved"))
    options: dict[str, Any] = {"num_neighbors": [2, -1], "batch_size": 4, "seed": 3}
    assert_same_epoch(
        NeighborLoader(back, **options), NeighborLoader(by_destination(data), **options)
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "induced_disjoint": {"subgraph_type": "induced", "disjoint": True},
    "workers": {"num_workers": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_batches_are_those_in_memory(options: dict[str, Any], tmp_path: Any) -> None:
    """Those by time and weight are compared in `test_saved_parts`."""
    options = {"num_neighbors": [4, 3], "batch_size": 32, "shuffle": True, "seed": 5, **options}
    back, data = opened(attributed_graph(), tmp_path), by_destination(attributed_graph())
    assert_same_epoch(NeighborLoader(back, **options), NeighborLoader(data, **options))


@pytest.mark.parametrize("name", ["time", "when"])
def test_edges_are_stored_by_time_and_those_of_equal_times_in_their_order(
    tmp_path: Path, name: str
) -> None:
    data = attributed_graph()
    time = data.when if name == "when" else data.time[data.edge_index[0]]
    order = torch.from_numpy(np.lexsort((time.numpy(), data.edge_index[1].numpy())))
    back = opened(data, tmp_path, time_attr=name)
    assert torch.equal(back.edge_attr, data.edge_attr[order])


@pytest.mark.parametrize("time_attr", [None, "time"])
def test_batches_of_a_typed_graph(tmp_path: Any, time_attr: str | None) -> None:
    back = opened(typed_graph(), tmp_path, time_attr=time_attr)
    data = by_destination(typed_graph())
    options: dict[str, Any] = {
        "num_neighbors": [3, 3], "batch_size": 16, "input_nodes": "paper", "seed": 1,
        "time_attr": time_attr,
    }  # fmt: skip
    ours, theirs = NeighborLoader(back, **options), NeighborLoader(data, **options)
    if time_attr is not None:  # e_id counts in the saved order, which is by time
        ours.transform = theirs.transform = without_edge_ids
    assert_same_epoch(ours, theirs)


def without_edge_ids(batch: HeteroData) -> HeteroData:
    for store in batch.edge_stores:
        del store["e_id"], store["number"]
    return batch


def test_link_batches_of_an_opened_graph_are_those_of_the_saved_one(tmp_path: Any) -> None:
    back, data = opened(attributed_graph(), tmp_path), by_destination(attributed_graph())
    links = torch.randint(200, (2, 50))
    options: dict[str, Any] = {
        "num_neighbors": [3, 3], "batch_size": 8, "neg_sampling": "binary", "seed": 1,
        "edge_label_index": links,
    }  # fmt: skip
    assert_same_epoch(LinkNeighborLoader(back, **options), LinkNeighborLoader(data, **options))
    assert len(list(LinkNeighborLoader(back, [2], batch_size=500))) == 4  # all its edges


@pytest.mark.parametrize("options", [{}, {"time_attr": "time"}, {"weight_attr": "weight"}])
def test_loaders_sample_from_the_files(tmp_path: Any, options: dict[str, Any]) -> None:
    """No array of the graph is a copy."""
    back = opened(attributed_graph(), tmp_path, **options)
    csc, mapped = graph_of(back, **options, checks_ids=True).csc, back.edge_index.graph.csc
    for (name, array), (_, file) in zip(csc.arrays(), mapped.arrays(), strict=True):
        assert np.shares_memory(array, file), name
    assert not np.shares_memory(csc.indices, np.asarray(back.x))


@pytest.mark.parametrize("change", ["replaced", "in_place", "removed", "other_name"])
def test_changed_times_are_used(tmp_path: Any, change: str) -> None:
    """Files are no shortcut for what the user has changed since."""
    back = opened(attributed_graph(), tmp_path, time_attr="time")
    name = "time"
    if change == "replaced":
        back.time = torch.zeros(200, dtype=torch.int64)
    elif change == "in_place":
        back.time.zero_()
    elif change == "other_name":
        back.zero, name = torch.zeros(200, dtype=torch.int64), "zero"
    else:
        del back.time
        with pytest.raises(ValueError, match="time_attr='time'"):
            NeighborLoader(back, [2], time_attr=name)
        return
    times = graph_of(back, time_attr=name, checks_ids=True).csc.times
    assert times is not None
    assert not times.time.any()


def test_changed_edges_are_used(tmp_path: Any) -> None:
    back = opened(example_graph(), tmp_path)
    back.edge_index = back.edge_index[:, :3]
    del back.edge_attr
    assert len(graph_of(back).csc.indices) == 3
    typed = opened(typed_graph(), tmp_path / "typed")
    del typed["paper", "cites", "paper"]
    assert graph_of(typed).csc.num_relations == 2


def test_edge_index_is_an_ordinary_tensor_for_others(tmp_path: Any) -> None:
    data, back = by_destination(example_graph()), opened(example_graph(), tmp_path)
    index, dense = back.edge_index, data.edge_index
    assert isinstance(index, CscEdgeIndex)
    assert "CscEdgeIndex(size=(2, 20)" in repr(index)
    assert index.shape == (2, 20)
    assert torch.equal(index, dense)
    assert torch.equal(index[1], dense[1])
    assert torch.equal(index + 1, dense + 1)
    assert torch.equal(torch.cat([index, index], dim=1), torch.cat([dense, dense], dim=1))
    assert type(index.clone()) is torch.Tensor
    assert index.tolist() == dense.tolist()
    assert np.array_equal(index.numpy(), dense.numpy())
    assert np.array_equal(np.asarray(index), dense.numpy())
    assert torch.equal(pickle.loads(pickle.dumps(index)), dense)
    assert copy.deepcopy(back).edge_index is index
    source, target = index
    assert torch.equal(source, dense[0])
    assert torch.equal(target, dense[1])


def test_pygs_own_loader_takes_it(tmp_path: Any) -> None:
    back = opened(example_graph(), tmp_path)
    data = by_destination(example_graph())
    pytest.importorskip("torch_sparse")
    for ours, theirs in zip(
        PyGNeighborLoader(back, [-1], batch_size=4),
        PyGNeighborLoader(data, [-1], batch_size=4),
        strict=True,
    ):
        assert torch.equal(ours.edge_index, theirs.edge_index)
        assert torch.equal(ours.x, theirs.x)


def test_a_real_graph_trains_from_files(tmp_path: Any) -> None:
    data = load_real_graph("debian_hetero", tmp_path)
    back = opened(data, tmp_path)
    options: dict[str, Any] = {
        "num_neighbors": [4, 4], "batch_size": 512, "input_nodes": "package", "seed": 0,
    }  # fmt: skip
    ours, theirs = NeighborLoader(back, **options), NeighborLoader(by_destination(data), **options)
    for _, one, other in zip(range(3), ours, theirs, strict=False):
        assert_same_batch(one, other)


def test_writing_to_an_attribute_changes_no_file(tmp_path: Any) -> None:
    back = opened(attributed_graph(), tmp_path)
    back.x.zero_()
    again = pyg_direct.open(tmp_path / "graph", verify=True)
    assert torch.equal(again.x, attributed_graph().x)


def test_states_are_resumed_from_files(tmp_path: Any) -> None:
    options: dict[str, Any] = {"num_neighbors": [3], "batch_size": 16, "shuffle": True, "seed": 1}
    back, data = opened(attributed_graph(), tmp_path), by_destination(attributed_graph())
    first = NeighborLoader(back, **options)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = NeighborLoader(data, **options)
    second.load_state_dict(first.state_dict())
    assert_same_epoch(iterator, second)


@pytest.mark.parametrize(
    "kind", [{}, {"scale": "row"}, {"dtype": torch.float16}, {"dtype": torch.bfloat16}]
)
def test_quantized_attributes_stay_quantized(tmp_path: Any, kind: dict[str, Any]) -> None:
    data = attributed_graph()
    data.x, data.edge_attr = quantize(data.x, **kind), quantize(data.edge_attr, **kind)
    pyg_direct.save(data, tmp_path / "graph")
    back = pyg_direct.open(tmp_path / "graph", verify=True)
    assert isinstance(back.x, pyg_direct.QuantizedTensor)
    assert back.x.stored.dtype == data.x.stored.dtype
    assert torch.equal(back.x.stored, data.x.stored)
    expected = by_destination(attributed_graph())
    order = torch.sort(data.edge_index[1], stable=True).indices
    expected.x, expected.edge_attr = data.x.dense(), data.edge_attr.dense()[order]
    options: dict[str, Any] = {"num_neighbors": [3], "batch_size": 50, "seed": 1}
    assert_same_epoch(NeighborLoader(back, **options), NeighborLoader(expected, **options))


def test_a_sampler_takes_it(tmp_path: Any) -> None:
    back = opened(attributed_graph(), tmp_path)
    batch = next(iter(pyg_loader(back, NeighborSampler(back, [2, 2], seed=0))))
    assert batch.num_nodes > 16


def pyg_loader(data: Data, sampler: Any) -> Any:
    from torch_geometric.loader import NodeLoader

    return NodeLoader(data, sampler, batch_size=16)


def test_attributes_that_cannot_be_saved_are_refused_by_name(tmp_path: Any) -> None:
    writes = ("author", "writes", "paper")
    for kind, name, value, message in (
        (None, "x", torch.eye(12).to_sparse(), "node attribute 'x' .* not dense"),
        (None, "x", torch.zeros(12, dtype=torch.complex64), "node attribute 'x' .* complex64"),
        (None, "thing", object(), r"data\.thing .* object.* del data\['thing'\]"),
        (None, "thing", {1: 2}, r"data\.thing cannot be saved: it is of type dict"),
        (None, "thing", [(1, 2)], r"data\.thing cannot be saved: it is of type list"),
        ("paper", "title", "a text", r"data\['paper'\]\.title cannot be saved: .* type str"),
        (writes, "title", "a text", r"data\[\('author', .*\]\.title cannot be saved: .* type str"),
        (
            writes,
            "number",
            torch.arange(401),
            r"shape \(401,\), and not 400 rows, one for each edge",
        ),
        (writes, "number", torch.tensor(7), r"it has the shape \(\), and not 400 rows"),
    ):
        data: Any = example_graph() if kind is None else typed_graph()
        (data if kind is None else data[kind])[name] = value
        with pytest.raises(ValueError, match=message):
            pyg_direct.save(data, tmp_path / "graph")
        assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="Data or HeteroData"):
        pyg_direct.save([1, 2], tmp_path / "graph")  # type: ignore[arg-type]


def test_nothing_is_overwritten_unasked(tmp_path: Any) -> None:
    path = tmp_path / "graph"
    pyg_direct.save(example_graph(), path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        pyg_direct.save(attributed_graph(), path)
    assert pyg_direct.open(path).num_nodes == 12
    data, odd = attributed_graph(), "version 1.0/\xe9"
    data[odd] = torch.tensor(2.5)
    for _ in range(2):  # the second one replaces a graph with such a name
        pyg_direct.save(data, path, overwrite=True)
    back = pyg_direct.open(path, verify=True)
    assert (back.num_nodes, back[odd].shape, float(back[odd])) == (200, (), 2.5)
    assert os.listdir(tmp_path) == ["graph"]


def test_names_of_many_files() -> None:
    names = FileNames()
    for number in range(1, 1002):
        name = names.new("x" * number)
        assert ARRAY_NAME.fullmatch(name), name
        assert FILE_NAME.fullmatch(name), name


@pytest.mark.skipif(os.name != "posix", reason="takes a system with permissions")
def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        pyg_direct.save(example_graph(), tmp_path / "graph")
    finally:
        after = os.umask(before)
    assert after == 0o027
    assert (tmp_path / "graph").stat().st_mode & 0o777 == 0o750


def foreign_places(folder: Path) -> dict[str, Path]:
    """Return paths of things that are not a saved graph, each made in `folder`."""
    folder.mkdir()
    places = {
        name: folder / name for name in ("file", "files", "beside", "below", "header", "link")
    }
    places["file"].write_text("mine")
    places["files"].mkdir()
    (places["files"] / "001_x.bin").write_text("mine")  # without a header
    for name in ("beside", "below", "header"):
        pyg_direct.save(example_graph(), places[name])
    (places["beside"] / "notes.txt").write_text("mine")
    (places["below"] / "900_more.bin").mkdir()
    (places["header"] / HEADER).write_text('{"format": "something else"}')
    pyg_direct.save(example_graph(), folder / "target")
    places["link"].symlink_to(folder / "target")
    return places


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("write", ["save", "generate"])
def test_only_saved_graphs_are_overwritten(tmp_path: Path, write: str) -> None:
    def run(path: Path) -> None:
        if write == "save":
            pyg_direct.save(attributed_graph(), path, overwrite=True)
        else:
            generate(PowerLaw(50, 100), path, overwrite=True)

    places = foreign_places(tmp_path / "all")
    before = contents(tmp_path)
    for name, message in {
        "file": "file is not a directory",
        "files": "files is not a saved graph: it has no graph.json of one",
        "beside": "beside holds 'notes.txt', which is not part of a saved graph",
        "below": "below holds '900_more.bin', which is not part of a saved graph",
        "header": "header is not a saved graph: it has no graph.json of one",
        "link": "link is a symbolic link to .*target",
    }.items():
        with pytest.raises(FileExistsError, match=rf"{message}\. .* move or remove it yourself"):
            run(places[name])
        assert places[name].is_symlink() == (name == "link")
    assert contents(tmp_path) == before
    assert not [path for path in tmp_path.rglob(".*")]


def test_empty_and_damaged_graphs_and_those_of_other_versions_are_overwritten(
    tmp_path: Path,
) -> None:
    path = tmp_path / "graph"
    path.mkdir()
    for change in (
        lambda: None,
        lambda: next(path.glob("*_indptr.bin")).unlink(),
        lambda: (path / HEADER).write_text((path / HEADER).read_text().replace("12", "13")),
        lambda: (path / HEADER).write_text('{"format": "pyg_direct graph", "version": 99}'),
    ):
        change()
        pyg_direct.save(example_graph(), path, overwrite=True)
        assert pyg_direct.open(path, verify=True).num_nodes == 12
    assert os.listdir(tmp_path) == ["graph"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_appears_meanwhile_stays(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "graph"

    def appear() -> None:
        with NewDirectory(path, overwrite):
            path.mkdir()
            (path / "mine").touch()

    with pytest.raises(FileExistsError, match="exists" if not overwrite else "holds 'mine'"):
        appear()
    assert os.listdir(path) == ["mine"]
    assert os.listdir(tmp_path) == ["graph"]


def test_bytes_after_the_last_record_are_dropped(tmp_path: Any) -> None:
    path = tmp_path / "array.bin"
    with ArrayWriter(path, "int32", (2,)) as writer:
        writer.write(np.arange(4, dtype=np.int32).reshape(2, 2))
        written = writer.sync()
        writer.write(np.ones((5, 2), np.int32))
    with ArrayWriter(path, "int32", (2,), written) as writer:
        writer.write(np.array([[7, 8]], np.int32))
        writer.close()
    assert np.fromfile(path, np.int32).tolist() == [0, 1, 2, 3, 7, 8]


def test_attributes_of_edges_are_saved_some_rows_at_a_time(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_module, "STEP_ROWS_BYTES", 40)
    data = attributed_graph()
    saved = opened(data, tmp_path)
    order = by_destination(data)
    assert len(order.edge_attr) > 40
    assert torch.equal(saved.edge_attr[:], order.edge_attr)
