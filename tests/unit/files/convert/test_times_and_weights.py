"""Times that neighbours are sorted by and tables of weights: as `save` makes them, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversions import as_npy, assert_same_files, attributed, typed, write_typed
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct.files.convert import edge_files, edge_table, node_files, weights
from pyg_direct.files.convert import weights as times
from pyg_direct.files.convert.convert import convert
from pyg_direct.files.convert.spec import GraphSpec
from pyg_direct.files.convert.workplace import Workplace
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.tools.convert import main

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def random_weights(edges: int) -> torch.Tensor:
    """Return weights of which some are 0, and some too large or too small to be added up."""
    weight = torch.rand(edges, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight[::7] = 0.0
    weight[5::50] = 1e308
    weight[6::50] = 1e-320
    return weight


def timed(dtype: torch.dtype = torch.int64) -> Data:
    """Return a graph with times of nodes and of edges, negative ones where there can be such."""
    data, generator = attributed(), torch.Generator().manual_seed(3)
    low = -20 if dtype.is_signed else 0
    data.time = torch.randint(low, 20, (200,), generator=generator).to(dtype)
    data.edge_when = torch.randint(low, 20, (3000,), generator=generator).to(dtype)
    data.edge_weight = random_weights(3000)
    return data


def spec_with(data: Data, folder: Path, **fields: Any) -> GraphSpec:
    return replace(as_npy(data, folder), **fields)


@pytest.mark.parametrize("time_attr", [None, "time", "edge_when"])
@pytest.mark.parametrize("weight_attr", [None, "edge_weight"])
def test_a_converted_graph_with_times_and_weights_equals_a_saved_one(
    tmp_path: Path, time_attr: str | None, weight_attr: str | None
) -> None:
    fields = {"time_attr": time_attr, "weight_attr": weight_attr}
    convert(spec_with(timed(), tmp_path / "raw", **fields), tmp_path / "out")
    pyg_direct.save(timed(), tmp_path / "saved", **fields)
    assert_same_files(tmp_path / "out", tmp_path / "saved")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("time_attr", ["time", "edge_when"])
def test_times_of_all_dtypes(tmp_path: Path, dtype: torch.dtype, time_attr: str) -> None:
    convert(spec_with(timed(dtype), tmp_path / "raw", time_attr=time_attr), tmp_path / "out")
    pyg_direct.save(timed(dtype), tmp_path / "saved", time_attr=time_attr)
    assert_same_files(tmp_path / "out", tmp_path / "saved")


def test_disk_space_is_asked_for_beside_rows_of_nodes_for_weights_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, written = list[int](), list[int]()
    monkeypatch.setattr(Workplace, "check_space", lambda self, needed: asked.append(needed))
    data = timed()
    data.x = torch.zeros(200, 1000)  # larger than the tables of edges, which are gone by then
    for weight_attr in (None, "edge_weight"):
        out = tmp_path / f"{weight_attr}"
        convert(spec_with(data, tmp_path / "raw", weight_attr=weight_attr), out)
        written.append(sum(path.stat().st_size for path in out.rglob("*.bin")))
    assert written[0] <= asked[0]
    assert written[1] - written[0] == asked[1] - asked[0] >= 8 * 3000


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.float16, torch.float32])
def test_weights_of_other_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    data = timed()
    data.edge_weight = torch.arange(3000).view(-1, 1).remainder(5).to(dtype)
    convert(spec_with(data, tmp_path / "raw", weight_attr="edge_weight"), tmp_path / "out")
    pyg_direct.save(data, tmp_path / "saved", weight_attr="edge_weight")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


@pytest.mark.parametrize("time_attr", ["time", "edge_when"])
def test_all_sizes_of_steps_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_attr: str
) -> None:
    fields = {"time_attr": time_attr, "weight_attr": "edge_weight"}
    pyg_direct.save(timed(), tmp_path / "saved", **fields)
    for module, name, value in (
        (edge_files, "STEP_EDGES", 7), (edge_table, "SORT_BYTES", 10**6), (times, "STEP_ROWS", 9),
        (edge_table, "HISTOGRAM", 10), (node_files, "STEP_BYTES", 100), (weights, "STEP_EDGES", 20),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("pyg_direct.files.convert.convert.PIECE_BYTES", 10**5)
    convert(spec_with(timed(), tmp_path / "raw", **fields), tmp_path / "out", memory_bytes=10**9)
    assert_same_files(tmp_path / "out", tmp_path / "saved")


def timed_types(of_nodes: bool) -> HeteroData:
    """Return a graph of which some types have times and weights, and some have none."""
    data, generator = typed(), torch.Generator().manual_seed(4)
    data["paper"].empty_type = torch.zeros(90, dtype=torch.int8)
    if of_nodes:
        data["paper"].time = torch.randint(30, (90,), generator=generator)
    else:
        data["author", "writes", "paper"].time = torch.randint(30, (400,), generator=generator)
    data["paper", "by", "author"].weight = random_weights(400)
    data["paper", "cites", "paper"].weight = torch.rand(400, generator=generator)
    # A type without nodes, and edges of which there are none.
    data["venue"].x, data["venue"].num_nodes = torch.empty(0, 2), 0
    data["venue", "holds", "paper"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["venue", "holds", "paper"].year = torch.empty(0, dtype=torch.int64)
    if of_nodes:
        data["venue"].time = torch.empty(0, dtype=torch.int64)
    return data


@pytest.mark.parametrize("of_nodes", [True, False])
def test_a_heterogeneous_graph(tmp_path: Path, of_nodes: bool) -> None:
    data = timed_types(of_nodes)
    spec = write_typed(data, tmp_path)
    arguments = ["--time-attr", "time", "--weight-attr", "weight"]
    main([str(tmp_path / "out"), "--spec", str(spec), *arguments])
    pyg_direct.save(data, tmp_path / "saved", time_attr="time", weight_attr="weight")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


@pytest.mark.parametrize("time_attr", ["time", "edge_when"])
def test_changed_edges_are_sorted_by_time(tmp_path: Path, time_attr: str) -> None:
    """As if the graph was converted as it is, and saved with times then."""
    data = timed()
    changes: dict[str, Any] = {"symmetrise": True, "deduplicate": True}
    if time_attr == "time":  # added self-loops have no attributes
        data = Data(edge_index=data.edge_index, time=data.time)
        changes["self_loops"] = "add"
    spec = as_npy(data, tmp_path / "raw")
    spec = replace(spec, edges=[replace(spec.edges[0], **changes)])
    convert(spec, tmp_path / "plain")
    convert(replace(spec, time_attr=time_attr), tmp_path / "out")
    pyg_direct.save(pyg_direct.open(tmp_path / "plain"), tmp_path / "saved", time_attr=time_attr)
    assert_same_files(tmp_path / "out", tmp_path / "saved")


@pytest.mark.parametrize(
    "options",
    [
        {"time_attr": "time", "input_time": torch.full((200,), 5)},
        {"time_attr": "edge_when", "input_time": torch.full((200,), 5)},
        {"time_attr": "time", "temporal_strategy": "last", "weight_attr": "edge_weight"},
        {"weight_attr": "edge_weight"},
    ],
)
def test_loaders_take_them_as_they_are(tmp_path: Path, options: dict[str, Any]) -> None:
    """They build nothing, and give the batches of the graph in memory but for edge ids."""
    data = timed()
    named = {key: value for key, value in options.items() if key in ("time_attr", "weight_attr")}
    convert(spec_with(data, tmp_path / "raw", **named), tmp_path / "out")
    back: Any = pyg_direct.open(tmp_path / "out")
    csc = graph_of(back, **named, checks_ids=True).csc
    mapped = back.edge_index.graph.csc
    for (name, array), (_, file) in zip(csc.arrays(), mapped.arrays(), strict=True):
        assert np.shares_memory(array, file), name
    loaders = [
        pyg_direct.NeighborLoader(graph, [4, 3], batch_size=32, seed=5, shuffle=True, **options)
        for graph in (back, data)
    ]
    batches = list(zip(*loaders, strict=True))
    assert batches
    for one, other in batches:
        for key in ("n_id", "edge_index", "x", "edge_weight", "edge_when", "batch"):
            assert (key in one) == (key in other), key
            if key in one:
                assert torch.equal(one[key], other[key]), key


def test_attributes_that_are_no_times_or_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = timed()
    data.edge_negative = torch.ones(3000)
    data.edge_negative[2500] = -1
    spec = as_npy(data, tmp_path / "raw")
    monkeypatch.setattr("pyg_direct.files.convert.convert.PIECE_BYTES", 10**6)  # of 500 edges
    for fields, match in (
        ({"time_attr": "x"}, r"time_attr='x': .*x.npy must hold integer times of one dimension"),
        ({"time_attr": "edge_weight"}, r"edge_weight.npy must hold integer times .* torch.float64"),
        ({"weight_attr": "edge_attr"}, r"edge_attr.npy must hold one weight for each edge"),
        ({"weight_attr": "edge_negative"}, r"edge_negative.npy\[2500\] is -1.0, but weights must"),
    ):
        with pytest.raises(ValueError, match=match):
            convert(replace(spec, **fields), tmp_path / "out")
        assert not (tmp_path / "out.part").exists()
    for fields, match in (
        ({"time_attr": "z"}, "'z' is not an attribute of the nodes or of the edges. Those are: "),
        ({"weight_attr": "x"}, "'x' is not an attribute of the edges. Those are: .*'edge_weight'"),
    ):
        with pytest.raises(ValueError, match=match):
            replace(spec, **fields)
    both = replace(spec.edges[0], attributes={**spec.edges[0].attributes, "x": spec.edges[0].ends})
    with pytest.raises(ValueError, match="time_attr='x' is an attribute of nodes and of edges"):
        replace(spec, edges=[both], time_attr="x")
