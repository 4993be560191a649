"""Graphs that PyG and OGB have written, converted as they are."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conversions import assert_same_files, edge_list
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import pyg_direct
from pyg_direct.files.convert.array_rows import open_pt
from pyg_direct.tools.convert import main

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

SORTED = [(3, 1), (4, 2), (1, 5)]  # by destination


def small() -> Data:
    data = Data(x=torch.randn(6, 2), edge_index=torch.tensor(SORTED).t().contiguous())
    data.y, data.name, data.edge_weight = torch.arange(6), "small", torch.rand(3)
    return data


def small_typed() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.randn(6, 2), 6
    data["a", "to", "b"].edge_index = torch.tensor(SORTED).t().contiguous()
    return data


@pytest.mark.parametrize("of", [small, small_typed])
@pytest.mark.parametrize("as_dataset", [False, True])
def test_graphs_of_pyg(tmp_path: Path, of: Callable[[], Any], as_dataset: bool) -> None:
    """`torch.save(data)`, and the file that an `InMemoryDataset` of one graph has."""
    data = of()
    if as_dataset:
        InMemoryDataset.save([data], str(tmp_path / "data.pt"))
    else:
        torch.save(data, tmp_path / "data.pt")
    main([str(tmp_path / "g"), "--pyg", str(tmp_path / "data.pt")])
    pyg_direct.save(data, tmp_path / "saved")
    assert_same_files(tmp_path / "g", tmp_path / "saved")


def test_arrays_of_graphs_of_pyg(tmp_path: Path) -> None:
    data = small()
    torch.save(data, tmp_path / "data.pt")
    file = f"{tmp_path}/data.pt"
    main([str(tmp_path / "g"), "--edges", file, "--node", f"x={file}", "--node", f"l={file}:y"])
    found: Any = pyg_direct.open(tmp_path / "g")
    assert torch.equal(found.x, data.x)
    assert torch.equal(found.l, data.y)
    assert edge_list(found) == SORTED
    torch.save(small_typed(), tmp_path / "typed.pt")
    rows = open_pt(tmp_path / "typed.pt", "a/to/b/edge_index", "edge_index", True)
    assert rows.length == 3


def test_pt_files_without_one_graph_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data.pt"
    for content, message in (
        ([small()] * 3, "is a data set of 3 graphs"),
        ({"a": 1}, "holds no graph of PyG, but a dict"),
        ({"f": re.compile("a")}, "nothing that may run code"),
    ):
        if isinstance(content, list):
            InMemoryDataset.save(content, str(file))
        else:
            torch.save(content, file)
        with pytest.raises(SystemExit, match="2"):
            main([str(tmp_path / "g"), "--pyg", str(file)])
        assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "g"), "--pyg", str(file), "--symmetrise"])
    assert "Edges are not changed with --pyg" in capsys.readouterr().err


def packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("name", ["ogbn_arxiv", "ogbn_products"])
def test_csv_of_ogb(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / name
    for file, text in {
        "raw/edge": "3,1\n1,5\n4,2\n", "raw/node-feat": ".5,1\n" * 6, "raw/num-node-list": "6\n",
        "raw/num-edge-list": "3\n", "raw/node-label": "2\n" * 6, "raw/node_year": "2001\n" * 6,
        "split/time/train": "0\n1\n", "split/time/valid": "5\n", "split/time/test": "4\n",
    }.items():  # fmt: skip
        packed(folder / f"{file}.csv.gz", text)
    arguments = [str(tmp_path / "g"), "--ogb", str(folder)]
    if name == "ogbn_products":
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert "OGB adds the reverse ones" in capsys.readouterr().err
        arguments.append("--no-symmetrise")
    main(arguments)
    data: Any = pyg_direct.open(tmp_path / "g")
    assert edge_list(data) == SORTED
    assert data.x.tolist() == [[0.5, 1.0]] * 6
    assert data.y.tolist() == [2] * 6
    assert data.node_year.tolist() == [2001] * 6
    assert data.train_mask.nonzero().flatten().tolist() == [0, 1]


def test_csv_of_ogb_by_types(tmp_path: Path) -> None:
    for file, text in {
        "raw/num-node-dict": "author,paper\n2,3\n",
        "raw/relations/author___writes___paper/edge": "0,2\n1,0\n",
        "raw/relations/author___writes___paper/edge_reltype": "4\n5\n",
        "raw/relations/author___writes___paper/num-edge-list": "2\n",
        "raw/node-feat/paper/node-feat": "1.5,2\n" * 3,
        "raw/node-label/paper/node-label": "0\nnan\n2\n",
        "split/time/paper/train": "2\n", "raw/triplet-type-list": "author,writes,paper\n",
    }.items():  # fmt: skip
        packed(tmp_path / f"{file}.csv.gz", text)
    main([str(tmp_path / "g"), "--ogb", str(tmp_path)])
    data: Any = pyg_direct.open(tmp_path / "g")
    assert edge_list(data["author", "paper"]) == [(1, 0), (0, 2)]
    assert data["author", "paper"].edge_reltype.tolist() == [5, 4]
    assert data["paper"].x.tolist() == [[1.5, 2.0]] * 3
    assert data["paper"].y.tolist() == [0, -1, 2]
    assert data["paper"].train_mask.tolist() == [False, False, True]
    assert data["author"].num_nodes == 2
