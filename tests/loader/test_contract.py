"""The contract catches every fault that is planted here, and finds none in our loaders."""

import copy
import functools

import pytest
import torch
from contract import RULES, Contract

from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.core.types import BatchKey


def ignoring(**fixed):
    """Return loaders that accept some arguments and do as if they had not been given."""

    class Node(NeighborLoader):
        def __init__(self, data, num_neighbors, **kwargs):
            super().__init__(data, num_neighbors, **{**kwargs, **fixed_for(kwargs)})

    class Link(LinkNeighborLoader):
        def __init__(self, data, num_neighbors, **kwargs):
            super().__init__(data, num_neighbors, **{**kwargs, **fixed_for(kwargs)})

    def fixed_for(kwargs):
        return {name: value for name, value in fixed.items() if name in kwargs}

    return Node, Link


def changing(change):
    """Return loaders whose finished batches are spoilt by `change`."""

    class Node(NeighborLoader):
        def filter_fn(self, out):
            return change(super().filter_fn(out))

    class Link(LinkNeighborLoader):
        def filter_fn(self, out):
            return change(super().filter_fn(out))

    return Node, Link


def spoil(**changes):
    def change(batch):
        for name, function in changes.items():
            if name in batch and batch[name] is not None:
                batch[name] = function(batch[name])
        return batch

    return changing(change)


def roll(tensor):
    return tensor.roll(1, 0)


def drop_last_edge(batch):
    for name in ("edge_index", "e_id", "edge_attr", "weight"):
        batch[name] = batch[name][..., :-1]
    return batch


def ungroup(batch):
    order = torch.arange(batch.num_edges).flip(0)
    batch.edge_index = batch.edge_index[:, order]
    batch.e_id, batch.edge_attr = batch.e_id[order], batch.edge_attr[order]
    return batch


def without_counts(batch):
    for name in ("num_sampled_nodes", "num_sampled_edges"):
        batch[name] = None
    return batch


def reverse_nodes(batch):
    last = batch.num_nodes - 1
    batch.n_id, batch.x, batch.y = batch.n_id.flip(0), batch.x.flip(0), batch.y.flip(0)
    batch.edge_index = last - batch.edge_index
    if "edge_label_index" in batch:
        batch.edge_label_index = last - batch.edge_label_index
    return batch


def same_key():
    """The same draws in every batch of every epoch."""

    class Node(NeighborLoader):
        def _sample(self, inputs, key):
            return super()._sample(inputs, BatchKey(1, 2))

    class Link(LinkNeighborLoader):
        def _sample(self, inputs, key):
            return super()._sample(inputs, BatchKey(1, 2))

    return Node, Link


def merged_duplicates():
    class Node(NeighborLoader):
        def _sample(self, inputs, key):
            inputs = copy.copy(inputs)
            inputs.node = inputs.node.unique()
            return super()._sample(inputs, key)

    return Node, LinkNeighborLoader


def wrong_fan_out():
    class Node(NeighborLoader):
        def __init__(self, data, num_neighbors, **kwargs):
            less = [k - 1 if k > 1 else k for k in num_neighbors]
            super().__init__(data, less, **kwargs)

    return Node, LinkNeighborLoader


def unweighted_negatives():
    class Link(LinkNeighborLoader):
        def __init__(self, data, num_neighbors, **kwargs):
            super().__init__(data, num_neighbors, **kwargs)
            if self.neg_sampling is not None:
                self.neg_sampling.dst_weight = None

    return NeighborLoader, Link


def late_links():
    """Every link at the end of all times."""

    class Link(LinkNeighborLoader):
        def _sample(self, inputs, key):
            if inputs.time is not None:
                inputs.time = torch.full_like(inputs.time, 10**9)
            return super()._sample(inputs, key)

    return NeighborLoader, Link


FAULTS = {
    "replace ignored": (ignoring(replace=False), "replacement"),
    "temporal_strategy ignored": (ignoring(temporal_strategy="uniform"), "latest"),
    "time_attr ignored": (ignoring(time_attr=None), "times"),
    "weights ignored": (ignoring(weight_attr=None), "weights"),
    "transform ignored": (ignoring(transform=None), "transforms"),
    "transform_sampler_output ignored": (ignoring(transform_sampler_output=None), "transforms"),
    "num_workers ignored": (ignoring(num_workers=0), "workers"),
    "sampler ignored": (ignoring(sampler=None), "order_of_the_seeds"),
    "shuffle ignored": (ignoring(shuffle=False), "order_of_the_seeds"),
    "drop_last ignored": (ignoring(drop_last=False), "last_batch"),
    "disjoint ignored": (ignoring(disjoint=False), "disjoint"),
    "subgraph_type ignored": (ignoring(subgraph_type="directional"), "induced"),
    "negatives ignored": (ignoring(neg_sampling=None), "negatives"),
    "triplets ignored": (ignoring(neg_sampling=None), "triplets"),
    "the ratio of negatives ignored": (ignoring(neg_sampling_ratio=0), "ratio_of_negatives"),
    "the weights of negatives ignored": (unweighted_negatives(), "weighted_negatives"),
    "is_sorted ignored": (ignoring(is_sorted=False), "sorted_edges"),
    "input_time ignored": (ignoring(input_time=None), "times_of_the_seeds"),
    "input_id ignored": (ignoring(input_id=None), "ids_of_the_seeds"),
    "neighbor_sampler ignored": (ignoring(neighbor_sampler=None), "a_sampler_of_ones_own"),
    "batch_sampler ignored": (ignoring(batch_sampler=None), "batches_of_ones_own"),
    "filter_per_worker ignored": (ignoring(filter_per_worker=True), "where_batches_are_finished"),
    "edge_label ignored": (ignoring(edge_label=None), "link_labels"),
    "edge_label_time ignored": (late_links(), "link_times"),
    "edge ids of another dtype": (spoil(e_id=lambda e: e.int()), "kinds_of_ids"),
    "node ids of another dtype": (spoil(n_id=lambda n: n.int()), "kinds_of_ids"),
    "negatives at the ends of links": (spoil(dst_pos_index=roll), "triplets"),
    "the same draws in every batch": (same_key(), "batches_draw_anew"),
    "the same draws in every epoch": (same_key(), "epochs_draw_anew"),
    "the same negatives in every batch": (same_key(), "negatives"),
    "a wrong fan-out": (wrong_fan_out(), "degrees_follow_the_fan_out"),
    "duplicated seeds merged": (merged_duplicates(), "seeds_first_in_order"),
    "labels of other nodes": (spoil(y=roll), "attributes_of_their_nodes_and_edges"),
    "features of other nodes": (spoil(x=roll), "attributes_of_their_nodes_and_edges"),
    "attributes of other edges": (spoil(edge_attr=roll), "attributes_of_their_nodes_and_edges"),
    "edge ids rolled": (spoil(e_id=roll), "edges_of_the_graph"),
    "edges flipped": (spoil(edge_index=lambda e: e.flip(0)), "edges_of_the_graph"),
    "the last edge dropped": (changing(drop_last_edge), "all_neighbours"),
    "edges not grouped by hop": (changing(ungroup), "edges_grouped_by_hop"),
    "hop counts missing": (changing(without_counts), "counts_by_hop"),
    "seeds not first": (changing(reverse_nodes), "seeds_first_in_order"),
    "input ids shifted": (spoil(input_id=lambda i: i + 1), "seeds_first_in_order"),
    "link ends swapped": (spoil(edge_label_index=lambda e: e.flip(0)), "link_ends"),
    "link labels flipped": (spoil(edge_label=lambda v: 1 - v), "negatives"),
}


@functools.cache
def broken_by(fault):
    return Contract(*FAULTS[fault][0]).broken_rules()


@pytest.mark.usefixtures("each_backend")
def test_our_loaders_keep_the_contract():
    assert Contract(NeighborLoader, LinkNeighborLoader).broken_rules() == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_caught(fault):
    assert FAULTS[fault][1] in broken_by(fault)


@pytest.mark.slow
def test_every_rule_catches_something_or_is_caught_elsewhere():
    """A rule that no planted fault breaks may be a rule that cannot be broken."""
    broken = {rule for fault in FAULTS for rule in broken_by(fault)}
    assert set(RULES) - broken == {"distinct_without_replacement"}
    # That one takes a sampler with replacement.
    always = type("Always", (NeighborLoader,), {"__init__": _always_replace})
    assert "distinct_without_replacement" in Contract(always, LinkNeighborLoader).broken_rules()


def _always_replace(self, data, num_neighbors, **kwargs):
    NeighborLoader.__init__(self, data, num_neighbors, **{**kwargs, "replace": True})
