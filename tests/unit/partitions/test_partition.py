"""Partitions: what is written, how even parts are, and loaders in one process that reads all."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import assert_same_batch, papers_and_authors
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct.exchange import rows
from pyg_direct.files import write_parts as write_module
from pyg_direct.files.open import open_graph
from pyg_direct.files.parts import EDGE_IDS, parted_graph
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.loading.order import PartOrder
from pyg_direct.ops.cpu import file_pages
from pyg_direct.tools import partition as partition_module
from pyg_direct.tools.partition import parts_of
from tests.support.memory_maps import reads_alone


def graph(num_nodes: int = 300, groups: int = 6) -> Data:
    """Return a graph of groups, within which most edges are; ids say nothing about them."""
    random = np.random.default_rng(0)
    name = random.permutation(num_nodes)
    start = random.integers(0, num_nodes, 3000)
    size = num_nodes // groups
    near = start // size * size + random.integers(0, size, 3000)
    end = np.where(random.random(3000) < 0.9, near, random.integers(0, num_nodes, 3000))
    ends = torch.from_numpy(np.stack([name[start], name[end]]))
    return Data(
        x=torch.from_numpy(random.standard_normal((num_nodes, 5), np.float32)),
        narrow=torch.from_numpy(random.integers(-9, 9, (num_nodes, 3), np.int8)),
        y=torch.from_numpy(random.integers(0, 4, num_nodes)),
        train_mask=torch.from_numpy(random.random(num_nodes) < 0.6),
        edge_index=torch.cat([ends, ends.flip(0)], 1),
        edge_attr=torch.from_numpy(random.standard_normal((6000, 2), np.float32)),
        edge_weight=torch.from_numpy(random.random(6000)),
    )


DATA = graph()


def hetero() -> HeteroData:
    torch.manual_seed(0)
    data = papers_and_authors()
    for kind in data.edge_types:
        data[kind].edge_attr = torch.randn(data[kind].edge_index.size(1), 3)
    return data


def opened(data: Any, folder: Path, parts: int = 3, method: Any = "ldg") -> Any:
    pyg_direct.partition(data, folder / "parts", parts, method)
    return pyg_direct.open(folder / "parts", verify=True)


@pytest.fixture(scope="module")
def three_parts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a partition that no test changes."""
    return opened(DATA, tmp_path_factory.mktemp("three"))


@pytest.mark.parametrize("method", ["ldg", "metis", "hash"])
@pytest.mark.parametrize("parts", [1, 4])
def test_the_parts_hold_the_graph(
    method: str, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts == 4:  # in several steps, too
        monkeypatch.setattr(write_module, "STEP_EDGES", 1500)
        monkeypatch.setattr(write_module, "STEP_BYTES", 1500)
    data = opened(DATA, tmp_path, parts, method)
    whole = parted_graph(data)
    assert whole is not None
    assert (data.num_nodes, data.num_edges, data.num_features) == (300, 6000, 5)
    assert torch.equal(data.y, DATA.y)
    assert torch.equal(data.train_mask, DATA.train_mask)
    seen = []
    for p in range(parts):
        part = open_graph(tmp_path / "parts" / f"part_{p:03d}", verify=True)
        own = torch.from_numpy(np.flatnonzero(whole.part[0] == p))
        assert torch.equal(part["own"].x, DATA.x[own])
        assert torch.equal(part["own"].narrow, DATA.narrow[own])
        edges = part["all", "to", "own"]
        ids = edges[EDGE_IDS].long()
        assert torch.equal(DATA.edge_index[0, ids], edges.edge_index[0])
        assert torch.equal(DATA.edge_index[1, ids], own[edges.edge_index[1]])
        assert torch.equal(edges.edge_attr, DATA.edge_attr[ids])
        seen.append(ids)
    assert torch.cat(seen).sort().values.tolist() == list(range(6000))


def two_relations() -> HeteroData:
    """Return edges among two pairs of "a", and one from the second pair to "b"."""
    data = HeteroData()
    data["a"].x, data["b"].x = torch.rand(4, 2), torch.rand(1, 2)
    data["a", "to", "a"].edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    data["a", "to", "b"].edge_index = torch.tensor([[2], [0]])
    return data


def test_remote_rows_are_those_of_the_type_with_most_edges(tmp_path: Path) -> None:
    part = {"a": torch.tensor([0, 0, 1, 1]), "b": torch.tensor([0])}
    report = pyg_direct.partition(two_relations(), tmp_path / "parts", 2, part)
    assert (report.remote_rows, report.cut) == (0.0, 0.2)


def test_remote_rows_of_a_ring_in_which_all_edges_are_cut_are_half(tmp_path: Path) -> None:
    """The seeds of either part are its two nodes, and their neighbours the two others."""
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    data = Data(x=torch.rand(4, 2), edge_index=ring)
    report = pyg_direct.partition(data, tmp_path / "parts", 2, torch.tensor([0, 1, 0, 1]))
    assert (report.remote_rows, report.cut) == (0.5, 1.0)


def test_metis_gets_all_types_weighted_by_their_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """All node types one after another, weighted by the lists of all relations."""
    pymetis = pytest.importorskip("pymetis")
    data, asked = two_relations(), list[Any]()
    data["b", "to", "a"].edge_index = torch.tensor([[0, 0], [1, 2]])

    def part_graph(parts: int, adjacency: Any, vweights: list[int]) -> tuple[int, list[int]]:
        asked.extend([parts, *(numbers.tolist() for numbers in adjacency), vweights])
        return 0, [0, 1, 0, 1, 1]

    monkeypatch.setattr(pymetis, "CSRAdjacency", lambda *numbers: numbers)
    monkeypatch.setattr(pymetis, "part_graph", part_graph)
    found = parts_of(graph_of(data), 2, "metis")
    assert [part.tolist() for part in found] == [[0, 1, 0, 1], [1]]
    # Two edges between 1 and 0, two between 2 and 3; between 1 and 4; two between 2 and 4.
    assert asked == [2, [0, 1, 3, 5, 6, 8], [1, 0, 4, 3, 4, 2, 1, 2], [2, 3, 3, 2, 2]]


def test_reports_tell_methods_apart(tmp_path: Path) -> None:
    reports = {
        method: pyg_direct.partition(DATA, tmp_path / method, 3, method)
        for method in ("ldg", "metis", "hash")
    }
    for report in reports.values():
        assert (sum(report.nodes), sum(report.in_edges)) == (300, 6000)
    assert reports["ldg"].node_balance <= 1.05
    assert reports["ldg"].edge_balance <= 1.15
    assert reports["hash"].cut > 0.6 > 2 * reports["ldg"].cut
    assert reports["ldg"].remote_rows < reports["hash"].remote_rows < 0.75
    assert reports["ldg"].remote_rows_of_shuffled == pytest.approx(2 / 3)
    assert "3 parts by ldg" in repr(reports["ldg"])


def test_the_cut_and_the_edges_are_counted(tmp_path: Path) -> None:
    part = torch.arange(300) % 4
    report = pyg_direct.partition(DATA, tmp_path / "given", 4, method=part)
    row, col = DATA.edge_index
    assert report.cut == pytest.approx((part[row] != part[col]).float().mean().item())
    assert report.in_edges == torch.bincount(part[col], minlength=4).tolist()
    assert report.method == "given"
    assert report.node_balance == 1.0
    assert report.edge_balance == pytest.approx(max(report.in_edges) / 1500)


@pytest.mark.parametrize(
    ("fanouts", "options"),
    [
        ([4, 3], {}),
        ([-1, 2], {}),
        ([2, 2, 2], {}),
        ([], {}),
        ([4, 3], {"replace": True}),
        ([4, 3], {"disjoint": True, "device": "cpu"}),
        ([-1, 2], {"disjoint": True, "prefetch": 0}),
    ],
)
def test_batches_are_those_of_the_whole_graph(fanouts: Any, options: Any, three_parts: Any) -> None:
    options = {"batch_size": 32, "shuffle": True, "seed": 1, **options}
    data, seeds = three_parts, DATA.train_mask
    ours = pyg_direct.NeighborLoader(data, fanouts, data.train_mask, **options)
    whole = pyg_direct.NeighborLoader(DATA, fanouts, seeds, **options)
    for one, other in zip(ours, whole, strict=True):
        assert_same_batch(one, other)
    traffic = ours.stats().exchange
    assert (traffic.requests > 0, traffic.remote_requests) == (len(fanouts) > 0, 0)


def test_links_and_a_narrower_feature_dtype(tmp_path: Path) -> None:
    data = DATA.clone()
    data.x, data.edge_index = data.x.half(), data.edge_index.int()
    links = DATA.edge_index[:, :100]
    options = {"batch_size": 25, "seed": 2, "feature_dtype": torch.float32, "num_workers": 2}
    ours = pyg_direct.LinkNeighborLoader(opened(data, tmp_path), [3, 2], links, **options)
    whole = pyg_direct.LinkNeighborLoader(data, [3, 2], links, **options)
    for one, other in zip(ours, whole, strict=True):
        assert_same_batch(one, other)
        assert one.x.dtype == torch.float32
        assert one.edge_index.dtype == torch.int32


def test_a_partitioned_heterogeneous_graph_gives_the_batches_of_the_whole(tmp_path: Path) -> None:
    data = hetero()
    parted = opened(data, tmp_path, 2)
    options = {"batch_size": 16, "seed": 3}
    ours = pyg_direct.NeighborLoader(parted, [3, 2], "paper", **options)
    whole = pyg_direct.NeighborLoader(data, [3, 2], "paper", **options)
    for one, other in zip(ours, whole, strict=True):
        assert_same_batch(one, other)
    graph = parted_graph(parted)
    assert graph is not None
    part = torch.from_numpy(graph.part[graph.node_types.index("author")])
    ours = pyg_direct.NeighborLoader(parted, [1], "author", batch_size=4, order="parts", seed=0)
    first = next(iter(ours))
    assert len(set(part[first["author"].n_id[:4]].tolist())) == 1


def test_parts_and_types_with_nothing_in_them(tmp_path: Path) -> None:
    data = hetero()
    data["venue"].x, data["venue"].y = torch.empty(0, 2), torch.empty(0)
    data["venue", "holds", "paper"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["venue", "holds", "paper"].edge_attr = torch.empty(0, 3)
    last = {kind: torch.full((data[kind].num_nodes,), 2) for kind in data.node_types}
    parted = opened(data, tmp_path, 3, last)
    ours = pyg_direct.NeighborLoader(parted, [3, 2], "paper", batch_size=16, seed=3)
    whole = pyg_direct.NeighborLoader(data, [3, 2], "paper", batch_size=16, seed=3)
    for one, other in zip(ours, whole, strict=True):
        assert_same_batch(one, other)


def test_a_saved_graph_is_partitioned_as_it_is_in_memory(tmp_path: Path) -> None:
    pyg_direct.save(DATA, tmp_path / "saved")
    from_file = pyg_direct.partition(tmp_path / "saved", tmp_path / "of_file", 3, "ldg")
    assert from_file == pyg_direct.partition(DATA, tmp_path / "of_memory", 3, "ldg")
    options = {"batch_size": 50, "seed": 1}
    ours = pyg_direct.NeighborLoader(pyg_direct.open(tmp_path / "of_file"), [4], **options)
    whole = pyg_direct.NeighborLoader(pyg_direct.open(tmp_path / "saved"), [4], **options)
    for one, other in zip(ours, whole, strict=True):
        assert_same_batch(one, other)


def interrupt(data: Data, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to partition a graph, and fail when `x` is written and `narrow` is not."""
    real = partition_module.write_rows

    def write_rows(journal: Any, label: str, *arguments: Any) -> Any:
        if label.endswith("narrow"):
            raise OSError("the disk is full")
        return real(journal, label, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(partition_module, "write_rows", write_rows)
        with pytest.raises(OSError, match="the disk is full"):
            pyg_direct.partition(data, path, 3, "ldg")


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("changes", "parts", "method"),
    [
        ({"x": DATA.x * 2}, 3, "ldg"),
        ({"edge_index": DATA.edge_index.flip(0)}, 3, "ldg"),
        ({"more": DATA.x}, 3, "ldg"),
        ({}, 3, "hash"),
        ({}, 2, "ldg"),
    ],
    ids=["rows", "edges", "attributes", "method", "parts"],
)
def test_an_interrupted_run_is_not_resumed_with_something_else(
    changes: Any, parts: int, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and what was written stays, until the run is resumed or removed."""
    interrupt(DATA, tmp_path / "parts", monkeypatch)
    kept = contents(tmp_path / ".parts.unfinished")
    other = copy.copy(DATA)
    for name, value in changes.items():
        other[name] = value
    refused = r"unfinished partition of something else: .*Give the same graph and arguments again"
    with pytest.raises(ValueError, match=refused):
        pyg_direct.partition(other, tmp_path / "parts", parts, method)
    assert contents(tmp_path / ".parts.unfinished") == kept
    shutil.rmtree(tmp_path / ".parts.unfinished")
    for name in ("parts", "fresh"):
        pyg_direct.partition(other, tmp_path / name, parts, method)
    assert contents(tmp_path / "parts") == contents(tmp_path / "fresh")


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(DATA, tmp_path / "parts", monkeypatch)
    assert not (tmp_path / "parts").exists()
    placed = next((tmp_path / ".parts.unfinished").glob("*part_0.bin")).stat().st_mtime_ns
    x = next((tmp_path / ".parts.unfinished" / "part_000").glob("*node_0_x.bin"))
    before = x.stat().st_mtime_ns
    pyg_direct.partition(DATA, tmp_path / "parts", 3, "ldg")
    assert next((tmp_path / "parts").glob("*part_0.bin")).stat().st_mtime_ns == placed
    assert (tmp_path / "parts" / "part_000" / x.name).stat().st_mtime_ns == before
    pyg_direct.open(tmp_path / "parts", verify=True)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_batches_of_one_part(tmp_path: Path) -> None:
    data = opened(DATA, tmp_path, 3, "hash")
    whole = parted_graph(data)
    assert whole is not None
    loader = pyg_direct.NeighborLoader(data, [2], batch_size=20, order="parts", seed=0)
    epochs = []
    for _ in range(2):
        seeds = [batch.input_id for batch in loader]
        parts = [set(whole.part[0][ids].tolist()) for ids in seeds]
        assert all(len(found) == 1 for found in parts[:12])
        assert [found.pop() for found in parts[:12]] == [i % 3 for i in range(12)]
        assert torch.cat(seeds).sort().values.tolist() == list(range(300))
        epochs.append(torch.cat(seeds).tolist())
    assert epochs[0] != epochs[1]


def test_parts_of_few_seeds_leave_their_turns_to_others() -> None:
    order = PartOrder(torch.Generator().manual_seed(0), 2)
    order.cluster = torch.tensor([0, 1, 0, 1, 1, 1])
    batches = torch.tensor(list(order)).view(3, 2)
    assert order.cluster[batches].tolist() == [[0, 0], [1, 1], [1, 1]]
    order.cluster = torch.arange(40) // 20
    order.batch_size = 21  # of which no part has enough
    assert len(set(order.cluster[list(order)][:20].tolist())) == 2


REFUSED: dict[str, dict[str, Any]] = {
    "subgraph_type": {"subgraph_type": "induced"},
    "time_attr": {"time_attr": "y"},
    "weight_attr": {"weight_attr": "edge_weight"},
    "sampling": {"sampling": "labor"},
    "transform_sampler_output": {"transform_sampler_output": lambda out: out},
    "topology": {"topology": "device"},
    "order": {"order": "proximity"},
    "input_time": {"input_time": torch.arange(300)},
    "input_end_time": {"input_end_time": torch.arange(300)},
    "cache": {"cache": 0.5},
    "time_window": {"time_window": 0},
    "device_bytes": {"device_bytes": 0},
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_unavailable_over_parts_are_refused_by_name(name: str, three_parts: Any) -> None:
    with pytest.raises(ValueError, match=name):
        pyg_direct.NeighborLoader(three_parts, [2], **REFUSED[name])


def test_the_data_is_no_whole_graph(tmp_path: Path, three_parts: Any) -> None:
    data = three_parts
    with pytest.raises(RuntimeError, match=r"'x' of shape .300, 5. is stored in the parts"):
        data.x + 1
    with pytest.raises(RuntimeError, match="the 6000 edges are stored in parts"):
        data.edge_index.max()
    for use in (
        lambda: pyg_direct.NeighborSampler(data, [2]),
        lambda: pyg_direct.partition(data, tmp_path / "again", 2, "hash"),
        lambda: pyg_direct.LinkNeighborLoader(
            data, [2], torch.zeros(2, 3, dtype=torch.int64), neg_sampling="binary"
        ),
        lambda: pyg_direct.LinkNeighborLoader(
            data, [2], torch.zeros(2, 3, dtype=torch.int64), exclude_seed_edges=True
        ),
        lambda: pyg_direct.LinkNeighborLoader(
            data, [2], torch.zeros(2, 3, dtype=torch.int64), edge_label_time=torch.zeros(3)
        ),
    ):
        refused = "(neg_sampling|exclude_seed_edges) cannot be used"
        message = f"is a partition|partition already|{refused}|'edge_label_time' is set while"
        with pytest.raises(ValueError, match=message):
            use()
    with pytest.raises(ValueError, match=r"order='parts' needs data that was opened"):
        pyg_direct.NeighborLoader(DATA, [2], order="parts")
    loader = pyg_direct.NeighborLoader(data, [2])
    with pytest.raises(TypeError, match="cannot be copied or sent to another process"):
        pickle.dumps(loader.node_sampler)
    with pytest.raises(ValueError, match=r"expected_visits goes over all edges"):
        pyg_direct.expected_visits(loader)
    with pytest.raises(RuntimeError, match="Iterate it on all of them"):
        loader([0])


def test_wrong_arguments_of_partition_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "parts"
    with pytest.raises(ValueError, match="parts must be in"):
        pyg_direct.partition(DATA, path, 2000)
    with pytest.raises(ValueError, match="method must be"):
        pyg_direct.partition(DATA, path, 2, "random")
    with pytest.raises(ValueError, match=r"method must hold parts in \[0, 2\), got 0 to 5"):
        pyg_direct.partition(DATA, path, 2, torch.arange(300) % 6)
    with pytest.raises(ValueError, match="one integer for each of 300 nodes"):
        pyg_direct.partition(DATA, path, 2, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(TypeError, match="dict of tensors by node type"):
        pyg_direct.partition(hetero(), path, 2, torch.zeros(4, dtype=torch.int64))
    quantized = DATA.clone()
    quantized.x = pyg_direct.quantize(DATA.x)
    with pytest.raises(ValueError, match=r"data.x cannot be saved in parts: it is quantized"):
        pyg_direct.partition(quantized, path, 2, "hash")
    more = hetero()
    more["paper"].extra = torch.zeros(more["paper"].num_nodes + 1, 2)
    with pytest.raises(ValueError, match=r"data\['paper'\].extra cannot be saved in parts: it has"):
        pyg_direct.partition(more, path, 2, "hash")
    whole = DATA.clone()
    whole.extra = torch.zeros(7)
    with pytest.raises(ValueError, match=r"data.extra cannot be saved: it is of type Tensor"):
        pyg_direct.partition(whole, path, 2, "hash")
    assert not [*tmp_path.iterdir()]
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match="there"):
        pyg_direct.partition(DATA, tmp_path / "there", 2, "hash")


def test_damage_is_found_by_verify(tmp_path: Path) -> None:
    opened(DATA, tmp_path, 2, "hash")
    parts = tmp_path / "parts"

    def damaged(path: Path, change: Callable[[bytes], bytes], message: str) -> None:
        content = path.read_bytes()
        path.write_bytes(change(content))
        with pytest.raises(pyg_direct.InvalidGraphFileError, match=message):
            pyg_direct.open(parts, verify=True)
        path.write_bytes(content)

    def flipped(content: bytes) -> bytes:
        return content[:-1] + bytes([content[-1] ^ 1])

    for name in ("*_row_0.bin", "*_part_0.bin", "*_whole_0_y.bin", "part_001/*_node_0_x.bin"):
        (path,) = parts.glob(name)
        damaged(path, flipped, f"{path.name} is damaged")
    manifest = parts / "partition.json"
    damaged(manifest, lambda text: text.replace(b'"parts": 2', b'"parts": 3'), "checksum is wrong")
    damaged(manifest, lambda text: text[:-9], "is not the manifest of a partition")
    shutil.rmtree(parts / "part_000")  # as on a machine that holds the other one
    assert pyg_direct.open(parts, verify=True).num_nodes == 300


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    data = opened(DATA, tmp_path)
    (tmp_path / "parts" / "part_001").rename(tmp_path / "elsewhere")
    with pytest.raises(pyg_direct.InvalidGraphFileError, match="part_001 is missing"):
        next(iter(pyg_direct.NeighborLoader(data, [2])))


def test_a_part_of_another_partition_is_refused(tmp_path: Path) -> None:
    opened(DATA, tmp_path / "one", 3, torch.arange(300) % 3)
    data = opened(DATA, tmp_path / "other", 3, torch.arange(300).flip(0) % 3)  # as large
    shutil.rmtree(tmp_path / "other" / "parts" / "part_000")
    shutil.copytree(tmp_path / "one/parts/part_000", tmp_path / "other/parts/part_000")
    message = "part_000 is not part 0 of this partition"
    with pytest.raises(pyg_direct.InvalidGraphFileError, match=message):
        next(iter(pyg_direct.NeighborLoader(data, [2])))
    with pytest.raises(pyg_direct.InvalidGraphFileError, match=message):
        pyg_direct.open(tmp_path / "other" / "parts", verify=True)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_a_missing_page_is_read_alone_while_rows_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the system reads pages around it, and drops others where memory is short."""
    monkeypatch.setattr(file_pages, "MIN_TABLE_BYTES", 1)
    seen: list[bool] = []

    def watched(tables: Any, *arguments: Any) -> torch.Tensor:
        seen.extend(map(reads_alone, tables))
        return copy(tables, *arguments)

    copy = rows.rows_of_parts
    monkeypatch.setattr(rows, "rows_of_parts", watched)
    data = opened(DATA, tmp_path)
    batch = next(iter(pyg_direct.NeighborLoader(data, [4], torch.arange(50), batch_size=50)))
    assert torch.equal(batch.x, DATA.x[batch.n_id])
    assert len(seen) == 2 * 3
    assert all(seen)
