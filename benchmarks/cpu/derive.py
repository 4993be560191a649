"""What follows from the measured rows: ratios within one run, and the distance to the limit."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.cases import LOADERS, MALLOC_MODES, NUM_WORKERS, OURS
from benchmarks.statistics import spread

Row = dict[str, Any]

METRICS = {
    "batch_ms": "whole batch",
    "sampling_ms": "sampling alone",
    "batch_cpu_ms": "CPU time of a whole batch",
    "sampling_cpu_ms": "CPU time of sampling alone",
    "construct_seconds": "construction",
}

ID_BYTES = 8  # what the user sees of a node or edge id
STORED_BYTES = 4  # an id in the graph, where it fits
LABEL_BYTES = 8


def find(rows: list[Row], metric: str, loader: str, malloc: str) -> list[Row]:
    """Return the rows of one loader, one for each number of workers."""
    wanted = {"metric": metric, "loader": loader, "malloc": malloc}
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def best(rows: list[Row], metric: str, loader: str, malloc: str) -> Row | None:
    """Return the row with the lowest median: the loader at its best."""
    found = find(rows, metric, loader, malloc)
    return min(found, key=lambda row: row["median"]) if found else None


def ratios(rows: list[Row]) -> list[Row]:
    """Return how many times less pyg_direct takes than each rival, in the same run.

    `ratio` is that of the medians; the quartiles are of the ratios round by round, in which both
    had their turn within seconds of each other.
    """
    rivals = dict.fromkeys(row["loader"] for row in rows if row["loader"] != OURS)
    result = []
    for metric in METRICS:
        for malloc in MALLOC_MODES:
            for rival in rivals:
                pairs: dict[str, tuple[Row | None, Row | None]] = {
                    "best": (best(rows, metric, OURS, malloc), best(rows, metric, rival, malloc))
                }
                for workers in NUM_WORKERS:
                    ours, theirs = (
                        [r for r in find(rows, metric, who, malloc) if r["num_workers"] == workers]
                        for who in (OURS, rival)
                    )
                    pairs[str(workers)] = (ours[0], theirs[0]) if ours and theirs else (None, None)
                for workers_compared, (mine, other) in pairs.items():
                    if mine is not None and other is not None:
                        compared = {"num_workers": workers_compared, **_ratio(mine, other)}
                        result.append(
                            {"metric": metric, "malloc": malloc, "rival": rival, **compared}
                        )
    return result


def _ratio(ours: Row, theirs: Row) -> Row:
    by_round = [b / a for a, b in zip(ours["samples"], theirs["samples"], strict=False) if a > 0]
    middle = spread(by_round) if by_round else {}
    return {
        "ratio": theirs["median"] / ours["median"] if ours["median"] > 0 else None,
        "p25": middle.get("p25"),
        "p75": middle.get("p75"),
        "n": middle.get("n", 0),
    }


def bytes_per_batch(num_nodes: float, num_edges: float, num_features: int) -> float:
    """Return the bytes that no loader can avoid to touch: read once, written once.

    A node: its features and label read and written, its global id written, the two ends of its
    neighbour list read. An edge: its source and its position in `edge_index` read as they are
    stored, `edge_index` (two ids) and `e_id` written. Random reads move whole cache lines, so the
    true traffic is more.
    """
    node = 2 * (4 * num_features + LABEL_BYTES) + ID_BYTES + 2 * STORED_BYTES
    edge = 2 * STORED_BYTES + 3 * ID_BYTES
    return num_nodes * node + num_edges * edge


def limit(graph: Row, copy_bytes_per_s: dict[str, float]) -> list[Row]:
    """Return, for each loader at its best, how far it is from copying its bytes."""
    rows = []
    for malloc in MALLOC_MODES:
        for loader in LOADERS:
            batch = best(graph["rows"], "batch_ms", loader, malloc)
            if batch is None:
                continue
            workers = batch["num_workers"]
            nodes, edges = (
                next(
                    row["median"]
                    for row in find(graph["rows"], metric, loader, malloc)
                    if row["num_workers"] == workers
                )
                for metric in ("batch_nodes", "batch_edges")
            )
            touched = bytes_per_batch(nodes, edges, graph["case"]["num_features"])
            limits = {n: 1e3 * touched / speed for n, speed in copy_bytes_per_s.items()}
            rows.append(
                {
                    "loader": loader,
                    "malloc": malloc,
                    "num_workers": workers,
                    "nodes": nodes,
                    "edges": edges,
                    "bytes": touched,
                    "batch_ms": batch["median"],
                    "bytes_per_s": 1e3 * touched / batch["median"],
                    "limit_ms": limits,
                    "times_limit": {n: batch["median"] / ms for n, ms in limits.items()},
                }
            )
    return rows
