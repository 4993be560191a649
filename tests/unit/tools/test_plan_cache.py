"""What `plan` says of caches: by hand, and against the rows that kernels find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulator import emulated, give_to_loaders
from torch_geometric.data import Data, HeteroData

from pyg_direct import NeighborLoader
from pyg_direct.ops.host.hottest import SLOT_BYTES
from pyg_direct.tools import plan
from pyg_direct.tools.plan_orders import Batching, cache_curve, cached_rows, policies_text

ONE = {None: [torch.tensor([0, 1]), torch.tensor([1, 2])]}


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rows", "hits", "found"),
    [(0, 0.0, [0, 0]), (1, 0.5, [1, 1]), (2, 0.75, [1, 2]), (3, 1, [2, 2])],
)
def test_a_cache_of_some_rows_finds_their_expected_share(
    rows: int, hits: float, found: list[int]
) -> None:
    visits = {None: doubles(1, 9, 5)}
    room = 3 * SLOT_BYTES + rows * 256
    cached = cached_rows(ONE, visits, {None: 256}, room)
    assert (cached.rows, cached.hits) == (rows, hits)
    assert cached.found.tolist() == [[n, 256 * n, 2 * n] for n in found]
    assert cached.asked.tolist() == [[2, 512, 4]] * 2
    assert cached_rows(ONE, visits, {None: 256}, room - 1).rows == max(0, rows - 1)
    assert cached_rows(ONE, visits, {None: 1024}, room, share=0.25).rows == rows


def test_types_have_rows_of_their_own_width() -> None:
    ids = {"a": [torch.tensor([0, 1])], "b": [torch.tensor([0])], "c": [torch.tensor([4])]}
    visits = {"a": doubles(6, 5), "b": doubles(8), "c": doubles(9, 9, 9, 9, 9)}
    wide = {"a": 128, "b": 256, "c": 0}
    cached = cached_rows(ids, visits, wide, 2 * 128 + 3 * SLOT_BYTES)
    assert cached.rows == 1  # that of b: 8 visits of 2 lines, where a has 6 and 5 of one
    assert cached.found.tolist() == [[1, 256, 2]]
    assert cached.asked.tolist() == [[3, 512, 4]]
    larger = cached_rows(ids, visits, wide, 3 * 128 + 3 * SLOT_BYTES)
    assert (larger.rows, larger.found.tolist()) == (2, [[2, 384, 3]])


def test_no_features_at_all() -> None:
    cached = cached_rows(ONE, {None: doubles(1, 9, 5)}, {None: 0}, 1 << 20)
    assert (cached.rows, cached.hits) == (0, 0.0)


def test_the_curve_ends_with_a_cache_of_everything() -> None:
    sizes, hits = cache_curve(ONE, {None: doubles(1, 9, 5)}, {None: 256}, 1.0)
    assert (sizes[0], sizes[-1]) == (0, 3 * (256 + SLOT_BYTES))
    assert (hits[0], hits[-1]) == (0, 1)
    assert bool((hits.diff() >= 0).all())


def test_only_what_is_known_is_called_predicted() -> None:
    visits = {None: doubles(1, 9, 5)}
    all_found = cached_rows(ONE, visits, {None: 256}, 1 << 20)
    (head, line) = policies_text({"visits": all_found}, "")
    assert head.endswith("(predicted for seeds among all nodes):")
    assert line == (
        "  visits: 100.0 % hits (+- 0.0), 2 rows and 512 bytes from GPU memory, "
        "0 rows and 0 bytes in 0 reads over PCIe"
    )
    assert (
        "(an estimate: of a random graph)"
        in policies_text({"visits": all_found}, "of a random graph")[0]
    )
    some = cached_rows({None: [torch.tensor([1]), torch.tensor([0])]}, visits, {None: 256}, 300)
    assert some.error == pytest.approx(0.5)
    assert "(an estimate: batches differ much)" in policies_text({"visits": some}, "")[0]
    once = cached_rows({None: [torch.tensor([1])]}, visits, {None: 256}, 300)
    assert "(an estimate: batches differ much)" in policies_text({"visits": once}, "")[0]


def test_a_plan_has_room_for_more_rows_where_they_are_narrow_in_the_cache() -> None:
    ring = torch.stack([torch.arange(100), (torch.arange(100) + 1) % 100])
    machine = plan.GpuModel(2 * (4 * 201 + 100 * SLOT_BYTES + 10 * 256), 1e9, "as given")
    asked = plan.Question(Batching([1], 10), {None: 1024}, machine, cache_share=0.25)
    assert plan.plan_of(Data(edge_index=ring, num_nodes=100), asked).caches["visits"].rows == 10


def test_presampling_is_of_an_epoch_of_the_seeds() -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 8, 100
    data["b", "to", "a"].edge_index = torch.stack([torch.arange(100), torch.arange(100) % 8])
    visits = plan.presampled_visits(data, Batching([2], 4, "a"))
    assert visits["a"].sum() == 8
    assert visits["b"].sum() == 16


@pytest.mark.parametrize("policy", ["visits", "presample", "degree"])
def test_predictions_are_what_kernels_find(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    ends = (torch.rand(2, 24_000, generator=generator) ** 1.5 * 6000).long()
    data = Data(x=torch.randn(6000, 32), edge_index=ends)
    fanout, size, room = [3, 2], 50, 6000 * SLOT_BYTES + 1500 * 128
    machine = plan.GpuModel(2 * (4 * 30_001 + room), 1e9, "as given")
    predicted = plan.plan_of(
        data, plan.Question(Batching(fanout, size), {None: 128}, machine)
    ).caches[policy]
    assert predicted.rows == 1500
    with emulated() as backend:
        give_to_loaders(backend, monkeypatch, to_host=True)
        given: dict[str, Any] = {"features": "host", "cache": room, "cache_policy": policy}
        loader = NeighborLoader(data, fanout, batch_size=size, shuffle=True, seed=5, **given)
        for _ in loader:
            pass
        stats = loader.stats()
    assert predicted.error < 0.01
    assert predicted.hits == pytest.approx(stats.cache_hits / stats.nodes, abs=0.02)


def test_the_command_prints_them(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.pt"
    edge_index = plan.power_law_edges(2000, 20_000)
    torch.save(Data(edge_index=edge_index, num_nodes=2000), path)
    asked = ["--graph", str(path), "--fanout", "5,5", "--batch-size", "64"]
    plan.main([*asked, "--gpu-bytes", "500000"])
    text = capsys.readouterr().out
    assert "of 16 batches that none was made of (predicted for seeds among all nodes):" in text
    for policy in ("visits", "presample", "degree"):
        assert f"\n  {policy}: " in text
    plan.main([*asked, "--gpu-bytes", "500000", "--seeds", "100"])
    assert "(an estimate: batches have seeds among all nodes here)" in capsys.readouterr().out
    plan.main([*asked, "--gpu-bytes", str(1 << 30)])
    assert "cache_policy" not in capsys.readouterr().out, "everything fits"
