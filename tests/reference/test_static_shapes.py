"""Batches of one shape hold what those of the same loader without padding hold, and padding."""

from __future__ import annotations

import copy
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from few_or_many import examples
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from reference.config import Config, ends_of, store_of
from reference.test_matrix import ANY, loader_of

COUNTS = ("num_sampled_nodes", "num_sampled_edges", "num_nodes", "num_real_nodes", "num_real_edges")


def shapes_of(batch: Any, config: Config) -> list[Any]:
    """Return the shapes of all tensors with a row for each node or edge."""
    stores = [store_of(batch, key) for key in (*config.kinds, *config.relations)]
    return [
        (name, value.shape)
        for store in stores
        for name, value in store.items()
        if isinstance(value, Tensor) and name in ("x", "n_id", "edge_index", "e_id", "edge_attr")
    ]


def check_padding(batch: Any, plain: Any, config: Config) -> None:
    """Check that a batch is `plain`, and padding behind it."""
    sizes = {kind: store_of(plain, kind).n_id.numel() for kind in config.kinds}
    for key in (*config.kinds, *config.relations):
        store, expected = store_of(batch, key), store_of(plain, key)
        for name, value in expected.items():
            if name in COUNTS:
                continue
            found = store[name]
            if isinstance(value, Tensor):
                dim = 1 if name == "edge_index" else 0
                found = found.narrow(dim, 0, value.size(dim)) if value.dim() else found
                assert torch.equal(found, value), name
                assert found.device == value.device
            else:
                assert found == value, name
    for kind, count in sizes.items():
        store = store_of(batch, kind)
        assert int(store.num_real_nodes) == count
        assert bool((store.n_id[count:] == -1).all())
        rows = store.x[count:]
        assert len(rows) >= 2
        assert bool((rows == rows[0]).all())
        if "batch" in store:
            assert bool((store.batch[count:] == batch_size_of(plain, config)).all())
    for relation in config.relations:
        store, expected = store_of(batch, relation), store_of(plain, relation)
        count = expected.edge_index.size(1)
        assert int(store.num_real_edges) == count
        assert bool((store.e_id[count:] == -1).all())
        source, target = store.edge_index[:, count:]
        ends = ends_of(relation)
        assert bool((source >= sizes[ends[0]]).all())
        assert bool((target >= sizes[ends[1]]).all())
        assert ends[0] != ends[1] or not bool((source == target).any())
        degrees = target.bincount(minlength=len(store_of(batch, ends[1]).x))[sizes[ends[1]] :]
        assert int(degrees.max() - degrees.min()) <= 1
        if expected.get("num_sampled_edges") is not None:
            counted = list(store.num_sampled_edges)
            assert sum(counted) == store.edge_index.size(1)
            assert counted[:-1] == list(expected.num_sampled_edges)[:-1]


def batch_size_of(batch: Any, config: Config) -> int:
    """Return of how many seeds a batch is."""
    key = (config.link_type if config.links else config.kinds[0]) if config.typed else None
    return int(store_of(batch, key).input_id.numel())


def least_sizes(config: Config) -> dict[str, Any]:
    """Return sizes that hardly any batch fits."""
    if not config.typed:
        return {"nodes": 1, "edges": 1}
    return {
        "nodes": dict.fromkeys(config.kinds, 1),
        "edges": dict.fromkeys(config.relations, 1),
    }


def check(config: Config, measured: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = config.graph(Path(folder))
        build, given = loader_of(config), True if measured else least_sizes(config)
        plain = config.loader(build, copy.copy(data))
        padded = config.loader(partial(build, static_shapes=given), copy.copy(data))
        for epoch in range(3):
            batches = list(padded)
            for batch, expected in zip(batches, plain, strict=True):
                check_padding(batch, expected, config)
            if epoch == 2:  # whatever was larger has made the envelope larger
                shapes = [shapes_of(batch, config) for batch in batches]
                assert all(shape == shapes[0] for shape in shapes)
        loaded = config.loader(partial(build, static_shapes=padded.static_shapes), copy.copy(data))
        assert loaded.static_shapes == padded.static_shapes


@examples(60, 200)
@given(config=ANY, measured=st.booleans())
@example(Config(nodes=1, edges=0), True)
@example(Config(typed=True, edges=1, disjoint=True), False)
def test_batches_of_one_shape_are_those_without_padding(config: Config, measured: bool) -> None:
    check(config, measured)


@pytest.mark.usefixtures("emulated_loaders")
@examples(25, 80)
@given(config=ANY, measured=st.booleans())
def test_batches_of_one_shape_on_the_emulated_device(config: Config, measured: bool) -> None:
    check(config, measured)
