"""Whole configurations, drawn by hypothesis, against what PyG's loader promises."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyg_direct import NeighborLoader
from pyg_direct.graph import coo_to_csc
from pyg_direct.ops.cpu import workspace
from reference.contract import Config, broken

# Beside and at what the code treats apart: 32 and 64 draws, whole lists, none.
FANOUTS = st.sampled_from([-1, 0, 1, 2, 3, 5, 31, 32, 33, 63, 64, 65])


@st.composite
def configs(draw: Any) -> Config:
    """Return any configuration; it shrinks to the defaults of few options."""
    times = draw(st.sampled_from(["", "", "node", "edge"]))
    return Config(
        nodes=draw(st.integers(1, 40)),
        edges=draw(st.sampled_from([0, 1, 5, 40, 200, 700])),
        seed=draw(st.integers(0, 99)),
        ids=draw(st.sampled_from(["int64", "int32"])),
        hub=draw(st.booleans()),
        sorted=draw(st.booleans()),
        times=times,
        weighted=draw(st.booleans()),
        fanouts=tuple(draw(st.lists(FANOUTS, min_size=1, max_size=3))),
        replace=draw(st.booleans()),
        disjoint=draw(st.booleans()),
        strategy=draw(st.sampled_from(["uniform", "last"])) if times else "uniform",
        window=draw(st.sampled_from([None, 0, 3])) if times else None,
        batch_size=draw(st.sampled_from([1, 4, 50])),
        workers=draw(st.sampled_from([0, 0, 0, 2])),
    )


@pytest.fixture(params=["one thread", "several"])
def limits(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and batches as large ones are treated, where the sizes are no more than these."""
    if request.param == "several":
        monkeypatch.setattr(workspace, "MIN_ITEMS_PER_THREAD", 4)
        monkeypatch.setattr(coo_to_csc, "FEW_EDGES", 20)
        monkeypatch.setattr(coo_to_csc, "MIN_EDGES_PER_THREAD", 20)


@pytest.mark.usefixtures("limits")
@settings(max_examples=25, deadline=None)
@given(config=configs())
@example(Config(nodes=3, edges=200, hub=True, fanouts=(64, 65)))
@example(Config(nodes=9, edges=200, times="edge", strategy="last", fanouts=(3, -1), window=3))
def test_every_batch_keeps_what_is_promised(config: Config) -> None:
    if sum(k < 0 or k > 5 for k in config.fanouts) > 1 and config.disjoint:
        config = config._replace(edges=min(config.edges, 40))  # a few thousand edges at most
    assert broken(config, NeighborLoader) == [], config
