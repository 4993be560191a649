"""Whole configurations, drawn by hypothesis, against what PyG's loaders promise."""

from typing import Any

import pytest
from few_or_many import examples
from hypothesis import example, given
from hypothesis import strategies as st

from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.graph import coo_to_csc, verify, weights
from pyg_direct.loading import options
from pyg_direct.ops.cpu import backend, drawing, scratch, workspace
from pyg_direct.ops.host import induced
from reference.config import Config
from reference.contract import broken

# Beside and at what the code treats apart: 32 and 64 draws, whole lists, none.
FANOUTS = st.sampled_from([-1, 0, 1, 2, 3, 5, 31, 32, 33, 63, 64, 65])
MANY = 5  # fan-outs above multiply what a batch takes


@st.composite
def configs(draw: Any, typed: bool = False, links: bool = False, **given: Any) -> Config:
    """Return any configuration; it shrinks to the defaults of few options."""
    times = draw(st.sampled_from(["", "", "node", "edge"]))
    fanouts = draw(st.lists(FANOUTS, min_size=1, max_size=3))
    config = Config(
        nodes=draw(st.integers(1, 40)),
        edges=draw(st.sampled_from([0, 1, 5, 40, 200, 700])),
        width=draw(st.sampled_from([1, 3, 8, 16, 17])),
        seed=draw(st.integers(0, 99)),
        typed=typed,
        ids=draw(st.sampled_from(["int64", "int32"])),
        hub=draw(st.booleans()),
        sorted=draw(st.booleans()),
        times=times,
        weighted=draw(st.booleans()),
        partial=typed and draw(st.booleans()),
        saved=draw(st.sampled_from([*[""] * 5, "plain", "tables", "moved"])),
        fanouts=tuple(fanouts),
        by_type=typed and draw(st.booleans()),
        replace=draw(st.booleans()),
        disjoint=draw(st.booleans()),
        strategy=draw(st.sampled_from(["uniform", "last"])) if times else "uniform",
        window=draw(st.sampled_from([None, 0, 3])) if times else None,
        bounds=draw(st.sampled_from(["", "", "start", "end", "both"])) if times else "",
        own_times=times == "node" and draw(st.booleans()),
        batch_size=draw(st.sampled_from([1, 4, 50])),
        workers=draw(st.sampled_from([0, 0, 0, 2])),
    )._replace(**given)
    if config.bounds in ("start", "both"):
        config = config._replace(window=None)  # which would be another first time
    if links:
        config = config._replace(
            links=draw(st.sampled_from(["plain", "binary", "triplet"])),
            across=typed and draw(st.booleans()),
            amount=draw(st.sampled_from([0.4, 1.0, 2.0])),
            exclude=draw(st.sampled_from(["", "self", "reverse"])),
        )
    else:
        config = config._replace(backward=not config.saved and draw(st.booleans()))
    # Of the two subgraphs around a link, `batch` does not tell which a node is of.
    if not config.exclude and not (links and config.apart):
        config = config._replace(induced=draw(st.sampled_from([False, False, True])))
    return small(config)


def small(config: Config) -> Config:
    """Return a configuration with few enough edges for batches of a few thousand at most."""
    many = sum(k < 0 or k > MANY for k in config.fanouts)
    if many > 1 and (config.apart or config.replace):
        config = config._replace(edges=min(config.edges, 40))
    if config.replace:
        largest = config.fanouts.index(max(config.fanouts))
        config = config._replace(
            fanouts=tuple(k if i == largest else min(k, MANY) for i, k in enumerate(config.fanouts))
        )
    return config


@pytest.fixture(params=["small", "large"])
def limits(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and batches as large ones are treated, where the sizes are no more than these."""
    if request.param == "large":
        for module in (drawing, workspace):
            monkeypatch.setattr(module, "MIN_ITEMS_PER_THREAD", 4)
        for module in (coo_to_csc, scratch, verify, weights):
            monkeypatch.setattr(module, "MIN_EDGES_PER_THREAD", 20)
        monkeypatch.setattr(induced, "MIN_ENTRIES_PER_THREAD", 20)
        monkeypatch.setattr(coo_to_csc, "FEW_EDGES", 20)
        monkeypatch.setattr(coo_to_csc, "INT32_END", 30)  # nodes or edges
        monkeypatch.setattr(backend, "MIN_BYTES_PER_THREAD", 200)
        for name in ("available_cores", "torch_threads"):
            monkeypatch.setattr(options, name, lambda: 3)


def loader_of(config: Config) -> Any:
    return LinkNeighborLoader if config.links else NeighborLoader


ANY = st.one_of(
    configs(), configs(typed=True), configs(links=True), configs(typed=True, links=True)
)


@pytest.mark.usefixtures("limits")
@examples(60, 200)
@given(config=ANY)
@example(Config(nodes=3, edges=200, hub=True, fanouts=(64, 65)))
@example(Config(nodes=9, edges=200, times="edge", strategy="last", fanouts=(3, -1), window=3))
def test_every_batch_keeps_what_is_promised(config: Config) -> None:
    assert broken(config, loader_of(config)) == [], config


@examples(60, 200)
@given(config=configs(typed=True))
@example(Config(typed=True, times="edge", partial=True, saved="tables", fanouts=(-1,)))
@example(Config(typed=True, times="node", partial=True, window=0, fanouts=(-1,)))
@example(Config(typed=True, times="node", own_times=True, batch_size=50, fanouts=(-1,)))
def test_every_typed_batch_keeps_what_is_promised(config: Config) -> None:
    assert broken(config, NeighborLoader) == [], config


@examples(60, 200)
@given(config=st.one_of(configs(links=True), configs(typed=True, links=True)))
@example(Config(typed=True, times="node", links="triplet", across=True))
def test_every_batch_of_links_keeps_what_is_promised(config: Config) -> None:
    assert broken(config, LinkNeighborLoader) == [], config


@pytest.mark.usefixtures("emulated_loaders")
@examples(25, 80)
@given(config=ANY)
def test_every_batch_of_the_emulated_device_keeps_what_is_promised(config: Config) -> None:
    assert broken(config, loader_of(config)) == [], config
