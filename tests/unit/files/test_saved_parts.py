"""Graphs saved with times and weights, and opened with others of them, or with one of the two.

In processes of their own: what goes wrong here may read outside of an array.
"""

from __future__ import annotations

import itertools
import unittest
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import in_child, in_own_process
from conversions import as_npy
from graphs import assert_same_epoch
from saved_files import change_header
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct import InvalidGraphFileError, NeighborLoader
from pyg_direct.core.types import NO_TIME
from pyg_direct.graph import compressed

PAIRS = list(itertools.product([None, "time", "edge_when"], [None, "edge_weight", "edge_other"]))


def timed_and_weighted() -> Data:
    """Return a graph with times of nodes and edges, and two weights, of which a third is 0."""
    generator = torch.Generator().manual_seed(0)
    edges = 3000
    weight = torch.rand(2, edges, generator=generator, dtype=torch.float64)
    weight *= torch.rand(2, edges, generator=generator) > 0.3
    return Data(
        x=torch.randn(200, 3, generator=generator),
        edge_index=torch.randint(200, (2, edges), generator=generator),
        time=torch.randint(30, (200,), generator=generator),
        edge_when=torch.randint(30, (edges,), generator=generator),
        edge_weight=weight[0],
        edge_other=weight[1],
    )


def timed_types(of_nodes: bool) -> HeteroData:
    """Return a graph with weights everywhere, and times of one of three relations."""
    data, part = HeteroData(), timed_and_weighted()
    data["paper"].x, data["author"].x = part.x, part.x.clone()
    keys = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")
    for i, key in enumerate(keys):
        data[key].edge_index = part.edge_index.roll(i, 1).contiguous()
        data[key].edge_weight = part.edge_weight.roll(2 * i)
    if of_nodes:
        data["author"].time = part.time
    else:
        data[keys[0]].time = part.edge_when
    return data


def in_memory(opened: Any) -> Any:
    """Return the same graph, with its edges in the same order, as plain tensors."""
    data = type(opened)()
    stores = [(data, opened)]
    if isinstance(opened, HeteroData):
        stores = [(data[key], opened[key]) for key in (*opened.node_types, *opened.edge_types)]
    for store, given in stores:
        for name, value in given.to_dict().items():
            store[name] = value.clone() if isinstance(value, torch.Tensor) else value
    return data


def assert_same_batches(opened: Any, **options: Any) -> None:
    """Compare with a loader over the same graph in memory, with and without replacement."""
    options = {"num_neighbors": [4, 3], "batch_size": 50, "seed": 1, **options}
    if options.get("time_attr") is not None:
        options["input_time"] = torch.full((200,), 20)
    plain = in_memory(opened)
    laws = [{"replace": repeats} for repeats in (False, True)]
    if options.get("time_attr") is not None:
        laws.append({"temporal_strategy": "last"})
    for law in laws:
        loaders = [NeighborLoader(data, **options, **law) for data in (opened, plain)]
        assert assert_same_epoch(*loaders) > 0


def saved(data: Any, folder: Path, way: str, time_attr: Any, weight_attr: Any) -> None:
    if way == "save":
        pyg_direct.save(data, folder, time_attr=time_attr, weight_attr=weight_attr)
        return

    from pyg_direct.files.convert.convert import convert

    spec = as_npy(data, folder.with_suffix(".raw"))
    convert(replace(spec, time_attr=time_attr, weight_attr=weight_attr), folder)


@pytest.mark.parametrize(
    ("way", "time_attr", "weight_attr"),
    [("save", *pair) for pair in PAIRS] + [("convert", *pair) for pair in PAIRS if all(pair)],
)
def test_saved_times_and_weights_change_no_batch(
    tmp_path: Path, way: str, time_attr: str | None, weight_attr: str | None
) -> None:
    if way == "convert":
        pytest.importorskip("duckdb")
        pytest.importorskip("pyarrow")
    saved(timed_and_weighted(), tmp_path / "graph", way, time_attr, weight_attr)

    def use() -> None:
        opened = pyg_direct.open(tmp_path / "graph", verify=True)
        for time, weight in PAIRS:
            assert_same_batches(opened, time_attr=time, weight_attr=weight)

    in_child(use)


@pytest.mark.parametrize("of_nodes", [True, False])
@pytest.mark.parametrize("repeats", [True, False])
@in_own_process
def test_relations_with_and_without_times(tmp_path: Path, of_nodes: bool, repeats: bool) -> None:
    data = timed_types(of_nodes)
    pyg_direct.save(data, tmp_path / "graph", time_attr="time", weight_attr="edge_weight")

    opened = pyg_direct.open(tmp_path / "graph", verify=True)
    assert_same_batches(opened, input_nodes="paper", weight_attr="edge_weight")
    loader = NeighborLoader(
        opened, [40], "paper", weight_attr="edge_weight", replace=repeats, batch_size=200
    )
    batch: Any = next(iter(loader))
    for key in batch.edge_types:
        assert (batch[key].edge_weight > 0).all(), key
    for key in (("paper", "cites", "paper"), ("author", "writes", "paper")):
        weighted = int((opened[key].edge_weight > 0).sum())
        assert len(batch[key].e_id.unique()) > 0.7 * weighted, key


def test_weights_of_as_many_edges_as_there_are_nodes(tmp_path: Path) -> None:
    """Which PyG takes for an attribute of the nodes."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 0, 0]])
    data = Data(x=torch.rand(4, 1), edge_index=edges, weight=torch.tensor([1.0, 0, 2, 0]))
    assert not data.is_edge_attr("weight")
    pyg_direct.save(data, tmp_path / "graph", weight_attr="weight")
    loaders = [
        NeighborLoader(graph, [2], weight_attr="weight", batch_size=4)
        for graph in (data, pyg_direct.open(tmp_path / "graph", verify=True))
    ]
    for (batch,) in loaders:
        assert batch.edge_index.t().tolist() == [[2, 0], [0, 1]]


def test_tables_are_built_once_and_large_ones_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = timed_and_weighted()
    pyg_direct.save(data, tmp_path / "graph", time_attr="time", weight_attr="edge_weight")
    opened = pyg_direct.open(tmp_path / "graph")
    monkeypatch.setattr(compressed, "LARGE_BYTES", 3000 * 8)
    with unittest.TestCase().assertLogs("pyg_direct", "WARNING") as logs:
        for _ in range(2):
            NeighborLoader(opened, [2], weight_attr="edge_weight")
    (message,) = logs.output
    assert "was saved with time_attr='time': to draw by weight_attr='edge_weight'" in message


@pytest.fixture
def typed_folder(tmp_path: Path) -> Path:
    """Return a saved graph of which one relation of three has times, and all have weights."""
    arguments = {"time_attr": "time", "weight_attr": "edge_weight"}
    pyg_direct.save(timed_types(False), tmp_path / "typed", **arguments)
    return tmp_path / "typed"


@pytest.fixture
def weighted_folder(tmp_path: Path) -> Path:
    """Return a saved graph with weights."""
    pyg_direct.save(timed_and_weighted(), tmp_path / "weighted", weight_attr="edge_weight")
    return tmp_path / "weighted"


WRONG_HEADERS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no_alias_table": (lambda h: h["weights"].update(alias=None), "no alias table for relation 1"),
    "short_alias_table": (lambda h: h["weights"]["alias"].update(shape=[10]), "alias is int64"),
    "short_sums": (
        lambda h: h["weights"]["cumulative"].update(shape=[10]), "cumulative is float64"
    ),
    "no_times": (lambda h: h.update(times=None), "no alias table"),
    "times_of_nobody": (lambda h: h["times"].update(attribute="x"), "'x', which no edges have"),
    "times_of_nodes": (lambda h: h["times"].update(of_nodes=1), "which no nodes|times is int64"),
    "weights_of_nobody": (lambda h: h["weights"].update(attribute="z"), "have the attribute 'z'"),
    "fewer_relations": (
        lambda h: h["weights"].update(relations=[True, False, True]), "which edge types have"
    ),
    "an_edge_type_twice": (
        lambda h: h["edges"][1].update(type=h["edges"][0]["type"]), "a type occurs twice"
    ),
    "positive": (lambda h: h["weights"].update(positive="no"), "must be true or false"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_HEADERS)
def test_headers_that_contradict_their_tables_are_refused(typed_folder: Path, name: str) -> None:
    change, message = WRONG_HEADERS[name]
    if name == "no_times":

        def change(content: dict[str, Any]) -> None:
            content.update(times=None)
            content["weights"].update(alias=None)

    change_header(typed_folder, change)
    with pytest.raises(InvalidGraphFileError, match=message):
        pyg_direct.open(typed_folder)


def test_a_wrong_start_of_the_lists_of_a_later_type_is_refused(typed_folder: Path) -> None:
    (path,) = typed_folder.glob("*_indptr.bin")
    indptr = np.fromfile(path, np.int32)
    indptr[201] += 1  # the first list of the second type
    indptr.tofile(path)
    with pytest.raises(InvalidGraphFileError, match=r"lists of edge type .*writes.* go from 3001"):
        pyg_direct.open(typed_folder)


def rewrite(folder: Path, table: str, change: Callable[[Any], Any]) -> None:
    """Change a table and its checksum, as if it had been written so."""
    (path,) = folder.glob(f"[0-9][0-9][0-9]_{table}.bin")
    values = np.fromfile(path, np.int64 if table in ("alias", "sorted_times") else np.float64)
    change(values)
    values.tofile(path)

    def with_checksum(entry: Any) -> None:
        if isinstance(entry, dict):
            if entry.get("file") == path.name:
                entry["crc32"] = zlib.crc32(path.read_bytes())
            for value in entry.values():
                with_checksum(value)

    change_header(folder, with_checksum)


TABLES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "empty": ("alias", lambda values: values.fill(0)),
    "another_law": ("alias", lambda values: values.view(np.float32)[::2].fill(-0.25)),
    "not_a_number": ("alias", lambda values: values.view(np.float32)[::2].fill(np.nan)),
    "out_of_lists": ("alias", lambda values: values.view(np.uint32)[1::2].fill(1 << 31)),
    "sums": ("cumulative", lambda values: values.__imul__(2)),
    "weights": ("weight", lambda values: values.__imul__(-1)),
}


@pytest.mark.parametrize("name", TABLES)
@in_own_process
def test_tables_of_other_weights_are_refused(weighted_folder: Path, name: str) -> None:
    rewrite(weighted_folder, *TABLES[name])
    message = "its weights do not fit their tables"
    with pytest.raises(InvalidGraphFileError, match=f"not written right: {message}"):
        pyg_direct.open(weighted_folder, verify=True)

    opened = pyg_direct.open(weighted_folder)
    with pytest.raises(ValueError, match=message):
        NeighborLoader(opened, [2], weight_attr="edge_weight")
    assert len(list(NeighborLoader(opened, [2], batch_size=100))) == 2


def test_lists_not_sorted_by_time_are_refused(tmp_path: Path) -> None:
    for of_nodes in (True, False):
        folder = tmp_path / f"graph{of_nodes}"
        pyg_direct.save(timed_types(of_nodes), folder, time_attr="time")
        pyg_direct.open(folder, verify=True)
        rewrite(folder, "sorted_times", lambda values: values.__imul__(-1))
        key = ("author", "writes", "paper") if of_nodes else ("paper", "cites", "paper")
        with pytest.raises(InvalidGraphFileError, match=f"neighbours by .*{key[1]}.* not sorted"):
            pyg_direct.open(folder, verify=True)


def test_no_graph_lacks_a_table_that_draws_would_read(tmp_path: Path) -> None:
    """Whoever makes a CSC: kernels do not look."""

    data = timed_and_weighted()
    pyg_direct.save(data, tmp_path / "graph", time_attr="time", weight_attr="edge_weight")
    opened: Any = pyg_direct.open(tmp_path / "graph")
    csc = opened.edge_index.graph.csc
    assert csc.weights.alias is None
    assert (csc.time_base != NO_TIME).all()
    with pytest.raises(ValueError, match="no alias table for relation 0"):
        replace(csc, times=None)
