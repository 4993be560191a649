"""Files that do not hold what they should: errors that name the file and the entry."""

from __future__ import annotations

import errno
import gc
import gzip
import json
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyg_direct.files.convert import convert as steps
from pyg_direct.files.convert import node_files
from pyg_direct.files.convert.convert import as_os_errors, convert
from pyg_direct.files.convert.ids import NodeIds
from pyg_direct.files.convert.node_files import open_attribute
from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec, spec_of
from pyg_direct.files.convert.table_rows import WantedRows
from pyg_direct.tools.convert import main

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


def of(folder: Path, file: str, **fields: Any) -> ArraySource:
    return ArraySource(str(folder / file), **fields)


def refused(
    folder: Path,
    match: str,
    ends: ArraySource,
    nodes: dict[str, ArraySource] | None = None,
    edges: dict[str, ArraySource] | None = None,
    num_nodes: int | None = 10,
) -> None:
    spec = GraphSpec([NodeSpec(None, num_nodes, nodes or {})], [EdgeSpec(None, ends, edges or {})])
    with pytest.raises((ValueError, OSError), match=match):
        convert(spec, folder / "out")
    assert not (folder / "out").exists()
    assert not (folder / "out.part").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "good.npy", np.zeros((2, 5), np.int64))
    np.save(tmp_path / "w.npy", np.zeros(5, np.float32))
    return tmp_path


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([[0, 9, 10], [1, 1, 1]], r"Entry 2 of sources in .*e.npy is 10, .* must be in \[0, 10\)"),
        ([[0, 9, 1], [1, -1, 1]], r"Entry 1 of destinations in .*e.npy is -1"),
        ([[0, 9, 2**40], [1, 1, 1]], "is 1099511627776"),
        (np.array([[0], [2**63]], np.uint64), "Entry 0 of destinations"),
        (np.zeros((2, 3)), "must hold the ends of edges, integers"),
        (np.zeros((2, 3), bool), "must hold the ends of edges, integers"),
        (np.zeros((4, 8)), r"got torch.float64 \[4, 8\]"),
        (np.zeros((3, 3), int), r"of shape \[2, E\] or \[E, 2\]"),
        (np.asfortranarray(np.zeros((3, 3), int)), r"of shape \[2, E\] or \[E, 2\]"),
        (np.zeros(4, int), r"of shape \[2, E\] or \[E, 2\]"),
        (np.array(5), "is a single number"),
        (np.array([["a", "b"]]), "must hold booleans, integers or floats"),
    ],
)
def test_ends_out_of_range_or_of_wrong_dtype_are_refused(
    folder: Path, ids: Any, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PIECE_BYTES", 10**9)  # one edge at a time
    np.save(folder / "e.npy", ids)
    refused(folder, match, of(folder, "e.npy"))


@pytest.mark.parametrize(
    ("text", "fields", "match"),
    [
        ("a,b\n1,2\n", {"columns": ("a", "c")}, "no column 'c'; it has 2: a, b"),
        ("a,b\n1,2\n", {"columns": (0, 2)}, "no column 2"),
        ("a\n1\n", {}, "two columns of ids"),
        ("a,b\n1,x\n", {}, "Row 0 of column 'b' of .* is 'x', not a whole number"),
        ("a,b\n1,2.5\n", {}, "Row 0 of column 'b' of .* is '2.5', not a whole number"),
        ("a,b\n1,\n", {}, "Row 0 of column 'b' of .* is empty"),
        ("a,b\n1,2\n3\n", {}, "cannot be read.*Original Line: 3 .* Columns: 2 Found: 1"),
        ("a,b\n1,10\n", {}, "Entry 0 of destinations .* is 10"),
        ("src,src\n1,2\n", {}, "has 2 columns that are called 'src': rename"),
        ("a,src,src\n1,2,3\n", {"columns": (0, 1)}, "has 2 columns that are called 'src'"),
        ("a,b\n1,2\n", {"columns": ("a", 0)}, "column 'a' of .* is named 2 times"),
        ("0x1,2\n3,4\n", {}, "neither numbers nor names of columns: '0x1, 2'"),
        ("0x1,0x2\n3,4\n", {}, "neither numbers nor names of columns"),
        ("1,x\n", {}, "neither numbers nor names of columns"),
        ("abc,1,2\nd,3,4\n", {"columns": (1, 2)}, "neither numbers nor names of columns"),
        ("NA,2\n3,4\n", {}, "is 'NA', not a whole number"),
        ("\n\n1,12\n", {}, "Entry 0 of destinations .* is 12"),
    ],
)
def test_csv_files_with_wrong_lines_or_columns_are_refused(
    folder: Path, text: str, fields: dict[str, Any], match: str
) -> None:
    (folder / "e.csv").write_text(text)
    refused(folder, match, of(folder, "e.csv", **fields))


def test_text_of_another_encoding_and_damaged_archives(folder: Path) -> None:
    (folder / "e.csv").write_text("a,b\n1,2\n", encoding="utf-16")
    refused(folder, "e.csv is not UTF-8 text", of(folder, "e.csv"))
    packed = gzip.compress(b"a,b\n" + b"1,2\n3,4\n5,6\n" * 999)
    for content in (packed[:-9], b"something else", packed[:-8] + bytes(8)):
        (folder / "e.csv.gz").write_bytes(content)
        refused(folder, "e.csv.gz is damaged", of(folder, "e.csv.gz"))


def test_wrong_columns_of_parquet(folder: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [pa.array([1, 2]), pa.array([3, 4])]
    parquet.write_table(pa.Table.from_arrays(columns, ["src", "src"]), folder / "e.parquet")
    refused(folder, "has 2 columns that are called 'src'", of(folder, "e.parquet"))


@pytest.mark.parametrize("shape", ["(2, -5)", "(-2, 5)", "(2, 2**60)", "(2, 5.0)", "(2, 5", "2, 6"])
def test_damaged_numpy_headers(folder: Path, shape: str) -> None:
    shape = shape.replace("2**60", str(2**60))
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00v\x00" + header.encode() + bytes(80)
    (folder / "e.npy").write_bytes(content)
    with zipfile.ZipFile(folder / "e.npz", "w") as archive:
        archive.writestr("e.npy", content)
    for name in ("e.npy", "e.npz"):
        refused(folder, f"{name} (is not a NumPy array|ends .* bytes early)", of(folder, name))


def test_a_damaged_archive_of_arrays(folder: Path) -> None:
    np.savez(folder / "e.npz", edge_index=np.zeros((2, 500), int))
    content = bytearray((folder / "e.npz").read_bytes())
    content[2000] ^= 1
    (folder / "e.npz").write_bytes(content)
    refused(folder, "e.npz is damaged: Bad CRC-32", of(folder, "e.npz"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="takes a system with named pipes")
@pytest.mark.parametrize("kind", ["npy", "npz", "pt", "csv", "csv.gz", "parquet"])
def test_pipes_and_folders_are_refused(folder: Path, kind: str) -> None:
    os.mkfifo(folder / f"e.{kind}")
    refused(folder, "is not a regular file.* write what a pipe", of(folder, f"e.{kind}"))
    (folder / f"f.{kind}").mkdir()
    refused(folder, "is not a regular file", of(folder, f"f.{kind}"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_a_limit_of_open_files_is_named(folder: Path) -> None:
    import resource

    spec = GraphSpec([NodeSpec(None, 10)], [EdgeSpec(None, of(folder, "good.npy"))])
    convert(spec, folder / "first")  # what is imported or opened once is there
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    errors: list[tuple[int | None, str, bool]] = []  # without tracebacks, which hold open files
    gc.collect()  # files that other tests left are not closed in between
    with open(os.devnull) as free:
        least = free.fileno() + 1
    while not (folder / "out").exists():
        limit = least + len(errors)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            convert(spec, folder / "out")
        except OSError as error:
            errors.append((error.errno, str(error), isinstance(error.__cause__, OSError)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {number for number, _, _ in errors} == {errno.EMFILE}
    text = r"may have at most \d+ files open, .* ulimit -n 4096"
    assert all(re.search(text, message, re.DOTALL) for _, message, _ in errors)
    assert not all(by_system for _, _, by_system in errors), "one is DuckDB's"
    assert (folder / "out" / "graph.json").exists()


def test_other_errors_of_duckdb_are_those_of_the_system() -> None:
    duckdb = pytest.importorskip("duckdb")
    text = f"Could not write file: {os.strerror(errno.ENOSPC)}"
    for error, code in ((text, errno.ENOSPC), ("something else", errno.EIO)):
        with pytest.raises(OSError, match=error) as found, as_os_errors():
            raise duckdb.IOException(error)
        assert found.value.errno == code


def test_attributes_of_wrong_length_layout_or_dtype_are_refused(folder: Path) -> None:
    good = of(folder, "good.npy")
    np.save(folder / "x.npy", np.zeros((9, 2)))
    refused(folder, "'x' needs 10 entries, but .*x.npy has 9", good, {"x": of(folder, "x.npy")})
    np.save(folder / "x.npy", np.asfortranarray(np.zeros((10, 2))))
    refused(folder, "stored by columns", good, {"x": of(folder, "x.npy")})
    np.save(folder / "x.npy", np.zeros((10, 0)))
    refused(folder, "rows of no elements", good, {"x": of(folder, "x.npy")})
    np.save(folder / "x.npy", np.zeros(10, np.uint32))
    refused(folder, "Name another", good, {"x": of(folder, "x.npy")})
    np.save(folder / "x.npy", np.full(10, 1.5))
    refused(
        folder, "Row 0 of .* has 1.5, which int64", good, {"x": of(folder, "x.npy", dtype="int64")}
    )
    np.save(folder / "w4.npy", np.zeros(4))
    refused(
        folder, "'w' needs 5 entries, but .*w4.npy has 4", good, None, {"w": of(folder, "w4.npy")}
    )
    (folder / "x.csv").write_text("x\n1\n2\n")
    refused(folder, "'x' needs 10 entries, but .*x.csv has 2.", good, {"x": of(folder, "x.csv")})
    (folder / "x.csv").write_text("x\n1\n" + "2\n" * 10)
    refused(
        folder, "x.csv has 11. Is the first line of text names", good, {"x": of(folder, "x.csv")}
    )
    (folder / "w.csv").write_text("w\n1\n2\n")
    refused(folder, "needs 5 entries, but", good, None, {"w": of(folder, "w.csv")})
    (folder / "ends.csv").write_text("3,1\n" * 5)
    ends = of(folder, "ends.csv")
    refused(folder, "as many entries as", ends, None, {"w": of(folder, "w.csv")})
    (folder / "w.csv").write_text("w\na\nb\n")
    refused(
        folder,
        "Row 0 of the column 'w' of .* is 'a', but an attribute",
        good,
        None,
        {"w": of(folder, "w.csv")},
    )
    np.save(folder / "ids.npy", np.array([1, 10]))
    refused(
        folder, "Entry 1 of .*ids.npy is 10", good, {"m": of(folder, "ids.npy", lists_ids=True)}
    )
    np.save(folder / "ids.npy", np.array([1.0]))
    refused(folder, "ids, which are integers", good, {"m": of(folder, "ids.npy", lists_ids=True)})


def test_files_of_unknown_kind_or_content_are_refused(folder: Path) -> None:
    good = of(folder, "good.npy")
    refused(folder, "nowhere.npy", of(folder, "nowhere.npy"))
    (folder / "e.gml").write_text("graph [ ]")
    refused(folder, "of no known kind. .Files may be .npy", of(folder, "e.gml"))
    for kind, match in (("npy", "not a NumPy"), ("npz", "not an .npz file"), ("pt", "must hold a"),
                        ("parquet", "not a parquet file")):  # fmt: skip
        (folder / f"e.{kind}").write_bytes(b"something else")
        refused(folder, match, of(folder, f"e.{kind}"))
    np.savez(folder / "two.npz", a=np.zeros(1), b=np.zeros(1))
    refused(folder, "has no 'edge_index'; it has a, b", of(folder, "two.npz"))
    refused(folder, "has no 'c'; it has a, b", of(folder, "two.npz", key="c"))
    torch.save([torch.zeros(2)], folder / "list.pt")
    refused(folder, "must be a dense tensor of rows, got list", of(folder, "list.pt"))
    refused(folder, "number of nodes is not known", good, num_nodes=None)
    whole = (folder / "good.npy").read_bytes()
    (folder / "cut.npy").write_bytes(whole[:-3])
    refused(folder, "ends 3 bytes early", of(folder, "cut.npy"))


@pytest.mark.parametrize(
    ("values", "dtype", "match"),
    [
        ([0, 1, 2, 128], "int8", "Row 3 of .* has 128, which int8 cannot hold"),
        ([0, -1], "uint8", "Row 1 of .* has -1, which uint8"),
        (np.array([0, 0, 200], np.uint8), "int8", "Row 2 of .* has 200, which int8"),
        ([[0.0, 1.0], [0.0, 2.5]], "int32", "Row 1 of .* has 2.5, which int32"),
        ([0.0, 3e9], "int32", "Row 1 of .* has 3000000000.0, which int32"),
        ([0.0, np.inf], "int64", "Row 1 of .* has inf, which int64"),
        ([0.0, np.nan], "int64", "Row 1 of .* has nan, which int64"),
        ([0.0, 0.5], "bool", "Row 1 of .* has 0.5, which bool"),
        ([0.0, 1e6], "float16", "Row 1 of .* has 1000000.0, which float16"),
        ([0, 10**6], "float16", "Row 1 of .* has 1000000, which float16"),
    ],
)
def test_elements_out_of_range_of_a_dtype_are_refused(
    tmp_path: Path, values: Any, dtype: str, match: str
) -> None:
    np.save(tmp_path / "x.npy", values)
    rows = open_attribute(
        of(tmp_path, "x.npy", dtype=dtype), WantedRows("x", NodeIds(), len(values))
    )
    with pytest.raises(ValueError, match=match):
        list(rows.read(1, 1))  # as behind an interruption


def test_elements_in_range_of_a_dtype_are_converted(tmp_path: Path) -> None:
    for values, dtype, expected in (
        (np.array([-128, 127]), "int8", [-128, 127]),
        (np.array([0, 2], np.uint16), "bool", [False, True]),
        (np.array([0, 40_000], np.uint16), "int32", [0, 40_000]),
        (np.array([np.nan, -np.inf, 1e-9]), "float16", [-7.0, -np.inf, 0.0]),
        (np.array([np.nan, 3.0]), "int64", [-7, 3]),
    ):
        np.save(tmp_path / "x.npy", values)
        rows = open_attribute(
            of(tmp_path, "x.npy", dtype=dtype, missing=-7.0), WantedRows("x", NodeIds(), None)
        )
        assert torch.cat([*rows.read(0, 1)]).tolist() == expected
        assert rows.dtype == getattr(torch, dtype)


def test_lists_of_ids_are_read_from_anywhere(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([4, 1]))
    rows = open_attribute(
        of(tmp_path, "ids.npy", lists_ids=True), WantedRows("train", NodeIds(), 6)
    )
    assert [found.tolist() for found in rows.read(3, 2)] == [[False, True], [False]]


def test_tables_are_no_exception(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_text("x,y\n1,1\n,1\n2.5,1\n")
    parquet.write_table(pa.table({"x": [1.0, 2.0, 2.5]}), tmp_path / "x.parquet")
    parquet.write_table(pa.table({"x": [1.0, float("nan")]}), tmp_path / "nan.parquet")
    for name, match in (
        ("x.csv", "Row 2 of .* has 2.5"),
        ("x.parquet", "Row 2 of .* has 2.5"),
    ):
        source = of(tmp_path, name, columns=("x",), dtype="int64", missing=-1)
        with pytest.raises(ValueError, match=match):
            list(open_attribute(source, WantedRows("x", NodeIds(), None)).read(0, 2))
    source = of(tmp_path, "nan.parquet", dtype="int64", missing=-1)
    assert [
        rows.tolist()
        for rows in open_attribute(source, WantedRows("x", NodeIds(), None)).read(0, 2)
    ] == [[1, -1]]


def test_infinite_elements_of_narrow_features_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files, "STEP_BYTES", 16)  # of two rows
    x = np.zeros((10, 2), np.float32)
    x[7, 1] = np.inf
    np.save(folder / "x.npy", x)
    for dtype in ("int8", "float16"):
        nodes = [NodeSpec(None, None, {"x": of(folder, "x.npy")})]
        spec = GraphSpec(nodes, [EdgeSpec(None, of(folder, "good.npy"))], dtype)
        with pytest.raises(ValueError, match=r"Row 7 of .* is not finite"):
            convert(spec, folder / "out")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must have 'nodes' and 'edges', or 'node' and 'edge'"),
        ({"nodes": {}}, "must have 'nodes' and 'edges'"),
        ({"node": {"size": 1}, "edge": {}}, "'size' is not one of num_nodes, attributes"),
        ({"node": {"num_nodes": -1}, "edge": {"file": "e"}}, "num_nodes"),
        ({"node": {}, "edge": {"columns": [0, 1]}}, "names no file"),
        ({"node": {}, "edge": {"file": "e", "type": []}}, "'type' is not one of"),
        ({"nodes": {"a": {}}, "edges": [{"type": ["a"], "file": "e"}]}, "three texts"),
        ({"nodes": {"a": {}}, "edges": [{"file": "e"}]}, "'type'"),
        ({"nodes": {"a": {}}, "edges": [{"type": ["a", "b", "c"], "file": "e"}]}, "type 'c'"),
        ({"node": {"attributes": {"x": {"file": "x", "dtype": "int4"}}}, "edge": {"file": "e"}},
         "dtype must be one of"),
        ({"node": {"attributes": {"x": {"file": "x", "header": "no"}}}, "edge": {"file": "e"}},
         "header must be True or False"),
        ({"node": {"ids": "texts"}, "edge": {"file": "e"}}, "ids must be one of"),
    ],
)  # fmt: skip
def test_a_specification_with_wrong_json_is_refused(
    tmp_path: Path, content: Any, match: str
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=match):
        spec_of(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--node", "x"], "one of the arguments --edges --ogb --pyg --spec is required"),
        (["--edges", "{}/good.npy"], "number of nodes is not known"),
        (["--edges", "{}/good.npy", "--num-nodes", "5", "--node", "x"], "NAME=FILE"),
        (["--edges", "{}/good.npy", "--num-nodes", "5", "--memory", "10M"], "at least 1 GB"),
        (
            ["--edges", "{}/good.npy:key", "--num-nodes", "5", "--memory", "many"],
            "not a whole number",
        ),
        (["--edges", "{}/good.npy", "--edge", "w={}/w.npy", "--edge", "w={}/w.npy"], "twice"),
        (["--ogb", "{}"], "data.npz is missing"),
        (["--ogb", "{}", "--num-nodes", "5"], "go with --edges"),
        (["--spec", "{}/good.npy", "--symmetrise"], "in the JSON file"),
    ],
)
def test_wrong_arguments_of_the_command_end_it_with_a_message(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main([str(folder / "out"), *(argument.format(folder, folder) for argument in arguments)])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_missing_packages_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    spec = GraphSpec([NodeSpec(None, 5)], [EdgeSpec(None, of(folder, "good.npy"))])
    match = rf"needs {package}, which is not installed .* pip install duckdb pyarrow"
    with pytest.raises(ImportError, match=match):
        convert(spec, folder / "out")
    assert not (folder / "out.part").exists()
