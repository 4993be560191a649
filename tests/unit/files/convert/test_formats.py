"""Files of every kind become the graph that `save` writes, bit for bit."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversions import as_npy, assert_same_files, attributed, typed, write_typed
from torch_geometric.data import Data

import pyg_direct
from pyg_direct.files.convert import array_rows, edge_files, edge_table, node_files
from pyg_direct.files.convert.convert import convert
from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec
from pyg_direct.tools.convert import main

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


def save_npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def save_packed_npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def save_pt(path: Path, arrays: dict[str, Any]) -> Path:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.save(tensors, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


@pytest.mark.parametrize("write", [save_npz, save_packed_npz, save_pt])
def test_files_of_several_arrays(
    tmp_path: Path,
    write: Callable[[Path, dict[str, Any]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(array_rows, "STEP_BYTES", 1000)
    data = attributed()
    arrays = {name: value.numpy() for name, value in data.to_dict().items()}
    source = ArraySource(str(write(tmp_path / "data", arrays)))
    edges = {name: source for name in ("edge_attr", "edge_weight")}
    nodes = {"x": source, "y": source}
    convert(
        GraphSpec([NodeSpec(None, None, nodes)], [EdgeSpec(None, source, edges)]), tmp_path / "out"
    )
    pyg_direct.save(data, tmp_path / "saved")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


ENDS: dict[str, Callable[[Path, torch.Tensor], ArraySource]] = {}


def ends(function: Callable[[Path, torch.Tensor], ArraySource]) -> Callable[..., ArraySource]:
    ENDS[function.__name__] = function
    return function


@ends
def rows(folder: Path, edges: torch.Tensor) -> ArraySource:
    np.save(folder / "e.npy", edges.numpy())
    return ArraySource(str(folder / "e.npy"))


@ends
def columns(folder: Path, edges: torch.Tensor) -> ArraySource:
    np.save(folder / "e.npy", np.ascontiguousarray(edges.numpy().T))
    return ArraySource(str(folder / "e.npy"))


@ends
def rows_by_columns(folder: Path, edges: torch.Tensor) -> ArraySource:
    np.save(folder / "e.npy", np.asfortranarray(edges.numpy()))
    return ArraySource(str(folder / "e.npy"))


@ends
def transposed(folder: Path, edges: torch.Tensor) -> ArraySource:
    np.save(folder / "e.npy", edges.numpy().T)  # is stored by columns
    return ArraySource(str(folder / "e.npy"))


@ends
def big_endian(folder: Path, edges: torch.Tensor) -> ArraySource:
    np.save(folder / "e.npy", edges.numpy().astype(">i4"))
    return ArraySource(str(folder / "e.npy"))


@ends
def unsigned(folder: Path, edges: torch.Tensor) -> ArraySource:
    np.save(folder / "e.npy", edges.numpy().astype(np.uint32))
    return ArraySource(str(folder / "e.npy"))


@ends
def tensor(folder: Path, edges: torch.Tensor) -> ArraySource:
    torch.save(edges.int(), folder / "e.pt")
    return ArraySource(str(folder / "e.pt"))


@ends
def csv(folder: Path, edges: torch.Tensor) -> ArraySource:
    lines = ["from,to", *(f"{s},{t}" for s, t in edges.t().tolist())]
    (folder / "e.csv").write_text("\n".join(lines))
    return ArraySource(str(folder / "e.csv"))


@ends
def csv_without_header(folder: Path, edges: torch.Tensor) -> ArraySource:
    with gzip.open(folder / "e.csv.gz", "wt") as file:
        file.writelines(f"{s},{t}\n" for s, t in edges.t().tolist())
    return ArraySource(str(folder / "e.csv.gz"))


@ends
def csv_with_a_byte_order_mark(folder: Path, edges: torch.Tensor) -> ArraySource:
    lines = ["from,to", *(f"{s},{t}" for s, t in edges.t().tolist())]
    (folder / "e.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    return ArraySource(str(folder / "e.csv"), columns=("from", "to"))


@ends
def csv_with_a_byte_order_mark_without_header(folder: Path, edges: torch.Tensor) -> ArraySource:
    lines = (f"{s},{t}" for s, t in edges.t().tolist())
    (folder / "e.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    return ArraySource(str(folder / "e.csv"))


@ends
def csv_with_odd_names(folder: Path, edges: torch.Tensor) -> ArraySource:
    """Empty lines before a header with spaces, a quoted comma and, above data, a number."""
    last = "7" if edges.numel() > 0 else "w"
    lines = ["", "", f'"from, or to", to,{last}', *(f"{s},{t},9" for s, t in edges.t().tolist())]
    (folder / "e.csv").write_text("\n".join(lines))
    return ArraySource(str(folder / "e.csv"), columns=("from, or to", "to"))


@ends
def tsv_with_other_columns(folder: Path, edges: torch.Tensor) -> ArraySource:
    lines = ["to\tname\tfrom", *(f"{t}\ta\t{s}" for s, t in edges.t().tolist())]
    (folder / "e.tsv").write_text("\n".join(lines))
    return ArraySource(str(folder / "e.tsv"), columns=("from", 0))


@ends
def parquet(folder: Path, edges: torch.Tensor) -> ArraySource:
    import pyarrow.parquet as pq

    table = pa.table({"b": edges[1].numpy(), "a": edges[0].numpy()})
    pq.write_table(table, folder / "e.parquet", row_group_size=700)
    return ArraySource(str(folder / "e.parquet"), columns=("a", "b"))


@pytest.mark.parametrize("write", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("num_edges", [0, 1, 3, 2000])
def test_ends_of_edges(
    tmp_path: Path, write: Callable[[Path, torch.Tensor], ArraySource], num_edges: int
) -> None:
    edges = torch.randint(100, (2, num_edges), generator=torch.Generator().manual_seed(0))
    source = write(tmp_path, edges)
    convert(GraphSpec([NodeSpec(None, 100)], [EdgeSpec(None, source)]), tmp_path / "out")
    pyg_direct.save(Data(edge_index=edges, num_nodes=100), tmp_path / "saved")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


def test_two_edges_in_an_array_by_columns(tmp_path: Path) -> None:
    """[2, 2] is [2, E], also where it is stored by columns. Labels alone tell the nodes."""
    edges = torch.tensor([[0, 1], [2, 3]])
    np.save(tmp_path / "e.npy", np.asfortranarray(edges.numpy()))
    np.save(tmp_path / "y.npy", np.arange(4))
    nodes = NodeSpec(None, None, {"y": ArraySource(str(tmp_path / "y.npy"))})
    spec = GraphSpec([nodes], [EdgeSpec(None, ArraySource(str(tmp_path / "e.npy")))])
    convert(spec, tmp_path / "out")
    pyg_direct.save(Data(edge_index=edges, y=torch.arange(4), num_nodes=4), tmp_path / "saved")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


def test_all_sizes_of_steps_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = as_npy(attributed(), tmp_path)
    pyg_direct.save(attributed(), tmp_path / "saved")
    monkeypatch.setattr(edge_files, "STEP_EDGES", 7)
    monkeypatch.setattr(edge_table, "SORT_BYTES", 10**6)
    monkeypatch.setattr(edge_table, "HISTOGRAM", 10)
    monkeypatch.setattr(node_files, "STEP_BYTES", 100)
    monkeypatch.setattr("pyg_direct.files.convert.convert.PIECE_BYTES", 10**5)
    convert(spec, tmp_path / "out", memory_bytes=10**9)
    assert_same_files(tmp_path / "out", tmp_path / "saved")


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.int16, torch.float16, torch.bfloat16, torch.float64]
)
def test_attributes_keep_all_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    """Also of NaN and of zeros with a sign, which come out of DuckDB as they went in."""
    data = attributed()
    value = torch.randn(3000, generator=torch.Generator().manual_seed(1)) * 100
    value[:3] = torch.tensor([-0.0, 0.0, 1.0])
    value = (value > 0) if dtype == torch.bool else value.to(dtype)
    if dtype.is_floating_point:
        value[3:6] = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=dtype)
    data = Data(edge_index=data.edge_index, num_nodes=200, edge_a=value, edge_b=value.view(-1, 1))
    torch.save({**data.to_dict()}, tmp_path / "data.pt")
    source = ArraySource(str(tmp_path / "data.pt"))
    edges = EdgeSpec(None, source, {"edge_a": source, "edge_b": source})
    convert(GraphSpec([NodeSpec(None, 200)], [edges]), tmp_path / "out")
    pyg_direct.save(data, tmp_path / "saved")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


def test_a_heterogeneous_graph(tmp_path: Path) -> None:
    spec, out = write_typed(typed(), tmp_path), tmp_path / "it's here"  # a quote of SQL
    main([str(out), "--spec", str(spec)])
    pyg_direct.save(typed(), tmp_path / "saved")
    assert_same_files(out, tmp_path / "saved")
    loader = pyg_direct.NeighborLoader(
        pyg_direct.open(out), [3, 3], input_nodes="paper", batch_size=10
    )
    assert len(list(loader)) == 9


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [("int8", "column"), ("int8", "row"), ("float16", "column"), ("bfloat16", "column")],
)
def test_narrow_features_are_those_of_a_table_quantized_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, scale: str
) -> None:
    """As `quantize` makes them of the whole table; labels and other arrays stay."""
    data = attributed()
    data.x[3] = 0.0  # the factor of this row is 0
    data.codes = torch.arange(400).view(200, 2)
    monkeypatch.setattr(node_files, "STEP_BYTES", 100)
    spec = replace(as_npy(data, tmp_path), feature_dtype=dtype, feature_scale=scale)
    convert(spec, tmp_path / "out")
    data.x = pyg_direct.quantize(data.x, getattr(torch, dtype), scale=scale)
    pyg_direct.save(data, tmp_path / "saved")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


def test_a_scale_is_for_int8(tmp_path: Path) -> None:
    spec = as_npy(attributed(), tmp_path)
    with pytest.raises(ValueError, match="feature_scale='row' is for feature_dtype='int8', got 'f"):
        replace(spec, feature_dtype="float16", feature_scale="row")
    with pytest.raises(ValueError, match="feature_scale must be one of 'column', 'row'"):
        replace(spec, feature_dtype="int8", feature_scale="both")


def test_the_layout_of_papers100m(tmp_path: Path) -> None:
    data, generator = attributed(), torch.Generator().manual_seed(2)
    folder = tmp_path / "raw"
    folder.mkdir()
    label = torch.randint(172, (200, 1), generator=generator).float()
    label[10:] = float("nan")
    year = torch.randint(1990, 2020, (200, 1), generator=generator)
    np.savez(
        folder / "data.npz", edge_index=data.edge_index, num_nodes_list=[200],
        num_edges_list=[3000], node_year=year, node_feat=data.x, edge_feat=data.edge_attr,
    )  # fmt: skip
    np.savez(folder / "node-label.npz", node_label=label)
    (tmp_path / "split" / "time").mkdir(parents=True)
    parts = {"train": [0, 3, 5], "valid": [1], "test": [2, 4]}
    for name, ids in parts.items():
        with gzip.open(tmp_path / "split" / "time" / f"{name}.csv.gz", "wt") as file:
            file.writelines(f"{i}\n" for i in ids)
    main([str(tmp_path / "out"), "--ogb", str(tmp_path)])
    masks = [torch.zeros(200, dtype=torch.bool) for _ in parts]
    for mask, ids in zip(masks, parts.values(), strict=True):
        mask[ids] = True
    labels = torch.where(label.isnan(), -1, label).long().view(-1)
    expected = Data(x=data.x, edge_index=data.edge_index, edge_feat=data.edge_attr)
    expected.node_year, expected.y = year, labels
    expected.train_mask, expected.val_mask, expected.test_mask = masks
    pyg_direct.save(expected, tmp_path / "saved")
    assert_same_files(tmp_path / "out", tmp_path / "saved")


def test_tables_of_features(tmp_path: Path) -> None:
    """Numbers in CSV are int64 or float32; lists in parquet are rows."""
    import pyarrow.parquet as pq

    x = np.arange(12).reshape(4, 3) / 4
    (tmp_path / "x.csv").write_text("\n".join(",".join(map(str, row)) for row in x.tolist()))
    (tmp_path / "y.csv").write_text("other,y\n1,\n2,7\n3,8\n4,9\n")
    table = {"z": x.tolist(), "w": pa.array([True, False, True, True])}
    pq.write_table(pa.table(table), tmp_path / "z.parquet")
    np.savez(tmp_path / "e.npz", other=np.zeros(3), ends=np.zeros((2, 1), np.int64))
    np.save(tmp_path / "v.npy", np.arange(4.0).reshape(4, 1))
    (tmp_path / "b.csv").write_text("b\ntrue\nfalse\ntrue\ntrue\n")
    (tmp_path / "ids.csv").write_text("1\n3\n")
    spec = {
        "node": {
            "attributes": {
                "m": {"file": "ids.csv", "lists_ids": True},
                "v": {"file": "v.npy", "flat": True},
                "b": {"file": "b.csv", "dtype": "bool"},
                "x": "x.csv",
                "y": {"file": "y.csv", "columns": ["y"], "missing": -1},
                "z": {"file": "z.parquet", "dtype": "float16"},
                "w": "z.parquet",
            }
        },
        "edge": {"file": "e.npz", "key": "ends"},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    main([str(tmp_path / "out"), "--spec", str(tmp_path / "spec.json")])
    data: Any = pyg_direct.open(tmp_path / "out", verify=True)
    assert data.num_nodes == 4
    assert torch.equal(data.x, torch.from_numpy(x).float())
    assert data.y.tolist() == [-1, 7, 8, 9]
    assert data.y.dtype == torch.int64
    assert torch.equal(data.z, torch.from_numpy(x).half())
    assert data.w.tolist() == data.b.tolist() == [True, False, True, True]
    assert data.m.tolist() == [False, True, False, True]
    assert data.v.tolist() == [0, 1, 2, 3]
