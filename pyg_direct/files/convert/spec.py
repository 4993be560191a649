"""The specification of a conversion: the files of the arrays of a graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ...core.arguments import (
    NODES_OR_EDGES,
    check_choice,
    check_count,
    check_flag,
    missing_attribute,
)
from ..choices import FEATURE_DTYPES, IDS, SCALES, SELF_LOOPS
from ..header import ITEM_BYTES
from .cells import UNITS


@dataclass(frozen=True)
class ArraySource:
    """Where one array is read from.

    Args:
        file: ``.npy``, ``.npz``, ``.pt``, ``.parquet`` or text such as CSV (also ``.gz``), or a
            folder of parts of one table.
        key: of an ``.npz`` or of a dict in a ``.pt``; None for the only array, or the one that is
            called as the attribute (edges: ``edge_index``). Of a table of nodes, the column that
            has the id of each row's node; "" if rows are in the order of the nodes, whatever
            columns are called; None if no column seems to be one of ids, or one that is 0 to N-1.
        columns: of a table, by name or by position; None for the one that is called as the
            attribute, or else for all but those of ids (edges: those that are called as ends are,
            or the only two).
        dtype: to store instead of the file's own, as torch names it. Floats of text become float32,
            or float64 where that would change large numbers.
        missing: what replaces NaN and empty fields; without it they stay NaN, or are an error.
        flat: [N, 1] becomes [N].
        lists_ids: the array is bool [N], True for the ids that the file lists, or a mask of as many
            zeros and ones as there are nodes.
        header: whether text begins with the names of its columns; None to find out.
        unit: of dates and times, which become whole numbers of it since 1970 (UTC).
    """

    file: str
    key: str | None = None
    columns: tuple[str | int, ...] | None = None
    dtype: str | None = None
    missing: float | None = None
    flat: bool = False
    lists_ids: bool = False
    header: bool | None = None
    unit: str = "s"


@dataclass(frozen=True)
class NodeSpec:
    """The nodes of one type.

    Args:
        type: None in a homogeneous graph.
        num_nodes: None for as many as the first attribute has rows, or as there are names.
        attributes: one row a node.
        ids: "numbers"; or "names", which are numbered: as they come in the first column that is the
            `key` of an attribute, or else in the edges.
        first_id: the number of the first node in files of edges, keys and lists of ids.
    """

    type: str | None
    num_nodes: int | None = None
    attributes: Mapping[str, ArraySource] = field(default_factory=dict)
    ids: str = "numbers"
    first_id: int = 0


@dataclass(frozen=True)
class EdgeSpec:
    """The edges of one type.

    Args:
        type: None in a homogeneous graph.
        ends: integers [2, E] or [E, 2], or two columns: source and destination.
        attributes: one entry an edge, in the order of `ends`.
        symmetrise: add the reverse of every edge that is not a self-loop, with the same attributes,
            after all edges that are given. None: if the file says that it has each edge once for
            both directions, as a symmetric matrix does.
        deduplicate: keep the first of the edges that have the same ends.
        self_loops: "keep" them as they are, "remove" them, or "add" one for every node in place of
            those there are (not with attributes, which those would lack).
    """

    type: tuple[str, str, str] | None
    ends: ArraySource
    attributes: Mapping[str, ArraySource] = field(default_factory=dict)
    symmetrise: bool | None = None
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
        for node in self.nodes:
            check_choice("ids", node.ids, IDS)
            check_count("first_id", node.first_id)
            if node.ids == "names" and node.first_id:
                raise ValueError(f"first_id={node.first_id} is for ids that are numbers.")
        node_types, seen = [node.type for node in self.nodes], set[Any]()
        for edge in self.edges:
            check_edge(edge, node_types)
            if edge.type in seen:
                raise ValueError(f"The edge type {edge.type} is given twice: bring it to one file.")
            seen.add(edge.type)
        names_of_nodes = {name for node in self.nodes for name in node.attributes}
        names_of_edges = {name for edge in self.edges for name in edge.attributes}
        of_nodes, of_edges = self.time_attr in names_of_nodes, self.time_attr in names_of_edges
        if of_nodes and of_edges:
            raise ValueError(
                f"time_attr={self.time_attr!r} is an attribute of nodes and of edges; rename one."
            )
        if self.time_attr is not None and not of_nodes and not of_edges:
            raise missing_attribute(
                "time_attr", self.time_attr, NODES_OR_EDGES, [*names_of_nodes, *names_of_edges]
            )
        if self.weight_attr is not None and self.weight_attr not in names_of_edges:
            raise missing_attribute("weight_attr", self.weight_attr, "the edges", names_of_edges)

    def description(self) -> Any:
        """Return all fields for JSON."""
        return json.loads(json.dumps(asdict(self)))


def check_edge(edge: EdgeSpec, node_types: Sequence[str | None]) -> None:
    """Raise a ValueError if an edge type contradicts itself or the node types."""
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
    """Read the JSON file of a specification.

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
        raise ValueError(f"{path} is not valid JSON: {error}.") from None
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
    options = ("ids", "first_id")
    _only(content, ("num_nodes", "attributes", *options))
    num_nodes = content.get("num_nodes")
    return NodeSpec(
        node_type,
        None if num_nodes is None else check_count("num_nodes", num_nodes),
        {k: _source(v, path, None) for k, v in content.get("attributes", {}).items()},
        **{name: content[name] for name in options if name in content},
    )


def _edge(content: Any, path: Path, typed: bool) -> EdgeSpec:
    options = ("symmetrise", "deduplicate", "self_loops")
    ends_fields = ("file", "key", "columns", "header")
    _only(content, (*ends_fields, "attributes", *options, *(["type"] * typed)))
    ends = _source({k: content[k] for k in ends_fields if k in content}, path, None)
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
    header = content.get("header")
    if header is not None:
        check_flag("header", header)
    columns, dtype, unit = content.get("columns"), content.get("dtype"), content.get("unit", "s")
    if dtype is not None:
        check_choice("dtype", dtype, tuple(ITEM_BYTES))
    check_choice("unit", unit, tuple(UNITS))
    return ArraySource(
        str(path.parent / name) if name is not None else str(file),
        content.get("key"),
        None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns),
        dtype,
        content.get("missing"),
        bool(content.get("flat", False)),
        bool(content.get("lists_ids", False)),
        header,
        unit,
    )


def _only(content: Any, names: Sequence[str]) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{content!r} must be a JSON object with some of {', '.join(names)}")
    for name in content:
        if name not in names:
            raise ValueError(f"{name!r} is not one of {', '.join(names)}")
