"""`strict_negatives`: sampled negatives are no edges, and the law of the others stays."""

from typing import Any

import numpy as np
import pytest
import torch
from laws import THRESHOLD, chi_square
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from pyg_direct import LinkNeighborLoader, NeighborSampler

SRC, DST, EDGES = 30, 25, 300
KEY = ("user", "buys", "item")


def graph(typed: bool = True) -> Any:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randperm(SRC * DST, generator=generator)[:EDGES]
    edge_index = torch.stack([pairs // DST, pairs % DST])
    if not typed:
        return Data(edge_index=edge_index, num_nodes=SRC, time=torch.arange(EDGES))
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = SRC, DST
    data[KEY].edge_index, data[KEY].time = edge_index, torch.arange(EDGES)
    data["item", "of", "user"].edge_index = edge_index.flip(0)
    return data


def pairs_of(batch: Any, typed: bool) -> torch.Tensor:
    """Return the negatives of a batch, int64 [2, n], as ids of the graph."""
    store = batch[KEY] if typed else batch
    users, items = (batch["user"], batch["item"]) if typed else (batch, batch)
    if "edge_label_index" in store:
        row, col = store.edge_label_index[:, store.edge_label == 0]
    else:
        col = items.dst_neg_index.view(len(users.src_index), -1)
        row = users.src_index.view(-1, 1).expand_as(col).reshape(-1)
        col = col.reshape(-1)
    return torch.stack([users.n_id[row], items.n_id[col]])


def negatives(typed: bool, strict: bool, neg: Any, **options: Any) -> tuple[torch.Tensor, Any]:
    data = graph(typed)
    links = data[KEY].edge_index if typed else data.edge_index
    loader = LinkNeighborLoader(
        data, [2], (KEY, links) if typed else links, neg_sampling=neg, strict_negatives=strict,
        **{"batch_size": 64, "seed": 0, **options},
    )  # fmt: skip
    drawn = torch.cat([pairs_of(batch, typed) for batch in loader], 1)
    return drawn, loader.link_sampler.negative_counts


def are_edges(pairs: torch.Tensor) -> torch.Tensor:
    edge_index = graph()[KEY].edge_index
    return torch.isin(pairs[0] * 100 + pairs[1], edge_index[0] * 100 + edge_index[1])


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("neg", ["binary", NegativeSampling("binary", 1.5), "triplet",
                                 NegativeSampling("triplet", 3)])  # fmt: skip
@pytest.mark.parametrize("options", [
    {}, {"disjoint": True}, {"exclude_seed_edges": True}, {"num_workers": 2},
    {"time_attr": "time", "edge_label_time": torch.arange(EDGES)},
])  # fmt: skip
def test_no_negative_is_an_edge(typed: bool, neg: Any, options: dict[str, Any]) -> None:
    options = dict(options)
    if typed and "time_attr" in options:
        options["edge_label_time"] = torch.arange(EDGES)
    pairs, counts = negatives(typed, True, neg, **options)
    amount = 1 if isinstance(neg, str) else neg.amount
    assert pairs.shape[1] >= amount * EDGES
    assert int(are_edges(pairs).sum()) == counts.left == 0
    assert counts.drawn == pairs.shape[1]
    assert counts.redrawn > 0
    plain, unused = negatives(typed, False, neg, **options)
    assert int(are_edges(plain).sum()) > 0  # the check above could fail
    assert unused.drawn == 0


def test_no_negative_is_an_edge_of_a_backward_sampler() -> None:
    data = graph()
    sampler = NeighborSampler(data, [2], sample_direction="backward", strict_negatives=True)
    loader = LinkNeighborLoader(
        data, [2], KEY, neg_sampling="binary", neighbor_sampler=sampler, batch_size=EDGES
    )
    assert int(are_edges(pairs_of(next(iter(loader)), True)).sum()) == 0


def test_strict_negatives_are_uniform_among_pairs_without_edge() -> None:
    """Sources as before; of each source the destinations that are no edges are equally likely."""
    pairs = torch.cat([
        negatives(True, True, NegativeSampling("binary", 40), seed=seed)[0] for seed in (0, 1)
    ], 1)  # fmt: skip
    seen = np.bincount((pairs[0] * DST + pairs[1]).numpy(), minlength=SRC * DST).reshape(SRC, DST)
    edge_index = graph()[KEY].edge_index
    is_edge = np.zeros((SRC, DST), bool)
    is_edge[tuple(edge_index.numpy())] = True
    assert seen[is_edge].sum() == 0
    per_source = seen.sum(1)
    assert chi_square(per_source, np.full(SRC, per_source.mean())) > THRESHOLD
    free = (~is_edge).sum(1)
    expected = np.repeat(per_source / free, free)
    assert chi_square(seen[~is_edge], expected) > THRESHOLD
    # Negative control: as if all pairs that are no edges were equally likely.
    even = np.full(len(expected), expected.sum() / len(expected))
    assert chi_square(seen[~is_edge], even) < THRESHOLD


def test_weights_of_destinations_hold() -> None:
    weight = torch.arange(DST).float()
    pairs, counts = negatives(True, True, NegativeSampling("binary", 5, dst_weight=weight))
    assert int(are_edges(pairs).sum()) == counts.left
    assert int((pairs[1] == 0).sum()) == 0
    assert float(pairs[1].float().mean()) > DST * 0.6


def test_a_source_that_has_all_edges_is_counted() -> None:
    data = Data(edge_index=torch.cartesian_prod(torch.arange(4), torch.arange(4)).t(), num_nodes=4)
    loader = LinkNeighborLoader(data, [1], neg_sampling="triplet", strict_negatives=True)
    next(iter(loader))
    counts = loader.link_sampler.negative_counts
    assert counts.left == counts.drawn == 1
    assert counts.redrawn == 16


def test_strict_negatives_without_what_they_need_are_refused() -> None:
    data = graph(False)
    with pytest.raises(ValueError, match="without neg_sampling"):
        LinkNeighborLoader(data, [2], strict_negatives=True)
    with pytest.raises(TypeError, match="strict_negatives must be"):
        LinkNeighborLoader(data, [2], neg_sampling="binary", strict_negatives="yes")
    data.node_time = torch.arange(SRC)
    with pytest.raises(ValueError, match="times of the nodes"):
        LinkNeighborLoader(
            data, [2], neg_sampling="binary", strict_negatives=True, time_attr="node_time",
            edge_label_time=torch.arange(EDGES),
        )  # fmt: skip
    typed = graph()
    typed["item"].node_time = torch.arange(DST)
    with pytest.raises(ValueError, match="times of the nodes"):
        LinkNeighborLoader(
            typed, [2], KEY, neg_sampling="binary", strict_negatives=True, time_attr="node_time",
            edge_label_time=torch.arange(EDGES),
        )  # fmt: skip
