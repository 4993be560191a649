"""Batches that ranks make together: the union over ranks is the batch of a single process."""

from __future__ import annotations

import contextlib
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import papers_and_authors, remote_stores
from rank_processes import run_ranks
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import pyg_direct
from pyg_direct import HGTLoader, LinkNeighborLoader, NeighborLoader
from pyg_direct.exchange import common_hops as common_batch

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")

SEEDS = 8  # of a rank in a step
NODES = 300


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = 8 * NODES
    pairs = torch.randperm(NODES**2, generator=generator)[:edges]
    return Data(
        x=torch.randn(NODES, 12, generator=generator),
        half=torch.randn(NODES, 3, 2, generator=generator).half(),
        y=torch.randint(3, (NODES,), generator=generator),
        edge_index=torch.stack([pairs // NODES, pairs % NODES]),
        edge_attr=torch.randn(edges, 2, generator=generator),
        weight=torch.rand(edges, generator=generator),
    )


DATA = graph()
torch.manual_seed(0)
TYPED = papers_and_authors()
TWICE = torch.cat([torch.arange(100), torch.arange(90, 130), torch.arange(3)])
CLUSTERS = (torch.arange(NODES) * 7 % 31) % 5


def cases(path: Path) -> dict[str, tuple[Any, list[int] | dict[Any, list[int]], dict[str, Any]]]:
    """Return data, fan-outs and arguments of loaders, by what they are about."""
    return {
        "hash": (DATA, [4, 3, 2], {"shuffle": True}),
        "ranges": (DATA, [4, 3], {"owners": torch.arange(NODES) // 76, "num_workers": 2}),
        "clusters": (DATA, [4, 3], {"owners": CLUSTERS, "order": CLUSTERS}),
        "one rank": (DATA, [3, 3], {"owners": torch.zeros(NODES).long(), "prefetch": 0}),
        "twice": (DATA, [3, 4, 2], {"input_nodes": TWICE, "shuffle": True}),
        "replace": (DATA, [4, 3], {"replace": True}),
        "weighted": (DATA, [4, 3, 2], {"weight_attr": "weight"}),
        "labor": (DATA, [4, 3], {"sampling": "labor"}),
        "dependent": (
            DATA, [4, 3], {"sampling": "labor", "batch_dependency": 64, "layer_dependency": True},
        ),
        "no fan-out": (DATA, [0, 3], {"drop_last": True, "tail": "drop"}),
        "typed": (TYPED, [3, 2, 2], {"input_nodes": "author", "shuffle": True}),
        "typed owners": (
            TYPED.sort(sort_by_row=False), {kind: [2, 3] for kind in TYPED.edge_types},
            {
                "input_nodes": ("paper", torch.arange(50)),
                "owners": {t: torch.arange(TYPED[t].num_nodes) % 3 for t in TYPED.node_types},
            },
        ),
        "opened": (pyg_direct.open(path), [4, 3], {"shuffle": True, "filter_per_worker": False}),
    }  # fmt: skip


def loader_of(data: Any, fanouts: Any, arguments: dict[str, Any], ranks: int = 0) -> Any:
    """Return a loader of one of some ranks or, with none, the one of all their seeds."""
    arguments = dict(arguments)
    owners = arguments.pop("owners", None)
    if ranks:
        split = {"split_by_rank": True, "cooperative": True}
        arguments |= split if owners is None else {**split, "owners": owners}
    return NeighborLoader(data, fanouts, batch_size=SEEDS, seed=5, timeout=120.0, **arguments)


def facts_of(batch: Any, source: Any) -> dict[str, Any]:
    """Return what a batch has, by type, and the record of its ranks; compare its attributes."""
    found: dict[str, Any] = {"cooperation": batch.cooperation, "nodes": {}, "edges": {}}
    for store, of_graph in zip(batch.node_stores, source.node_stores, strict=True):
        for name in ("x", "half", "y"):
            if name in of_graph:
                assert torch.equal(store[name], of_graph[name][store.n_id])
        assert "num_sampled_nodes" not in store
        found["nodes"][store._key] = store.n_id
        if "input_id" in store:
            found["input_id"], found["size"] = store.input_id, store.batch_size
    for store, of_graph in zip(batch.edge_stores, source.edge_stores, strict=True):
        edge_index = store.edge_index.as_tensor()
        assert bool((edge_index[1].diff() >= 0).all())
        if "edge_attr" in of_graph:
            assert torch.equal(store.edge_attr, of_graph.edge_attr[store.e_id])
        found["edges"][store._key] = (edge_index, store.e_id, store.num_sampled_edges)
    return found


def epoch(path: Path, world_size: int, names: list[str], folder: Path) -> list[dict[str, Any]]:
    def on_rank(rank: int) -> dict[str, Any]:
        made = cases(path)
        return {
            name: [facts_of(b, made[name][0]) for b in loader_of(*made[name], ranks=world_size)]
            for name in names
        }

    return run_ranks(world_size, on_rank, folder)


def single(path: Path, name: str, world_size: int) -> list[Any]:
    data, fanouts, arguments = cases(path)[name]
    arguments = {k: v for k, v in arguments.items() if k not in ("owners", "tail")}
    many = {**arguments, "batch_size": SEEDS * world_size, "seed": 5}
    return list(NeighborLoader(data, fanouts, **many))


def ends(counts: Any) -> list[int]:
    return np.cumsum([0, *counts]).tolist()


def check_union(whole: Any, parts: list[dict[str, Any]], in_order: bool) -> None:
    """Compare the batch of one process with what ranks have of it.

    Args:
        whole: the batch.
        parts: of each rank, from `facts_of`.
        in_order: whether the own nodes of all hops but the last are in the order of the whole.
    """
    types = [None] if isinstance(whole, Data) else whole.node_types
    stores = dict(zip(types, whole.node_stores, strict=True))
    position: list[dict[Any, torch.Tensor]] = [{} for _ in parts]
    for t, store in stores.items():
        told = [part["cooperation"].nodes[t] for part in parts]
        hops = ends(store.num_sampled_nodes)
        for h, (begin, end) in enumerate(pairwise(hops)):
            left = store.n_id[begin:end].tolist()
            for r, (part, nodes) in enumerate(zip(parts, told, strict=True)):
                first = nodes.num_seeds + sum(nodes.own_by_hop[:h])
                own = part["nodes"][t][first : first + nodes.own_by_hop[h]].tolist()
                places = []
                for node in own:
                    assert node in left
                    places.append(left.index(node))
                    left[places[-1]] = None  # of a seed that comes twice, the next place is next
                if in_order and h < len(hops) - 2:
                    assert places == sorted(places)
                found = torch.tensor([begin + place for place in places], dtype=torch.int64)
                before = position[r].get(t, torch.empty(0, dtype=torch.int64))
                position[r][t] = torch.cat([before, found])
            assert set(left) <= {None}  # each node is one rank's
    kinds = [None] if isinstance(whole, Data) else whole.edge_types
    for e, (kind, store) in enumerate(zip(kinds, whole.edge_stores, strict=True)):
        src, dst = (None, None) if kind is None else (kind[0], kind[2])
        rows = [
            rows_of_edges(part, place, src, dst, list(part["edges"].values())[e])
            for part, place in zip(parts, position, strict=True)
        ]
        first_place = first_places(stores[src].n_id)
        expected = torch.stack([
            store.e_id, stores[src].n_id[store.edge_index[0]], store.edge_index[1],
            store.edge_index[0],
        ])  # fmt: skip
        assert bool((first_place[expected[3]] == expected[3]).all())
        order = np.lexsort(expected[:3].numpy())
        together = torch.cat(rows, 1)
        assert torch.equal(together[:, np.lexsort(together.numpy())], expected[:3, order])
        counts = sum(np.array(list(part["edges"].values())[e][2]) for part in parts)
        assert counts.tolist() == list(store.num_sampled_edges)


def first_places(ids: torch.Tensor) -> torch.Tensor:
    known: dict[int, int] = {}
    return torch.tensor([known.setdefault(v, i) for i, v in enumerate(ids.tolist())])


def rows_of_edges(
    part: dict[str, Any], place: dict[Any, torch.Tensor], src: Any, dst: Any, edges: Any
) -> torch.Tensor:
    """Return edge, source id and place of the destination in the whole batch, [3, e]."""
    edge_index, e_id, _ = edges
    first = part["cooperation"].nodes[dst].num_seeds
    assert len(e_id) == 0 or int(edge_index[1].min()) >= first  # the loop's seeds have no edges
    return torch.stack([e_id, part["nodes"][src][edge_index[0]], place[dst][edge_index[1] - first]])


def check_record(parts: list[dict[str, Any]]) -> None:
    """Check that what ranks send is what others receive, and that the rows are the right ones."""
    records = [part["cooperation"] for part in parts]
    assert len({record.step for record in records}) == 1
    for rank, record in enumerate(records):
        assert (record.rank, record.size, record.group) == (rank, len(parts), None)
        for t, nodes in record.nodes.items():
            own = parts[rank]["nodes"][t][nodes.num_seeds :]
            others = own[sum(nodes.own_by_hop) :]
            assert len(others) == sum(nodes.others_by_hop)
            every = torch.cat([*nodes.receive.rows])
            assert torch.equal(every.sort().values, torch.arange(len(others)))
            assert np.sum(nodes.receive.by_hop, 0).tolist() == list(nodes.others_by_hop)
            for p, there in enumerate(records):
                sent = there.nodes[t].send
                assert list(sent.by_hop[rank]) == list(nodes.receive.by_hop[p])
                assert sum(sent.by_hop[rank]) == len(sent.rows[rank])
                base = parts[p]["nodes"][t][there.nodes[t].num_seeds :]
                assert torch.equal(base[sent.rows[rank]], others[nodes.receive.rows[p]])
                counts = torch.tensor(nodes.receive.by_hop[p])
                hop_ends = torch.tensor(ends(nodes.others_by_hop)[1:])
                hops = torch.searchsorted(hop_ends, nodes.receive.rows[p], right=True)
                assert torch.equal(hops, torch.arange(len(counts)).repeat_interleave(counts))
        seeds = record.nodes[record.input_type]
        mine = parts[rank]["nodes"][record.input_type][: seeds.num_seeds]
        received = torch.cat([*record.outputs.receive])
        assert torch.equal(received.sort().values, torch.arange(len(mine)))
        for p, there in enumerate(records):
            base = parts[p]["nodes"][record.input_type][there.nodes[record.input_type].num_seeds :]
            sent = there.outputs.send[rank]
            assert (sent < there.nodes[record.input_type].own_by_hop[0]).all()
            assert torch.equal(base[sent], mine[record.outputs.receive[p]])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph") / "saved"
    pyg_direct.save(DATA, folder, row_order="degree")
    return folder


@pytest.mark.parametrize(
    "world_size",
    [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4))],
)
def test_the_union_is_the_batch_of_one_process(world_size: int, path: Path, tmp_path: Path) -> None:
    names = list(cases(path))
    # First, so that kernels are compiled once, and not by each rank.
    alone = {name: single(path, name, world_size) for name in names}
    found = epoch(path, world_size, names, tmp_path)
    for name, expected in alone.items():
        steps = [of_rank[name] for of_rank in found]
        in_order = "labor" not in cases(path)[name][2].values()
        for k, parts in enumerate(zip(*steps, strict=True)):
            check_record(list(parts))
            whole = expected[k]
            seeds = torch.cat([part["input_id"] for part in parts])
            input_id = next(store.input_id for store in whole.node_stores if "input_id" in store)
            if len(seeds) > len(input_id):  # the last step has the first seeds again
                assert k == len(expected) - 1
                continue
            assert torch.equal(seeds, input_id)
            check_union(whole, list(parts), in_order)
        assert k >= 1, name


def numbered_rank_after_rank(self: Any, keys: Any, bases: Any, bits: Any) -> None:
    """Number what a hop found by an exclusive scan over the ranks, in place of the bits."""
    counts = np.array([len(own) for own in keys], np.int64)
    words = torch.from_numpy(counts).expand(self._channel.size, -1)
    every = self._channel.numbers(words).numpy()
    for t, own in enumerate(keys):
        before = sum(counts[t] for counts in every[: self._channel.rank])
        self._local[t] = self._known[t] + before + np.arange(len(own))
        self._frontier[t] = sum(counts[t] for counts in every)
        self._known[t] += self._frontier[t]


def test_nodes_numbered_rank_after_rank_give_other_batches(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common_batch._Batch, "_number", numbered_rank_after_rank)
    found = epoch(path, 2, ["hash"], tmp_path)
    whole = single(path, "hash", 2)
    differing = 0
    for k, parts in enumerate(zip(*(of_rank["hash"] for of_rank in found), strict=True)):
        with contextlib.suppress(AssertionError):
            check_union(whole[k], list(parts), in_order=False)
            continue
        differing += 1
    assert differing == len(whole)


def test_an_epoch_goes_on_from_a_state(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[list[Any]]:
        options: dict[str, Any] = {"input_nodes": TWICE, "shuffle": True}
        whole = loader_of(DATA, [4, 3], options, ranks=2)
        batches = [*[*whole][3:], *whole]  # of two epochs, the first from a step on
        expected = [batch.n_id for batch in batches]
        steps = [batch.cooperation.step for batch in batches]
        loader, ends = loader_of(DATA, [4, 3], {**options, "num_workers": 2}, ranks=2), []
        for _ in zip(range(3), loader, strict=False):
            state = loader.state_dict()
        for other in (loader, loader_of(DATA, [4, 3], options, ranks=2)):
            other.load_state_dict(state)
            left = [batch for _ in range(2) for batch in other]
            assert [batch.cooperation.step for batch in left] == steps
            ends.append([batch.n_id for batch in left])
        with pytest.raises(ValueError, match="cooperative=True on as many ranks as 2 \\(here None"):
            NeighborLoader(
                DATA, [4, 3], TWICE, batch_size=SEEDS, seed=5, shuffle=True, split_by_rank=True
            ).load_state_dict(state)
        alone = NeighborLoader(DATA, [4, 3], TWICE, batch_size=SEEDS, seed=5, shuffle=True)
        with pytest.raises(ValueError, match="as many ranks as None \\(here 2"):
            loader.load_state_dict(alone.state_dict())
        return [expected, *ends]

    for expected, *found in run_ranks(2, on_rank, tmp_path):
        for ids in found:
            assert len(ids) == len(expected)
            assert all(map(torch.equal, ids, expected))


def test_batches_can_be_copied_without_the_group(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[Any]:
        loader = loader_of(DATA, [4], {}, ranks=2)
        batch = next(iter(loader))
        assert batch.cooperation.group.size() == 2
        assert batch.to("cpu").cooperation is batch.cooperation
        assert f"Cooperation(rank={rank}, size=2, step=0)" in repr(batch)
        with pytest.raises(RuntimeError, match="once in each step of an epoch"):
            loader([1, 2])
        traffic = loader.stats().exchange
        assert traffic.loaded_rows < traffic.rows
        assert 0 < traffic.remote_requests < traffic.requests
        return [pickle.loads(pickle.dumps(batch)).cooperation.group, batch.cooperation.rank]

    assert run_ranks(2, on_rank, tmp_path) == [[None, 0], [None, 1]]


def test_a_plain_model_is_refused_in_place_of_computing_with_a_part(tmp_path: Path) -> None:
    def on_rank(rank: int) -> list[str]:
        batch, texts = next(iter(loader_of(DATA, [4, 3], {}, ranks=2))), []
        for layer in (SAGEConv(12, 3), GCNConv(12, 3), GATConv(12, 3)):
            with pytest.raises(RuntimeError) as caught:
                layer(batch.x, batch.edge_index)
            texts.append(str(caught.value))
        edges = pickle.loads(pickle.dumps(batch.clone().to("cpu").edge_index)).as_tensor()
        assert torch.equal(batch.n_id[edges], DATA.edge_index[:, batch.e_id])
        return texts

    for texts in run_ranks(2, on_rank, tmp_path):
        assert all("right numbers only as pyg_direct.accelerate(model" in text for text in texts)


class Marked(NeighborLoader):
    def collate_fn(self, index: Any) -> Any:
        batch = super().collate_fn(index)
        batch.marked = len(index)
        return batch


class Twice(NeighborLoader):
    def collate_fn(self, index: Any) -> Any:
        super().collate_fn(index)
        return super().collate_fn(index)


def test_orders_subclasses_and_settings(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "batch_size": SEEDS, "seed": 5, "split_by_rank": True, "cooperative": True, "timeout": 120,
    }  # fmt: skip

    def error_of(loader: Any) -> str:
        with pytest.raises(RuntimeError) as caught:
            list(loader)
        return str(caught.value)

    def on_rank(rank: int) -> list[str]:
        parts = NeighborLoader(
            DATA, [4, 3], owners=torch.arange(NODES) % 2, order="parts", tail="drop", **options
        )
        own = [len(batch.cooperation.outputs.receive[rank]) for batch in parts]
        assert own.count(SEEDS) >= len(own) - 3  # what is less than a batch of each comes last
        bare = Data(edge_index=DATA.edge_index, num_nodes=NODES)
        for data, fanouts in ((bare, [4]), (DATA, []), (DATA, [2000, 2])):
            with torch.inference_mode():
                assert len(list(NeighborLoader(data, fanouts, **options))) == 19
        loader = pickle.loads(pickle.dumps(Marked(DATA, [4], persistent_workers=True,
                                                  num_workers=1, **options)))  # fmt: skip
        for _ in range(2):
            steps = [(b.marked, b.cooperation.step) for b, _ in zip(loader, range(4), strict=False)]
            assert steps == [(SEEDS, step) for step in range(4)]
        texts = [error_of(Twice(DATA, [4], **options))]
        changed = NeighborLoader(DATA, [4], **options)
        next(iter(changed))
        if rank == 1:
            changed.node_sampler.num_neighbors = [3]
        return [*texts, error_of(changed)]

    for twice, changed in run_ranks(2, on_rank, tmp_path):
        assert "once in each step of an epoch" in twice
        assert "Rank 1 failed: ValueError: The arguments of sampling have changed" in changed


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"cooperative": 2}, TypeError, "cooperative must be True or False"),
        ({"split_by_rank": False}, ValueError, "cooperative=True needs the other ranks"),
        ({"share_rows": True}, ValueError, "Leave out share_rows=True"),
        ({"tail": "uneven"}, ValueError, "no rank can end before others"),
        ({"owners": CLUSTERS[:-1]}, ValueError, "one integer for each of 300 nodes"),
        ({"device": "cuda", "topology": "device"}, ValueError, "with cooperative=True: hops and"),
        ({"disjoint": True}, ValueError, "with disjoint=True: subgraphs of seeds share no nodes"),
        ({"time_attr": "y"}, ValueError, "with time_attr=: what a node may see depends on"),
        ({"subgraph_type": "induced"}, ValueError, "subgraph_type='induced': edges between"),
        ({"subgraph_type": "bidirectional"}, ValueError, "subgraph_type='bidirectional'"),
        ({"num_neighbors": [4, -1]}, ValueError, "with negative fan-outs: how many edges"),
        ({"sampling": "adaptive"}, ValueError, "sampling='adaptive': fan-outs depend on"),
        ({"transform_sampler_output": repr}, ValueError, "it would see a part of a batch"),
    ],
)
def test_options_that_common_batches_cannot_honour_are_refused(
    arguments: Any, error: Any, text: str
) -> None:
    options: dict[str, Any] = {
        "num_neighbors": [4], "split_by_rank": True, "cooperative": True, **arguments,
    }  # fmt: skip
    with pytest.raises(error, match=text):
        NeighborLoader(DATA, batch_size=SEEDS, seed=1, **options)


def test_other_loaders_and_data_are_refused(path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"split_by_rank": True, "cooperative": True}
    with pytest.raises(ValueError, match="cannot be used with LinkNeighborLoader: it is for Neigh"):
        LinkNeighborLoader(DATA, [4], DATA.edge_index[:, :9], **options)
    with pytest.raises(ValueError, match="cannot be used with HGTLoader"):
        HGTLoader(TYPED, [4], "paper", **options)
    with pytest.raises(ValueError, match="cannot be used with ClusterLoader"):
        pyg_direct.ClusterLoader(pyg_direct.ClusterData(DATA, 4), **options)
    with pytest.raises(ValueError, match="needs a Data or a HeteroData"):
        NeighborLoader(remote_stores(TYPED), [4], "paper", **options)
    pyg_direct.partition(DATA, tmp_path / "parts", 2, "hash")
    with pytest.raises(ValueError, match="cooperative=True cannot be used with a partitioned gr"):
        NeighborLoader(pyg_direct.open(tmp_path / "parts"), [4], **options)
    backward = pyg_direct.NeighborSampler(DATA, [4], sample_direction="backward")
    with pytest.raises(ValueError, match="sample_direction='backward': owners have the in-edges"):
        NeighborLoader(DATA, None, neighbor_sampler=backward, **options)
