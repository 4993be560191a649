"""SQL expressions for the entries of tables: their kinds and values."""

from __future__ import annotations

import re

from .text import EMPTY as EMPTY_TEXTS
from .text import TIME_TEXT

EMPTY, SMALL, LONG, VAST, POINT, FLOAT, WIDE, BOOL, TIME, TEXT = (1 << i for i in range(10))
INTS = SMALL | LONG | VAST
NUMBERS = INTS | POINT | FLOAT | WIDE
EXACT_FLOAT32, EXACT_FLOAT64 = 1 << 24, 1 << 53  # whole numbers to which each of them has all
EXACT_DIGITS = 15  # of decimals that float64 tells apart
UNITS = {"s": 10**6, "ms": 10**3, "us": 1}  # microseconds
POINT_TEXT = r"[+-]?[0-9]+\.0+"
WHOLE_TEXT = r"[+-]?[0-9]+(\.0*)?"
NUMBER_TEXT = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity)"


def _matches(v: str, pattern: str) -> str:
    return f"regexp_full_match({v}, '{pattern}')"


def _is_empty(v: str) -> str:
    texts = ", ".join(f"'{text}'" for text in sorted(EMPTY_TEXTS))
    return f"({v} IS NULL OR lower({v}) IN ({texts}))"


def _whole(v: str) -> str:
    """A text of a whole number as an integer, NULL if it is too large."""
    return f"TRY_CAST(split_part({v}, '.', 1) AS BIGINT)"


def kind_of_text(v: str) -> str:
    """Return an expression for the kind of a text."""
    whole, number = _whole(v), f"TRY_CAST({v} AS DOUBLE)"
    size = (
        f"CASE WHEN {whole} BETWEEN -{EXACT_FLOAT32} AND {EXACT_FLOAT32} THEN {SMALL} "
        f"WHEN {whole} BETWEEN -{EXACT_FLOAT64} AND {EXACT_FLOAT64} THEN {LONG} ELSE {VAST} END"
    )
    wide = (
        f"isfinite({number}) AND abs({number}) >= {EXACT_FLOAT32} AND "
        f"coalesce(TRY_CAST({number} AS FLOAT)::DOUBLE <> {number}, true)"
    )
    times = f"{_matches(v, TIME_TEXT)} AND TRY_CAST({v} AS TIMESTAMPTZ) IS NOT NULL"
    return (
        f"CASE WHEN {_is_empty(v)} THEN {EMPTY} "
        f"WHEN {_matches(v, '[+-]?[0-9]+')} AND {whole} IS NOT NULL THEN {size} "
        f"WHEN {_matches(v, WHOLE_TEXT)} AND {whole} IS NOT NULL THEN {POINT} | {size} "
        f"WHEN {_matches(v, WHOLE_TEXT)} THEN {VAST | FLOAT} "
        f"WHEN {_matches(v, NUMBER_TEXT)} THEN CASE WHEN {wide} THEN {WIDE} ELSE {FLOAT} END "
        f"WHEN lower({v}) IN ('true', 'false') THEN {BOOL} "
        f"WHEN {times} THEN {TIME} ELSE {TEXT} END"
    )


def kind_of_type(sql_type: str) -> int:
    """Return the kind of a column of parquet; TEXT unless it has numbers."""
    if re.fullmatch(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)", sql_type):
        return SMALL
    if sql_type in ("FLOAT", "DOUBLE") or sql_type.endswith("]") or is_decimal(sql_type):
        return FLOAT
    if sql_type == "BOOLEAN":
        return BOOL
    return TIME if sql_type == "DATE" or sql_type.startswith("TIMESTAMP") else TEXT


def is_decimal(sql_type: str) -> bool:
    """Whether a type of parquet has decimals that float64 tells apart."""
    found = re.fullmatch(r"DECIMAL\(([0-9]+),[0-9]+\)", sql_type)
    return found is not None and int(found[1]) <= EXACT_DIGITS


def value_of_text(v: str, kind: int) -> str:
    """Return an expression for the value of a text of some kind, NULL if it is empty."""
    if kind & BOOL:
        found = f"lower({v}) = 'true'"
    elif kind & TIME:
        found = f"epoch_us(TRY_CAST({v} AS TIMESTAMPTZ))"
    elif kind & (FLOAT | WIDE):
        found = f"TRY_CAST({v} AS DOUBLE)"
    else:
        found = _whole(v)
    return f"CASE WHEN {_is_empty(v)} THEN NULL ELSE {found} END"


def time_of_type(v: str, sql_type: str, unit: str) -> str:
    """Return an expression for a time of parquet as a number of units since 1970."""
    if sql_type == "TIMESTAMP_NS":
        return in_units(f"epoch_ns({v})", 1000 * UNITS[unit], unit)
    return in_units(f"epoch_us({v})", UNITS[unit], unit)


def in_units(count: str, size: int, unit: str) -> str:
    """Return an expression for a whole number of units of time, which fails for a fraction."""
    failure = (
        f"error('a time has fractions of the unit {unit}. Name a smaller one in the JSON file of "
        f'--spec, "unit": one of {", ".join(UNITS)}; or write numbers\')'
    )
    return f"CASE WHEN {count} % {size} <> 0 THEN {failure} ELSE {count} // {size} END"


def id_of(v: str, sql_type: str) -> str:
    """Return an expression for an id, NULL if it is not a whole number."""
    if sql_type == "VARCHAR":
        number = id_of(f"TRY_CAST({v} AS DOUBLE)", "DOUBLE")
        return (
            f"CASE WHEN {_matches(v, WHOLE_TEXT)} THEN {_whole(v)} "
            f"WHEN {_matches(v, NUMBER_TEXT)} THEN {number} END"
        )
    if sql_type in ("FLOAT", "DOUBLE"):
        exact = EXACT_FLOAT32 if sql_type == "FLOAT" else EXACT_FLOAT64
        return f"CASE WHEN {v} = trunc({v}) AND abs({v}) < {exact} THEN TRY_CAST({v} AS BIGINT) END"
    return f"TRY_CAST({v} AS BIGINT)" if kind_of_type(sql_type) == SMALL else "NULL::BIGINT"


def name_of(v: str, is_float: bool) -> str:
    """Return an expression for the name of a node, or NULL; of a whole float, its digits."""
    text = f"CAST({v} AS VARCHAR)"
    digits = f"split_part({text}, '.', 1)"
    return f"nullif({digits if is_float else text}, '')"


def are_floats(v: str) -> str:
    """Return a condition: all entries of a column are whole numbers written as floats."""
    return f"coalesce(bool_and({_matches(f'CAST({v} AS VARCHAR)', POINT_TEXT)}), false)"
