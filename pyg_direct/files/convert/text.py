"""Detection of the format of a text file by its first lines: delimiter, names, comments."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SAMPLE_LINES = 20  # of data that the delimiter must fit
SPACES = ""  # as a delimiter: any number of spaces and tabs
DELIMITERS = (",", "\t", ";", "|", SPACES)
COMMENTS = "#%"
EMPTY = frozenset(
    ("", "na", "n/a", "#na", "#n/a", "<na>", "nan", "-nan", "nat", "null", "none")
)  # in lower case: entries that stand for nothing
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.I)
LIKE_A_NUMBER = re.compile(r"[+-]?\.?[0-9]")  # how a field begins that is hardly a column's name
TIME_TEXT = (
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T][0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?"
    r"( ?(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?))?)?"
)
TIME = re.compile(TIME_TEXT)
TIME_OF_DAY = re.compile(r"[0-9]{1,2}:[0-9]{2}")
KNOWN = """
source src from sourceid srcid fromid fromnodeid sourcenode u head sender citing start startid node1
id1 user1 nodea userid row i target dst destination to targetid dstid toid tonodeid targetnode v
tail receiver cited end endid node2 id2 user2 nodeb itemid col column j id node nodeid idx
index name label y class weight w time timestamp date rel relation type rating value edgeid edge
"""
KNOWN_NAMES = frozenset(KNOWN.split())  # of columns, without signs and capitals
KONECT = re.compile(r"%\s*(sym|asym|bip)\s+[a-z]+", re.I)
MATRIX_MARKET = "%%matrixmarket"
ASK = 'say which with --header or --no-header (--spec: "header": true or false).'


class Format(NamedTuple):
    """The format of a text file.

    Args:
        names: of the columns; f0, f1, ... without a header.
        is_named: whether the file names its columns.
        delimiter: `SPACES` or a character.
        skipped: number of lines before the data.
        comment: how lines begin that are not data; "" for none.
        sample: the first lines of the data, as fields.
        first_id: from which the format counts ids; None if it does not say.
        undirected: what says that each edge stands for both directions; "" if nothing does.
        bipartite: what says that sources and destinations are of two types; "" if nothing does.
        note: a comment that says that edges have no direction; "" without one.
        matrix: rows, columns and entries, of a file of Matrix Market.
    """

    names: tuple[str, ...]
    is_named: bool
    delimiter: str
    skipped: int
    comment: str
    sample: list[list[str]]
    first_id: int | None = None
    undirected: str = ""
    bipartite: str = ""
    note: str = ""
    matrix: tuple[int, int, int] | None = None


class _Lines(NamedTuple):
    comments: list[str]
    data: list[str]
    first: int  # the number of the first line of data


def is_packed(path: Path) -> bool:
    """Whether a file is a gzip archive, by its first bytes or its name."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b" or path.name.lower().endswith(".gz")


def check_archive(path: Path) -> None:
    """Raise a ValueError if a gzip archive is cut off or damaged; it is read to its end."""
    try:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}.") from None


def format_of(path: Path, header: bool | None, are_ends: bool) -> Format | None:
    """Detect the format of a text file; None if it has no line of data or of names.

    Args:
        path: of the file, perhaps packed by gzip.
        header: whether the first line has the names of columns; None to find out.
        are_ends: it holds the ends of edges.

    Raises:
        ValueError: text of another encoding, a damaged archive, or a first line that may be names
            of columns or data.
    """
    lines = _first_lines(path)
    comment = lines.comments[0][0] if lines.comments else ""
    first = lines.comments[0].lower() if lines.comments else ""
    if first.startswith(MATRIX_MARKET):
        return _matrix_market(lines, first.split(), path)
    if not lines.data:
        if comment:
            raise ValueError(
                f"All lines of {path} begin with {comment!r}, as comments do. If these are names "
                f'of nodes, put them in quotes: "{comment}name".'
            )
        return None
    delimiter = _delimiter(lines.data, path)
    sample = [split(line, delimiter) for line in lines.data]
    width = len(sample[0])
    in_comment = [split(line.lstrip(COMMENTS).strip(), delimiter) for line in lines.comments[-1:]]
    texts = all(not any(map(_is_value, column)) for column in zip(*sample, strict=False))
    if any(len(fields) == width for fields in in_comment) and texts and header is None:
        raise ValueError(
            f"{path} begins with {lines.comments[-1]!r}, which may be names of columns, or of "
            f"nodes as those below: put names of nodes in quotes; or {ASK}"
        )
    named = [f for f in in_comment if len(f) == width and all(map(_is_name, f))]
    if named and header is not True and not all(map(_is_name, sample[0])):
        found = Format(tuple(named[0]), True, delimiter, lines.first - 1, comment, sample)
    elif _is_header(sample, header, are_ends, path):
        found = Format(tuple(sample[0]), True, delimiter, lines.first, comment, sample[1:])
    else:
        names = tuple(f"f{i}" for i in range(width))
        found = Format(names, False, delimiter, lines.first - 1, comment, sample)
    konect = next(map(KONECT.match, lines.comments[:1]), None)
    if konect is not None:
        kind = konect[1].lower()
        mirrored, typed = (konect[0] if kind == name else "" for name in ("sym", "bip"))
        return found._replace(first_id=1, undirected=mirrored, bipartite=typed)
    notes = (line for line in lines.comments if re.search(r"\bundirected\b", line, re.I))
    return found._replace(note=next(notes, ""))


def split(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line."""
    if delimiter == SPACES:
        return line.split()
    return [field.strip() for field in next(csv.reader([line], delimiter=delimiter))]


def _first_lines(path: Path) -> _Lines:
    comments: list[str] = []
    data: list[str] = []
    first = 0
    try:
        with (gzip.open if is_packed(path) else open)(path, "rt", encoding="utf-8-sig") as file:
            for number, line in _not_empty(file):
                if "\0" in line:
                    raise ValueError(f"{path} is not UTF-8 text, but binary. {KINDS}")
                if line[0] in COMMENTS and (comments or not data):
                    comments += [line] * (not data)
                    continue
                first = first or number
                data.append(line)
                if len(data) > SAMPLE_LINES:
                    break
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}. Convert it first. {KINDS}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}.") from None
    return _Lines(comments, data, first)


KINDS = "(Files may be .npy, .npz, .pt, .parquet, or text such as .csv, also .gz.)"


def _not_empty(file: Iterator[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, line.strip("\r\n")


def _delimiter(lines: Sequence[str], path: Path) -> str:
    """Return the delimiter that gives all lines the same number of fields, two or more."""
    uneven = []
    for delimiter in DELIMITERS:
        try:
            rows = [split(line, delimiter) for line in lines]
        except csv.Error as error:
            raise ValueError(f"{path} is damaged: {error}.") from None
        if delimiter == SPACES and any(TIME_OF_DAY.match(field) for field in rows[-1][1:]):
            continue  # a column of dates and times
        counts = {len(row) for row in rows}
        if len(counts) == 1 and len(rows[0]) > 1:
            return delimiter
        if (min if delimiter == SPACES else max)(counts) > 1:
            uneven.append(delimiter)
    return uneven[0] if uneven else ","


def _is_header(
    sample: Sequence[Sequence[str]], header: bool | None, are_ends: bool, path: Path
) -> bool:
    """Whether the first line has the names of columns, which may also look like numbers.

    Raises:
        ValueError: it may be names as well as data.
    """
    if header is not None:
        return header
    first, second = sample[0], sample[1] if len(sample) > 1 else []
    counted = [str(i) for i in range(len(first))]  # pandas calls columns so that have no names
    if all(map(_is_value, first)):
        if first[0] == "" and len(first) > 1 and list(first[1:]) == counted[:-1]:
            return True
        if list(first) == counted and len(first) > (2 if are_ends else 1):
            raise ValueError(
                f"The first line of {path} is {','.join(first)}, which may be names of columns or "
                f"data: {ASK}"
            )
        return False
    is_name = [_is_name(field) for field in first]
    below = [field != "" and not _is_name(field) for field in second]
    if any(a and b for a, b in zip(is_name, below, strict=False)):
        return True
    if all(a or field == "" for a, field in zip(is_name, first, strict=True)):
        if not any(second) or first[0] == "" or any(plain(f) in KNOWN_NAMES for f in first):
            return True
        raise ValueError(
            f"The first line of {path} has texts, as the second has, which may be names of columns "
            f"or data: {', '.join(first)!r}; {ASK}"
        )
    numbers = [field for field in first if NUMBER.fullmatch(field)]
    texts = [not _is_value(field) for field in first]
    same = texts == [not _is_value(field) for field in second] and any(is_name)
    counting = any(numbers == [str(start + i) for i in range(len(numbers))] for start in (0, 1))
    if same and numbers and not counting:
        return False
    raise ValueError(
        f"The first line of {path} has neither numbers nor names of columns: {', '.join(first)!r}. "
        f"Write numbers as decimals, or names that do not begin with a digit; or {ASK}"
    )


def plain(name: str) -> str:
    """Return a name in lower case without punctuation: "From-Node_ID" gives "fromnodeid"."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _is_name(field: str) -> bool:
    return not _is_value(field) and not LIKE_A_NUMBER.match(field)


def _is_value(field: str) -> bool:
    """Whether a field is a number, a boolean or an empty entry."""
    text = field.lower()
    known = text in EMPTY or text in ("true", "false")
    return known or any(kind.fullmatch(field) for kind in (NUMBER, TIME))


def _matrix_market(lines: _Lines, words: Sequence[str], path: Path) -> Format:
    """Return how a file of Matrix Market is read, whose ids begin at 1.

    Raises:
        ValueError: not a sparse matrix of real numbers, or a damaged one.
    """
    _, kind, layout, field, symmetry = [*words, "", "", "", ""][:5]
    known = field in ("pattern", "real", "integer") and symmetry in ("general", "symmetric")
    if (kind, layout) != ("matrix", "coordinate") or not known:
        raise ValueError(
            f"{path} is a {' '.join(words[1:])} of Matrix Market; edges are read from a matrix "
            f"coordinate of pattern, real or integer entries that is general or symmetric."
        )
    sizes = lines.data[0].split() if lines.data else []
    if len(sizes) != 3 or not all(size.isdigit() for size in sizes):
        raise ValueError(f"{path} is damaged: the sizes of the matrix are {sizes}.")
    names = ("row", "column") if field == "pattern" else ("row", "column", "value")
    rows, columns, entries = map(int, sizes)
    return Format(
        names,
        True,
        SPACES,
        lines.first,
        "%",
        [line.split() for line in lines.data[1:]],
        first_id=1,
        undirected=symmetry if symmetry == "symmetric" else "",
        bipartite="" if rows == columns else f"{rows} rows and {columns} columns",
        matrix=(rows, columns, entries),
    )
