"""Generated graphs in files: their law, their reproducibility, and that models learn on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyg_direct
from pyg_direct.files import generate as generator
from pyg_direct.files.generate import PowerLaw, generate
from pyg_direct.files.header import HEADER
from pyg_direct.tools.generate import main


def made(tmp_path: Path, **fields: Any) -> Any:
    graph = PowerLaw(**{"num_nodes": 3000, "num_edges": 60_000, "num_features": 20, **fields})
    path = tmp_path / str(len(os.listdir(tmp_path)))
    progress: list[int] = []
    generate(graph, path, progress=progress.append)
    assert sum(progress) == graph.num_nodes + graph.num_edges
    return pyg_direct.open(path, verify=True)


def test_sizes_and_dtypes(tmp_path: Path) -> None:
    data = made(tmp_path)
    assert (data.num_nodes, data.num_edges) == (3000, 60_000)
    assert data.x.shape == (3000, 20)
    assert data.x.stored.dtype == torch.int8
    assert data.y.dtype == torch.int64
    assert data.y.bincount().tolist() == pytest.approx([3000 / 16] * 16, abs=1)
    assert not (data.train_mask & data.val_mask).any()
    assert not ((data.train_mask | data.val_mask) & data.test_mask).any()
    masks = made(tmp_path, train_share=0.3, num_edges=0)
    counts = [int(masks[f"{name}_mask"].sum()) for name in ("train", "val", "test")]
    assert counts == pytest.approx([900, 450, 900], abs=90)
    assert data.generated["num_nodes"] == 3000
    assert data.validate()


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 10, 97])
def test_an_order_of_nodes_has_its_inverse(num_nodes: int) -> None:
    order = generator._permutation(num_nodes)
    ranks = [node * order.multiplier % num_nodes for node in range(num_nodes)]
    assert sorted(ranks) == list(range(num_nodes))
    assert [rank * order.inverse % num_nodes for rank in ranks] == list(range(num_nodes))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_are_the_same_numbers_in_every_dtype(tmp_path: Path, dtype: str) -> None:
    stored = made(tmp_path, dtype=dtype).x
    assert stored.dtype == getattr(torch, dtype)
    assert torch.equal(stored.float(), made(tmp_path).x.dense())


def test_files_do_not_depend_on_chunks_or_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    monkeypatch.setattr(generator, "CHUNK_EDGES", 777)
    monkeypatch.setattr(generator, "CHUNK_ELEMENTS", 777)
    monkeypatch.setattr(generator, "available_cores", lambda: 3)
    made(tmp_path)
    for name in os.listdir(tmp_path / "0"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes(), name


def test_another_seed_gives_another_graph(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path, seed=1)
    assert not torch.equal(one.edge_index.dense(), other.edge_index.dense())
    assert not torch.equal(one.x.dense(), other.x.dense())
    assert not torch.equal(one.train_mask, other.train_mask)


@pytest.mark.parametrize(("skew", "share"), [(1, 0.01), (2, 0.1), (4, 0.1**0.5)])
def test_degrees_follow_the_power_law(tmp_path: Path, skew: int, share: float) -> None:
    """The most popular hundredth of the nodes has 0.01^(1 / skew) of the edges, at both ends."""
    data = made(tmp_path, skew=skew, num_edges=300_000)
    source, target = data.edge_index.dense()
    for ends in (source, target):
        degree = np.sort(torch.bincount(ends, minlength=3000).numpy())[::-1]
        assert degree[:30].sum() / 300_000 == pytest.approx(share, rel=0.15, abs=0.004)
    in_degree = torch.bincount(target, minlength=3000)
    out_degree = torch.bincount(source, minlength=3000)
    assert skew == 1 or torch.corrcoef(torch.stack([in_degree, out_degree]).float())[0, 1] > 0.8


@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
def test_edges_stay_within_communities(tmp_path: Path, homophily: float) -> None:
    data = made(tmp_path, homophily=homophily, num_classes=8, num_nodes=2997)
    source, target = data.edge_index.dense()
    alike = (data.y[source] == data.y[target]).double().mean().item()
    assert homophily < 1 or alike == 1  # also where the last nodes are not one of each community
    assert alike == pytest.approx(homophily + (1 - homophily) / 8, abs=0.02)


def test_lists_are_sorted_by_source(tmp_path: Path) -> None:
    edges = made(tmp_path).edge_index.dense()
    key = edges[1] * 3000 + edges[0]
    assert bool((key[1:] >= key[:-1]).all())


def test_neighbours_tell_the_class_better_than_the_node_alone(tmp_path: Path) -> None:
    data = made(tmp_path, num_classes=4, signal=0.15, num_edges=90_000)
    x, (source, target) = data.x.dense(), data.edge_index.dense()
    mean = torch.zeros_like(x).index_add_(0, target, x[source])
    assert accuracy(mean, data.y) > accuracy(x, data.y) + 0.1 > 0.35


def accuracy(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return how many nodes of the second half are nearest to their class's mean of the first."""
    x = torch.nn.functional.normalize(x)
    half = len(y) // 2
    means = torch.stack([x[:half][y[:half] == c].mean(0) for c in range(int(y.max()) + 1)])
    guess = (x[half:] @ torch.nn.functional.normalize(means).t()).argmax(1)
    return (guess == y[half:]).double().mean().item()


@pytest.mark.parametrize(
    "fields",
    [{"num_nodes": 1, "num_classes": 1}, {"num_edges": 0}, {"num_features": 0}, {"num_nodes": 16}],
)
def test_the_smallest_graphs_can_be_generated_and_loaded(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    data = made(tmp_path, **fields)
    list(pyg_direct.NeighborLoader(data, [2, 2], batch_size=1000))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_nodes": 0}, {"num_nodes": 1 << 31}, {"num_edges": -1}, {"skew": 3}, {"signal": 2},
        {"homophily": -0.1}, {"num_groups": 3}, {"dtype": "int4"}, {"train_share": 0.5},
        {"num_classes": 5000},
    ],
)  # fmt: skip
def test_wrong_arguments_of_generate_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        made(tmp_path, **fields)


def test_the_generate_command_takes_its_options_and_refuses_an_existing_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "graph")
    command = [path, "--nodes", "2K", "--edges", "0.02M", "--features", "8", "--groups", "100"]
    main(command)
    assert (tmp_path / "graph" / HEADER).is_file()
    assert pyg_direct.open(path).num_edges == 20_000
    other = ["--seed", "7", "--skew", "1", "--signal", "1", "--dtype", "float16", "--overwrite"]
    main([*command, *other])
    generated = pyg_direct.open(path).generated
    assert [generated[name] for name in ("seed", "skew", "signal", "dtype")] == [7, 1, 1, "float16"]
    with pytest.raises(SystemExit, match=r"^2$"):
        main(command)
    assert "exists" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"^2$"):
        main([path + "2", "--nodes", "many"])
    with pytest.raises(SystemExit, match=r"^2$"):
        main([path + "2", "--signal", "2"])
    assert "signal" in capsys.readouterr().err
