"""`static_shapes=`: the envelope over epochs, ranks and states, what is refused, and training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from emulator import emulated, give_to_loaders
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.ops.cuda import memory as device_memory
from pyg_direct.ops.cuda.workspace import CudaWorkspace

SMALL = {"nodes": 60, "edges": 60}  # that some batches of `graph` fit


def graph(num_nodes: int = 300, num_edges: int = 1200) -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    edge_index[1, ::4] = 7  # a hub, so that batches differ
    return Data(
        x=torch.randn(num_nodes, 5, generator=generator),
        y=torch.randint(3, (num_nodes,), generator=generator),
        edge_index=edge_index,
    )


def loader(data: Data | None = None, **options: Any) -> NeighborLoader:
    given = {"batch_size": 20, "shuffle": True, "seed": 3, "static_shapes": True} | options
    return NeighborLoader(graph() if data is None else data, [4, 3], **given)


def sizes(batch: Any) -> tuple[int, int]:
    return batch.num_nodes, batch.num_edges


def content(batch: Any) -> list[Tensor]:
    return [batch.x, batch.edge_index, batch.n_id, batch.e_id, batch.y, batch.num_real_nodes]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, content(one), content(other)))


def test_measured_sizes_fit_all_batches_of_several_epochs() -> None:
    batches = loader()
    found = {sizes(batch) for _ in range(5) for batch in batches}
    assert found == {tuple(batches.static_shapes.values())}
    assert all(5 * batch.num_real_nodes > 3 * batch.num_nodes for batch in loader(drop_last=True))


def test_the_shape_of_a_larger_batch_is_that_of_the_next_epochs() -> None:
    batches = loader(static_shapes=SMALL)
    first = [sizes(batch) for batch in batches]
    assert len(set(first)) > 1
    assert first[0] >= (60, 60)
    later = {sizes(batch) for _ in range(2) for batch in batches}
    assert later == {tuple(max(each) for each in zip(*first, strict=True))}
    assert tuple(batches.static_shapes.values()) in later
    stats = batches.stats()
    assert stats.larger_batches == sum(shape != (60, 60) for shape in first) > 0
    assert [epoch.larger_batches for epoch in stats.epochs[1:]] == [0, 0]


@pytest.mark.parametrize("workers", [1, 3])
def test_shapes_do_not_depend_on_workers(workers: int) -> None:
    one, other = loader(static_shapes=SMALL), loader(static_shapes=SMALL, num_workers=workers)
    for _ in range(3):
        assert_equal(list(one), list(other))


def test_batches_that_were_not_handed_out_change_no_shape() -> None:
    one = loader(static_shapes=SMALL)
    other = loader(static_shapes=SMALL, num_workers=2, prefetch=8)
    for batches in (one, other):
        for _ in zip(range(2), batches, strict=False):
            pass
    assert_equal(list(one), list(other))


def test_an_epoch_goes_on_from_a_state_with_the_same_shapes() -> None:
    batches = loader(static_shapes=SMALL)
    list(batches)
    iterator = iter(batches)
    for _ in range(4):
        next(iterator)
    state, left = batches.state_dict(), list(iterator)
    resumed = loader(static_shapes=SMALL)
    resumed.load_state_dict(copy.deepcopy(state))
    assert_equal(list(resumed), left)
    assert_equal(list(resumed), list(batches))


def test_states_of_other_loaders_have_no_shapes() -> None:
    batches = loader(static_shapes=False)
    list(batches)
    assert "size_steps" not in batches.state_dict()
    assert batches.static_shapes is None


@pytest.mark.parametrize("wrong", [[0], [0, -1], [1.5, 0], 3])
def test_a_state_with_other_shapes_than_steps_is_refused(wrong: Any) -> None:
    batches = loader(static_shapes=SMALL)
    list(batches)
    with pytest.raises(ValueError, match="'size_steps' must be two ints"):
        batches.load_state_dict(batches.state_dict() | {"size_steps": wrong})


def test_ranks_pad_to_the_same_measured_sizes() -> None:
    found = []
    for rank in range(2):
        of_rank = loader(split_by_rank=False, rank=rank, world_size=2)
        found += [sizes(batch) for batch in of_rank]
    assert len(set(found)) == 1


def test_the_last_batch_has_fewer_seeds_and_the_same_shape() -> None:
    *others, last = loader(graph(), input_nodes=torch.arange(50))
    assert [b.batch_size for b in others] == [20, 20]
    assert last.batch_size == len(last.input_id) == 10
    assert sizes(last) == sizes(others[0])


def test_counts_and_padding_are_told() -> None:
    batches = loader()
    made = list(batches)
    real = sum(int(batch.num_real_nodes) for batch in made)
    stats = batches.stats()
    assert stats.nodes == real
    assert stats.nodes + stats.padded_nodes == sum(batch.num_nodes for batch in made)
    assert stats.edges + stats.padded_edges == sum(batch.num_edges for batch in made)
    assert "padding of" in repr(stats)
    assert stats.as_dict()["padded_nodes"] == stats.padded_nodes == stats.epochs[0].padded_nodes


def test_a_call_of_the_loader_pads_too() -> None:
    batches = loader()
    assert sizes(batches(torch.arange(20))) == tuple(batches.static_shapes.values())


def test_a_model_computes_the_same_for_the_seeds() -> None:
    torch.manual_seed(0)
    model = GraphSAGE(5, 8, 2, 3)
    for batch, plain in zip(loader(), loader(static_shapes=False), strict=True):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        expected = model(plain.x, plain.edge_index)[: plain.batch_size]
        assert torch.allclose(out, expected, atol=1e-6)
        trimmed = model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        assert torch.allclose(trimmed[: batch.batch_size], expected, atol=1e-6)


def test_links_have_the_labels_of_a_loader_without() -> None:
    data = graph()
    given: dict[str, Any] = {"batch_size": 20, "seed": 0, "neg_sampling": "binary"}
    plain = LinkNeighborLoader(data, [3, 2], **given)
    padded = LinkNeighborLoader(data, [3, 2], static_shapes=True, **given)
    shapes = set()
    for batch, expected in zip(padded, plain, strict=True):
        assert torch.equal(batch.edge_label_index, expected.edge_label_index)
        assert torch.equal(batch.edge_label, expected.edge_label)
        shapes.add(sizes(batch))
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_shapes": 3}, "static_shapes must be a bool or a dict, got 3"),
        ({"static_shapes": {"rows": 3}}, "no keys but 'nodes' and 'edges', got .*rows"),
        ({"static_shapes": {"nodes": {"paper": 3}}}, r"static_shapes\['nodes'\] must be an int"),
        ({"static_shapes": {"nodes": -3}}, r"static_shapes\['nodes'\] must be an int of 0 or more"),
        ({"static_shapes": {"edges": 1.5}}, r"static_shapes\['edges'\] must be an int of 0"),
        ({"subgraph_type": "bidirectional"}, "cannot be used with subgraph_type='bidirectional'"),
        ({"transform_sampler_output": lambda out: out}, "with transform_sampler_output="),
        (
            {"batch_sampler": [[1, 2]], "batch_size": 1, "shuffle": False},
            "there is a batch_sampler",
        ),
    ],
)
def test_options_that_cannot_have_one_shape_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        loader(**options)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_matrices_are_refused() -> None:
    data = graph()
    data.adj_t = torch.eye(300).to_sparse_csr()
    with pytest.raises(ValueError, match="cannot be used with adj_t or adj"):
        loader(data)


def test_types_are_named_where_sizes_lack_them() -> None:
    data = HeteroData()
    data["a"].num_nodes = 4
    data["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match=r"must be a dict of ints by type, of \['a'\]"):
        NeighborLoader(data, [2], input_nodes="a", static_shapes={"nodes": 5})


def test_accelerate_says_that_padded_batches_run_as_they_are() -> None:
    with pytest.warns(UserWarning, match="static_shapes= pads the batches"):
        pyg_direct.accelerate(GraphSAGE(5, 8, 2, 3), loader())


def test_a_given_envelope_serves_a_batch_sampler() -> None:
    options = {"batch_sampler": [[1, 2], [3]], "batch_size": 1, "shuffle": False}
    batches = loader(static_shapes={"nodes": 90, "edges": 80}, **options)
    assert [sizes(batch) for batch in batches] == [(90, 80)] * 2


def test_an_audit_looks_past_padding() -> None:
    found = pyg_direct.audit(loader(static_shapes=True))
    assert found.ok
    assert found.checked == pyg_direct.audit(loader(static_shapes=False)).checked
    batch = next(iter(loader()))
    batch.e_id[0] += 1
    assert not pyg_direct.audit(loader(), [batch]).ok


class Calls:
    """Counts, of the loaders that sample on the emulated device, waits and batches at sizes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waits = self.padded = 0
        download, sample_padded = device_memory.download, CudaWorkspace.sample_padded

        def waiting(*given: Any) -> Any:
            self.waits += 1
            return download(*given)

        def padding(*given: Any) -> Any:
            self.padded += 1
            return sample_padded(*given)

        patch.setattr(device_memory, "download", waiting)
        patch.setattr(CudaWorkspace, "sample_padded", padding)


def on_both(
    patch: pytest.MonkeyPatch, epochs: int, **options: Any
) -> tuple[NeighborLoader, NeighborLoader, Calls]:
    """Return a loader on the emulated device and one on the CPU, having compared their batches."""
    plain = loader(**options)
    expected = [list(plain) for _ in range(epochs)]
    with emulated() as backend:
        give_to_loaders(backend, patch, to_host=True)
        calls, batches = Calls(patch), loader(**options)
        for epoch in expected:
            assert_same_batches(list(batches), epoch)
        batches.stats()
    return batches, plain, calls


EMULATED = pytest.mark.parametrize("device", ["emulated"])
LATE: dict[str, dict[str, Any]] = {
    "plain": {},
    "disjoint": {"disjoint": True},
    "threads": {"num_workers": 2, "prefetch": 3},
    "ids there": {"ids": "device"},
    "in order": {"prefetch": 0},
}


@EMULATED
@pytest.mark.parametrize("name", LATE)
def test_nobody_waits_for_the_counts_of_a_batch(
    device: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shape = {"nodes": 600, "edges": 600}
    batches, plain, calls = on_both(monkeypatch, 1, static_shapes=shape, **LATE[name])
    assert (calls.waits, calls.padded) == (0, len(batches))
    found, expected = batches.stats(), plain.stats()
    for counted in ("nodes", "edges", "padded_nodes", "padded_edges", "seeds", "made"):
        assert getattr(found, counted) == getattr(expected, counted)


@EMULATED
def test_batches_that_did_not_fit_are_made_again(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, plain, calls = on_both(monkeypatch, 3, static_shapes=SMALL)
    larger = batches.stats().larger_batches
    assert larger == plain.stats().larger_batches > 0
    assert (calls.waits, calls.padded) == (0, 3 * len(batches) + larger)
    assert batches.stats().nodes == plain.stats().nodes
    assert batches.static_shapes == plain.static_shapes
    assert batches.state_dict()["size_steps"] == plain.state_dict()["size_steps"]


EARLY: dict[str, dict[str, Any]] = {
    "a transform": {"transform": lambda batch: batch},
    "induced": {"subgraph_type": "induced"},
    "gathered by the consumer": {"filter_per_worker": False},
}


@EMULATED
@pytest.mark.parametrize("name", EARLY)
def test_batches_that_need_counts_wait_for_them(
    device: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shape = {"nodes": 600, "edges": 900}
    batches, _, calls = on_both(monkeypatch, 1, static_shapes=shape, **EARLY[name])
    assert calls.padded == 0
    assert calls.waits >= len(batches)


def assert_same_batches(found: list[Any], expected: list[Any]) -> None:
    """Raise unless batches are equal, field by field, in the same order."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert list(one.keys()) == list(other.keys())
        for name, value in other.items():
            same = torch.equal if isinstance(value, Tensor) else (lambda a, b: a == b)
            assert same(one[name], value), name
