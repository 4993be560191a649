"""Files as people have them: each becomes the right graph, or is refused with what to do."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conversions import assert_same_files, edge_list
from torch_geometric.data import Data

import pyg_direct
from pyg_direct.files.convert.convert import convert
from pyg_direct.files.convert.ids import NodeIds
from pyg_direct.files.convert.node_files import open_attribute
from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec
from pyg_direct.files.convert.table_rows import WantedRows
from pyg_direct.tools.convert import main

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

Content = str | bytes | np.ndarray | dict[str, Any]


class Case(NamedTuple):
    """Files, arguments, and what comes of them: edges and attributes, or a message."""

    files: dict[str, Content]
    arguments: str
    edges: list[tuple[int, int]] | None = None
    attributes: dict[str, Any] = {}  # noqa: RUF012
    refused: str = ""
    said: str = ""  # of what was understood


def write(folder: Path, files: dict[str, Content]) -> None:
    import pyarrow.parquet as pq

    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, np.ndarray):
            np.save(path, content)
        elif isinstance(content, dict):
            pq.write_table(pa.table(content), path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


ONE = [(3, 1), (1, 5), (4, 2)]  # as a graph has them: by destination
SORTED = sorted(ONE, key=lambda edge: edge[1])
E_NPY = np.array(ONE).T.copy()
PAIRS = "3,1\n1,5\n4,2\n"


def right(files: dict[str, Content], arguments: str, said: str = "", **attributes: Any) -> Case:
    return Case(files, arguments, SORTED, attributes, said=said)


def wrong(files: dict[str, Content], arguments: str, message: str) -> Case:
    return Case(files, arguments, refused=message)


def lines(text: str, header: str = "", sign: str = ",", end: str = "\n") -> str:
    """Return three edges with other columns around them."""
    rows = [text.format(s=s, t=t, i=i) for i, (s, t) in enumerate(ONE)]
    return end.join([*([header] if header else []), *rows]).replace(",", sign) + end


N6 = " --num-nodes 6"
EDGES: dict[str, Case] = {
    "pandas index": right({"e.csv": lines("{i},{s},{t}", ",src,dst")}, "--edges e.csv" + N6,
                          "from 'src' to 'dst', of its columns (without a name), src, dst"),
    "unnamed: 0": right({"e.csv": lines("{i},{s},{t}", "Unnamed: 0,from,to")}, "--edges e.csv" + N6,
                        "from 'from' to 'to'"),
    "edge_id": right({"e.csv": lines("9{i},{s},{t}", "edge_id,source,target")},
                     "--edges e.csv" + N6, "from 'source' to 'target'"),
    "time first": right({"e.csv": lines("7{i},{s},{t}", "time,src,dst")}, "--edges e.csv" + N6,
                        "from 'src' to 'dst'"),
    "relation between": right({"e.csv": lines("{s},likes,{t}", "src,rel,dst")},
                              "--edges e.csv" + N6, "of its columns src, rel, dst"),
    "the other way round": right({"e.csv": lines("{t},{s}", "target,source")},
                                 "--edges e.csv" + N6, "from 'source' to 'target'"),
    "musae": right({"e.csv": lines("{s},{t}", "id_1,id_2")}, "--edges e.csv" + N6),
    "neo4j": right({"e.csv": lines("{s},{t},F", ":START_ID,:END_ID,:TYPE")}, "--edges e.csv" + N6,
                   "from ':START_ID' to ':END_ID'"),
    "three without names": wrong({"e.csv": lines("{s},{t},{i}")}, "--edges e.csv" + N6,
                                 "3 columns, and which of them are the ends of edges is not known: "
                                 "(without names) the first row is 3, 1, 0. Name two"),
    "three, two named": right({"e.csv": lines("{i},{s},{t}")}, "--edges e.csv:1,2" + N6),
    "three unknown names": wrong({"e.csv": lines("{s},{t},{i}", "alpha,beta,gamma")},
                                 "--edges e.csv" + N6, "alpha, beta, gamma. Name two"),
    "two pairs": wrong({"e.csv": lines("{s},{t},{s},{t}", "src,dst,source,target")},
                       "--edges e.csv" + N6, "src, dst, source, target. Name two"),
    "index and one end": wrong({"e.csv": lines("{i},{s}", ",src")}, "--edges e.csv" + N6,
                               "(without a name), src. Name two"),
    "weight first": wrong({"e.csv": lines("0.5,{s}", "weight,src")}, "--edges e.csv" + N6,
                          "weight, src. Name two"),
    "rest is attributes": right({"e.csv": lines("{s},{t},{i}")},
                                "--edges e.csv --edge year=e.csv:2" + N6, year=[0, 2, 1]),
    "semicolons": right({"e.csv": lines("{s},{t}", sign=";")}, "--edges e.csv" + N6),
    "tabs in .csv": right({"e.csv": lines("{s},{t}", "src,dst", "\t")}, "--edges e.csv" + N6),
    "spaces": right({"e.txt": lines(" {s},{t} ", sign="   ")}, "--edges e.txt" + N6),
    "bars": right({"e.dat": lines("{s},{t}", sign="|")}, "--edges e.dat" + N6),
    "comma and space": right({"e.csv": lines("{s}, {t}", "src, dst")}, "--edges e.csv" + N6),
    "crlf": right({"e.csv": lines("{s},{t}", "src,dst", end="\r\n")}, "--edges e.csv" + N6),
    "byte-order mark": right({"e.csv": "\ufeff" + PAIRS}, "--edges e.csv" + N6),
    "quoted": right({"e.csv": lines('"{s}","{t}"', '"src","dst"')}, "--edges e.csv" + N6),
    "quoted delimiter": right({"e.csv": lines('"a,b",{s},{t}', "title,src,dst")},
                              "--edges e.csv" + N6, "from 'src'"),
    "empty lines": right({"e.csv": "\n3,1\n\n1,5\n4,2\n\n\n"}, "--edges e.csv" + N6),
    "no last newline": right({"e.csv": PAIRS.rstrip()}, "--edges e.csv" + N6),
    "gz": right({"e.csv.gz": gzip.compress(PAIRS.encode())}, "--edges e.csv.gz" + N6),
    "gz without its name": right({"e.csv": gzip.compress(PAIRS.encode())}, "--edges e.csv" + N6),
    "gz cut off": wrong({"e.csv.gz": gzip.compress(PAIRS.encode())[:-9]}, "--edges e.csv.gz" + N6,
                        "e.csv.gz is damaged"),
    "snap": right({"e.txt": "# Directed graph: e.txt\n# Nodes: 6 Edges: 3\n# FromNodeId\tToNodeId\n"
                   + lines("{s},{t}", sign="\t")}, "--edges e.txt" + N6),
    "snap, undirected": right({"e.txt": "# Undirected graph: each pair once\n# FromNodeId\tToNodeId"
                               "\n" + lines("{s},{t}", sign="\t")}, "--edges e.txt" + N6,
                              "says of itself: # Undirected graph: each pair once"),
    "snap with times": right({"e.txt": "# SrcId\tDstId\tTimestamp\n"
                              + lines("{s},{t},{i}", sign="\t")},
                             "--edges e.txt --edge time=e.txt:2" + N6, time=[0, 2, 1]),
    "comments between": right({"e.txt": "# a\n3 1\n# b c d\n1 5\n4 2\n"}, "--edges e.txt" + N6),
    "commented header": right({"e.csv": lines("{s},{t}", "#src,dst")}, "--edges e.csv" + N6),
    "konect": right({"out.e": "% asym unweighted\n% 3 5 5\n4 2\n2 6\n5 3\n"}, "--edges out.e" + N6),
    "konect, undirected": wrong({"out.e": "% sym unweighted\n4 2 \n2 6 \n5 3 \n"},
                                "--edges out.e" + N6, "give --symmetrise"),
    "konect, as it is": right({"out.e": "% sym unweighted\n4 2 \n2 6 \n5 3 \n"},
                              "--edges out.e --no-symmetrise" + N6),
    "konect, two types": wrong({"out.e": "% bip unweighted\n1 1\n2 2\n"}, "--edges out.e" + N6,
                               "of two types (% bip unweighted)"),
    "matrix": right({"e.mtx": "%%MatrixMarket matrix coordinate real general\n% a\n6 6 3\n4 2 .5\n"
                     "2 6 1e3\n5 3 2\n"}, "--edges e.mtx --edge w=e.mtx:value", w=[0.5, 2, 1000]),
    "matrix of patterns": right({"e.mtx": "%%MatrixMarket matrix coordinate pattern general\n"
                                 "6 6 3\n4 2\n2 6\n5 3\n"}, "--edges e.mtx"),
    "matrix cut off": wrong({"e.mtx": "%%MatrixMarket matrix coordinate pattern general\n6 6 3\n"
                             "4 2\n2 6\n"}, "--edges e.mtx", "has 2 entries, but says that it has"),
    "matrix by columns": wrong({"e.mtx": "%%MatrixMarket matrix array real general\n2 2\n1\n2\n"},
                               "--edges e.mtx", "edges are read from a matrix coordinate"),
    "matrix of two types": wrong({"e.mtx": "%%MatrixMarket matrix coordinate pattern general\n"
                                  "6 4 1\n4 2\n"}, "--edges e.mtx", "(6 rows and 4 columns)"),
    "networkx": right({"e.edgelist": lines("{s},{t},{{}}", sign=" ")},
                      "--edges e.edgelist:0,1" + N6),
    "from 1": wrong({"e.csv": "4,2\n2,6\n5,3\n"}, "--edges e.csv" + N6,
                    "count from 1: --first-id 1"),
    "from 1, said": right({"e.csv": "4,2\n2,6\n5,3\n"}, "--edges e.csv --first-id 1" + N6),
    "from 1, arrays": right({"e.npy": E_NPY + 1}, "--edges e.npy --first-id 1" + N6),
    "negative": wrong({"e.csv": "3,1\n-1,5\n"}, "--edges e.csv" + N6,
                      "Entry 1 of sources in e.csv is -1"),
    "whole floats": right({"e.csv": lines("{s}.0,{t}.0")}, "--edges e.csv" + N6),
    "floats": wrong({"e.csv": "3,1\n1.5,5\n"}, "--edges e.csv" + N6,
                    "Row 1 of column 'f0' of e.csv is '1.5', not a whole number"),
    "empty entry": wrong({"e.csv": "3,1\n,5\n"}, "--edges e.csv" + N6,
                         "Row 1 of column 'f0' of e.csv is empty"),
    "whole floats of parquet": right({"e.parquet": {"src": [3.0, 1, 4], "dst": [1.0, 5, 2]}},
                                     "--edges e.parquet" + N6),
    "pandas in parquet": right(
        {"e.parquet": {"src": [3, 1, 4], "dst": [1, 5, 2], "__index_level_0__": [7, 8, 9]}},
        "--edges e.parquet" + N6, "from 'src' to 'dst'"),
    "parts of parquet": right(
        {"e/part-2.parquet": {"src": [1], "dst": [5]},
         "e/part-10.parquet": {"src": [4], "dst": [2]},
         "e/part-1.parquet": {"src": [3], "dst": [1]}, "e/_SUCCESS": "", "e/.part-1.crc": "x"},
        "--edges e --edge k=k.npy" + N6, k=[0, 2, 1]),
    "other parts": wrong({"e/1.parquet": {"src": [3], "dst": [1]},
                          "e/2.parquet": {"dst": [3], "src": [1]}}, "--edges e" + N6,
                         "all parts of a table need the same"),
    "parts of csv": right({"e/1.csv": "src,dst\n3,1\n", "e/2.csv": "src,dst\n1,5\n4,2\n"},
                          "--edges e" + N6),
    "folder of something": wrong({"e/1.csv": PAIRS, "e/2.parquet": {"a": [1]}}, "--edges e" + N6,
                                 "nor a folder of parts of one table"),
    "duplicates stay": Case({"e.csv": "3,1\n3,1\n"}, "--edges e.csv" + N6, [(3, 1), (3, 1)]),
    "0,1 first": Case({"e.csv": "0,1\n3,1\n"}, "--edges e.csv" + N6, [(0, 1), (3, 1)],
                      said="0,1, is taken for an edge; if it is names: --header"),
    "0,1 as names": Case({"e.csv": "0,1\n3,1\n"}, "--header --edges e.csv" + N6, [(3, 1)]),
    "numpy's savetxt": right({"e.txt": lines("{s}.000e+00,{t}.000e+00", sign=" ")},
                             "--edges e.txt" + N6),
    "both ends of lines": wrong({"e.csv": "3,1\r\n1,5\n4,2\n"}, "--edges e.csv" + N6,
                                "Its lines end in different ways"),
    "too many fields": wrong({"e.txt": "3 1\n1 5 7\n"}, "--edges e.txt" + N6,
                             "a line has other columns than the first: 1 5 7"),
    "tabs and spaces": right({"e.edges": "3 1\n1 \t5\n\t4 2\n"}, "--edges e.edges" + N6),
    "json": wrong({"e.json": "[[3,1]]"}, "--edges e.json" + N6, "of no known kind"),
    "binary": wrong({"e.bin": b"\x00\x01\x02\n"}, "--edges e.bin" + N6, "is not UTF-8 text"),
    "number of nodes": wrong({"e.csv": PAIRS}, "--edges e.csv", "--ids names"),
}  # fmt: skip

NAMES: dict[str, Case] = {
    "texts": wrong({"e.csv": "src,dst\nann,bob\n"}, "--edges e.csv" + N6,
                   "Row 0 of column 'src' of e.csv is 'ann', not a whole number"),
    "texts, numbered": Case({"e.csv": "src,dst\nann,bob\nbob,cy\nann,cy\n"},
                            "--edges e.csv --ids names", [(0, 1), (1, 2), (0, 2)]),
    "texts without names": wrong({"e.csv": "ann,bob\nbob,cy\n"}, "--edges e.csv --ids names",
                                 "--header or --no-header"),
    "texts, said": Case({"e.csv": "ann,bob\nbob,cy\n"}, "--edges e.csv --ids names --no-header",
                        [(0, 1), (1, 2)]),
    "gaps": Case({"e.cites": "35\t1033\n35\t103482\n"}, "--edges e.cites --ids names",
                 [(0, 1), (0, 2)]),
    "cora": Case({"c.cites": "b 9\na 9\n", "c.content": "9 1 0 1 X\na 0 0 1 Y\nb 0 1 1 X\n"},
                 "--edges c.cites --no-header --ids names --node x=c.content:1-3 --key x=0",
                 [(2, 0), (1, 0)], {"x": [[1, 0, 1], [0, 0, 1], [0, 1, 1]]}),
    "of no node": wrong({"e.csv": "src,dst\na,b\na,z\n", "y.csv": "id,y\na,1\nb,2\n"},
                        "--edges e.csv --ids names --node y=y.csv --key y=id",
                        "Row 1 of column 'dst' of e.csv is 'z', which is the name of no node"),
    "floats of pandas": Case({"e.csv": "src,dst\n3.0,1\n1.0,4\n"}, "--edges e.csv --ids names",
                             [(0, 1), (1, 2)]),
    "key of floats": Case({"e.csv": "src,dst\n3.0,1\n", "y.csv": "id,y\n1,5\n3,6\n"},
                          "--edges e.csv --ids names --node y=y.csv --key y=id", [(1, 0)],
                          {"y": [5, 6]}),
    "hashtags": wrong({"e.csv": "#a,#b\n#b,#c\n"}, "--edges e.csv --ids names",
                      "All lines of e.csv begin with '#', as comments do."),
    "some hashtags": wrong({"e.csv": "#a,b\nb,#c\n"}, "--edges e.csv --ids names",
                           "begins with '#a,b', which may be names of columns, or of nodes"),
    "quoted hashtags": Case({"e.csv": '"#a",b\nb,"#c"\n'}, "--edges e.csv --ids names --no-header",
                            [(0, 1), (1, 2)]),
    "NA is a name": Case({"e.csv": "src,dst\nNA,null\n"}, "--edges e.csv --ids names", [(0, 1)]),
    "no name": wrong({"e.csv": "src,dst\na,b\n,c\n"}, "--edges e.csv --ids names",
                     "Row 1 of column 'src' of e.csv is empty"),
    "array": wrong({"e.npy": E_NPY}, "--edges e.npy --ids names", "is an array: write it as text"),
}  # fmt: skip

Y6 = "3\n1\n4\n1\n5\n9\n"
E = {"e.npy": E_NPY}
KEYED = "node_id,y\n" + "".join(f"{i},{10 * i}\n" for i in (3, 0, 5, 1, 2, 4))
TENS = [0, 10, 20, 30, 40, 50]
ATTRIBUTES: dict[str, Case] = {
    "column of ids in order": right({**E, "x.csv": "node_id,a,b\n" + "".join(
        f"{i},{i}.5,{i}\n" for i in range(6))}, "--edges e.npy --node x=x.csv",
        x=[[i + 0.5, i] for i in range(6)]),
    "pandas index": right({**E, "y.csv": ",label\n" + "".join(f"{i},{i * 2}\n" for i in range(6))},
                          "--edges e.npy --node y=y.csv", y=[0, 2, 4, 6, 8, 10]),
    "numbers as names": right({**E, "x.csv": ",0,1\n" + "".join(f"{i},{i},2\n" for i in range(6))},
                              "--edges e.npy --node x=x.csv", x=[[i, 2] for i in range(6)]),
    "only numbers as names": wrong({**E, "x.csv": "0,1,2\n" + "1,5,6\n" * 6},
                                   "--edges e.npy --node x=x.csv", "--header or --no-header"),
    "only numbers, said": right({**E, "x.csv": "0,1,2\n" + "1,5,6\n" * 6},
                                "--edges e.npy --header --node x=x.csv", x=[[1, 5, 6]] * 6),
    "one column called 0": wrong({**E, "y.csv": "0\n" + Y6}, "--edges e.npy --node y=y.csv" + N6,
                                 "has 7. Is the first line of text names of its columns?"),
    "ids in another order": wrong({**E, "y.csv": KEYED}, "--edges e.npy --node y=y.csv",
                                  "'node_id' of y.csv is not 0, 1, 2, .*--key y=node_id"),
    "key": right({**E, "y.csv": KEYED}, "--edges e.npy --node y=y.csv --key y=node_id", y=TENS),
    "key of parquet": right({**E, "y.parquet": {"id": [5, 0, 1, 2, 3, 4], "y": [50, *TENS[:5]]}},
                            "--edges e.npy --node y=y.parquet --key y=id", y=TENS),
    "key without names": right({**E, "y.txt": KEYED.partition("\n")[2].replace(",", " ")},
                               "--edges e.npy --node y=y.txt:1 --key y=0", y=TENS),
    "ids without names": wrong({**E, "y.txt": KEYED.partition("\n")[2].replace(",", " ")},
                               "--edges e.npy --node y=y.txt", "the first seems to be the ids"),
    "no key": right({**E, "y.csv": KEYED}, "--edges e.npy --node y=y.csv:y --key y=",
                    y=[30, 0, 50, 10, 20, 40]),
    "key from 1": right(
        {**E, "y.csv": "id,y\n" + "".join(f"{i},{i}\n" for i in (6, 5, 4, 3, 2, 1))},
        "--edges e1.npy --first-id 1 --node y=y.csv --key y=id", y=[1, 2, 3, 4, 5, 6]),
    "key twice": wrong({**E, "y.csv": "id,y\n0,1\n0,2\n1,3\n"},
                       "--edges e.npy --node y=y.csv --key y=id" + N6,
                       "ids that are there twice: '0'"),
    "key of no node": wrong({**E, "y.csv": "id,y\n0,1\n7,2\n"},
                            "--edges e.npy --node y=y.csv --key y=id" + N6, "ids of no node: '7'"),
    "key with gaps": wrong({**E, "y.csv": "id,y\n0,1\n3,2\n"},
                           "--edges e.npy --node y=y.csv --key y=id" + N6, "missing are 1, 2, 4"),
    "no such key": wrong({**E, "y.csv": "id,y\n0,1\n3,2\n"},
                         "--edges e.npy --node y=y.csv --key y=nid" + N6, "no column 'nid'"),
    "edges' columns": wrong({"e.csv": lines("{s},{t},0.{i}", "src,dst,w")},
                            "--edges e.csv --edge a=e.csv" + N6,
                            "which of them are 'a' is not known"),
    "times in seconds": right(
        {**E, "t.csv": "t\n" + "".join(f"{1407470400 + i}.0\n" for i in range(6))},
        "--edges e.npy --node t=t.csv",
        t=torch.arange(1407470400.0, 1407470406, dtype=torch.float64)),
    "wide ids": right({**E, "u.csv": "".join(f"{2**24 + i}.0\n" for i in range(6))},
                      "--edges e.npy --node u=u.csv",
                      u=torch.arange(2.0**24, 2**24 + 6, dtype=torch.float64)),
    "fractions of seconds": right(
        {**E, "t.csv": "".join(f"{1289241911 + i}.25\n" for i in range(6))},
        "--edges e.npy --node t=t.csv",
        t=torch.arange(1289241911.25, 1289241917, dtype=torch.float64)),
    "floats": right({**E, "x.csv": "".join(f"{i / 10}\n" for i in range(6))},
                    "--edges e.npy --node x=x.csv", x=torch.arange(6.0) / 10),
    "long ints": right({**E, "u.csv": "".join(f"{2**60 + i}\n" for i in range(6))},
                       "--edges e.npy --node u=u.csv", u=[2**60 + i for i in range(6)]),
    "long ints beside floats": wrong({**E, "u.csv": "".join(f"{2**60 + i},.5\n" for i in range(6))},
                                     "--edges e.npy --node u=u.csv",
                                     "whole numbers of 2^53 or more"),
    "ids of 64 bits": wrong({**E, "u.csv": "".join(f"{2**64 - 1 - i}\n" for i in range(6))},
                            "--edges e.npy --node u=u.csv", "whole numbers of 2^53 or more"),
    "whole floats of 16 digits": wrong(
        {**E, "u.csv": "".join(f"{2**53 + i}.0\n" for i in range(1, 7))},
        "--edges e.npy --node u=u.csv", "whole numbers of 2^53 or more"),
    "decimals of parquet": right({**E, "u.parquet": {"u": [Decimal("1.25")] * 6}},
                                 "--edges e.npy --node u=u.parquet",
                                 u=torch.full((6,), 1.25, dtype=torch.float64)),
    "a list that is missing in parquet": wrong(
        {**E, "u.parquet": {"u": [[1.0, 2.0], None, *[[3.0, 4.0]] * 4]}},
        "--edges e.npy --node u=u.parquet", "'u' of .* has empty entries, the first in row 1"),
    "long decimals of parquet": wrong(
        {**E, "u.parquet": {"u": [Decimal("1.2500000000000000001")] * 6}},
        "--edges e.npy --node u=u.parquet", "must hold numbers, got DECIMAL(20,19)"),
    "an empty line": wrong({**E, "y.csv": "3\n\n4\n1\n5\n9\n2\n"}, "--edges e.npy --node y=y.csv",
                           "'f0' of y.csv has empty entries, the first in row 1"),
    "a last empty line": wrong({**E, "y.csv": Y6 + "\n"}, "--edges e.npy --node y=y.csv",
                               "has empty entries, the first in row 6"),
    "texts": wrong({**E, "y.csv": "y\na\nb\n"}, "--edges e.npy --node y=y.csv",
                   "Row 0 of the column 'y' of y.csv is 'a'"),
    "a text late": wrong({**E, "y.csv": Y6.replace("9", "x")}, "--edges e.npy --node y=y.csv",
                         "Row 5 of the column 'f0' of y.csv is 'x'"),
    "a float late": right({**E, "y.csv": Y6.replace("9", "9.5")}, "--edges e.npy --node y=y.csv",
                          y=torch.tensor([3, 1, 4, 1, 5, 9.5])),
    "decimal commas": wrong({**E, "y.csv": "y;z\n" + "1,5;2\n" * 6}, "--edges e.npy --node y=y.csv",
                            "is '1,5', but an attribute must hold numbers"),
    "dates": right({**E, "t.csv": "t\n" + "".join(f"1970-01-0{i}\n" for i in range(1, 7))},
                   "--edges e.npy --node t=t.csv", t=[86400 * i for i in range(6)]),
    "times with zones": right(
        {**E, "t.csv": "1970-01-01T02:00:00+02:00\n" + "1970-01-01 00:01Z\n" * 5},
        "--edges e.npy --node t=t.csv", t=[0, *[60] * 5]),
    "times to sort by": right(
        {**E, "t.csv": "".join(f"{1407470400 + i}.0\n" for i in range(6))},
        "--edges e.npy --node t=t.csv --time-attr t", t=[1407470400 + i for i in range(6)]),
    "fractions of times": wrong({**E, "t.csv": "1970-01-01 00:00:00.5\n" * 6},
                                "--edges e.npy --node t=t.csv", "fractions of the unit s."),
    "other dates": wrong({**E, "t.csv": "t\n" + "01/02/2020\n" * 6},
                         "--edges e.npy --node t=t.csv", "is '01/02/2020', but an attribute"),
    "times of parquet": right(
        {**E, "t.parquet": {"t": np.arange(6).astype("M8[D]").astype("M8[ns]")}},
        "--edges e.npy --node t=t.parquet", t=[86400 * i for i in range(6)]),
    "texts of parquet": wrong({**E, "t.parquet": {"t": ["a"] * 6}},
                              "--edges e.npy --node t=t.parquet", "must hold numbers, got VARCHAR"),
    "true and false": right({**E, "b.csv": "b\n" + "True\nFALSE\n" * 3},
                            "--edges e.npy --node b=b.csv", b=[True, False] * 3),
    "true among numbers": wrong({**E, "b.csv": "1\ntrue\n1\n1\n1\n1\n"},
                                "--edges e.npy --node b=b.csv", "Row 1 of the column 'f0' of b"),
}  # fmt: skip

MASK = [False, False, True, False, True, True]
M = "--edges e.npy --mask m=m"
MASKS: dict[str, Case] = {
    "ids": right({**E, "m.txt": "5\n2\n4\n"}, f"{M}.txt{N6}", m=MASK),
    "ids and empty lines": right({**E, "m.npy": np.array([[5], [2], [4]])}, f"{M}.npy{N6}", m=MASK),
    "zeros and ones": right({**E, "m.npy": np.array([0, 0, 1, 0, 1, 1])}, f"{M}.npy{N6}", m=MASK),
    "booleans": right({**E, "m.npy": np.array(MASK)}, f"{M}.npy{N6}", m=MASK),
    "floats": right({**E, "m.npy": np.array(MASK, float)}, f"{M}.npy{N6}", m=MASK),
    "text of ones": right({**E, "m.csv": "m\n0\n0\n1\n0\n1\n1\n"}, f"{M}.csv{N6}", m=MASK),
    "text of true": right({**E, "m.csv": "false\nFalse\ntrue\nfalse\nTrue\nTRUE\n"}, f"{M}.csv{N6}",
                          m=MASK),
    "too few": wrong({**E, "m.npy": np.array([0, 0, 1, 0])}, f"{M}.npy{N6}",
                     "4 zeros and ones, which are hardly ids, and there are 6"),
    "too many": wrong({**E, "m.npy": np.array([0, 0, 1, 0, 1, 1, 1])}, f"{M}.npy{N6}", "7 zeros"),
    "nodes 0 and 1": right({**E, "m.csv": "0\n1\n"}, f"{M}.csv{N6}",
                           m=[True, True, False, False, False, False]),
    "two columns": wrong({**E, "m.npy": np.array([[0, 1], [1, 0], [2, 1]])}, f"{M}.npy{N6}",
                         "has 2 columns, where one of ids"),
    "two columns of text": wrong({**E, "m.csv": "a,b\n0,1\n1,0\n2,1\n"}, f"{M}.csv{N6}",
                                 "has 2 columns, where one of ids"),
    "index and ids": right({**E, "m.csv": ",train\n0,5\n1,2\n2,4\n"}, f"{M}.csv{N6}", m=MASK),
    "ids and ones": right({**E, "m.csv": "node_id,m\n5,1\n4,1\n3,0\n2,1\n1,0\n0,0\n"},
                          f"{M}.csv --key m=node_id{N6}", m=MASK),
    "ids and ones without key": wrong({**E, "m.csv": "node_id,m\n5,1\n4,1\n3,0\n2,1\n1,0\n0,0\n"},
                                      f"{M}.csv{N6}", "'node_id' of m.csv is not 0, 1, 2"),
    "out of range": wrong({**E, "m.csv": "6\n"}, f"{M}.csv{N6}", "Entry 0 of m.csv is 6"),
    "from 1": right({"e1.npy": E_NPY + 1, "m.csv": "6\n3\n5\n"},
                    f"--edges e1.npy --first-id 1 --mask m=m.csv{N6}", m=MASK),
    "names": Case({"e.csv": "src,dst\na,b\nb,c\n", "m.txt": "name\nc\na\n"},
                  "--edges e.csv --ids names --mask m=m.txt", [(0, 1), (1, 2)],
                  {"m": [True, False, True]}),
}  # fmt: skip
CASES = {
    f"{kind}: {name}": case
    for kind, cases in (
        ("edges", EDGES),
        ("names", NAMES),
        ("attributes", ATTRIBUTES),
        ("masks", MASKS),
    )
    for name, case in cases.items()
}


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is said of how files are understood."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pyg_direct")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_file_is_right_or_refused(
    tmp_path: Path,
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"k.npy": np.arange(3), "e1.npy": E_NPY + 1, **case.files})
    arguments = ["g", *case.arguments.split(" ")]
    if case.refused:
        with pytest.raises(SystemExit, match=r"^2$"):
            main(arguments)
        told = " ".join(capsys.readouterr().err.replace(f"{tmp_path}/", "").split())
        assert all(part in told for part in case.refused.split(".*"))
        assert "float32" not in told
        assert not (tmp_path / "g").exists()
        assert not (tmp_path / "g.part").exists()
        return
    main(arguments)
    data: Any = pyg_direct.open("g")
    assert edge_list(data) == case.edges
    assert len(said) == bool(case.said)
    assert case.said in "".join(said)
    for name, expected in case.attributes.items():
        wanted = torch.as_tensor(expected)
        found = data[name]
        assert found.dtype == wanted.dtype or (found.is_floating_point() and "0.5" in str(expected))
        assert torch.equal(found, wanted.to(found.dtype))


def test_a_symmetric_matrix_gets_both_directions(tmp_path: Path, said: list[str]) -> None:
    """As SciPy's `mmread`; entries on the diagonal once."""
    (tmp_path / "e.mtx").write_text(
        "%%MatrixMarket matrix coordinate integer symmetric\n3 3 3\n2 1 7\n3 3 8\n3 2 9\n"
    )
    main([str(tmp_path / "g"), "--edges", f"{tmp_path}/e.mtx", "--edge", f"w={tmp_path}/e.mtx:2"])
    data: Any = pyg_direct.open(tmp_path / "g")
    assert edge_list(data) == [(1, 0), (2, 1), (0, 1), (2, 2), (1, 2)]
    assert data.w.tolist() == [7, 9, 7, 8, 9]
    assert "is a symmetric matrix: the reverse of every edge is added" in said[0]


def test_names_are_written_beside_the_graph(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text('src,dst\n"a, b",c\nc,d\n')
    arguments = [str(tmp_path / "g"), "--edges", f"{tmp_path}/e.csv", "--ids", "names"]
    main(arguments)
    names = tmp_path / "g.ids.csv"
    assert names.read_text() == 'name,id\n"a, b",0\nc,1\nd,2\n'
    assert pyg_direct.open(tmp_path / "g").num_nodes == 3
    main([*arguments, "--overwrite"])
    names.write_text("mine")
    with pytest.raises(FileExistsError, match=r"g\.ids\.csv, where the names .* exists: move it"):
        convert(names_spec(tmp_path / "e.csv"), tmp_path / "g", overwrite=False)
    assert names.read_text() == "mine"


def names_spec(file: Path) -> GraphSpec:
    return GraphSpec([NodeSpec(None, ids="names")], [EdgeSpec(None, ArraySource(str(file)))])


def test_names_of_two_types(tmp_path: Path) -> None:
    """Names of one type, numbers of the other; keys give the order of the first."""
    (tmp_path / "e.csv").write_text("user,item\nann,2\nbob,0\n")
    (tmp_path / "age.csv").write_text("name,age\nbob,30\nann,40\n")
    spec = {
        "nodes": {
            "user": {"ids": "names", "attributes": {"age": {"file": "age.csv", "key": "name"}}},
            "item": {"num_nodes": 3},
        },
        "edges": [{"type": ["user", "buys", "item"], "file": "e.csv", "header": True}],
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    main([str(tmp_path / "g"), "--spec", str(tmp_path / "spec.json")])
    data: Any = pyg_direct.open(tmp_path / "g")
    assert edge_list(data["user", "item"]) == [(0, 0), (1, 2)]
    assert data["user"].age.tolist() == [30, 40]
    assert (tmp_path / "g.user.ids.csv").read_text() == "name,id\nbob,0\nann,1\n"


def test_large_tables_are_read_in_order(tmp_path: Path) -> None:
    """More rows than DuckDB reads at a time, in several parts."""
    pairs = torch.randint(1000, (200_000, 2), generator=torch.Generator().manual_seed(0))
    folder = tmp_path / "parts"
    folder.mkdir()
    for i, part in enumerate(pairs.split(70_000)):
        np.savetxt(folder / f"{i}.txt", part.numpy(), "%d")
    main([str(tmp_path / "g"), "--edges", str(folder), "--num-nodes", "1000"])
    pyg_direct.save(Data(edge_index=pairs.t().contiguous(), num_nodes=1000), tmp_path / "saved")
    assert_same_files(tmp_path / "g", tmp_path / "saved")


def test_wide_tables_are_read_by_one_expression(tmp_path: Path) -> None:
    """Columns of several kinds, more of them than DuckDB plans one by one in reasonable time."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 9, (40, 600)).astype(float)
    x[:, 7], x[:, 8] = x[:, 7] / 4, 2.0**30 + 1
    rows = [",".join(f"{v:.0f}" if v.is_integer() else f"{v}" for v in row) for row in x.tolist()]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    np.save(tmp_path / "e.npy", E_NPY)
    arguments = ["--edges", f"{tmp_path}/e.npy", "--node", f"x={tmp_path}/x.csv"]
    main([str(tmp_path / "g"), *arguments])
    assert torch.equal(pyg_direct.open(tmp_path / "g").x, torch.from_numpy(x))
    rows[5] = rows[5].replace("1", "", 1)
    (tmp_path / "x.csv").write_text("\n".join(rows))
    column = next(i for i, v in enumerate(rows[5].split(",")) if v == "")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "h"), *arguments])
    with pytest.raises(
        ValueError, match=f"'f{column}' of .* has empty entries, the first in row 5"
    ):
        open_attribute(ArraySource(f"{tmp_path}/x.csv"), WantedRows("x", NodeIds(), 40))
