"""The header of a saved graph: one JSON file that describes the arrays beside it.

A saved graph is a directory of arrays in row-major order and little-endian bytes, one file each and
nothing else in it, and `HEADER`, which is written last. Version 1::

    {
      "format": "pyg_direct graph", "version": 1, "crc32": 1234567,
      "nodes": [{"type": null, "num_nodes": 3, "explicit": false, "attributes": {"x": ARRAY},
                 "order": null}],
      "edges": [{"type": null, "num_edges": 4, "attributes": {}}],
      "indptr": ARRAY, "indices": ARRAY,
      "times": {"attribute": "time", "of_nodes": true, "table": ARRAY},
      "weights": {"attribute": "w", "weight": ARRAY, "cumulative": ARRAY, "alias": ARRAY,
                  "relations": [true], "positive": true},
      "attributes": {"name": "a value that JSON can hold"}
    }

where ARRAY is ``{"file": "x.bin", "dtype": "float32", "shape": [3, 100], "crc32": 89, "scale":
null, "quantized": false}``. A quantized one is a `QuantizedTensor`; of int8, "scale" is an ARRAY,
too. Where "order" is ``{"positions": ARRAY, "attributes": ["x"]}``, node i has row "positions"[i]
of the files of these attributes; such a graph has version 2. A homogeneous graph has one node type
and one edge type, both null. "times" and "weights" may be null. `types.Csc` says what the arrays
of the graph hold.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HEADER = "graph.json"
FORMAT = "pyg_direct graph"
PLAIN_VERSION, VERSION = 1, 2  # of graphs whose rows have no order of their own, and of others
MAX_HEADER_BYTES = 64 << 20

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""The dtypes of stored arrays, as torch names them, with the bytes of an element."""

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
INTS = ("int32", "int64")


class InvalidGraphFileError(ValueError):
    """A directory that is not a saved graph, or one that was cut off, changed or damaged.

    Example:
        >>> try:
        ...     pyg_direct.open("nowhere")
        ... except pyg_direct.InvalidGraphFileError as error:
        ...     print("refused")
        refused
    """


@dataclass(frozen=True)
class ArrayFile:
    """One array in one file of the directory."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    crc32: int
    scale: ArrayFile | None = None  # of a `QuantizedTensor`: float32 [F] or [N, 1]
    quantized: bool = False  # whether it is one; those of float16 and bfloat16 have no scale

    @property
    def num_bytes(self) -> int:
        """Length of the file."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class RowOrder:
    """The positions of the rows of some attributes in their files."""

    positions: ArrayFile  # int64, of the row of each node
    attributes: tuple[str, ...]


@dataclass(frozen=True)
class NodeGroup:
    """The nodes of one type."""

    type: str | None
    num_nodes: int
    explicit: bool  # whether `num_nodes` is an attribute itself, as PyG's data may have it
    attributes: Mapping[str, ArrayFile] = field(default_factory=dict)
    order: RowOrder | None = None  # None: rows are in the order of the nodes


@dataclass(frozen=True)
class EdgeGroup:
    """The edges of one type, in the order of the CSC."""

    type: tuple[str, str, str] | None
    num_edges: int
    attributes: Mapping[str, ArrayFile] = field(default_factory=dict)


@dataclass(frozen=True)
class TimesFile:
    """The times that neighbour lists are sorted by."""

    attribute: str
    of_nodes: bool
    table: ArrayFile  # int64, of all nodes or of all edges, in the order of their types


@dataclass(frozen=True)
class WeightsFile:
    """The edge weights, and what weighted draws read."""

    attribute: str
    weight: ArrayFile
    cumulative: ArrayFile
    alias: ArrayFile | None
    relations: tuple[bool, ...]
    positive: bool


@dataclass(frozen=True)
class Header:
    """The content of a directory."""

    nodes: Sequence[NodeGroup]
    edges: Sequence[EdgeGroup]
    indptr: ArrayFile
    indices: ArrayFile
    times: TimesFile | None = None
    weights: WeightsFile | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return not (len(self.nodes) == 1 and self.nodes[0].type is None)

    def arrays(self) -> list[ArrayFile]:
        """Return all arrays, each once."""
        found = [self.indptr, self.indices]
        if self.times is not None:
            found.append(self.times.table)
        if self.weights is not None:
            weights = self.weights
            found += [a for a in (weights.weight, weights.cumulative, weights.alias) if a]
        found += [group.order.positions for group in self.nodes if group.order is not None]
        for attributes in [group.attributes for group in self.nodes] + [
            group.attributes for group in self.edges
        ]:
            found += attributes.values()
            found += [array.scale for array in attributes.values() if array.scale is not None]
        return list({array.file: array for array in found}.values())


def write_header(header: Header, folder: Path) -> None:
    """Write `header` into `folder`, and sync it."""
    write_with_checksum(_content_of(header), folder / HEADER)


def header_checksum(header: Header) -> int:
    """Return the checksum at the end of a header's file, which covers all arrays."""
    return checksum_of(_content_of(header))


def _content_of(header: Header) -> dict[str, Any]:
    plain = all(group.order is None for group in header.nodes)
    return {"format": FORMAT, "version": PLAIN_VERSION if plain else VERSION, **asdict(header)}


def write_with_checksum(content: dict[str, Any], path: Path) -> None:
    """Write `content` and its checksum as JSON, and sync the file."""
    content["crc32"] = checksum_of(content)
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_header(folder: Path) -> Header:
    """Read the header of `folder`.

    Raises:
        InvalidGraphFileError: no header, one of another format or version, or one that contradicts
            itself. Files are not looked at.
        OSError: the header cannot be read.
    """
    path, content = folder / HEADER, _content(folder)
    if content.get("version") not in (PLAIN_VERSION, VERSION):
        raise InvalidGraphFileError(
            f"{path} has version {content.get('version')!r}; this pyg_direct reads versions "
            f"{PLAIN_VERSION} and {VERSION}. Update pyg_direct, or save the graph again."
        )
    if content.pop("crc32", None) != checksum_of(content):
        raise InvalidGraphFileError(
            f"{path} was changed after it was written: its checksum is wrong."
        )
    try:
        header = _parse(content)
        _check(header)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidGraphFileError(f"{path} is not valid: {error}.") from None
    return header


def has_header(folder: Path) -> bool:
    """Whether `folder` has the header of a saved graph, of any version, perhaps damaged."""
    try:
        _content(folder)
    except InvalidGraphFileError:
        return False
    return True


def _content(folder: Path) -> dict[str, Any]:
    """Return the content of the header of `folder`, unchecked.

    Raises:
        InvalidGraphFileError: no header of this format.
        OSError: it cannot be read.
    """
    path = folder / HEADER
    if not path.is_file():
        raise InvalidGraphFileError(
            f"{folder} is not a saved graph: it has no {HEADER}. Write one with pyg_direct.save("
            f"data, path) or python -m pyg_direct.convert; an interrupted conversion continues if "
            f"its command is run again."
        )
    if path.stat().st_size > MAX_HEADER_BYTES:
        raise InvalidGraphFileError(f"{path} is longer than any header.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidGraphFileError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidGraphFileError(f"{path} is not a header of a saved graph.")
    return content


def checksum_of(content: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the header's content, in a form that does not depend on layout."""
    text = json.dumps({key: content[key] for key in sorted(content) if key != "crc32"})
    return zlib.crc32(json.dumps(json.loads(text), sort_keys=True).encode())


def _parse(content: Mapping[str, Any]) -> Header:
    times, weights = content["times"], content["weights"]
    return Header(
        nodes=[
            NodeGroup(
                group["type"],
                count_of(group["num_nodes"]),
                bool(group["explicit"]),
                arrays_of(group["attributes"]),
                _order_of(group.get("order")),
            )
            for group in content["nodes"]
        ],
        edges=[
            EdgeGroup(
                None if group["type"] is None else tuple(group["type"]),
                count_of(group["num_edges"]),
                arrays_of(group["attributes"]),
            )
            for group in content["edges"]
        ],
        indptr=array_of(content["indptr"]),
        indices=array_of(content["indices"]),
        times=times and TimesFile(times["attribute"], times["of_nodes"], array_of(times["table"])),
        weights=weights
        and WeightsFile(
            attribute=weights["attribute"],
            weight=array_of(weights["weight"]),
            cumulative=array_of(weights["cumulative"]),
            alias=weights["alias"] and array_of(weights["alias"]),
            relations=tuple(weights["relations"]),
            positive=weights["positive"],
        ),
        attributes=dict(content["attributes"]),
    )


def _order_of(entry: Mapping[str, Any] | None) -> RowOrder | None:
    if entry is None:
        return None
    return RowOrder(array_of(entry["positions"]), tuple(map(str, entry["attributes"])))


def arrays_of(entries: Mapping[str, Any]) -> dict[str, ArrayFile]:
    """Return the arrays in a JSON dict, by name; raise a ValueError for anything else."""
    return {str(name): array_of(entry) for name, entry in entries.items()}


def array_of(entry: Mapping[str, Any]) -> ArrayFile:
    """Return the array that a JSON dict describes; raise a ValueError for anything else."""
    file, dtype, shape = entry["file"], entry["dtype"], tuple(map(count_of, entry["shape"]))
    if not isinstance(file, str) or not FILE_NAME.fullmatch(file) or file == HEADER:
        raise ValueError(f"{file!r} is not the name of a file in the directory")
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{file} has the unknown dtype {dtype!r}")
    scale = None if entry["scale"] is None else array_of(entry["scale"])
    quantized = entry["quantized"] is True
    array = ArrayFile(file, dtype, shape, count_of(entry["crc32"]), scale, quantized)
    if scale is not None and (not quantized or scale.scale is not None):
        raise ValueError(f"{file} has a scale of its own")
    if array.num_bytes >= 1 << 62:
        raise ValueError(f"{file} has the impossible shape {shape}")
    return array


def count_of(value: Any) -> int:
    """Return a count from JSON; raise a ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is not a count")
    return value


def _check(header: Header) -> None:
    """Raise a ValueError unless the parts of a header agree with each other."""
    _check_types(header)
    num_nodes = {group.type: group.num_nodes for group in header.nodes}
    lists = sum(num_nodes[group.type and group.type[2]] + 1 for group in header.edges)
    edges = sum(group.num_edges for group in header.edges)
    _expect("indptr", header.indptr, INTS, (lists,))
    _expect("indices", header.indices, INTS, (edges,))
    if header.times is not None:
        length = sum(num_nodes.values()) if header.times.of_nodes else edges
        _expect("times", header.times.table, ("int64",), (length,))
    if header.weights is not None:
        weights = header.weights
        _expect("weight", weights.weight, ("float64",), (edges,))
        _expect("cumulative", weights.cumulative, ("float64",), (edges,))
        if weights.alias is not None:
            _expect("alias", weights.alias, ("int64",), (edges,))
    _check_attributes(header)
    for nodes in header.nodes:
        _check_order(nodes)
    for group in header.edges:
        for name, array in group.attributes.items():
            if array.shape[:1] != (group.num_edges,):
                raise ValueError(f"the edge attribute {name} has the shape {array.shape}")


def _check_order(group: NodeGroup) -> None:
    """Raise a ValueError unless an order of rows is one of existing attributes."""
    if group.order is None:
        return
    _expect("positions", group.order.positions, ("int64",), (group.num_nodes,))
    for name in group.order.attributes:
        array = group.attributes.get(name)
        if array is None or array.shape[:1] != (group.num_nodes,):
            raise ValueError(f"positions are those of {name!r}, which has no row for each node")


def _check_attributes(header: Header) -> None:
    """Raise a ValueError unless the attributes of times and weights exist, and fit them."""
    times, weights = header.times, header.weights
    if times is not None:
        groups = header.nodes if times.of_nodes is True else header.edges
        if not any(times.attribute in group.attributes for group in groups):
            kind = "nodes" if times.of_nodes is True else "edges"
            raise ValueError(f"the times are those of {times.attribute!r}, which no {kind} have")
    if weights is not None:
        named = tuple(weights.attribute in group.attributes for group in header.edges)
        if not header.is_hetero:  # PyG may take it for an attribute of the nodes
            named = (named[0] or weights.attribute in header.nodes[0].attributes,)
        if weights.relations != named or not any(named):
            raise ValueError(
                f"{list(weights.relations)} says which edge types have weights, but {list(named)} "
                f"have the attribute {weights.attribute!r}"
            )
        if type(weights.positive) is not bool:
            raise ValueError(f"positive is {weights.positive!r}, but must be true or false")


def _check_types(header: Header) -> None:
    """Raise a ValueError unless node and edge types are valid, and fit each other."""
    node_types = [group.type for group in header.nodes]
    edge_types = [group.type for group in header.edges]
    if not header.is_hetero:
        if edge_types != [None]:
            raise ValueError("a graph without node types has edge types")
        return
    if not all(isinstance(node_type, str) for node_type in node_types):
        raise ValueError("a node type is not a text")
    if len({*node_types}) != len(node_types) or len({*edge_types}) != len(edge_types):
        raise ValueError("a type occurs twice")
    for edge_type in edge_types:
        if edge_type is None or len(edge_type) != 3:
            raise ValueError(f"{edge_type} is not an edge type")
        if edge_type[0] not in node_types or edge_type[2] not in node_types:
            raise ValueError(f"the edge type {edge_type} refers to an unknown node type")


def _expect(name: str, array: ArrayFile, dtypes: Sequence[str], shape: tuple[int, ...]) -> None:
    if array.dtype not in dtypes or array.shape != shape:
        raise ValueError(
            f"{name} is {array.dtype} {list(array.shape)}, but must be "
            f"{' or '.join(dtypes)} {list(shape)}"
        )
