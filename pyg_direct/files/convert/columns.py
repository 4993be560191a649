"""Selection of the columns of a table: ends of edges, an attribute, or the ids of its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .spec import ArraySource, EdgeSpec
from .tables import FileTable
from .text import plain

NAMES_OF_ENDS = """
source-target src-dst from-to sourceid-targetid srcid-dstid fromid-toid fromnodeid-tonodeid
fromnode-tonode sourcenode-targetnode source-destination sourceid-destinationid u-v i-j head-tail
sender-receiver citing-cited start-end startid-endid node1-node2 id1-id2 user1-user2 nodea-nodeb
nodeida-nodeidb row-col row-column follower-followee citingid-citedid
"""
PAIRS = tuple(pair.split("-") for pair in NAMES_OF_ENDS.split())
NO_END = re.compile(
    r"|unnamed.*|index|.*level0|edge|edgeid|edgeidx|eid|time|timestamp|date|weight|rel|relation|"
    r"type|label|rating|value"
)  # plain names of columns of edges that are not ends
COUNTS_ROWS = re.compile(r"|unnamed[0-9]+|index|indexlevel[0-9]+|rowid|rownumber")
IDS = re.compile(r"id|idx|nid|eid|vertex|(node|vertex|edge|user|item|paper|author)(id|idx|index)?")
LIKE_IDS = re.compile(r".*[a-z]I[dD]|.*[_ .-](?i:id|idx|index)")


def ends_of(table: FileTable, edge: EdgeSpec) -> list[int]:
    """Return the columns of sources and of destinations.

    Without names of them, a table of two columns has the ends in this order, unless they are called
    the other way round; of a larger one, those that are called as ends are, or that are left where
    all others are attributes.

    Raises:
        ValueError: no such columns, or none that are known to be meant; all are listed.
    """
    source = edge.ends
    if table.is_blank:
        return [0, 1]
    if source.columns is not None:
        found = named(table, source.columns)
        if len(found) != 2:
            raise ValueError(
                f"{table.name} needs two columns of ids, sources and destinations; named are "
                f"{len(found)}: {', '.join(map(str, source.columns))}."
            )
        return found
    if table.format is not None and table.format.matrix is not None:
        return [0, 1]
    names = [plain(name) if table.is_named else "" for name in table.names]
    if len(names) < 2:
        raise ValueError(
            f"{table.name} must have two columns of ids, got {', '.join(table.names)}."
        )
    pairs = [(s, t) for s, t in PAIRS if names.count(s) == names.count(t) == 1]
    if len(pairs) == 1:
        return [names.index(end) for end in pairs[0]]
    left = _left(table, edge)
    if len(left) == 2 and len(names) > 2:
        return left
    odd = table.is_named and any(NO_END.fullmatch(name) for name in names)
    if len(names) > 2 or odd:
        raise ValueError(
            f"{table.name} has {len(names)} columns, and which of them are the ends of edges is "
            f"not known: {_listed(table)}. Name two: FILE:SOURCE,DESTINATION, such as "
            f'{table.path.name}:{_two(table)} (--spec: "columns").'
        )
    return named(table, table.names) if table.is_named else [0, 1]


def understood(table: FileTable, edge: EdgeSpec, ends: Sequence[int]) -> str:
    """Return which columns are the ends of edges, as text; "" if the table has no others."""
    if edge.ends.columns is not None or list(ends) == [0, 1] == _left(table, edge):
        if edge.ends.header is not None or table.example != "0, 1":
            return ""
        return (
            f"The first line of {table.name}, 0,1, is taken for an edge; if it is names: --header."
        )
    src, dst = (table.names[i] for i in ends)
    return f"Edges of {table.name}: from {src!r} to {dst!r}, of its columns {_listed(table)}."


def _left(table: FileTable, edge: EdgeSpec) -> list[int]:
    """Return the columns that no attribute of the edges is read from."""
    taken = set[int]()
    for name, source in edge.attributes.items():
        if source.file == edge.ends.file:
            columns = source.columns or ([name] if name in table.names else [])
            taken.update(named(table, columns))
    return [i for i in range(len(table.names)) if i not in taken]


def attribute_of(
    table: FileTable, source: ArraySource, name: str, same_rows: bool
) -> tuple[list[int], list[int]]:
    """Return the columns of an attribute, and those that must count the rows.

    Args:
        table: with one row for each node or edge.
        source: what the user says of the columns.
        name: of the attribute.
        same_rows: the rows are known to be those of the edges.

    Raises:
        ValueError: no such columns, or some that are not attributes.
    """
    if table.is_blank:
        return [0], []
    key = named(table, [source.key])[0] if source.key else None
    others = [i for i in range(len(table.names)) if i != key]
    counting = [i for i in others if table.is_named and _counts(table.names[i])]
    if source.columns is not None:
        found = named(table, source.columns)
    elif name in table.names:
        found = named(table, [name])
    else:
        like = [i for i in others if table.is_named and LIKE_IDS.fullmatch(table.names[i])]
        counting = sorted({*counting, *like})
        found = others if len(others) == 1 else [i for i in others if i not in counting]
        plain_names = [plain(table.names[i]) for i in found]
        ends = [f"{s}, {t}" for s, t in PAIRS if s in plain_names and t in plain_names]
        if (ends and len(found) > 2) or not found:
            raise ValueError(
                f"{table.name} has {len(table.names)} columns, and which of them are {name!r} is "
                f"not known: {_listed(table)}. Name them: FILE:COLUMN, such as "
                f'{table.path.name}:{table.names[-1]} (--spec: "columns").'
            )
        named(table, [table.names[i] for i in found])
        if not table.is_named and len(found) > 1 and key is None and source.key is None:
            counting = [0]
    if key is not None or same_rows or source.key == "":
        return found, []
    return found, [i for i in counting if i not in found or not table.is_named]


def named(table: FileTable, columns: Sequence[str | int]) -> list[int]:
    """Return columns by their names, or else their positions; "2-4" are three positions.

    Raises:
        ValueError: no such column, several of one name, or one that is named twice.
    """
    names, found = table.names, list[int]()
    counts = Counter(names)
    for column in columns:
        text = str(column)
        if column in names:
            found.append(names.index(text))
            continue
        first, dash, last = text.partition("-")
        positions = [int(part) for part in (first, last if dash else first) if part.isdigit()]
        if len(positions) < 2 or not 0 <= positions[0] <= positions[1] < len(names):
            raise ValueError(
                f"{table.name} has no column {column!r}; it has {len(names)}: {_listed(table)}."
            )
        found += range(positions[0], positions[1] + 1)
    for column, times in Counter(found).items():
        name = names[column]
        if table.is_named and counts[name] > 1:
            raise ValueError(
                f"{table.name} has {counts[name]} columns that are called {name!r}: rename them."
            )
        if times > 1:
            raise ValueError(
                f"The column {name!r} of {table.name} is named {times} times: name it once."
            )
    return found


def _counts(name: str) -> bool:
    known = plain(name)
    return COUNTS_ROWS.fullmatch(known) is not None or IDS.fullmatch(known) is not None


def _listed(table: FileTable) -> str:
    if table.is_named:
        return ", ".join(name or "(without a name)" for name in table.names)
    return f"(without names) the first row is {table.example}"


def _two(table: FileTable) -> str:
    return "0,1" if not table.is_named else ",".join(name or "0" for name in table.names[-2:])
