"""`Node2Vec`: windows over walks, negatives and the model's parts."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import Node2Vec, random_walk
from pyg_direct.core.types import BatchKey

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def test_windows_over_walks() -> None:
    model = Node2Vec(EDGES, 8, walk_length=5, context_size=3, walks_per_node=2, q=0.5)
    batch, key = torch.tensor([0, 2]), BatchKey(1, 2)
    positive, negative = model._sample_with(batch, key)
    walks = random_walk(Data(edge_index=EDGES, num_nodes=3), batch.repeat(2), 4, 1.0, 0.5, seed=key)
    assert positive.tolist() == torch.cat([walks[:, i : i + 3] for i in range(3)]).tolist()
    assert negative.shape == (12, 3)
    assert negative[:4, 0].tolist() == [0, 2, 0, 2], "negatives begin where the walks do"
    assert set(negative.flatten().tolist()) <= {0, 1, 2}


def test_the_loader_goes_over_all_nodes() -> None:
    model = Node2Vec(EDGES, 8, walk_length=4, context_size=2, num_negative_samples=3)
    batches = list(model.loader(batch_size=2, shuffle=True, num_workers=2, seed=0))
    assert [pos.shape for pos, _ in batches] == [(6, 2), (3, 2)]
    assert [neg.shape for _, neg in batches] == [(18, 2), (9, 2)]
    starts = [node for pos, _ in batches for node in pos[: len(pos) // 3, 0].tolist()]
    assert sorted(starts) == [0, 1, 2]
    assert model.loss(*batches[0]).item() > 0


@pytest.mark.parametrize(
    "other",
    [{"walk_length": 3}, {"context_size": 3}, {"walks_per_node": 2}, {"num_negative_samples": 2},
     {"p": 2.0}, {"q": 2.0}],
    ids=str,
)  # fmt: skip
def test_a_state_of_other_walks_is_refused(other: dict[str, Any]) -> None:
    given = {"walk_length": 4, "context_size": 2}
    loaders = [Node2Vec(EDGES, 8, **{**given, **o}).loader(seed=0) for o in ({}, other)]
    next(iter(loaders[0]))
    with pytest.raises(ValueError, match=next(iter(other))):
        loaders[1].load_state_dict(loaders[0].state_dict())


def test_model_is_pygs() -> None:
    model = Node2Vec(EDGES, 8, 4, 2, num_nodes=5, sparse=True)
    assert str(model) == "Node2Vec(5, 8)"
    assert list(model.state_dict()) == ["embedding.weight"]
    assert model(torch.tensor([1, 4])).shape == (2, 8)
    positive, negative = model.sample([0, 1])
    model.loss(positive, negative).backward()
    assert model.embedding.weight.grad.is_sparse
    assert model.pos_sample(torch.tensor([0])).shape == (3, 2)
    assert model.neg_sample(torch.tensor([0])).shape == (3, 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"context_size": 6}, "context_size"),
        ({"context_size": 0}, "context_size"),
        ({"p": 0.0}, "p must"),
        ({"q": -1.0}, "q must"),
        ({"walks_per_node": 0}, "walks_per_node"),
    ],
)
def test_wrong_arguments_of_node2vec_are_refused(wrong: dict[str, Any], message: str) -> None:
    arguments = {"embedding_dim": 4, "walk_length": 5, "context_size": 3, **wrong}
    with pytest.raises(ValueError, match=message):
        Node2Vec(EDGES, **arguments)
