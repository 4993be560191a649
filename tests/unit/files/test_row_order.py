"""`save(row_order=)`: rows lie in another order, and everything that reads them gives the same."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from device_graphs import assert_equal, heterogeneous_graph
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import InvalidGraphFileError, LinkNeighborLoader, NeighborLoader
from pyg_direct.core.lazy_tensor import OrderedTensor
from pyg_direct.files.arrays import write_array
from pyg_direct.files.header import HEADER, PLAIN_VERSION, VERSION, read_header, write_header


def graph(quantized: str | None = None) -> Data:
    generator = torch.Generator().manual_seed(0)
    ends = (torch.rand(2, 4000, generator=generator) ** 3 * 300).long()
    ends = torch.randperm(300, generator=generator)[ends]  # ids say nothing about degrees
    x = torch.randn(300, 16, generator=generator)
    return Data(
        x=x if quantized is None else pyg_direct.quantize(x, scale=quantized),
        z=torch.arange(600.0, dtype=torch.float64).view(300, 2),
        y=torch.arange(300),
        time=torch.arange(300) % 50,
        edge_index=ends,
        weight=torch.rand(4000, generator=generator),
        shares=torch.rand(3, 3),
    )


OPTIONS: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 32, "seed": 1, "shuffle": True}


def opened(data: Any, path: Path, **options: Any) -> Any:
    pyg_direct.save(data, path, **options)
    return pyg_direct.open(path, verify=True)


@pytest.mark.parametrize(
    ("order", "quantized", "options"),
    [
        ("visits", None, {}),
        ("tensor", "row", {"weight_attr": "weight"}),
        ("degree", "column", {"time_attr": "time", "temporal_strategy": "last"}),
    ],
)
def test_batches_are_the_same(
    tmp_path: Path, each_backend: str, order: str, quantized: str | None, options: Any
) -> None:
    data, names = graph(quantized), {k: v for k, v in options.items() if k.endswith("attr")}
    chosen = torch.rand(300) if order == "tensor" else order
    moved = opened(data, tmp_path / "moved", row_order=chosen, **names)
    plain = opened(data, tmp_path / "plain", **names)
    assert isinstance(moved.x, OrderedTensor)
    assert not isinstance(moved.y, OrderedTensor)
    if "time_attr" in options:
        options = {**options, "input_time": torch.full((300,), 40)}
    for mine, theirs in zip(
        NeighborLoader(moved, **OPTIONS, **options),
        NeighborLoader(plain, **OPTIONS, **options),
        strict=True,
    ):
        assert_equal(mine.to_dict(), theirs.to_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_links_types_and_workers(tmp_path: Path, workers: int) -> None:
    data = heterogeneous_graph()
    kind = data.edge_types[0]
    options = {**OPTIONS, "edge_label_index": kind, "neg_sampling": "binary"}
    moved = opened(data, tmp_path / "moved", row_order="visits")
    plain = opened(data, tmp_path / "plain")
    for mine, theirs in zip(
        LinkNeighborLoader(moved, num_workers=workers, **options),
        LinkNeighborLoader(plain, **options),
        strict=True,
    ):
        assert_equal(mine.to_dict(), theirs.to_dict())


def test_rows_that_are_read_often_come_first(tmp_path: Path) -> None:
    """By the defaults, by a loader's own seeds, and by the user's numbers; equal ones by id."""
    data, seeds = graph(), torch.arange(40)
    loader = NeighborLoader(data, [5], input_nodes=seeds, batch_size=10)
    visits = pyg_direct.expected_visits(loader)
    assert isinstance(visits, torch.Tensor)
    assert visits.shape == (300,)
    assert bool((visits[seeds] >= 0.25).all())
    assert float(visits.max()) <= 1
    x = opened(data, tmp_path / "own", row_order=visits).x
    assert torch.equal(x.stored, data.x[visits.sort(descending=True, stable=True).indices])
    degree = torch.bincount(data.edge_index[0], minlength=300)
    x = opened(data, tmp_path / "degree", row_order="degree").x
    assert torch.equal(x.stored, data.x[degree.sort(descending=True, stable=True).indices])
    met = torch.zeros(300)
    for batch in NeighborLoader(data, [15, 10, 5], batch_size=1024, shuffle=True, seed=0):
        met[batch.n_id] += 1
    x = opened(data, tmp_path / "visits", row_order="visits").x
    by_rows = met[x.positions.argsort()]
    assert by_rows[:100].mean() >= by_rows[-100:].mean()


def test_visits_are_given_by_type_and_need_a_loader() -> None:
    data = heterogeneous_graph()
    kind = data.edge_types[0]
    loader = LinkNeighborLoader(data, [3], edge_label_index=kind, batch_size=8)
    visits = pyg_direct.expected_visits(loader)
    assert {k: len(v) for k, v in visits.items()} == {k: data[k].num_nodes for k in data.node_types}
    with pytest.raises(ValueError, match=r"needs a NeighborLoader .* got HeteroData"):
        pyg_direct.expected_visits(data)
    hgt = pyg_direct.HGTLoader(data, [4], kind[0], batch_size=8)
    with pytest.raises(ValueError, match=r"needs a NeighborLoader .* got HGTLoader"):
        pyg_direct.expected_visits(hgt)


def test_everything_else_reads_the_order_of_ids(tmp_path: Path) -> None:
    data = graph()
    moved = opened(data, tmp_path / "moved", row_order="degree")
    ids = torch.tensor([7, 0, 299, 7])
    assert torch.equal(moved.x[ids], data.x[ids])
    assert torch.equal(moved.x[5:9], data.x[5:9])
    assert torch.equal(moved.x + 1, data.x + 1)
    assert torch.equal(moved.x.dense(), data.x)
    assert torch.equal(moved.shares, data.shares)
    for copied in (copy.deepcopy(moved), pickle.loads(pickle.dumps(moved))):
        assert isinstance(copied.x, OrderedTensor)
        assert torch.equal(copied.x.dense(), data.x)
    # Saved again: in the order of ids, in another one, and with other files as they were.
    again = opened(moved, tmp_path / "again")
    assert type(again.x) is torch.Tensor
    assert torch.equal(again.x, data.x)
    other = opened(moved, tmp_path / "other", row_order=torch.arange(300))
    assert torch.equal(other.x.stored, data.x.flip(0))
    assert torch.equal(other.x.dense(), data.x)
    narrow = opened(graph("row"), tmp_path / "narrow", row_order="degree")
    twice = opened(narrow, tmp_path / "twice", row_order="visits")
    assert torch.equal(twice.x.dense(), graph("row").x.dense())
    assert pyg_direct.share(moved) is moved  # files are shared by all who open them
    assert all(part.is_shared() for part in moved.x.share_memory_().stored_parts().values())


@pytest.mark.parametrize("quantized", [None, "row"])
def test_inference_and_accelerate(tmp_path: Path, quantized: str | None) -> None:
    torch.manual_seed(0)
    data = graph(quantized)
    moved = opened(data, tmp_path / "moved", row_order="visits")
    model = GraphSAGE(16, 8, num_layers=2, out_channels=3).eval()
    found = pyg_direct.inference(model, moved)
    assert torch.equal(found, pyg_direct.inference(model, opened(data, tmp_path / "plain")))
    small = pyg_direct.inference(model, moved, memory_bytes=100_000_000)
    torch.testing.assert_close(small, found)
    loader = NeighborLoader(moved, feature_dtype=torch.float32 if quantized else None, **OPTIONS)
    accelerated = pyg_direct.accelerate(model, loader)
    for batch in loader:
        out = accelerated(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(out, model(batch.x, batch.edge_index)[: batch.batch_size])


def test_cache_and_placement(tmp_path: Path, emulated_loaders: list[Any]) -> None:
    """Rows that are cached are those of the nodes with most visits, wherever they lie."""
    data = graph()
    moved = opened(data, tmp_path / "moved", row_order=torch.rand(300))
    options = {**OPTIONS, "features": "host", "cache": 0.3}
    of_ids = NeighborLoader(data, **options)
    loader = NeighborLoader(moved, **options)
    for mine, theirs in zip(loader, of_ids, strict=True):
        assert torch.equal(mine.x, theirs.x)
    assert loader.stats().cache_hits > of_ids.stats().cache_hits * 0.9
    for mine in NeighborLoader(moved, features="device", **OPTIONS):
        assert torch.equal(mine.x, data.x.to(mine.x.device)[mine.n_id])


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("cluster", "'visits', 'degree', None, or a tensor"),
        (torch.rand(299), "one number for each of 300 nodes, and no NaN, got \\(299,\\)"),
        (torch.full((300,), float("nan")), "no NaN"),
        ({"paper": torch.rand(300)}, "or a tensor \\[N\\]"),
        (3, "or a tensor \\[N\\], got 3"),
    ],
)
def test_other_orders_are_refused(tmp_path: Path, order: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pyg_direct.save(graph(), tmp_path / "graph", row_order=order)
    assert not (tmp_path / "graph").exists()


def test_only_graphs_with_moved_rows_have_the_newer_version(tmp_path: Path) -> None:
    """Only graphs that need it have the version that earlier releases refuse."""
    pyg_direct.save(graph(), tmp_path / "plain")
    pyg_direct.save(graph(), tmp_path / "moved", row_order="degree")
    assert f'"version": {PLAIN_VERSION}' in (tmp_path / "plain" / HEADER).read_text()
    assert f'"version": {VERSION}' in (tmp_path / "moved" / HEADER).read_text()
    pyg_direct.save(two_types(), tmp_path / "typed", row_order="degree")  # only "a" has rows
    assert f'"version": {VERSION}' in (tmp_path / "typed" / HEADER).read_text()


def two_types() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.rand(4, 2), 3
    data["a", "to", "b"].edge_index = torch.tensor([[0, 2, 2], [1, 1, 0]])
    return data


def test_each_type_needs_numbers(tmp_path: Path) -> None:
    numbers = {"a": torch.arange(4), "b": torch.arange(3)}
    x = opened(two_types(), tmp_path / "graph", row_order=numbers)["a"].x
    assert x.positions.tolist() == [3, 2, 1, 0]
    del numbers["b"]
    with pytest.raises(ValueError, match=r"or a tensor of each of \['a', 'b'\], in a dict"):
        pyg_direct.save(two_types(), tmp_path / "other", row_order=numbers)


@pytest.mark.parametrize("value", [-1, 300, 1 << 40])
def test_damaged_positions_fail_verification_and_never_read_elsewhere(
    tmp_path: Path, each_backend: str, value: int
) -> None:
    """Found by `verify`; without it, an error or other rows, never a read elsewhere."""
    folder = tmp_path / "graph"
    pyg_direct.save(graph(), folder, row_order="degree")
    (path,) = folder.glob("*_positions.bin")
    positions = torch.from_file(str(path), shared=True, size=300, dtype=torch.int64)
    positions[:] = value
    with pytest.raises(InvalidGraphFileError, match="checksum"):
        pyg_direct.open(folder, verify=True)
    with pytest.raises(IndexError, match=str(value)):
        list(NeighborLoader(pyg_direct.open(folder), **OPTIONS))


def test_positions_other_than_a_permutation_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    pyg_direct.save(graph(), folder, row_order="degree")
    (path,) = folder.glob("*_positions.bin")
    path.unlink()
    header = read_header(folder)
    nodes = header.nodes[0]
    assert nodes.order is not None
    wrong = replace(nodes.order, positions=write_array(path, torch.zeros(300, dtype=torch.int64)))
    write_header(replace(header, nodes=[replace(nodes, order=wrong)]), folder)
    with pytest.raises(InvalidGraphFileError, match="positions of rows are not a permutation"):
        pyg_direct.open(folder, verify=True)
    fewer = write_array(path.with_name("999_positions.bin"), torch.arange(299))
    header_of_fewer = replace(nodes, order=replace(nodes.order, positions=fewer))
    write_header(replace(header, nodes=[header_of_fewer]), folder)
    with pytest.raises(InvalidGraphFileError, match=r"positions is int64 \[299\], but must be"):
        pyg_direct.open(folder)
    wrong = replace(wrong, attributes=("shares",))
    write_header(replace(header, nodes=[replace(nodes, order=wrong)]), folder)
    with pytest.raises(InvalidGraphFileError, match="'shares', which has no row for each node"):
        pyg_direct.open(folder)
