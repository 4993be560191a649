"""Heterogeneous, temporal and weighted sampling: one test body over PyG's class and ours.

Ours runs on the CPU and on the emulated CUDA device. PyG can sample disjoint subgraphs, by time and
by weight, and count by hop, with pyg-lib only.
"""

# Annotations are not postponed here: torch 2.4's fx cannot write those of a model that
# `to_hetero` gets.

from typing import Any

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from graphs import example_graph
from hetero import SIZES, check_mapping
from hetero import graph as hetero_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv, HeteroConv, SAGEConv, to_hetero
from torch_geometric.sampler.base import NumNeighbors
from torch_geometric.utils import trim_to_layer
from versions import OUTPUTS_ARE_MERGED

import pyg_direct

KEYS = hetero_graph().edge_types
SEEDS = torch.tensor([3, 17, 0, 9, 12, 30])


def needs_pyg_lib(loader_class: type) -> None:
    """Skip PyG's own class where it cannot do what is tested."""
    ours = issubclass(loader_class, pyg_direct.NeighborLoader)
    if not ours and not torch_geometric.typing.WITH_PYG_LIB:
        pytest.skip("PyG's own sampler needs pyg-lib for this, which is not installed")


def one_batch(loader_class: type, data: Any, fanouts: Any, **arguments: Any) -> Any:
    arguments.setdefault("input_nodes", ("a", SEEDS) if isinstance(data, HeteroData) else SEEDS)
    (batch,) = loader_class(data, fanouts, batch_size=100, **arguments)
    return batch


# Fan-outs by edge type ############################################################################

FANOUTS = {
    "list": ([3, 2], dict.fromkeys(KEYS, (3, 2))),
    "negative and zero": ([-1, 0], dict.fromkeys(KEYS, (-1, 0))),
    "dict": (
        {KEYS[0]: [2, 1], KEYS[1]: [0, 4], KEYS[2]: [-1, 1], KEYS[3]: [1, -1]},
        {KEYS[0]: (2, 1), KEYS[1]: (0, 4), KEYS[2]: (-1, 1), KEYS[3]: (1, -1)},
    ),
    "NumNeighbors": (NumNeighbors([2, 2]), dict.fromkeys(KEYS, (2, 2))),
    "NumNeighbors with a default": (
        NumNeighbors({KEYS[1]: [4, 1]}, default=[1, 1]),
        dict.fromkeys(KEYS, (1, 1)) | {KEYS[1]: (4, 1)},
    ),
    "none": ([], dict.fromkeys(KEYS, ())),
}


@pytest.mark.pyg("num_neighbors", "replace", "sampler.num_neighbors")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("kind", FANOUTS)
def test_expanded_nodes_get_their_share_of_each_edge_type(
    loader_class: type, kind: str, replace: bool
) -> None:
    """Each node that is expanded gets its share of each edge type, and no other node gets any."""
    data, (given, meant) = hetero_graph(), FANOUTS[kind]
    batch = one_batch(loader_class, data, given, replace=replace)
    check_mapping(data, batch)
    known = {name: len(SEEDS) if name == "a" else 0 for name in SIZES}
    done, expected = dict.fromkeys(SIZES, 0), {key: [0] * batch[key[2]].num_nodes for key in KEYS}
    for hop in range(len(meant[KEYS[0]])):
        found = dict(known)
        for key in KEYS:
            degree = torch.bincount(data[key].edge_index[1], minlength=SIZES[key[2]])
            row, col = batch[key].edge_index
            for i in range(done[key[2]], known[key[2]]):
                k, d = meant[key][hop], int(degree[batch[key[2]].n_id[i]])
                size = d if k < 0 else k * (d > 0) if replace else min(k, d)
                expected[key][i] = size
                found[key[0]] = max(found[key[0]], *(row[col == i] + 1).tolist(), 0)
        done, known = known, found
    assert known == {name: batch[name].num_nodes for name in SIZES}
    for key in KEYS:
        counts = torch.bincount(batch[key].edge_index[1], minlength=batch[key[2]].num_nodes)
        assert counts.tolist() == expected[key]


@pytest.mark.pyg("num_neighbors", "sampler.num_neighbors")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({KEYS[0]: [2, 1]}, "Missing number of neighbors|Not all edge types"),
        ({key: [2] for key in KEYS} | {KEYS[0]: [2, 2]}, "hops must be the same|same across all"),
    ],
)
def test_bad_fan_outs(loader_class: type, given: Any, message: str) -> None:
    """PyG notices in the first batch, we when the loader is made."""
    with pytest.raises(ValueError, match=message):
        one_batch(loader_class, hetero_graph(), given)
    one_batch(loader_class, hetero_graph(), [1])


# Seeds and fields #################################################################################

MASK = torch.arange(40) % 9 == 4
INPUT_NODES = {
    "a type": ("a", torch.arange(40), torch.arange(40)),
    "ids": (("a", SEEDS), SEEDS, torch.arange(6)),
    "None": (("b", None), torch.arange(25), torch.arange(25)),
    "a range": (("a", range(4, 9)), torch.arange(4, 9), torch.arange(5)),
    "a mask": (("a", MASK), MASK.nonzero().view(-1), MASK.nonzero().view(-1)),
    "a type without edges": (("lonely", [2, 5]), torch.tensor([2, 5]), torch.arange(2)),
}


@pytest.mark.pyg("input_nodes", "batch.input_id", "batch.input_type", "sampler.hetero_output")
@pytest.mark.parametrize("kind", INPUT_NODES)
def test_seeds_of_every_form_give_all_nodes_and_positions_in_order(
    loader_class: type, kind: str
) -> None:
    given, nodes, ids = INPUT_NODES[kind]
    data, name = hetero_graph(), given if isinstance(given, str) else given[0]
    loader = loader_class(data, [2, 2], input_nodes=given, batch_size=4)
    assert loader.dataset == range(len(nodes))
    batches = list(loader)
    assert len(batches) == len(loader) == -(-len(nodes) // 4)
    store = [batch[name] for batch in batches]
    assert torch.equal(torch.cat([s.n_id[: s.batch_size] for s in store]), nodes)
    assert torch.equal(torch.cat([s.input_id for s in store]), ids)
    if OUTPUTS_ARE_MERGED:  # older releases of PyG do not say it either
        assert all(batch.input_type == name for batch in batches)


@pytest.mark.pyg(
    "data",
    "batch.batch_size",
    "batch.node_attributes",
    "batch.edge_attributes",
    "batch.num_nodes",
    "batch.by_reference",
)
def test_fields_of_every_type(loader_class: type) -> None:
    """Those of nodes and edges are selected, others passed on; untouched types are empty."""
    data = hetero_graph()
    data["a"].mask, data["a"].flat = torch.arange(40) % 2 == 0, torch.arange(40).half()
    data["b"].num_nodes = 25
    data["a"].tag, data["a"].centre, data.note = "text", torch.rand(5), ["anything"]
    data["a", "to", "a"].weight = torch.rand(data["a", "to", "a"].num_edges, 2)
    data["a", "to", "a"].scale = torch.tensor(2.0)
    batch = one_batch(loader_class, data, [3, 2])
    assert type(batch) is HeteroData
    assert (batch.node_types, batch.edge_types) == (data.node_types, data.edge_types)
    check_mapping(data, batch)
    for name in ("mask", "flat"):
        assert torch.equal(batch["a"][name], data["a"][name][batch["a"].n_id])
    store = batch["a", "to", "a"]
    assert torch.equal(store.weight, data["a", "to", "a"].weight[store.e_id])
    assert store.scale is data["a", "to", "a"].scale
    assert batch["a"].tag is data["a"].tag
    assert batch["a"].centre is data["a"].centre
    assert batch.note is data.note
    assert batch["b"].to_dict()["num_nodes"] == len(batch["b"].n_id) < 25
    assert batch["lonely"].x.shape == (0, 3)
    assert batch["lonely"].n_id.numel() == 0
    assert batch["a"].batch_size == len(batch["a"].input_id) == len(SEEDS)
    assert "batch_size" not in batch["b"]
    alone = one_batch(loader_class, data, [3, 2], input_nodes=("lonely", [1]))
    assert all(alone[key].edge_index.shape == (2, 0) for key in KEYS)
    assert all(alone[key].e_id.shape == (0,) for key in KEYS)


@pytest.mark.pyg("with.to_hetero")
@pytest.mark.parametrize("kind", ["to_hetero", "HeteroConv"])
def test_models_train_unchanged(loader_class: type, kind: str) -> None:
    data = hetero_graph(extra_types=[("a", "rev_likes", "b")])
    data["a"].y = (data["a"].x.sum(1) > 0).long()
    used = [key for key in data.edge_types if "lonely" not in key]

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 2)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    model: Any = HeteroConv({key: GraphConv((-1, -1), 2) for key in used})
    if kind == "to_hetero":
        model = to_hetero(Net(), (["a", "b"], used))
    losses, optimizer = [], None
    for _ in range(15):
        for batch in loader_class(data, [4, 4], input_nodes="a", batch_size=20):
            x = {name: batch[name].x for name in ("a", "b")}
            size = batch["a"].batch_size
            out = model(x, {key: batch.edge_index_dict[key] for key in used})["a"][:size]
            loss = torch.nn.functional.cross_entropy(out, batch["a"].y[:size])
            optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.02)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


@pytest.mark.pyg("with.trim_to_layer")
def test_trim_to_layer(loader_class: type) -> None:
    """A layer that is trimmed computes the same for the nodes that are left."""
    needs_pyg_lib(loader_class)
    batch = one_batch(loader_class, hetero_graph(), [3, 3, 2])
    conv = HeteroConv({key: SAGEConv(3, 3) for key in KEYS})
    full = x = {name: batch[name].x for name in ("a", "b")}  # nothing leads to or from the third
    edges, counts = batch.edge_index_dict, batch.num_sampled_edges_dict
    nodes = {name: batch[name].num_sampled_nodes for name in x}
    assert all(len(n) == 4 and sum(n) == len(full[name]) for name, n in nodes.items())
    for layer in range(3):
        x, edges, _ = trim_to_layer(layer, nodes, counts, x, edges)
        assert all(len(x[name]) == sum(n[: 4 - layer]) for name, n in nodes.items())
        x = conv(x, edges)
        full = conv(full, batch.edge_index_dict)
    torch.testing.assert_close(x["a"][: len(SEEDS)], full["a"][: len(SEEDS)])


# Subgraphs ########################################################################################


@pytest.mark.pyg("subgraph_type", "disjoint", "batch.batch")
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("kind", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("hetero", [False, True])
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")
def test_subgraphs_of_each_kind_have_their_nodes_and_edges(
    loader_class: type, hetero: bool, kind: str, disjoint: bool
) -> None:
    if disjoint and not issubclass(loader_class, pyg_direct.NeighborLoader) and kind == "induced":
        pytest.skip("PyG refuses disjoint induced subgraphs")
    if disjoint:
        needs_pyg_lib(loader_class)
    data = hetero_graph() if hetero else example_graph()
    seeds = {} if hetero else {"input_nodes": torch.tensor([1, 7, 4, 0])}
    batch = one_batch(loader_class, data, [2, 2], subgraph_type=kind, disjoint=disjoint, **seeds)
    nodes = dict(batch.node_items()) if hetero else {None: batch}
    edges = dict(batch.edge_items()) if hetero else {(None, "to", None): batch}
    for name, store in nodes.items():
        assert ("batch" in store) == disjoint, name
        if not disjoint:
            assert len(store.n_id.unique()) == len(store.n_id)
    for key, store in edges.items():
        row, col = store.edge_index
        source, target = nodes[key[0]], nodes[key[2]]
        original = data[key].edge_index if hetero else data.edge_index
        if disjoint:
            assert torch.equal(source.batch[row], target.batch[col])
        ends = torch.stack([source.n_id[row], target.n_id[col]])
        if kind == "bidirectional":
            assert ("e_id" in store) != hetero
            assert col.tolist() == sorted(col.tolist())
            continue
        assert torch.equal(ends, original[:, store.e_id])
        if kind == "induced" and not disjoint:
            inside = torch.isin(original[0], source.n_id) & torch.isin(original[1], target.n_id)
            assert sorted(store.e_id.tolist()) == inside.nonzero().view(-1).tolist()


# Times and weights ################################################################################


def timed(hetero: bool, by_edge: bool) -> Any:
    """Return a graph whose times, or whose edges' times, are all different."""
    data = hetero_graph() if hetero else hetero_graph()["a", "to", "a"]
    if not hetero:
        data = Data(num_nodes=40, edge_index=data.edge_index, edge_attr=data.edge_attr)
    generator = torch.Generator().manual_seed(8)
    for store in data.edge_stores if by_edge else data.node_stores:
        number = store.num_edges if by_edge else store.num_nodes
        store.time = torch.randperm(number, generator=generator) * 3
    return data


@pytest.mark.pyg("temporal_strategy", "time_attr", "input_time", "batch.seed_time")
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize(
    ("by_edge", "given"),
    [(False, False), (False, True), (True, True)],
    ids=["the seeds' own", "input_time", "of edges"],
)
@pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])
def test_timed_neighbours_are_of_the_past_and_the_latest_where_asked_for(
    loader_class: type, hetero: bool, by_edge: bool, given: bool, strategy: str
) -> None:
    needs_pyg_lib(loader_class)
    data, fanouts = timed(hetero, by_edge), [3, 2]
    store = data["a"] if hetero else data
    limit = torch.tensor([10, 60, 50, 200, 100, 0]) * (3 if by_edge else 1)
    limit = limit if given else store.time[SEEDS]
    batch = one_batch(
        loader_class, data, fanouts, time_attr="time", temporal_strategy=strategy,
        input_time=limit if given else None,
    )  # fmt: skip
    seeds = batch["a"] if hetero else batch
    assert ("seed_time" in seeds) == given
    drawn = 0
    for key in data.edge_types if hetero else [None]:
        mine, all_edges = (batch[key], data[key]) if hetero else (batch, data)
        source, target = (batch[key[0]], batch[key[2]]) if hetero else (batch, batch)
        origin = data[key[0]] if hetero else data
        time = all_edges.time if by_edge else origin.time[all_edges.edge_index[0]]
        row, col = mine.edge_index
        assert torch.equal(source.batch[row], target.batch[col])
        assert bool((time[mine.e_id] <= limit[target.batch[col]]).all()), "from the future"
        drawn += len(row)
        for i, v in enumerate(SEEDS.tolist() if key is None or key[2] == "a" else []):
            past = time[(all_edges.edge_index[1] == v) & (time <= limit[i])].sort().values
            got = time[mine.e_id[col == i]].sort().values
            assert len(got) == min(fanouts[0], len(past))
            if strategy == "last":
                assert torch.equal(got, past[len(past) - len(got) :])
    assert drawn > 10


@pytest.mark.pyg("weight_attr")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])
def test_edges_of_weight_zero_are_never_drawn(
    loader_class: type, hetero: bool, replace: bool
) -> None:
    """Edges without weight are never drawn; one that has nearly all of it nearly always."""
    needs_pyg_lib(loader_class)
    data: Any = HeteroData() if hetero else Data()
    nodes, key = (data["a"], ("a", "to", "a")) if hetero else (data, None)
    edges = data[key] if hetero else data
    nodes.num_nodes = 40
    col = torch.arange(40).repeat_interleave(4)
    edges.edge_index = torch.stack([(col * 7 + torch.arange(160) % 4 + 1) % 40, col])
    edges.weight = torch.tensor([0.0, 1e-6, 1.0, 0.0]).repeat(40)
    batch = one_batch(loader_class, data, [1, 1], weight_attr="weight", replace=replace)
    store = batch[key] if hetero else batch
    assert set(store.e_id.remainder(4).tolist()) == {2}
    assert torch.equal(store.weight, edges.weight[store.e_id])


def shares(loader_class: type, weight: Tensor, replace: bool, batches: int = 400) -> Tensor:
    """Return how often each edge of one node is the one that is drawn."""
    data = Data(num_nodes=len(weight) + 1, weight=weight)
    data.edge_index = torch.stack([torch.arange(len(weight)), torch.full_like(weight, 4).long()])
    loader = loader_class(
        data, [1], input_nodes=torch.full((50,), 4), batch_size=1, weight_attr="weight",
        replace=replace, batch_sampler=None,
    )  # fmt: skip
    counts = torch.zeros(len(weight))
    for _ in range(batches // 50):
        for batch in loader:
            counts[batch.e_id] += 1
    return counts / batches


@pytest.mark.parametrize("replace", [False, True])
def test_a_draw_is_proportional_to_weight(loader_class: type, replace: bool) -> None:
    """Roughly; the exact law has tests of its own."""
    needs_pyg_lib(loader_class)
    weight = torch.tensor([1.0, 2.0, 5.0, 2.0])
    share = shares(loader_class, weight, replace)
    p = weight / weight.sum()
    assert bool(((share - p).abs() < 4.5 * (p * (1 - p) / 400).sqrt()).all())
