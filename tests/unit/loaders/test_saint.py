"""GraphSAINT's samplers: PyG's subgraphs and coefficients, files, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from torch_geometric.data import Data, HeteroData

from pyg_direct import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    GraphSAINTSampler,
    ShaDowKHopSampler,
)
from pyg_direct.core.types import BatchKey
from pyg_direct.loading import options
from pyg_direct.sampling.sampler import keyed

LOOP = torch.zeros(2, 1, dtype=torch.int64)


def graph(num_nodes: int = 30, edges: int = 150) -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.unique(torch.randint(num_nodes, (2, edges), generator=generator), dim=1)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=generator)]
    return Data(
        edge_index=edge_index,
        num_nodes=num_nodes,
        x=torch.arange(num_nodes),
        edge_attr=torch.arange(edge_index.size(1)),
        name="all",
    )


def make(name: str, data: Data, **kwargs: Any) -> Any:
    return {
        "node": lambda: GraphSAINTNodeSampler(data, 8, log=False, **kwargs),
        "edge": lambda: GraphSAINTEdgeSampler(data, 5, log=False, **kwargs),
        "paper": lambda: GraphSAINTEdgeSampler(data, 5, log=False, edge_law="paper", **kwargs),
        "walk": lambda: GraphSAINTRandomWalkSampler(data, 3, 2, log=False, **kwargs),
    }[name]()


@pytest.mark.parametrize("name", ["node", "edge", "paper", "walk"])
def test_subgraphs_are_pygs(name: str) -> None:
    """All edges between the nodes, both in the order of PyG's sparse matrices."""
    data = graph()
    parallel = data.edge_index[:, ::3]
    data.edge_index = torch.cat([data.edge_index, parallel], 1)
    data.edge_attr = torch.arange(data.num_edges)
    for batch in make(name, data, num_steps=20, seed=0):
        assert batch.x.tolist() == sorted(set(batch.x.tolist()))
        inside = torch.isin(data.edge_index, batch.x).all(0)
        edges = sorted(
            (u, v, e) for e, (u, v) in enumerate(data.edge_index.t().tolist()) if inside[e]
        )
        assert batch.x[batch.edge_index].t().tolist() == [[u, v] for u, v, _ in edges]
        assert batch.edge_attr.tolist() == [e for _, _, e in edges]
        assert batch.num_nodes == len(batch.x)
        assert batch.name == "all"
        assert "node_norm" not in batch


@pytest.mark.parametrize("name", ["node", "edge", "walk"])
def test_ids_of_edges_are_looked_up_where_a_batch_needs_them(name: str) -> None:
    """Those of PyG's attributes of edges, also of one that `data` gets after a batch was drawn."""
    data = graph()
    expected = [batch.edge_attr for batch in make(name, data, num_steps=4, seed=0)]
    del data.edge_attr
    loader = make(name, data, num_steps=4, seed=0)
    drawn: list[Any] = []
    loader._sample_for_batch = lambda *args: (
        drawn.append(type(loader)._sample_for_batch(loader, *args)) or drawn[-1]
    )
    assert not any("edge_attr" in batch for batch in loader)
    assert [edge for _, _, edge in drawn] == [None] * 4
    assert loader[0][2] is not None
    data.edge_attr = torch.arange(data.num_edges)
    for out, edge_attr in zip(drawn, expected, strict=True):
        assert torch.equal(loader.filter_fn(out).edge_attr, edge_attr)
    assert all("edge_attr" in batch for batch in loader)
    assert all(edge is not None for _, _, edge in drawn[4:])


@pytest.mark.parametrize("name", ["node", "edge", "walk"])
def test_a_graph_with_int32_ids(name: str) -> None:
    wide, narrow = graph(), graph()
    narrow.edge_index = narrow.edge_index.int()
    one, other = (next(iter(make(name, data, seed=0))) for data in (wide, narrow))
    assert other.edge_index.dtype == torch.int32
    assert torch.equal(one.edge_index, other.edge_index.long())
    assert torch.equal(one.x, other.x)


def test_a_filter_fn_of_a_subclass_gets_the_ids_of_edges() -> None:
    class Own(GraphSAINTNodeSampler):
        def filter_fn(self, out: Any) -> Any:
            return out

    data = graph()
    del data.edge_attr
    for node, edge_index, edge in Own(data, 8, num_steps=2, log=False):
        assert torch.equal(node[edge_index], data.edge_index[:, edge])


def test_a_subclass_overrides_how_a_subgraph_is_made() -> None:
    class Own(GraphSAINTNodeSampler):
        def _subgraph(self, key: BatchKey) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return torch.tensor([7]), torch.empty(2, 0).long(), torch.empty(0).long()

    data = graph()
    del data.edge_attr
    assert [batch.x.tolist() for batch in Own(data, 8, num_steps=2, log=False)] == [[7], [7]]


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="PyG's need torch_sparse")
def test_subgraphs_equal_those_of_torch_sparse() -> None:
    data = graph()
    theirs = torch_geometric.loader.GraphSAINTNodeSampler(data, 8, log=False)
    for batch in make("node", data, num_steps=10, seed=1):
        row, col, edge = theirs.adj.saint_subgraph(batch.x)[0].coo()
        assert torch.equal(batch.edge_index, torch.stack([row, col]))
        assert torch.equal(batch.edge_attr, edge)


class EveryNode(GraphSAINTSampler):
    """A user's own sampler: the nodes 0 to 3 in each step, 4 in none."""

    def _draw_nodes(self, key: BatchKey) -> torch.Tensor:
        return torch.tensor([3, 1, 0, 2, 1])


def test_coefficients_by_hand() -> None:
    """Five nodes; four of them in each of 3 steps, at 2 subgraphs a node: 10 nodes need 3 steps."""
    data = Data(edge_index=torch.tensor([[0, 1, 4], [1, 4, 4]]), num_nodes=5)
    loader = EveryNode(data, 1, num_steps=3, sample_coverage=2, log=False)
    assert loader.node_norm.tolist() == pytest.approx([3 / 3 / 5] * 4 + [3 / 0.1 / 5])
    # An edge drawn as often as its source has 1, one that was never drawn has PyG's bounds.
    assert loader.edge_norm.tolist() == pytest.approx([1.0, 1e4, 0.1])
    batch = next(iter(loader))
    assert batch.node_norm.tolist() == pytest.approx([0.2] * 4)
    assert batch.edge_norm.tolist() == [1.0]


def test_coefficients_are_saved_and_loaded_as_pyg_does(tmp_path: Path) -> None:
    data = graph()
    arguments = {"num_steps": 3, "sample_coverage": 4, "save_dir": str(tmp_path)}
    for name, file in (
        ("node", "graphsaintnodesampler_4.pt"),
        ("edge", "graphsaintedgesampler_4.pt"),
        ("walk", "graphsaintrandomwalksampler_2_4.pt"),
    ):
        first = make(name, data, seed=0, **arguments)
        saved = torch.load(tmp_path / file)
        assert torch.equal(saved[0], first.node_norm)
        assert torch.equal(saved[1], first.edge_norm)
        again = make(name, data, seed=9, **arguments)
        assert torch.equal(again.node_norm, first.node_norm)
    for other in (graph(31), graph(30, 149)):  # of other nodes, and of other edges
        with pytest.raises(ValueError, match="holds coefficients of 30 nodes"):
            make("node", other, **arguments)


def test_workers_do_not_change_the_coefficients() -> None:
    one, two = (
        make("walk", graph(), num_steps=4, sample_coverage=5, seed=0, num_workers=n) for n in (0, 2)
    )
    assert torch.equal(one.node_norm, two.node_norm)
    assert torch.equal(one.edge_norm, two.edge_norm)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    GraphSAINTNodeSampler(graph(), 8, num_steps=3, sample_coverage=4, seed=0)
    assert "GraphSAINT normalization" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"num_steps": 0}, ValueError, "num_steps"),
        ({"sample_coverage": -1}, ValueError, "sample_coverage"),
        ({"log": "no"}, TypeError, "log"),
        ({"data": HeteroData()}, ValueError, "homogeneous"),
        ({"data": Data(num_nodes=3)}, ValueError, "edge_index"),
        ({"data": Data(edge_index=torch.empty(2, 0, dtype=int), num_nodes=3)}, ValueError, "draw"),
        (
            {"data": Data(edge_index=torch.zeros(2, 1, dtype=int), node_norm=torch.ones(1))},
            ValueError,
            "node_norm exists",
        ),
        (
            {"data": Data(x=torch.ones(1), edge_index=LOOP, edge_norm=torch.ones(1))},
            ValueError,
            "edge_norm exists",
        ),
        ({"edge_law": "none"}, ValueError, "edge_law"),
    ],
)
def test_wrong_arguments_of_saint_are_refused(
    wrong: dict[str, Any], error: type, message: str
) -> None:
    arguments = {"data": graph(), "batch_size": 3, **wrong}
    with pytest.raises(error, match=message):
        GraphSAINTEdgeSampler(**arguments)


def test_the_base_class_draws_nothing() -> None:
    with pytest.raises(NotImplementedError):
        next(iter(GraphSAINTSampler(graph(), 3)))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_threads_share_a_batch_where_one_batch_is_made_at_a_time(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "available_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    threads = 2 if workers <= 1 else 1
    for loader in (
        make("node", graph(), num_workers=workers),
        ShaDowKHopSampler(graph(), 1, 2, num_workers=workers),
    ):
        assert loader._backend.threads == threads
        assert keyed(loader._sampler).backend.threads == threads


def test_coefficients_are_of_distinct_subgraphs() -> None:
    """Counted over the same few, nodes that these lack would never be drawn."""
    data = graph(200, 2000)
    loader = GraphSAINTNodeSampler(data, 20, num_steps=2, sample_coverage=20, seed=0, log=False)
    # A node is in few of 2 subgraphs of 20 edges, and in some of 200.
    drawn = loader.node_norm[torch.bincount(data.edge_index[0], minlength=200) >= 8]
    assert float((drawn == drawn.max()).double().mean()) < 0.2
    assert len(drawn.unique()) > 10
