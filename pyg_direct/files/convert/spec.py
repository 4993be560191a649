"""What to convert: the files that the arrays of a graph are read from."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ...core.arguments import check_choice, check_count
from ..header import ITEM_BYTES

SELF_LOOPS = ("keep", "remove", "add")
FEATURE_DTYPES = ("int8", "float16", "bfloat16")
SCALES = ("column", "row")


@dataclass(frozen=True)
class ArraySource:
    """Where one array is read from.

    Args:
        file: ``.npy``, ``.npz``, ``.pt``, ``.csv``, ``.tsv`` (both also ``.gz``) or ``.parquet``.
        key: of an ``.npz`` or of a dict in a ``.pt``; None for the only array, or the one that is
            called as the attribute (edges: ``edge_index``).
        columns: of a table, by name or by position; None for the one that is called as the
            attribute, or else for all of them (edges: the first two).
        dtype: to store instead of the file's own, as torch names it. Floats of CSV become float32.
        missing: what replaces NaN and empty fields; without it they stay NaN, or are an error.
        flat: [N, 1] becomes [N].
        lists_ids: the array is bool [N], True for the ids that the file lists.
    """

    file: str
    key: str | None = None
    columns: tuple[str | int, ...] | None = None
    dtype: str | None = None
    missing: float | None = None
    flat: bool = False
    lists_ids: bool = False


@dataclass(frozen=True)
class NodeSpec:
    """The nodes of one type; `num_nodes` None means as many as the first attribute has rows."""

    type: str | None
    num_nodes: int | None = None
    attributes: Mapping[str, ArraySource] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeSpec:
    """The edges of one type.

    Args:
        type: None in a homogeneous graph.
        ends: integers [2, E] or [E, 2], or two columns: source and destination.
        attributes: one entry an edge, in the order of `ends`.
        symmetrise: add the reverse of every edge that is not a self-loop, with the same attributes,
            behind all edges that are given.
        deduplicate: keep the first of the edges that have the same ends.
        self_loops: "keep" them as they are, "remove" them, or "add" one for every node in place of
            those there are (not with attributes, which those would lack).
    """

    type: tuple[str, str, str] | None
    ends: ArraySource
    attributes: Mapping[str, ArraySource] = field(default_factory=dict)
    symmetrise: bool = False
    deduplicate: bool = False
    self_loops: str = "keep"


@dataclass(frozen=True)
class GraphSpec:
    """A graph to be converted.

    Args:
        nodes: homogeneous: one, of the type None.
        edges: at least one.
        feature_dtype: "int8", "float16" or "bfloat16" stores the floating-point node attributes of
            two dimensions as `quantize` does; None as they are.
        feature_scale: of int8, one factor for each "column" or "row".
        time_attr: what loaders will be given as `time_attr=`, an attribute of nodes or of edges:
            neighbours are sorted by it.
        weight_attr: what loaders will be given as `weight_attr=`: its tables are made.

    Raises:
        ValueError: types or options that contradict each other.
    """

    nodes: Sequence[NodeSpec]
    edges: Sequence[EdgeSpec]
    feature_dtype: str | None = None
    feature_scale: str = "column"
    time_attr: str | None = None
    weight_attr: str | None = None

    def __post_init__(self) -> None:
        if self.feature_dtype is not None:
            check_choice("feature_dtype", self.feature_dtype, FEATURE_DTYPES)
        check_choice("feature_scale", self.feature_scale, SCALES)
        if self.feature_scale != "column" and self.feature_dtype != "int8":
            raise ValueError(
                f"feature_scale={self.feature_scale!r} is for feature_dtype='int8', got "
                f"{self.feature_dtype!r}."
            )
        if not self.edges:
            raise ValueError("There are no edges to convert: name at least one file of them.")
        node_types, seen = [node.type for node in self.nodes], set[Any]()
        for edge in self.edges:
            _check_edge(edge, node_types)
            if edge.type in seen:
                raise ValueError(f"The edge type {edge.type} is given twice: bring it to one file.")
            seen.add(edge.type)
        of_nodes = any(self.time_attr in node.attributes for node in self.nodes)
        of_edges = any(self.time_attr in edge.attributes for edge in self.edges)
        if of_nodes and of_edges:
            raise ValueError(
                f"time_attr={self.time_attr!r} is an attribute of nodes and of edges; rename one."
            )
        if self.time_attr is not None and not of_nodes and not of_edges:
            raise ValueError(
                f"time_attr={self.time_attr!r} is not an attribute of the nodes or of the edges."
            )
        weighted = any(self.weight_attr in edge.attributes for edge in self.edges)
        if self.weight_attr is not None and not weighted:
            raise ValueError(f"weight_attr={self.weight_attr!r} is not an attribute of the edges.")

    def description(self) -> Any:
        """Return all fields as JSON has them."""
        return json.loads(json.dumps(asdict(self)))


def _check_edge(edge: EdgeSpec, node_types: Sequence[str | None]) -> None:
    """Raise a ValueError where an edge type contradicts itself, or the node types."""
    ends = (edge.type[0], edge.type[2]) if edge.type else (None, None)
    for end in ends:
        if end not in node_types:
            raise ValueError(
                f"The edge type {edge.type} refers to the node type {end!r}, but the nodes are of "
                f"{node_types}."
            )
    check_choice("self_loops", edge.self_loops, SELF_LOOPS)
    changes = edge.symmetrise or edge.self_loops == "add"
    if changes and ends[0] != ends[1]:
        raise ValueError(
            f"symmetrise and self_loops='add' need edges among nodes of one type, got {edge.type}. "
            f"Convert the reverse edges as an edge type of their own."
        )
    if edge.self_loops == "add" and edge.attributes:
        raise ValueError(
            f"self_loops='add' makes edges without the attributes {', '.join(edge.attributes)}: "
            f"leave either out."
        )


def spec_of(path: Path) -> GraphSpec:
    """Read a JSON file that says what to convert.

    A heterogeneous graph is ``{"nodes": {TYPE: NODE, ...}, "edges": [EDGE, ...]}``, a homogeneous
    one ``{"node": NODE, "edge": EDGE}``, where NODE and EDGE are as `NodeSpec` and `EdgeSpec`, with
    the fields of `ends` in EDGE itself, and an `ArraySource` may be the name of its file alone::

        {"nodes": {"paper": {"num_nodes": 100, "attributes": {"x": "x.npy"}}},
         "edges": [{"type": ["paper", "cites", "paper"], "file": "cites.csv", "columns": [0, 1],
                    "attributes": {"year": {"columns": [2]}}, "symmetrise": true}]}

    Files are looked for from the folder of the JSON file. An attribute without a file is in that of
    the edges.

    Raises:
        ValueError: no such JSON; the field is named.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}.") from None
    try:
        kinds = set(content) if isinstance(content, dict) else set()
        if kinds == {"node", "edge"}:
            nodes = [_node(None, content["node"], path)]
            edges = [_edge(content["edge"], path, typed=False)]
        elif kinds == {"nodes", "edges"}:
            nodes = [_node(key, value, path) for key, value in content["nodes"].items()]
            edges = [_edge(value, path, typed=True) for value in content["edges"]]
        else:
            raise ValueError("it must have 'nodes' and 'edges', or 'node' and 'edge'")
        return GraphSpec(nodes, edges)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{path} does not say what to convert: {error}") from None


def _node(node_type: str | None, content: Any, path: Path) -> NodeSpec:
    _only(content, ("num_nodes", "attributes"))
    num_nodes = content.get("num_nodes")
    return NodeSpec(
        node_type,
        None if num_nodes is None else check_count("num_nodes", num_nodes),
        {k: _source(v, path, None) for k, v in content.get("attributes", {}).items()},
    )


def _edge(content: Any, path: Path, typed: bool) -> EdgeSpec:
    options = ("symmetrise", "deduplicate", "self_loops")
    _only(content, ("file", "key", "columns", "attributes", *options, *(["type"] * typed)))
    ends = _source({k: content[k] for k in ("file", "key", "columns") if k in content}, path, None)
    edge_type = None
    if typed:
        edge_type = tuple(content["type"])
        if len(edge_type) != 3 or not all(isinstance(part, str) for part in edge_type):
            raise ValueError(f"an edge type is three texts, got {content['type']}")
    return EdgeSpec(
        edge_type,
        ends,
        {k: _source(v, path, ends.file) for k, v in content.get("attributes", {}).items()},
        **{name: content[name] for name in options if name in content},
    )


def _source(content: Any, path: Path, file: str | None) -> ArraySource:
    if isinstance(content, str):
        content = {"file": content}
    _only(content, [field.name for field in fields(ArraySource)])
    name = content.get("file")
    if name is None and file is None:
        raise ValueError(f"{content} names no file")
    columns, dtype = content.get("columns"), content.get("dtype")
    if dtype is not None:
        check_choice("dtype", dtype, tuple(ITEM_BYTES))
    return ArraySource(
        str(path.parent / name) if name is not None else str(file),
        content.get("key"),
        None if columns is None else tuple(columns),
        dtype,
        content.get("missing"),
        bool(content.get("flat", False)),
        bool(content.get("lists_ids", False)),
    )


def _only(content: Any, names: Sequence[str]) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{content!r} must be a JSON object with some of {', '.join(names)}")
    for name in content:
        if name not in names:
            raise ValueError(f"{name!r} is none of {', '.join(names)}")


def ogb_spec(folder: Path) -> GraphSpec:
    """Return what to convert of a homogeneous OGB node data set of the binary kind.

    Such are ogbn-papers100M's: ``raw/data.npz`` with `edge_index`, `node_feat` and other ``node_``
    arrays, ``raw/node-label.npz`` with `node_label` (float, NaN where there is none, which becomes
    -1 of int64), and ``split/KIND/{train,valid,test}.csv.gz`` with ids.

    Raises:
        ValueError: ``raw/data.npz`` is missing.
    """
    data, labels = folder / "raw" / "data.npz", folder / "raw" / "node-label.npz"
    if not data.is_file():
        raise ValueError(f"{folder} is no OGB data set of the binary kind: {data} is missing.")
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
    for split, name in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
        for file in sorted(folder.glob(f"split/*/{split}.csv.gz"))[:1]:
            attributes[name] = ArraySource(str(file), lists_ids=True)
    edges = {
        key: ArraySource(str(data), key)
        for key in keys
        if key.startswith("edge_") and key != "edge_index"
    }
    ends = ArraySource(str(data), "edge_index")
    return GraphSpec([NodeSpec(None, None, attributes)], [EdgeSpec(None, ends, edges)])
