"""Sources of hops in a loader: its batches do not depend on where the draws are made."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from device_graphs import assert_equal, attributed_graph, heterogeneous_graph
from emulator import emulated, give_to_loaders
from sources import Elsewhere, OneByOne

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.core.types import BatchKey
from pyg_direct.sampling.hops import BatchInProgress, HopSource
from pyg_direct.sampling.sampler import keyed


class Counted:
    """Another source, and how often it was asked."""

    def __init__(self, source: HopSource) -> None:
        self.source, self.hops = source, []

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        self.hops.append(hop)
        self.source.hop(window, hop)


def batches(source: HopSource | None, hetero: bool, **arguments: object) -> list[dict]:
    data = heterogeneous_graph() if hetero else attributed_graph()
    sampler = NeighborSampler(data, [4, 3], **arguments)
    if source is not None:
        sampler._keyed = replace(keyed(sampler), source=source)
    seeds = ("paper", torch.arange(40)) if hetero else torch.arange(40)
    loader = NeighborLoader(
        data, [4, 3], seeds, batch_size=16, seed=5, num_workers=2, neighbor_sampler=sampler
    )
    return [batch.to_dict() for batch in loader]


@pytest.mark.parametrize("device", ["cpu", "emulated"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"time_attr": "time"}, {"weight_attr": "weight", "replace": True}, {"disjoint": True}],
    ids=lambda given: " ".join(given) or "plain",
)
def test_the_same_batches(
    monkeypatch: pytest.MonkeyPatch, device: str, arguments: dict[str, object]
) -> None:
    with emulated() as backend:
        if device == "emulated":
            give_to_loaders(backend, monkeypatch, to_host=True)
        expected = batches(None, hetero=False, **arguments)
        for source in (Counted(OneByOne()), Counted(Elsewhere())):
            found = batches(source, hetero=False, **arguments)
            assert sorted(source.hops) == [0, 0, 0, 1, 1, 1]
            for got, want in zip(found, expected, strict=True):
                assert_equal(got, want)


def test_heterogeneous_batches_sampled_elsewhere_are_those_of_this_process() -> None:
    for got, want in zip(
        batches(Elsewhere(), hetero=True), batches(None, hetero=True), strict=True
    ):
        assert_equal(got, want)


def test_a_seed_out_of_range_is_an_error_also_elsewhere() -> None:
    sampler = NeighborSampler(attributed_graph(), [4, 3])
    sampler._keyed = replace(keyed(sampler), source=Elsewhere())
    with pytest.raises(IndexError, match="seeds"):
        sampler._keyed.sample([torch.tensor([1, 80])], BatchKey(1, 2))


def test_a_copy_has_the_source() -> None:
    sampler = NeighborSampler(attributed_graph(), [4, 3])
    original = replace(keyed(sampler), source=Elsewhere())
    assert pickle.loads(pickle.dumps(original)).source == original.source
    assert original.moved(original.backend, original.where).source == original.source
    assert original.with_setting("replace", True).source == original.source
