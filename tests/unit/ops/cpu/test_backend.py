"""The CPU backend: each kernel by the worked example of its docstring, and the scratch memory."""

import threading
import warnings
from functools import partial, partialmethod
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from graphs import assert_same_value, edge_lists, example_graph, graphs_and_seeds
from hypothesis import given
from hypothesis import strategies as st
from reference import sample as reference_sample
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.core.types import BatchKey, SampledGraph, SamplingPlan, Table
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.kernels import emit, gather, hops, relabel
from pyg_direct.kernels.jit import entry
from pyg_direct.ops.cpu import backend as cpu_backend
from pyg_direct.ops.cpu import scratch
from pyg_direct.ops.cpu import workspace as cpu
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cpu.workspace import CpuWorkspace
from pyg_direct.ops.devices import backend_for

KEY = BatchKey(1, 2)
STAMP = np.uint32(100)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


# Kernels ##########################################################################################


@pytest.mark.parametrize(
    ("fanout", "replace", "ends"),
    [
        (2, False, [0, 2, 2, 3]),  # the docstring's example
        (2, True, [0, 2, 2, 4]),
        (5, False, [0, 3, 3, 4]),
        (5, True, [0, 5, 5, 10]),
        (-1, False, [0, 3, 3, 4]),
        (-1, True, [0, 3, 3, 4]),
        (0, False, [0, 0, 0, 0]),
        (0, True, [0, 0, 0, 0]),
    ],
)
def test_plan_hop_counts_draws_and_rows_of_each_frontier_node(
    fanout: int, replace: bool, ends: list[int]
) -> None:
    """Frontier nodes of degree 3, 0 and 1."""
    edge_index = torch.tensor([[1, 2, 3, 0, 1, 0], [0, 0, 0, 2, 3, 3]])
    work = workspace(Data(edge_index=edge_index, num_nodes=4), [fanout], replace=replace)
    work.begin([torch.tensor([0, 1, 2])], KEY)
    work.plan(0)
    start, degree, item_ptr = work._items.tolist()
    assert item_ptr[:4] == ends
    assert start[:3] == [0, 3, 3]
    assert degree[:3] == [3, 0, 1]
    assert work._item_base.tolist() == [0, 3]
    assert work._edge_ptr.tolist() == [[0, ends[-1]]]


def test_listed_nodes_get_start_and_degree_of_their_lists() -> None:
    """The lists [8, 9] and [7] of nodes 0 and 1; node[1:] = [1, 0] is asked for."""
    start, degree = ints(-1, -1, -1, -1), ints(-1, -1, -1, -1)
    hops.each_node_listed(ints(0, 2, 3), 0, ints(5, 1, 0), 1, 2, 4, start, degree)
    assert start.tolist() == [-1, -1, 2, 0]
    assert degree.tolist() == [-1, -1, 1, 2]


def test_edges_of_a_hop_lie_behind_those_of_the_hops_before() -> None:
    work = workspace(example_graph(), [2, 1, -1])
    out = run(work, [0, 7, 4])
    ends = work._edge_ptr.tolist()
    assert ends[0][0] == 0
    assert [hop[0] for hop in ends[1:]] == [hop[-1] for hop in ends[:-1]]
    assert ends[-1][-1] == len(out.edge[0])


def test_seeds_are_entered() -> None:
    """Seeds 7, 4, 7 have the places 0, 1, 2, and later edges refer to 7 as 0."""
    table = np.zeros(10, np.uint32)
    hops.seeds_entered(ints(-1, 7, 4, 7), 1, 4, 0, table, STAMP)
    assert table.nonzero()[0].tolist() == [4, 7]
    assert table[[7, 4]].tolist() == [100, 101]


@pytest.mark.parametrize("bad", [12, 1000, -1, -(2**63), 2**32 + 4])
def test_a_seed_out_of_range_is_refused_and_the_workspace_goes_on(bad: int) -> None:
    work = workspace(example_graph(), [2])
    assert work.sample([torch.tensor([4, 7])], KEY) is not None
    assert work.sample([torch.tensor([7, bad])], KEY) is None
    assert not work.begin([torch.tensor([7, bad])], KEY), "nor step by step"
    assert run(work, [4, 7]).node[0].tolist()[:2] == [4, 7], "the workspace goes on"


def test_relabelled_rows_number_nodes_in_order_of_first_occurrence() -> None:
    """Known 7, 4 and sources 4, 9, 9, 2 become 1, 2, 2, 3; the list grows to 7, 4, 9, 2."""
    table = np.arange(10, dtype=np.uint32) * 11  # left by batches before: all below the stamp
    node, row = ints(7, 4, -1, -1, -1), ints(4, 9, 9, 2)
    hops.seeds_entered(node, 0, 2, 0, table, STAMP)
    node_ptr = ints([0], [2], [0])
    hops.hop_relabelled(
        ints([0], [0], [0]), ints(0, 10), ints([0, 4]), 0, row, table, STAMP, node, ints(0),
        node_ptr,
    )  # fmt: skip
    assert row.tolist() == [1, 2, 2, 3]
    assert node.tolist()[:4] == [7, 4, 9, 2]
    assert node_ptr.ravel().tolist() == [0, 2, 4]


def test_relabelled_rows_of_disjoint_subgraphs_stay_apart() -> None:
    """Seeds 7 and 4 in subgraphs 0 and 1; 9 below 7 and 9 below 4 become 2 and 3."""
    table = np.zeros(32, np.uint64)
    node, seed_of, row = ints(7, 4, -1, -1, -1), ints(0, 1, -1, -1, -1), ints(9, 9, 9, 7)
    relabel.enter_disjoint(node, seed_of, 0, 2, 0, 0, 10, table, STAMP)
    node_ptr = ints([0], [2], [0])
    relabel.relabel_disjoint(
        ints([0], [0], [0]), ints(0, 10), ints([0, 4]), 0, row, ints(0, 1, 1, 0), table, STAMP,
        node, seed_of, ints(0), node_ptr,
    )  # fmt: skip
    assert row.tolist() == [2, 3, 3, 0]
    assert node.tolist()[:4] == [7, 4, 9, 9]
    assert seed_of.tolist()[:4] == [0, 1, 0, 1]
    assert node_ptr.ravel().tolist() == [0, 2, 4]


def test_find_slot_probes_and_wraps_around() -> None:
    find_slot, slot_of = entry(relabel.find_slot), entry(relabel.slot_of)
    table = np.zeros(8, np.uint64)
    keys, entries = table[::2], table[1::2]
    places = set()
    for key in (3, 8, 11):  # three keys in four slots: some must probe
        at = int(find_slot(np.uint64(key), table, STAMP))
        assert at % 2 == 0
        assert at not in places
        places.add(at)
        table[at], table[at + 1] = key, STAMP  # the least entry of the batch
        assert int(find_slot(np.uint64(key), table, STAMP)) == at
    assert sorted(keys.tolist()) == [0, 3, 8, 11]
    entries[:] = 99  # of an earlier batch: all slots are free again
    assert int(find_slot(np.uint64(8), table, STAMP)) == slot_of(np.uint64(8), table)


def test_emitted_edges_of_a_relation_are_those_of_all_hops() -> None:
    """Two relations over two hops: the pieces of each come together."""
    edge_ptr = ints([0, 2, 3], [3, 4, 6])
    row, col, position = ints(0, 1, 2, 3, 4, 5), ints(9, 8, 7, 6, 5, 4), ints(0, 1, 5, 2, 6, 7)
    expected = [[0, 1, 3], [2, 4, 5]]
    for kind, perm, cuts in product((np.int32, np.int64), (None, np.arange(8) * 10), ([], [1, 5])):
        edge_index, edge = np.zeros((2, 2, 3), kind), np.zeros((2, 3), np.int64)
        out = [[*(ends.ctypes.data for ends in edge_index[r]), edge[r].ctypes.data] for r in (0, 1)]
        node, nodes = np.array([9, 7, 4, 9, 3], kind), np.zeros(3, np.int64)
        lists = [[1, 2, nodes.ctypes.data], [4, 1, nodes[2:].ctypes.data]]
        for first, last in pairwise([0, *cuts, 6]):
            emit.emit_edges(
                edge_ptr, row, col, position, perm, ints(0, 5, 8), first, last, np.empty(0, kind),
                node, ints(*out, *lists).ravel(),
            )  # fmt: skip
        assert nodes.tolist() == [7, 4, 3]
        assert edge_index[:, 0].tolist() == expected
        assert edge_index[:, 1].tolist() == [[9 - e for e in part] for part in expected]
        ids = [[0, 1, 2], [0, 1, 2]] if perm is None else [[0, 10, 20], [50, 60, 70]]
        assert edge.tolist() == ids


def test_induced_edges_are_those_between_nodes_of_the_batch() -> None:
    """Nodes 7, 4 with the lists 7: [4, 9] and 4: [4] give rows 1, 1 and columns 0, 1."""
    start, degree, indices = ints(1, 0), ints(2, 1), ints(4, 4, 9)
    node, table = ints(7, 4), np.zeros(10, np.uint32)
    hops.seeds_entered(node, 0, 2, 0, table, STAMP)
    nothing = np.empty((2, 0), np.int64)
    members = np.array([1 << 7 | 1 << 4], np.uint64)
    between = (
        start, degree, indices, 0, 10, ints(), 0, True, table, STAMP, members, ints(), nothing
    )  # fmt: skip
    assert emit.induced_edges(*between, 0, 0, *np.zeros((3, 0), np.int64)) == (0, 0), "no room"
    out = np.zeros((3, 3), np.int64)
    assert emit.induced_edges(*between, 0, 0, *out[:, :2]) == (0, 0), "no room to spare"
    assert emit.induced_edges(*between, 0, 0, *out) == (2, 2)
    assert out[:, :2].tolist() == [[1, 1], [0, 1], [1, 0]]
    assert emit.induced_edges(*between, 1, 1, *out) == (2, 2), "goes on where room ended"
    without_7 = (start, degree - ints(1, 0), *between[2:-2], ints(1), ints([0, 0], [1, 0]))
    assert emit.induced_edges(*without_7, 0, 0, *out) == (2, 1)
    assert out[:, 0].tolist() == [1, 1, 0], "the other list is whole"


@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 7, 8, 12, 16, 31, 32, 33, 64, 65, 1000])
def test_gather_tables_writes_only_the_rows_asked_for(row_bytes: int) -> None:
    table = np.arange(50 * row_bytes).astype(np.uint8).reshape(50, row_bytes)
    index = np.random.default_rng(0).integers(0, 50, 40)
    out = np.full((40, row_bytes), 255, np.uint8)
    tables = ints(table.ctypes.data, len(table), row_bytes, out.ctypes.data)
    assert gather.gather_tables(tables, index.ctypes.data, 3, 37) == (-1, -1)
    assert np.array_equal(out[3:37], table[index[3:37]])
    assert (out[:3] == 255).all()
    assert (out[37:] == 255).all()


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_gather_tables_stops_at_an_id_out_of_range(bad: int) -> None:
    table, index = np.zeros((50, 8), np.uint8), np.array([3, 4, bad, 5])
    out = np.full((4, 8), 255, np.uint8)
    tables = ints(table.ctypes.data, 50, 8, out.ctypes.data)
    assert gather.gather_tables(tables, index.ctypes.data, 0, 4) == (0, 2)
    assert (out[2:] == 255).all()


# The backend's gather #############################################################################


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
def test_gather_gives_indexed_rows_with_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(cpu_backend, "MIN_BYTES_PER_THREAD", 16)
    table = (torch.arange(1000 * 7).view(1000, 7) % 200).to(dtype)
    index = torch.randint(1000, (333,))
    out = CpuBackend(threads).gather([Table(table)], index)[0]
    assert_same_value(out, table[index], "rows")


@pytest.mark.parametrize("shape", [(5,), (5, 0), (5, 2, 3)], ids=str)
def test_gather_shapes_and_nothing(shape: tuple[int, ...]) -> None:
    table = torch.arange(int(np.prod(shape))).view(shape)
    backend = CpuBackend()
    for index in (torch.tensor([4, 0, 4]), torch.empty(0, dtype=torch.int64)):
        assert_same_value(backend.gather([Table(table)], index)[0], table[index], "rows")


def test_read_only_input(tmp_path: Any) -> None:
    """Memory maps opened for reading: the graph and the features may lie in them."""
    data = example_graph()
    files = {}
    for name, value in (("x", data.x), ("edges", data.edge_index), ("seeds", torch.arange(12))):
        np.save(tmp_path / f"{name}.npy", value.numpy())
        files[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        assert not files[name].flags.writeable
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # which torch says once
        x, edges, seeds = (torch.from_numpy(a) for a in files.values())
    mapped = Data(x=x, edge_index=edges, num_nodes=12)
    plain = Data(x=data.x, edge_index=data.edge_index, num_nodes=12)
    for kind in ("directional", "induced"):
        arguments = dict(batch_size=5, seed=1, subgraph_type=kind)
        ours = NeighborLoader(mapped, [2, 2], input_nodes=seeds, **arguments)
        for batch, expected in zip(ours, NeighborLoader(plain, [2, 2], **arguments), strict=True):
            assert torch.equal(batch.x, expected.x)
            assert torch.equal(batch.edge_index, expected.edge_index)


# Workspaces: scratch memory from batch to batch ###################################################


def workspace(data: Data, fanouts: list[int], threads: int = 1, **plan: Any) -> CpuWorkspace:
    options = dict(replace=False, disjoint=False, recent=False, id_dtype=torch.int64) | plan
    backend = backend_for(torch.device("cpu"), threads)
    return backend.workspace(
        backend.memory.place_graph(graph_of(data).csc),
        SamplingPlan(ints(*fanouts).reshape(-1, 1), **options),
    )


def run(work: CpuWorkspace, seeds: list[int], key: BatchKey = KEY) -> SampledGraph:
    sampled = work.sample([torch.tensor(seeds, dtype=torch.int64)], key)
    assert sampled is not None
    return sampled


def assert_same_graph(one: SampledGraph, other: SampledGraph) -> None:
    for field in ("node", "edge_index", "edge", "seed_of"):
        assert_same_value(getattr(one, field), getattr(other, field), field)
    assert one.num_sampled_nodes == other.num_sampled_nodes
    assert one.num_sampled_edges == other.num_sampled_edges


def ring(num_nodes: int) -> Data:
    """Return a graph in which node i has the in-neighbours i + 1, ..., i + 5."""
    col = torch.arange(num_nodes).repeat_interleave(5)
    row = (col + torch.arange(1, 6).repeat(num_nodes)) % num_nodes
    return Data(edge_index=torch.stack([row, col]), num_nodes=num_nodes)


@pytest.mark.parametrize("disjoint", [False, True])
@given(case=graphs_and_seeds(), more=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_reuse_leaves_no_trace(
    disjoint: bool, case: tuple[Data, list[int]], more: list[int]
) -> None:
    data, seeds = case
    used = workspace(data, [2, -1, 1], disjoint=disjoint)
    for batch in range(3):
        for other in (seeds, [s % data.num_nodes for s in more], seeds[:1]):
            key = BatchKey(batch, 9)
            fresh = workspace(data, [2, -1, 1], disjoint=disjoint)
            assert_same_graph(run(used, other, key), run(fresh, other, key))


@pytest.mark.parametrize("disjoint", [False, True])
def test_buffers_grow_amid_a_batch_and_its_edges_stay_right(disjoint: bool) -> None:
    """From one seed to many: lists, edges and the hash table all grow, also amid a batch."""
    data = ring(3000)
    used = workspace(data, [-1, -1, -1], disjoint=disjoint)
    for size in (1, 100, 150, 2, 900, 3):
        seeds = [7 * i % 3000 for i in range(size)]
        before = len(used._table)
        out = run(used, seeds)
        expected = reference_sample(data.edge_index, 3000, seeds, [-1, -1, -1], disjoint)
        assert out.node[0].tolist() == expected.n_id
        assert out.edge_index[0].tolist() == [expected.row, expected.col]
        assert out.edge[0].tolist() == expected.e_id
        if disjoint and size == 150:
            assert len(used._table) > before
            assert out.seed_of[0].tolist() == expected.batch
    assert (used._table.dtype == np.uint64) == disjoint


def test_a_batch_after_an_interrupted_one_is_right() -> None:
    data = example_graph()
    for stop in range(5):
        used = workspace(data, [2, 2])
        run(used, [0, 1, 2])
        steps = [(used.plan, 0), (used.sample_edges, 0), (used.relabel, 0), (used.plan, 1)]
        used.begin([torch.tensor([3, 7, 9, 0])], KEY)
        for step, hop in steps[:stop]:
            step(hop)
        assert_same_graph(run(used, [7, 4]), run(workspace(data, [2, 2]), [7, 4]))


@pytest.mark.parametrize("disjoint", [False, True])
def test_the_sampler_after_an_exception(monkeypatch: pytest.MonkeyPatch, disjoint: bool) -> None:
    data = ring(50)
    arguments = dict(batch_size=5, seed=3, disjoint=disjoint)
    expected = [batch.e_id.tolist() for batch in NeighborLoader(data, [2, 2], **arguments)]
    loader = NeighborLoader(data, [2, 2], **arguments)
    calls = []

    def failing(*arguments: Any, step: Any) -> Any:
        calls.append(None)
        if len(calls) == 4:
            raise RuntimeError("amid a later batch")
        return step(*arguments)

    owner, name = (CpuWorkspace, "relabel") if disjoint else (hops, "sample_batch")
    step = getattr(owner, name)
    with monkeypatch.context() as patch:
        fails = partialmethod(failing, step=step) if disjoint else partial(failing, step=step)
        patch.setattr(owner, name, fails)
        with pytest.raises(RuntimeError, match="amid a later batch"):
            list(loader)
    again = NeighborLoader(data, [2, 2], neighbor_sampler=loader.node_sampler, batch_size=5, seed=3)
    assert [batch.e_id.tolist() for batch in again] == expected


@pytest.mark.parametrize("disjoint", [False, True])
def test_stamps_start_again_before_they_overflow(disjoint: bool) -> None:
    data = ring(40)
    used = workspace(data, [3, 3], disjoint=disjoint)
    run(used, [1, 2, 3])
    before = scratch.STAMP_LIMIT - 1 - used._most_nodes
    used._stamp = before
    seen = []
    for i in range(8):
        seeds = [(i * 3 + j) % 40 for j in range(4)]
        fresh = run(workspace(data, [3, 3], disjoint=disjoint), seeds)
        assert_same_graph(run(used, seeds), fresh)
        seen.append(used._stamp)
    assert max(seen) >= before
    assert min(seen) < 1000  # it did wrap
    assert all(stamp < scratch.STAMP_LIMIT for stamp in seen)


@pytest.mark.parametrize("disjoint", [False, True])
def test_a_batch_of_as_many_nodes_as_stamps_is_refused(
    monkeypatch: pytest.MonkeyPatch, disjoint: bool
) -> None:
    """Before its nodes have room; three seeds and three neighbours of each are 12 nodes at most."""
    for limit in (12, 13):
        monkeypatch.setattr(scratch, "STAMP_LIMIT", limit)
        used = workspace(ring(40), [3], disjoint=disjoint)
        if limit == 12:
            with pytest.raises(ValueError, match="12 nodes"):
                run(used, [1, 2, 3])
        else:
            assert run(used, [1, 2, 3]).edge_index is not None


def test_stamps_leave_room_for_the_largest_batch() -> None:
    """A stamp and a local id, each below the limit, fit one uint32 entry together."""
    assert 2 * scratch.STAMP_LIMIT <= 2**32


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_threads_do_not_matter(
    monkeypatch: pytest.MonkeyPatch, disjoint: bool, replace: bool
) -> None:
    data, seeds = ring(2000), list(range(0, 2000, 3))
    plan = dict(disjoint=disjoint, replace=replace)
    expected = run(workspace(data, [3, 3, 3], **plan), seeds)
    monkeypatch.setattr(cpu, "MIN_ITEMS_PER_THREAD", 10)
    for threads in (2, 7):
        assert_same_graph(run(workspace(data, [3, 3, 3], threads, **plan), seeds), expected)


def test_workspaces_in_many_threads() -> None:
    """Eight threads share a loader; each gets what it would get alone."""
    data = ring(500)
    loader = NeighborLoader(data, [-1, -1], batch_size=1)
    expected = [loader([i]).e_id.tolist() for i in range(64)]
    got: dict[int, list[int]] = {}

    def work(first: int) -> None:
        for i in range(first, 64, 8):
            got[i] = loader([i]).e_id.tolist()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(64)] == expected


@given(case=edge_lists())
def test_seeds_beyond_the_number_of_nodes(case: tuple[torch.Tensor, int]) -> None:
    """Duplicated seeds may outnumber the nodes."""
    edge_index, num_nodes = case
    seeds = [i % num_nodes for i in range(3 * num_nodes + 2)]
    data = Data(edge_index=edge_index, num_nodes=num_nodes)
    expected = reference_sample(edge_index, num_nodes, seeds, [-1, -1])
    out = run(workspace(data, [-1, -1]), seeds)
    assert out.node[0].tolist() == expected.n_id
    assert out.edge_index[0].tolist() == [expected.row, expected.col]


def test_an_id_out_of_range_is_told_with_the_rows_of_its_table() -> None:
    tables = [Table(torch.zeros(9, 2)), Table(torch.zeros(4, 2))]
    with pytest.raises(IndexError, match="row 5 of a tensor with 4 rows"):
        CpuBackend().gather(tables, torch.tensor([1, 5]))
