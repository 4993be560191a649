"""Power-law graphs of any size with learnable labels, written directly to files."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..core.arguments import check_choice, check_count
from ..core.threads import available_cores
from ..graph.coo_to_csc import narrow
from ..kernels import power_law as kernels
from .arrays import ArrayWriter, write_array
from .choices import DTYPES, ROOTS, PowerLaw
from .directory import FileNames, NewDirectory
from .header import ArrayFile, EdgeGroup, Header, NodeGroup, write_header

Array = npt.NDArray[Any]
T = TypeVar("T")

CHUNK_EDGES = 1 << 22  # that are drawn at a time
CHUNK_ELEMENTS = 1 << 25  # of features
AHEAD = 2  # chunks that are drawn while one is written
SCALE = 2.0**-5  # of a stored feature: exact in float16, too
CENTROID_LIMIT = 63


def generate(
    graph: PowerLaw,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a generated graph to `path`, for `pyg_direct.open`.

    Its memory does not depend on the size of the graph.

    Args:
        graph: what to write.
        path: the new directory.
        overwrite: replace a saved graph at `path`; never anything else.
        progress: called with the number of edges and rows that were written since the last call.

    Raises:
        ValueError: a field of `graph` out of its range.
        FileExistsError: there is something at `path`; with `overwrite`, something else than a saved
            graph or an empty directory.
        OSError: it cannot be written; nothing is left at `path`.
    """
    _check(graph)
    advance = progress or (lambda count: None)
    with NewDirectory(path, overwrite) as folder:
        write_header(_write(graph, folder, FileNames(), advance), folder)


def _check(graph: PowerLaw) -> None:
    num_nodes = check_count("num_nodes", graph.num_nodes, 1)
    for name in ("num_edges", "num_features", "seed"):
        check_count(name, getattr(graph, name))
    classes = check_count("num_classes", graph.num_classes, 1)
    groups = classes if graph.num_groups is None else check_count("num_groups", graph.num_groups, 1)
    if num_nodes >= 1 << 31 or not classes <= groups <= num_nodes:
        raise ValueError(
            f"A generated graph needs num_classes <= num_groups <= num_nodes < 2^31, got "
            f"{classes}, {groups} and {num_nodes}."
        )
    if graph.skew not in ROOTS:
        raise ValueError(f"skew must be one of {', '.join(map(str, ROOTS))}, got {graph.skew!r}.")
    for name in ("homophily", "signal", "train_share"):
        if not 0 <= getattr(graph, name) <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {getattr(graph, name)!r}.")
    if graph.train_share > 0.4:
        raise ValueError(f"train_share must be at most 0.4, got {graph.train_share}.")
    check_choice("dtype", graph.dtype, DTYPES)


class _Permutation(NamedTuple):
    """Popularity ranks: rank = node * multiplier mod N, node = rank * inverse mod N."""

    multiplier: int
    inverse: int


def _permutation(num_nodes: int) -> _Permutation:
    multiplier = max(1, int(num_nodes * 0.6180339887)) % num_nodes or 1
    while math.gcd(multiplier, num_nodes) != 1:
        multiplier += 1
    return _Permutation(multiplier, pow(multiplier, -1, num_nodes) if num_nodes > 1 else 0)


def _write(
    graph: PowerLaw, folder: Path, names: FileNames, advance: Callable[[int], None]
) -> Header:
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    order, roots = _permutation(num_nodes), ROOTS[graph.skew]
    groups = graph.num_groups or graph.num_classes
    key = (np.uint64(graph.seed & 0xFFFFFFFF), np.uint64(graph.seed >> 32))

    def degrees(first: int, last: int) -> Array:
        out = np.empty(last - first, np.int64)
        kernels.degrees(first, last, order.multiplier, num_nodes, num_edges, roots, out)
        return out

    def sources(first: int, last: int, edge: int) -> Array:
        degree = degrees(first, last)
        out = np.empty(int(degree.sum()), np.int32)
        kernels.sources(
            first, edge, degree, order.multiplier, order.inverse, num_nodes, groups,
            graph.homophily, roots, *key, out,
        )  # fmt: skip
        return out

    def labels(first: int, last: int) -> Array:
        out = np.empty(last - first, np.int64)
        kernels.labels(first, last, order.multiplier, num_nodes, groups, graph.num_classes, out)
        return out

    nodes_at_a_time = max(1, CHUNK_EDGES * num_nodes // max(1, num_edges))
    indptr, starts = _write_indptr(graph, folder / names.new("indptr"), nodes_at_a_time, degrees)
    with ArrayWriter(folder / names.new("indices"), "int32") as writer:
        tasks = (partial(sources, *task) for task in starts)
        for rows in _in_order(tasks):
            writer.write(rows)
            advance(len(rows))
        indices = writer.close()
    attributes = {"x": _write_features(graph, folder, names, labels, key, advance)}
    attributes["y"] = _write_nodes(folder / names.new("y"), "int64", num_nodes, labels)
    ends = np.cumsum([graph.train_share, graph.train_share / 2, graph.train_share])
    for part, name in enumerate(("train_mask", "val_mask", "test_mask")):
        low, high = (0.0 if part == 0 else ends[part - 1]), ends[part]
        mask = partial(_mask, key, float(low), float(high))
        attributes[name] = _write_nodes(folder / names.new(name), "bool", num_nodes, mask)
    return Header(
        nodes=[NodeGroup(None, num_nodes, explicit=False, attributes=attributes)],
        edges=[EdgeGroup(None, num_edges)],
        indptr=indptr,
        indices=indices,
        attributes={"generated": {**graph._asdict()}},
    )


def _write_indptr(
    graph: PowerLaw, path: Path, step: int, degrees: Callable[[int, int], Array]
) -> tuple[ArrayFile, list[tuple[int, int, int]]]:
    """Write the pointers; return (first node, last node, first edge) of each chunk, too."""
    dtype = narrow(graph.num_edges + 1)
    starts, edge = [], 0
    with ArrayWriter(path, np.dtype(dtype).name) as writer:
        writer.write(np.zeros(1, dtype))
        for first in range(0, graph.num_nodes, step):
            last = min(first + step, graph.num_nodes)
            starts.append((first, last, edge))
            ends = np.cumsum(degrees(first, last)) + edge
            writer.write(ends.astype(dtype))
            edge = int(ends[-1])
        return writer.close(), starts


def _write_features(
    graph: PowerLaw,
    folder: Path,
    names: FileNames,
    labels: Callable[[int, int], Array],
    key: tuple[np.uint64, np.uint64],
    advance: Callable[[int], None],
) -> ArrayFile:
    width, classes = graph.num_features, graph.num_classes
    generator = np.random.Generator(np.random.Philox(key=graph.seed))
    limit = round(CENTROID_LIMIT * graph.signal)
    centroid = generator.integers(-limit, limit + 1, (classes, width)).astype(np.int8)

    def rows(first: int, last: int) -> Array:
        out = np.empty((last - first, width), np.int8)
        kernels.features(first, labels(first, last), centroid, *key, out)
        if graph.dtype == "int8":
            return out
        scaled: Array = out.astype(graph.dtype) * np.array(SCALE, graph.dtype)
        return scaled

    step = max(1, CHUNK_ELEMENTS // max(1, width))
    path = folder / names.new("x")
    entry = _write_nodes(path, graph.dtype, graph.num_nodes, rows, (width,), step, advance)
    if graph.dtype != "int8":
        return entry
    scale = write_array(folder / names.new("x_scale"), np.full(width, SCALE, np.float32))
    return replace(entry, scale=scale, quantized=True)


def _mask(
    key: tuple[np.uint64, np.uint64], low: float, high: float, first: int, last: int
) -> Array:
    drawn = np.empty(last - first)
    kernels.uniform_of_nodes(first, *key, drawn)
    return (low <= drawn) & (drawn < high)


def _write_nodes(
    path: Path,
    dtype: str,
    num_nodes: int,
    make: Callable[[int, int], Array],
    row_shape: tuple[int, ...] = (),
    step: int = CHUNK_EDGES,
    advance: Callable[[int], None] | None = None,
) -> ArrayFile:
    """Write an array of all nodes that ``make(first, last)`` makes in pieces."""
    tasks = (
        partial(make, first, min(first + step, num_nodes)) for first in range(0, num_nodes, step)
    )
    with ArrayWriter(path, dtype, row_shape) as writer:
        for piece in _in_order(tasks):
            writer.write(piece)
            if advance is not None:
                advance(len(piece))
        return writer.close()


def _in_order(tasks: Iterator[Callable[[], T]]) -> Iterator[T]:
    """Yield the results of `tasks` in order, while other threads work on the next ones."""
    threads = available_cores()
    with ThreadPoolExecutor(threads) as pool:
        pending = deque(pool.submit(task) for task in islice(tasks, threads + AHEAD))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(task) for task in islice(tasks, 1))
            yield result
