"""One configuration of each feature against what PyG's loaders promise, on both backends.

`test_matrix.py` draws whole ones.
"""

from pathlib import Path

import pytest
import torch

from pyg_direct import LinkNeighborLoader, NeighborLoader
from reference.config import RELATIONS, Config, store_of
from reference.contract import broken

NODES = {
    "no hops": Config(fanouts=()),
    "all neighbours": Config(fanouts=(-1, 0, -1)),
    "some neighbours": Config(edges=60, fanouts=(3, 2)),
    "replacement": Config(edges=60, fanouts=(4, 1), replace=True),
    "subgraphs apart": Config(edges=60, fanouts=(3, -1), disjoint=True),
    "induced edges": Config(edges=60, fanouts=(2, 2), induced=True),
    "induced edges apart": Config(edges=40, fanouts=(-1, 1), induced=True, disjoint=True),
    "weights": Config(edges=60, fanouts=(3, 2), weighted=True),
    "weights and replacement": Config(edges=60, fanouts=(3, 2), weighted=True, replace=True),
    "times of nodes": Config(edges=60, fanouts=(3, 2), times="node", own_times=True),
    "times of seeds": Config(edges=60, fanouts=(3, -1), times="node"),
    "times of edges": Config(edges=60, fanouts=(3, 2), times="edge", replace=True),
    "the latest": Config(edges=80, fanouts=(2, 1), times="edge", strategy="last"),
    "a window": Config(edges=80, fanouts=(3, -1), times="node", window=3, weighted=True),
    "the latest of a window": Config(
        edges=80, fanouts=(2, 2), times="edge", window=4, strategy="last", replace=True
    ),
    "windows of seeds": Config(edges=80, fanouts=(3, -1), times="edge", bounds="both"),
    "first times of seeds": Config(
        edges=80, fanouts=(2, 2), times="node", bounds="start", weighted=True, replace=True
    ),
    "last times of seeds": Config(
        edges=80, fanouts=(2, 2), times="node", bounds="end", window=5, strategy="last"
    ),
    "a window that counts from the seed": Config(
        edges=80, fanouts=(4, -1), times="node", bounds="end", window=3
    ),
    "induced edges of windows of seeds": Config(
        edges=80, fanouts=(3, 2), times="edge", bounds="both", induced=True
    ),
    "induced edges of a window": Config(
        edges=80, fanouts=(3, 2), times="edge", window=3, induced=True
    ),
    "backward": Config(edges=60, fanouts=(3, -1), backward=True, disjoint=True),
    "backward with times": Config(
        edges=80, fanouts=(2, 2), backward=True, times="node", strategy="last", weighted=True
    ),
    "backward with induced edges": Config(
        edges=60, fanouts=(2, 1), backward=True, induced=True, times="edge"
    ),
    "backward between types": Config(
        typed=True, edges=60, fanouts=(3, -1), backward=True, times="node", partial=True
    ),
    "types": Config(typed=True, edges=60, fanouts=(3, 2), by_type=True),
    "types and replacement": Config(typed=True, edges=60, fanouts=(0, -1), replace=True),
    "types apart": Config(typed=True, edges=40, fanouts=(2, -1), disjoint=True),
    "types and induced edges": Config(typed=True, edges=60, fanouts=(2, 1), induced=True),
    "types and times": Config(typed=True, edges=60, fanouts=(3, 2), times="node", partial=True),
    "types and weights": Config(typed=True, edges=60, fanouts=(3, 2), weighted=True, partial=True),
    "one row of a saved graph": Config(edges=40, width=1, saved="moved", batch_size=1),
}
LINKS = {
    "links": Config(links="plain", edges=60),
    "binary negatives": Config(links="binary", edges=60, amount=0.4),
    "binary negatives apart": Config(links="binary", edges=60, amount=1.5, disjoint=True),
    "triplets": Config(links="triplet", edges=60),
    "triplets apart": Config(links="triplet", edges=60, amount=3.0, disjoint=True),
    "times": Config(links="binary", edges=60, times="node", amount=1.0),
    "times of triplets": Config(links="triplet", edges=60, times="node", amount=2.0),
    "a window": Config(links="plain", edges=60, fanouts=(4, -1), times="edge", window=3),
    "windows of links": Config(
        links="binary", edges=80, fanouts=(4, 2), times="edge", bounds="both", amount=1.5
    ),
    "windows of links between types": Config(
        links="triplet", typed=True, across=True, edges=80, times="edge", bounds="both"
    ),
    "links left out": Config(links="binary", edges=60, fanouts=(3, -1), exclude="self"),
    "links and reverses left out": Config(
        links="triplet", edges=60, exclude="reverse", weighted=True
    ),
    "own link left out": Config(links="binary", edges=60, exclude="reverse", disjoint=True),
    "own link left out of its time": Config(
        links="plain", edges=60, exclude="self", times="edge", strategy="last", weighted=True
    ),
    "own link of triplets left out": Config(
        links="triplet", edges=60, fanouts=(-1, 2), exclude="self", disjoint=True
    ),
    "many parallel links left out": Config(
        links="plain", nodes=4, edges=300, fanouts=(3, -1), exclude="self", batch_size=20
    ),
    "own link left out of the latest": Config(
        links="plain", nodes=4, edges=200, times="edge", strategy="last", exclude="reverse"
    ),
    "times between types": Config(
        links="binary",
        typed=True,
        across=True,
        edges=60,
        times="edge",
        partial=True,
        weighted=True,
        replace=True,
    ),
    "between types": Config(links="binary", typed=True, across=True, edges=60, amount=1.3),
    "between types apart": Config(
        links="binary", typed=True, across=True, edges=60, amount=0.5, disjoint=True
    ),
    "triplets between types": Config(
        links="triplet", typed=True, across=True, edges=60, amount=2.0, disjoint=True
    ),
    "links and reverses between types left out": Config(
        links="plain", typed=True, across=True, edges=60, fanouts=(-1,), exclude="reverse"
    ),
}

pytestmark = pytest.mark.usefixtures("each_backend")


@pytest.mark.pyg(
    "batch.n_id", "batch.e_id", "batch.num_sampled", "batch.batch", "batch.seed_time", "disjoint",
    "subgraph_type", "temporal_strategy", "time_attr", "input_time", "weight_attr",
    "sample_direction",
)  # fmt: skip
@pytest.mark.parametrize("feature", NODES)
def test_batches_of_nodes_keep_what_is_promised(feature: str) -> None:
    assert broken(NODES[feature], NeighborLoader) == []


@pytest.mark.pyg(
    "neg_sampling", "batch.triplets", "edge_label", "batch.edge_label", "edge_label_time"
)
@pytest.mark.parametrize("feature", LINKS)
def test_batches_of_links_keep_what_is_promised(feature: str) -> None:
    assert broken(LINKS[feature], LinkNeighborLoader) == []


@pytest.mark.pyg("subgraph_type", "disjoint", "time_attr", "weight_attr", "sample_direction")
@pytest.mark.parametrize("feature", [name for name in NODES if not NODES[name].induced])
def test_bidirectional_subgraphs_hold_the_drawn_edges_both_ways(
    feature: str, tmp_path: Path
) -> None:
    """Each pair once; of a homogeneous graph with the id of an edge between its ends."""
    config = NODES[feature]
    data = config.graph(tmp_path)
    drawn, both = (config.loader(NeighborLoader, data) for _ in range(2))
    both.node_sampler.subgraph_type = "bidirectional"
    opposite = {None: None, **dict(zip(RELATIONS, (RELATIONS[0], *RELATIONS[:0:-1]), strict=True))}
    for one, other in zip(drawn, both, strict=True):
        for kind in config.kinds:
            mine, theirs = store_of(one, kind), store_of(other, kind)
            assert torch.equal(mine.n_id, theirs.n_id)
            assert not config.apart or torch.equal(mine.batch, theirs.batch)
        pairs = {key: store_of(one, key).edge_index.t().tolist() for key in config.relations}
        for key in config.relations:
            store = store_of(other, key)
            back = [pair[::-1] for pair in pairs[opposite[key]]]
            assert sorted(store.edge_index.t().tolist()) == sorted(
                map(list, {*map(tuple, pairs[key] + back)})
            )
            assert "num_sampled_edges" not in store
            assert ("e_id" in store) != config.typed
            if not config.typed:
                ends, edges = other.n_id[other.edge_index], data.edge_index[:, other.e_id]
                assert torch.equal(ends.sort(0).values, edges.long().sort(0).values)
