"""The contract finds the faults that are planted in loaders here."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyg_direct import LinkNeighborLoader, NeighborLoader
from reference.config import Config
from reference.contract import broken
from reference.test_features import LINKS, NODES

Build = Callable[..., Any]


def loader(config: Config) -> Build:
    return LinkNeighborLoader if config.links else NeighborLoader


def breaks(config: Config, build: Build) -> bool:
    """Whether batches break a promise, or lack what one is about."""
    try:
        return broken(config, build) != []
    except (AttributeError, IndexError):
        return True


def ignoring(config: Config, **fixed: Any) -> bool:
    """Whether loaders break a promise that take some arguments for others."""

    def build(data: Any, fanouts: Any, **given: Any) -> Any:
        return loader(config)(data, fanouts, **given | {n: fixed[n] for n in given if n in fixed})

    return breaks(config, build)


def spoilt(config: Config, change: Callable[[Any], Any]) -> bool:
    """Whether finished batches break a promise after a change."""

    def build(*graph: Any, **given: Any) -> Any:
        return loader(config)(*graph, **given, transform=lambda batch: change(batch) or batch)

    return breaks(config, build)


def roll(tensor: Tensor) -> Tensor:
    return tensor.roll(1, 0)


def drop_last_edge(batch: Any) -> None:
    for name in ("edge_index", "e_id", "edge_attr"):
        batch[name] = batch[name][..., :-1]


def ungroup(batch: Any) -> None:
    for name in ("edge_index", "e_id", "edge_attr"):
        batch[name] = batch[name].flip(-1)


def reverse_nodes(batch: Any) -> None:
    batch.n_id, batch.x = batch.n_id.flip(0), batch.x.flip(0)
    batch.edge_index = batch.num_nodes - 1 - batch.edge_index


IGNORED: dict[str, tuple[Config, dict[str, Any]]] = {
    "replace": (NODES["replacement"], {"replace": False}),
    "no replacement": (NODES["some neighbours"], {"replace": True}),
    "disjoint": (NODES["subgraphs apart"], {"disjoint": False}),
    "subgraph_type": (NODES["induced edges"], {"subgraph_type": "directional"}),
    "time_attr": (NODES["times of nodes"], {"time_attr": None, "time_window": None}),
    "temporal_strategy": (NODES["the latest"], {"temporal_strategy": "uniform"}),
    "time_window": (NODES["a window"], {"time_window": None}),
    "input_time": (NODES["times of seeds"], {"input_time": torch.full((13,), 10**6)}),
    "input_end_time": (NODES["last times of seeds"], {"input_end_time": None}),
    "input_start_time": (NODES["first times of seeds"], {"input_start_time": None}),
    "weight_attr": (NODES["weights"], {"weight_attr": None}),
    "batch_size": (NODES["some neighbours"], {"batch_size": 3}),
    "neg_sampling": (LINKS["binary negatives"], {"neg_sampling": None}),
    "triplets": (LINKS["triplets"], {"neg_sampling": None}),
    "edge_label": (LINKS["links"], {"edge_label": None}),
    "edge_label_time": (LINKS["times"], {"edge_label_time": torch.full((13,), 10**6)}),
    "exclude_seed_edges": (LINKS["links left out"], {"exclude_seed_edges": False}),
}
SPOILT: dict[str, tuple[Config, Any]] = {
    f"{name} changed": (NODES["all neighbours"], {name: change})
    for name, change in {
        "x": roll, "edge_attr": roll, "e_id": roll, "edge_index": lambda e: e.flip(0),
        "input_id": lambda i: i + 1, "n_id": lambda n: n.int(),
        "num_sampled_nodes": lambda counts: [*counts[:-1], counts[-1] + 1],
    }.items()
} | {
    "e_id of another dtype": (NODES["all neighbours"], {"e_id": lambda e: e.int()}),
    "batch": (NODES["subgraphs apart"], {"batch": roll}),
    "seed_time": (NODES["times of seeds"], {"seed_time": lambda t: t + 1}),
    "edges dropped": (NODES["all neighbours"], drop_last_edge),
    "induced edges dropped": (NODES["induced edges"], drop_last_edge),
    "edges not grouped": (NODES["all neighbours"], ungroup),
    "seeds not first": (NODES["all neighbours"], reverse_nodes),
    "ends of links": (LINKS["links"], {"edge_label_index": lambda e: e.flip(0)}),
    "ends of triplets": (LINKS["triplets"], {"dst_pos_index": roll}),
    "labels": (LINKS["binary negatives"], {"edge_label": lambda label: 1 - label}),
}  # fmt: skip


@pytest.mark.parametrize("argument", IGNORED)
def test_an_argument_that_is_ignored_breaks_a_promise(argument: str) -> None:
    config, given = IGNORED[argument]
    assert ignoring(config, **given)


@pytest.mark.parametrize("what", SPOILT)
def test_a_batch_that_is_changed_breaks_a_promise(what: str) -> None:
    config, change = SPOILT[what]
    if isinstance(change, dict):
        ((name, function),) = change.items()
        change = lambda batch: setattr(batch, name, function(batch[name]))  # noqa: E731
    assert spoilt(config, change)


def test_seeds_given_twice_that_are_merged_break_a_promise() -> None:
    def build(*graph: Any, input_nodes: Tensor, **given: Any) -> Any:
        return NeighborLoader(*graph, input_nodes=input_nodes.unique(), **given)

    assert breaks(NODES["all neighbours"], build)
