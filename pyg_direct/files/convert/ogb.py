"""The unpacked folders of OGB data sets."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

from .spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec

MASKS = (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask"))
NAMES = {"node-feat": "x", "node_feat": "x", "node-label": "y", "edge-feat": "edge_attr"}
ONE_DIRECTION = ("products", "proteins")  # whose files have each edge once


def ogb_spec(folder: Path, symmetrise: bool | None = None) -> GraphSpec:
    """Return what to convert of an OGB node data set.

    Those of the binary kind, as ogbn-papers100M, have ``raw/data.npz`` with `edge_index`,
    `node_feat` and other ``node_`` arrays, and ``raw/node-label.npz`` with `node_label`. Others
    have CSV files: ``raw/edge.csv.gz`` and so on, or ``raw/relations/A___TO___B/edge.csv.gz`` by
    types, as ogbn-mag. Labels become int64, -1 where there is none; masks are of the ids in
    ``split/KIND/{train,valid,test}.csv.gz``.

    Args:
        folder: of the data set.
        symmetrise: whether reverse edges are to be added; None if nothing was said.

    Raises:
        ValueError: there are no such files, several graphs, or edges of which OGB adds the reverse.
    """
    raw = folder / "raw"
    if (raw / "data.npz").is_file():
        return _binary(folder)
    if (raw / "edge.csv.gz").is_file():
        if symmetrise is None and any(name in folder.name for name in ONE_DIRECTION):
            raise ValueError(
                f"{folder.name} has each edge once, and OGB adds the reverse ones when it reads "
                f"them: give --symmetrise, or --no-symmetrise for the edges as they are."
            )
        count = _single(raw / "num-node-list.csv.gz")
        edges = _tables(raw, "edge*.csv.gz", "edge")
        ends = _table(raw / "edge.csv.gz")
        nodes = {**_tables(raw, "node*.csv.gz", ""), **_masks(folder, "")}
        return GraphSpec([NodeSpec(None, count, nodes)], [EdgeSpec(None, ends, edges)])
    if (raw / "num-node-dict.csv.gz").is_file():
        return _typed(folder)
    raise ValueError(
        f"{folder} is not an OGB node data set: it has neither {raw / 'data.npz'} nor edge.csv.gz "
        f"or num-node-dict.csv.gz beside it: data.npz is missing."
    )


def _binary(folder: Path) -> GraphSpec:
    data, labels = folder / "raw" / "data.npz", folder / "raw" / "node-label.npz"
    with zipfile.ZipFile(data) as archive:
        keys = [name.removesuffix(".npy") for name in archive.namelist()]
    attributes = {
        {"node_feat": "x"}.get(key, key): ArraySource(str(data), key)
        for key in sorted(keys, key=lambda key: key != "node_feat")
        if key.startswith("node_")
    }
    if labels.is_file():
        attributes["y"] = ArraySource(
            str(labels), "node_label", dtype="int64", missing=-1, flat=True
        )
    attributes |= _masks(folder, "")
    edges = {
        key: ArraySource(str(data), key)
        for key in keys
        if key.startswith("edge_") and key != "edge_index"
    }
    ends = ArraySource(str(data), "edge_index")
    return GraphSpec([NodeSpec(None, None, attributes)], [EdgeSpec(None, ends, edges)])


def _typed(folder: Path) -> GraphSpec:
    raw = folder / "raw"
    names, counts = _rows(raw / "num-node-dict.csv.gz")[:2]
    nodes = []
    for name, count in zip(names, counts, strict=True):
        found = _masks(folder, name)
        for part in sorted(raw.glob(f"*/{name}/*.csv.gz")):
            if part.parent.parent.name != "relations":
                found |= _tables(part.parent, part.name, "")
        nodes.append(NodeSpec(name, int(count), found))
    edges = [
        EdgeSpec(
            (kind[0], kind[1], kind[2]),
            _table(part / "edge.csv.gz"),
            _tables(part, "edge*.csv.gz", "edge"),
        )
        for part in sorted((raw / "relations").iterdir())
        if len(kind := part.name.split("___")) == 3
    ]
    return GraphSpec(nodes, edges)


def _tables(folder: Path, pattern: str, left_out: str) -> dict[str, ArraySource]:
    """Return attributes by name, without the table `left_out`."""
    found = {}
    for file in sorted(folder.glob(pattern)):
        stem = file.name.partition(".")[0]
        if stem != left_out:
            name = NAMES.get(stem, stem.replace("-", "_"))
            found[name] = _table(file, is_label=stem == "node-label")
    return found


def _table(file: Path, is_label: bool = False) -> ArraySource:
    label = {"dtype": "int64", "missing": -1} if is_label else {}
    return ArraySource(str(file), key="", header=False, **label)  # type: ignore[arg-type]


def _masks(folder: Path, node_type: str) -> dict[str, ArraySource]:
    found = {}
    for split, name in MASKS:
        for file in sorted(folder.glob(f"split/*/{node_type}/{split}.csv.gz" if node_type else
                                       f"split/*/{split}.csv.gz"))[:1]:  # fmt: skip
            found[name] = ArraySource(str(file), lists_ids=True, header=False)
    return found


def _rows(file: Path) -> list[list[str]]:
    with gzip.open(file, "rt") as lines:
        return [line.strip().split(",") for line in lines if line.strip()]


def _single(file: Path) -> int | None:
    """Return the number of nodes, if the file that has it is there.

    Raises:
        ValueError: there are several graphs.
    """
    if not file.is_file():
        return None
    rows = _rows(file)
    if len(rows) != 1:
        raise ValueError(f"{file} lists {len(rows)} graphs; a data set of one graph is converted.")
    return int(float(rows[0][0]))
