"""Loaders over the example graph, and what tests compare of their batches."""

from typing import Any

from graphs import example_graph


def make(loader_class: type, hops: Any = (-1, -1), **arguments: Any) -> Any:
    arguments.setdefault("batch_size", 5)
    return loader_class(example_graph(), list(hops), **arguments)


def seeds_of(loader: Any) -> list[list[int]]:
    return [batch.n_id[: batch.batch_size].tolist() for batch in loader]


def edges_of(loader: Any) -> list[list[int]]:
    return [batch.e_id.tolist() for batch in loader]
