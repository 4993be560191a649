"""The contract of a loader, as checks that can be run over any class: which rules does it break?"""

import threading

import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from pyg_direct import NeighborSampler

NODES, EDGES, SEEDS = 120, 1500, 40


def graph():
    """Return a graph where every attribute tells which node or edge it belongs to."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES, (2, EDGES), generator=generator)
    return Data(
        x=torch.arange(NODES, dtype=torch.float32).view(-1, 1),
        y=torch.arange(NODES),
        edge_index=edge_index,
        edge_attr=torch.arange(EDGES),
        weight=(torch.arange(EDGES) % 3 == 0).double(),
        time=torch.randint(100, (NODES,), generator=generator),
    )


class Contract:
    """Every method is one rule; it returns whether the two loader classes keep it."""

    def __init__(self, node_loader, link_loader):
        self.node_loader, self.link_loader = node_loader, link_loader
        self.data = graph()
        self.degree = torch.bincount(self.data.edge_index[1], minlength=NODES)

    def epoch(self, fanouts=(5, 3), **arguments):
        arguments.setdefault("batch_size", 10)
        arguments.setdefault("input_nodes", torch.arange(SEEDS))
        return list(self.node_loader(self.data, list(fanouts), **arguments))

    def links(self, **arguments):
        return list(self.link_loader(self.data, [2], batch_size=50, **arguments))

    def edges_of_the_graph(self):
        return all(
            torch.equal(b.n_id[b.edge_index], self.data.edge_index[:, b.e_id]) for b in self.epoch()
        )

    def attributes_of_their_nodes_and_edges(self):
        return all(
            torch.equal(b.x.view(-1).long(), b.n_id)
            and torch.equal(b.y, b.n_id)
            and torch.equal(b.edge_attr, b.e_id)
            for b in self.epoch()
        )

    def seeds_first_in_order(self):
        seeds = torch.tensor([7, 3, 3, 99, 0])
        (batch,) = self.epoch(input_nodes=seeds, batch_size=5)
        return (
            batch.n_id[:5].tolist() == seeds.tolist()
            and batch.batch_size == 5
            and batch.input_id.tolist() == [0, 1, 2, 3, 4]
        )

    def counts_by_hop(self):
        for b in self.epoch():
            nodes, edges = b.get("num_sampled_nodes"), b.get("num_sampled_edges")
            if nodes is None or edges is None or len(nodes) != 3 or len(edges) != 2:
                return False
            if sum(nodes) != len(b.n_id) or sum(edges) != len(b.e_id) or nodes[0] != b.batch_size:
                return False
        return True

    def edges_grouped_by_hop(self):
        for b in self.epoch():
            col = b.edge_index[1]
            first = b.num_sampled_edges[0]
            if bool((col[:-1] > col[1:]).any()) or bool((col[:first] >= b.batch_size).any()):
                return False
            if bool((col[first:] < b.batch_size).any()):
                return False
        return True

    def degrees_follow_the_fan_out(self):
        (batch,) = self.epoch([5], batch_size=SEEDS)
        counts = torch.bincount(batch.edge_index[1], minlength=SEEDS)[:SEEDS]
        return torch.equal(counts, self.degree[:SEEDS].clamp(max=5))

    def all_neighbours(self):
        (batch,) = self.epoch([-1], batch_size=SEEDS)
        expected = (self.data.edge_index[1] < SEEDS).nonzero().view(-1)
        return sorted(batch.e_id.tolist()) == expected.tolist()

    def distinct_without_replacement(self):
        return all(len(b.e_id.unique()) == len(b.e_id) for b in self.epoch())

    def replacement(self):
        (batch,) = self.epoch([60], batch_size=SEEDS, replace=True)
        counts = torch.bincount(batch.edge_index[1], minlength=SEEDS)[:SEEDS]
        return torch.equal(counts, 60 * (self.degree[:SEEDS] > 0))

    def batches_draw_anew(self):
        batches = self.epoch([2], input_nodes=torch.zeros(8, dtype=torch.int64), batch_size=1)
        return len({tuple(b.e_id.tolist()) for b in batches}) > 2

    def epochs_draw_anew(self):
        loader = self.node_loader(self.data, [3], batch_size=SEEDS, input_nodes=torch.arange(SEEDS))
        return len({tuple(b.e_id.tolist()) for _ in range(3) for b in loader}) == 3

    def transforms(self):
        def mark(batch):
            batch.marked = True
            return batch

        def cut(out):
            out.num_sampled_nodes = [0]
            return out

        batches = self.epoch(transform=mark, transform_sampler_output=cut)
        return all("marked" in b and b.num_sampled_nodes == [0] for b in batches)

    def sorted_edges(self):
        """The promise holds for edges that keep it, and is refused for others."""
        unsorted = self.data
        order = unsorted.edge_index[1].argsort(stable=True)
        self.data = unsorted.clone()
        for name in ("edge_attr", "weight"):
            self.data[name] = unsorted[name][order]
        self.data.edge_index = unsorted.edge_index[:, order]
        try:
            plain, promised = self.epoch([-1]), self.epoch([-1], is_sorted=True)
        finally:
            self.data = unsorted
        same = all(torch.equal(a.e_id, b.e_id) for a, b in zip(plain, promised, strict=True))
        return same and self.refuses(is_sorted=True)

    def refuses(self, **arguments):
        try:
            self.epoch(**arguments)
        except ValueError:
            return True
        return False

    def kinds_of_ids(self):
        ids = ("n_id", "e_id", "input_id", "edge_index")
        return all(b[name].dtype == torch.int64 for b in self.epoch() for name in ids)

    def ids_of_the_seeds(self):
        mine = torch.arange(SEEDS) + 1000
        got = [i for b in self.epoch(input_id=mine) for i in b.input_id.tolist()]
        mask = torch.arange(NODES) % 7 == 3
        of_mask = [i for b in self.epoch(input_nodes=mask) for i in b.input_id.tolist()]
        return got == mine.tolist() and of_mask == mask.nonzero().view(-1).tolist()

    def a_sampler_of_ones_own(self):
        """PyG's argument; it decides how to sample."""
        sampler = NeighborSampler(self.data, [1], disjoint=True)
        return all(
            "batch" in b and len(b.num_sampled_edges) == 1
            for b in self.epoch([3, 3], neighbor_sampler=sampler)
        )

    def batches_of_ones_own(self):
        batches = list(self.node_loader(self.data, [2], batch_sampler=[[3, 1], [4]]))
        return [b.input_id.tolist() for b in batches] == [[3, 1], [4]]

    def where_batches_are_finished(self):
        threads = set()
        self.epoch(
            num_workers=1,
            filter_per_worker=False,
            transform=lambda b: threads.add(threading.get_ident()),
        )
        return threads == {threading.get_ident()}

    def order_of_the_seeds(self):
        plain = [i for b in self.epoch() for i in b.input_id.tolist()]
        shuffled = [i for b in self.epoch(shuffle=True) for i in b.input_id.tolist()]
        mine = [i for b in self.epoch(sampler=[5, 5, 2]) for i in b.input_id.tolist()]
        return (
            plain == list(range(SEEDS))
            and shuffled != plain
            and sorted(shuffled) == plain
            and mine == [5, 5, 2]
        )

    def last_batch(self):
        kept = [b.batch_size for b in self.epoch(batch_size=15)]
        return kept == [15, 15, 10] and len(self.epoch(batch_size=15, drop_last=True)) == 2

    def workers(self):
        """`num_workers` works ahead of the consumer, outside its thread."""
        threads = set()
        self.epoch(num_workers=2, transform=lambda b: threads.add(threading.get_ident()))
        return threading.get_ident() not in threads

    def disjoint(self):
        for b in self.epoch(disjoint=True):
            row, col = b.edge_index
            if "batch" not in b or not torch.equal(b.batch[row], b.batch[col]):
                return False
        return True

    def induced(self):
        (batch,) = self.epoch([2], batch_size=SEEDS, subgraph_type="induced")
        inside = torch.isin(self.data.edge_index, batch.n_id).all(0)
        return sorted(batch.e_id.tolist()) == inside.nonzero().view(-1).tolist()

    def weights(self):
        return all(bool((b.weight > 0).all()) for b in self.epoch([2, 2], weight_attr="weight"))

    def times(self):
        batches = self.epoch(time_attr="time")
        return all("batch" in b and bool((b.time <= b.time[b.batch]).all()) for b in batches)

    def times_of_the_seeds(self):
        given = torch.arange(SEEDS) * 2
        for b in self.epoch(time_attr="time", input_time=given):
            limit = given[b.input_id]
            reached = slice(b.batch_size, None)
            if not torch.equal(b.seed_time, limit):
                return False
            if bool((b.time[reached] > limit[b.batch[reached]]).any()):
                return False
        return True

    def latest(self):
        batches = self.epoch([1], time_attr="time", temporal_strategy="last", batch_size=1)
        for b in batches:
            sources = self.data.edge_index[0, self.data.edge_index[1] == b.n_id[0]]
            past = self.data.time[sources]
            past = past[past <= b.time[0]]
            if len(past) and int(b.time[b.edge_index[0, 0]]) != int(past.max()):
                return False
        return True

    def link_ends(self):
        return all(
            torch.equal(b.n_id[b.edge_label_index], self.data.edge_index[:, b.input_id])
            for b in self.links()
        )

    def negatives(self):
        batches = self.links(neg_sampling=NegativeSampling("binary", 1.0))
        drawn = [tuple(b.n_id[b.edge_label_index[0, 50:]].tolist()) for b in batches]
        labels = all(b.edge_label.tolist() == [1.0] * 50 + [0.0] * 50 for b in batches)
        return labels and len(set(drawn)) == len(drawn)

    def link_labels(self):
        label = torch.arange(EDGES) % 5
        return all(
            torch.equal(b.edge_label, label[b.input_id]) for b in self.links(edge_label=label)
        )

    def link_times(self):
        given = torch.arange(EDGES) % 60
        for b in self.links(time_attr="time", edge_label_time=given):
            limit = given[b.input_id]
            reached = slice(b.num_sampled_nodes[0], None)
            if bool((b.time[reached] > limit[b.batch[reached]]).any()):
                return False
        return True

    def triplets(self):
        for b in self.links(neg_sampling="triplet"):
            ends = self.data.edge_index[:, b.input_id]
            if not torch.equal(torch.stack([b.n_id[b.src_index], b.n_id[b.dst_pos_index]]), ends):
                return False
            if b.dst_neg_index.shape != b.input_id.shape:
                return False
        return True

    def weighted_negatives(self):
        weight = torch.zeros(NODES)
        weight[5] = 1.0
        config = NegativeSampling("triplet", 1, dst_weight=weight)
        return all(
            bool((b.n_id[b.dst_neg_index] == 5).all()) for b in self.links(neg_sampling=config)
        )

    def ratio_of_negatives(self):
        return all(b.edge_label.tolist() == [1.0] * 50 + [0.0] * 25
                   for b in self.links(neg_sampling_ratio=0.5))  # fmt: skip

    def broken_rules(self):
        """Return the names of the rules that are not kept; an exception breaks one, too."""
        broken = []
        for name in RULES:
            try:
                kept = getattr(self, name)()
            except Exception:
                kept = False
            if not kept:
                broken.append(name)
        return broken


RULES = [
    name
    for name in vars(Contract)
    if not name.startswith("_") and name not in ("epoch", "links", "refuses", "broken_rules")
]
