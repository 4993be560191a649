"""`HGTLoader`: budgets by hand, all edges between what was drawn, and what is refused."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput

from pyg_direct import HGTLoader, HGTSampler
from pyg_direct.core.types import BatchKey
from pyg_direct.kernels.budget import draw_candidates
from pyg_direct.ops.host import budget as host_budget
from pyg_direct.ops.host.budget import Budgets
from pyg_direct.sampling.sampler import keyed


def typed_graph(scale: int = 1) -> HeteroData:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(40.0), torch.arange(25.0)

    def edges(rows: int, cols: int, count: int) -> torch.Tensor:
        ends = [torch.randint(end, (count,), generator=generator) for end in (rows, cols)]
        return torch.stack(ends)

    data["paper", "cites", "paper"].edge_index = edges(40, 40, 100 * scale)
    data["author", "writes", "paper"].edge_index = edges(25, 40, 80 * scale)
    data["paper", "by", "author"].edge_index = edges(40, 25, 80 * scale)
    for key in data.edge_types:
        data[key].edge_attr = torch.arange(data[key].num_edges)
    return data


def test_budgets_by_hand() -> None:
    """Paper 0 has the authors 0, 1, 1 and 2; author 2 was a seed, so 0 and 1 remain."""
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 1, 3
    data["author", "wrote", "paper"].edge_index = torch.tensor([[0, 1, 1, 2], [0, 0, 0, 0]])
    sampler = HGTSampler(data, [1])
    budget = Budgets(keyed(sampler).graph.csc)
    budget._stamp += 1
    drawn = [
        budget._enter(t, seed) for t, seed in enumerate((torch.tensor([0, 0]), torch.tensor([2])))
    ]
    budget._add(drawn)
    assert budget._node[1][:3].tolist() == [2, 0, 1]
    assert budget._value[1][:3].tolist() == [-1.0, 0.25, 0.5]


def test_draws_go_by_the_squares_of_budgets() -> None:
    """Budgets of 0.5 and 1 beside a node that is taken: the first is drawn 1 time in 5."""
    words, found = [np.uint64(number) for number in (3, 4)], Counter[int]()
    for draw in range(2000):
        budget = np.array([0.5, -1.0, 1.0])
        node = np.array([8, 9, 4])
        none = np.empty(0, np.float32), np.empty(0, np.int32)
        drawn = draw_candidates(node, budget, 3, 1, np.uint64(draw), *words, *none)
        found.update(drawn.tolist())
        assert (budget == -1.0).sum() == 2
    assert set(found) == {8, 4}
    assert abs(found[8] - 400) < 90  # five standard deviations; as budgets are, it would be 667


@pytest.mark.parametrize("seed", range(5))
def test_batches_hold_what_was_asked_for(seed: int) -> None:
    data = typed_graph()
    loader = HGTLoader(
        data,
        {"paper": [3, 2], "author": [4, 0]},
        ("paper", torch.arange(20)),
        batch_size=5,
        seed=seed,
    )
    for batch in loader:
        assert batch["paper"].batch_size == 5
        assert batch["paper"].n_id[:5].tolist() == batch["paper"].input_id.tolist()
        assert batch["paper"].num_nodes == 5 + 3 + 2
        assert batch["author"].num_nodes == 4
        for kind in data.node_types:
            assert len(set(batch[kind].n_id.tolist())) == batch[kind].num_nodes
            assert torch.equal(batch[kind].x, data[kind].x[batch[kind].n_id])
        for key in data.edge_types:
            row, col = data[key].edge_index
            inside = torch.isin(row, batch[key[0]].n_id) & torch.isin(col, batch[key[-1]].n_id)
            assert batch[key].edge_attr.sort()[0].tolist() == inside.nonzero().view(-1).tolist()
            ends = batch[key].edge_index
            whole = torch.stack([batch[key[0]].n_id[ends[0]], batch[key[-1]].n_id[ends[1]]])
            assert torch.equal(whole, data[key].edge_index[:, batch[key].e_id])


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="PyG's needs torch_sparse")
def test_all_neighbours_equal_pygs() -> None:
    data, seeds = typed_graph(), ("paper", torch.arange(4))
    ours = next(iter(HGTLoader(data, [1000] * 2, seeds, batch_size=4)))
    theirs = next(iter(torch_geometric.loader.HGTLoader(data, [1000] * 2, seeds, batch_size=4)))
    for kind in data.node_types:
        assert set(ours[kind].keys()) == set(theirs[kind].keys())
        assert ours[kind].n_id.sort()[0].tolist() == theirs[kind].n_id.sort()[0].tolist()
    for key in data.edge_types:
        assert set(ours[key].keys()) == set(theirs[key].keys())
        assert ours[key].e_id.sort()[0].tolist() == theirs[key].e_id.sort()[0].tolist()


def test_types_out_of_reach_are_empty() -> None:
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.zeros(4, 2), torch.zeros(3, 2)
    data["author", "knows", "author"].edge_index = torch.tensor([[0], [1]])
    batch = next(iter(HGTLoader(data, [2], "paper", batch_size=3)))
    assert batch["author"].x.shape == (0, 2)
    assert batch["author", "author"].edge_index.shape == (2, 0)
    assert batch["paper"].num_nodes == 3


def test_repeated_seeds_keep_their_places_over_many_batches() -> None:
    """Duplicated seeds keep their places; memory is used again from batch to batch."""
    data = typed_graph(3)
    sampler = HGTSampler(data, [6, 6], seed=0)
    loader = NodeLoader(data, sampler, ("paper", torch.tensor([3, 3, 9] * 30)), batch_size=3)
    for batch in loader:
        n_id = batch["paper"].n_id.tolist()
        assert n_id[:3] == [3, 3, 9]
        assert len(set(n_id[2:])) == len(n_id) - 2
        assert 3 not in n_id[2:]


def test_stamps_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:

    csc = keyed(HGTSampler(typed_graph(), [5])).graph.csc
    counts, key = torch.full((1, 2), 5).numpy(), BatchKey(1, 1)
    often, once = Budgets(csc), Budgets(csc)
    monkeypatch.setattr(host_budget, "STAMP_LIMIT", 60)
    for _ in range(20):
        nodes = often.draw([torch.arange(3), None], counts, key)
    assert often._stamp < 60
    for one, other in zip(nodes, once.draw([torch.arange(3), None], counts, key), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"num_samples": {"paper": [3]}}, ValueError, "num_samples"),
        ({"num_samples": {"paper": [3], "author": [3, 4]}}, ValueError, "one length"),
        ({"num_samples": {"paper": [3], "author": [3], "venue": [3]}}, ValueError, "alone"),
        ({"num_samples": [-1]}, ValueError, "num_samples"),
        ({"num_samples": 5}, ValueError, "num_samples"),
        ({"input_nodes": "venue"}, ValueError, "input_nodes"),
        ({"input_nodes": ("paper", torch.tensor([40]))}, IndexError, "input_nodes"),
        ({"data": Data(num_nodes=3)}, NotImplementedError, "HeteroData"),
        ({"transform": 3}, TypeError, "transform"),
    ],
)
def test_wrong_arguments_of_hgt_are_refused(
    wrong: dict[str, Any], error: type, message: str
) -> None:
    arguments = {"data": typed_graph(), "num_samples": [2], "input_nodes": "paper", **wrong}
    with pytest.raises(error, match=message):
        HGTLoader(**arguments)


def test_links_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="around nodes"):
        HGTSampler(typed_graph(), [2]).sample_from_edges(None)


def test_budgets_that_an_error_left_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = HGTSampler(typed_graph(), [3])
    seeds = NodeSamplerInput(None, torch.arange(4), None, "paper")
    used, draw = list[Any](), Budgets.draw

    def failing(budgets: Budgets, *rest: Any) -> Any:
        used.append(budgets)
        if len(used) < 3:
            raise KeyboardInterrupt
        return draw(budgets, *rest)

    monkeypatch.setattr(Budgets, "draw", failing)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            sampler.sample_from_nodes(seeds, key=(1, 2))
    for _ in range(2):
        sampler.sample_from_nodes(seeds, key=(1, 2))
    assert len({id(budgets) for budgets in used}) == 3
    assert used[2] is used[3]


def test_a_state_of_other_numbers_of_nodes_is_refused() -> None:
    one, other = (HGTLoader(typed_graph(), [k], "paper", batch_size=8, seed=0) for k in (3, 4))
    next(iter(one))
    with pytest.raises(ValueError, match="num_samples"):
        other.load_state_dict(one.state_dict())


def test_seeds_of_a_sampler_that_are_no_nodes_are_refused() -> None:
    with pytest.raises(IndexError, match="seeds must be node ids in"):
        HGTSampler(typed_graph(), [2]).sample_from_nodes(
            NodeSamplerInput(None, torch.tensor([10**9]), None, "paper")
        )
