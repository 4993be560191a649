"""Seeds cluster by cluster: which order they have, and that nothing of the rest is lost by it."""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PygLoader

from examples.support.debian import packages
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg_direct.loading.order import CHUNK, LANES, ClusterOrder
from pyg_direct.sampling.sampler import keyed

SEEDS = 96 * LANES


def ring(nodes: int = SEEDS) -> Data:
    """Return a ring whose ids are shuffled, and the place of each node on it."""
    generator = torch.Generator().manual_seed(1)
    at = torch.randperm(nodes, generator=generator)
    ends = torch.stack([at, at.roll(1)])
    data = Data(edge_index=torch.cat([ends, ends.flip(0)], 1), num_nodes=nodes)
    data.place = torch.argsort(at)
    return data


def order_of(loader: Any) -> Tensor:
    return torch.cat([batch.input_id for batch in loader])


def parts_of(order: Tensor) -> list[Tensor]:
    """Return what was interleaved."""
    return [order[lane::LANES] for lane in range(LANES)]


def distance(place: Tensor) -> Tensor:
    """Return how far apart successive places of the ring are."""
    step = (place[1:] - place[:-1]).abs()
    return torch.minimum(step, SEEDS - step)


@pytest.mark.parametrize("count", [SEEDS, 5, 1, LANES, 20 * LANES + 3])
def test_every_seed_comes_once(count: int) -> None:
    others = {"shuffle": False, "sampler": None}  # which ask for nothing
    loader = NeighborLoader(
        ring(), [2], torch.arange(count), order="proximity", batch_size=100, **others
    )
    for _ in range(2):
        assert torch.equal(order_of(loader).sort().values, torch.arange(count))
    assert len(loader) == -(-count // 100)


def test_clusters_come_one_after_another_and_batches_hold_several() -> None:
    count, number = 40 * LANES, 64
    cluster = torch.randint(number, (count,), generator=torch.Generator().manual_seed(2)) * 7 - 60
    seeds = torch.arange(count)
    loader = NeighborLoader(ring(), [2], seeds, order=cluster, batch_size=LANES, seed=0)
    epochs = [order_of(loader) for _ in range(2)]
    for order in epochs:
        assert torch.equal(order.sort().values, torch.arange(count))
        whole = torch.cat(parts_of(order))
        assert len(torch.unique_consecutive(cluster[whole])) == number
        inside = whole[cluster[whole] == cluster[0]]
        assert not torch.equal(inside, inside.sort().values)
        assert all(len(cluster[batch].unique()) > 30 for batch in order.split(LANES)[:-1])
    assert not torch.equal(*epochs)
    first, second = (cluster[torch.cat(parts_of(order))].tolist() for order in epochs)
    assert first != second


@pytest.mark.parametrize(("clusters", "batch_size"), [(4, 32), (3, 1), (10, 20), (1, 7), (200, 50)])
def test_batches_in_a_row_have_clusters_in_common_however_few_or_small(
    clusters: int, batch_size: int
) -> None:
    cluster = torch.arange(SEEDS) % clusters
    loader = NeighborLoader(ring(), [2], order=cluster, batch_size=batch_size, seed=0)
    order = order_of(loader)
    assert torch.equal(order.sort().values, torch.arange(SEEDS))
    held = [set(cluster[batch].tolist()) for batch in order.split(batch_size)]
    if clusters > 1:  # a batch takes from some of the clusters, which change slowly
        assert max(map(len, held[:-1])) <= max(2, min(clusters // 2 + 2, batch_size))
    shared = sum(len(one & two) / len(one) for one, two in pairwise(held)) / (len(held) - 1)
    assert shared > 0.7


def test_seeds_that_are_near_come_together() -> None:
    data = ring()
    loader = NeighborLoader(data, [2], order="proximity", batch_size=100, seed=0)
    shuffled = NeighborLoader(data, [2], shuffle=True, batch_size=100, seed=0)
    epochs = [order_of(loader) for _ in range(3)]
    for order in epochs:
        near = torch.cat([distance(data.place[part]) for part in parts_of(order)])
        # A search on a ring goes both ways, so `CHUNK` in a row are two runs of half as many.
        assert float((near < CHUNK).float().mean()) > 0.4
    order = order_of(shuffled)
    assert float((distance(data.place[order]) < CHUNK).float().mean()) < 0.1


def mix(labels: Tensor, batches: list[Tensor]) -> float:
    """Return how far the labels of batches are from those of all: largest total variation."""
    count = int(labels.max()) + 1
    every = torch.bincount(labels, minlength=count) / len(labels)
    shares = [torch.bincount(labels[part], minlength=count) / len(part) for part in batches]
    return max(float((share - every).abs().sum() / 2) for share in shares)


def test_labels_of_a_batch_are_mixed() -> None:
    """On a graph whose near nodes have equal labels; without lanes the bound is passed."""
    data = packages()
    seeds = data.train_mask.nonzero().view(-1)
    loader = NeighborLoader(
        data, [0], seeds, batch_size=512, order="proximity", drop_last=True, seed=0
    )
    for _ in range(2):
        order = order_of(loader)
        assert mix(data.y[seeds], list(order.split(512))) < 0.25
    together = torch.argsort(keyed(loader.node_sampler).proximity(None)[seeds])
    assert mix(data.y[seeds], list(together.split(512))[:-1]) > 0.4


def test_clusters_of_ranks_begin_elsewhere_in_each_epoch() -> None:
    sampler = ClusterOrder(torch.Generator().manual_seed(0))
    sampler.cluster, sampler.by_rank = torch.arange(SEEDS), True
    together = 0
    for _ in range(20):
        place = torch.argsort(torch.cat(parts_of(torch.tensor(list(sampler)))))
        together += bool((place[CHUNK - 1] - place[CHUNK]).abs() < CHUNK)
    assert together > 15


def searched(data: Data) -> list[int]:
    """Return the ranks of a breadth-first search over in-neighbours, by lists of Python."""
    roots = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0)).tolist()
    rank: dict[int, int] = {}
    for root in roots:
        if root in rank:
            continue
        rank[root] = len(rank)
        waiting = deque([root])
        while waiting:
            node = waiting.popleft()
            for source in data.edge_index[0, data.edge_index[1] == node].tolist():
                if source not in rank:
                    rank[source] = len(rank)
                    waiting.append(source)
    return [rank[node] for node in range(data.num_nodes)]


def test_ranks_are_those_of_a_breadth_first_search() -> None:
    generator = torch.Generator().manual_seed(4)
    data = Data(edge_index=torch.randint(60, (2, 90), generator=generator), num_nodes=60)
    sampler = keyed(NeighborSampler(data, [2]))
    assert sampler.proximity(None).tolist() == searched(data)


def test_searches_cross_node_types() -> None:
    """Papers 0 and 2 have an author in common, 1 and 3 another one."""
    data = HeteroData(paper={"num_nodes": 4}, author={"num_nodes": 2})
    wrote = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]])
    data["author", "wrote", "paper"].edge_index = wrote
    data["paper", "rev_wrote", "author"].edge_index = wrote.flip(0)
    sampler = keyed(NeighborSampler(data, [2]))
    assert [len(sampler.proximity(kind)) for kind in data.node_types] == [4, 2]
    rank = sampler.proximity("paper")
    assert (rank[[0, 2]].max() < rank[[1, 3]].min()) or (rank[[1, 3]].max() < rank[[0, 2]].min())
    loader = NeighborLoader(data, [2], "paper", order="proximity", batch_size=2)
    assert torch.cat([b["paper"].input_id for b in loader]).sort().values.tolist() == [0, 1, 2, 3]
    links = LinkNeighborLoader(
        data, [2], ("author", "wrote", "paper"), order="proximity", batch_size=4
    )
    place = rank[wrote[1]].argsort().argsort()  # of the papers, which links lead to
    assert torch.equal(links.sampler.cluster, place)


def test_links_go_by_their_destinations() -> None:
    data = ring()
    loader = LinkNeighborLoader(data, [2], order="proximity", batch_size=200, seed=0)
    order = torch.cat([batch.input_id for batch in loader])
    assert torch.equal(order.sort().values, torch.arange(data.num_edges))
    place = data.place[data.edge_index[1]]
    near = torch.cat([distance(place[part]) for part in parts_of(order)])
    assert float((near < 2 * CHUNK).float().mean()) > 0.4


def test_the_order_follows_the_seed_and_torchs_generator() -> None:
    def epoch(**arguments: Any) -> list[int]:
        loader = NeighborLoader(ring(), [2], order="proximity", batch_size=100, **arguments)
        return order_of(loader).tolist()

    assert epoch(seed=3) == epoch(seed=3) != epoch(seed=4)
    torch.manual_seed(1)
    first = epoch()
    torch.manual_seed(1)
    assert epoch() == first != epoch()
    own = [torch.Generator().manual_seed(5) for _ in range(2)]
    assert epoch(generator=own[0]) == epoch(generator=own[1])
    own = [torch.Generator().manual_seed(5) for _ in range(2)]
    assert epoch(generator=own[0], seed=3) == epoch(generator=own[1], seed=4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"order": "near"}, "order must be 'proximity', a tensor of clusters"),
        ({"order": np.zeros(SEEDS, int)}, "is a partition, or None, got ndarray."),
        ({"order": [0] * SEEDS}, "is a partition, or None, got list."),
        ({"order": torch.rand(SEEDS)}, "order must hold one integer for each seed"),
        ({"order": torch.ones(SEEDS).bool()}, "order must hold one integer for each seed"),
        (
            {"order": torch.zeros(5).long()},
            f"one integer for each of {SEEDS} seeds",
        ),
        ({"order": "proximity", "shuffle": True}, "order= and shuffle= both say"),
        ({"order": "proximity", "sampler": [1, 2]}, "order= and sampler= both say"),
        ({"order": "proximity", "sampler": []}, "order= and sampler= both say"),
        ({"order": "proximity", "sampler": torch.arange(9)}, "order= and sampler= both say"),
        ({"order": "proximity", "batch_sampler": [[1, 2]]}, "order= and batch_sampler= both say"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_wrong_orders_of_seeds_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        NeighborLoader(ring(), [2], **arguments)


def test_a_sampler_of_pygs_knows_no_proximity() -> None:
    data = ring()
    theirs = PygLoader(data, [2]).node_sampler
    with pytest.raises(ValueError, match="order='proximity' needs pyg_direct's own"):
        NeighborLoader(data, [], neighbor_sampler=theirs, order="proximity")


def test_the_users_clusters_are_copied() -> None:
    cluster = torch.arange(SEEDS) // 100
    loader = NeighborLoader(ring(), [2], order=cluster, batch_size=500, seed=1)
    order = order_of(loader)
    cluster.zero_()
    again = NeighborLoader(ring(), [2], order=torch.arange(SEEDS) // 100, batch_size=500, seed=1)
    assert torch.equal(order, order_of(again))
    assert isinstance(loader.sampler, ClusterOrder)
    assert int(loader.sampler.cluster.max()) == (SEEDS - 1) // 100
