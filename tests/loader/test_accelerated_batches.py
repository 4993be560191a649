"""Accelerated models on the batches of all kinds of loaders, and on what users do to batches."""

import hypothesis.strategies as st
import pytest
import torch
from batches import (
    arguments,
    assert_same_training,
    heterogeneous_graph,
    homogeneous_graph,
    loader_of,
    outputs_and_gradients,
)
from graphs import edge_lists, load_real_graph
from hypothesis import given, settings
from models import NODE_WIDTHS, OUT, WIDTH, LinkPredictor, to_hetero_sage
from torch_geometric.data import Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    GATConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    SAGEConv,
    to_hetero,
)

import pyg_direct.loading.base as loading
from pyg_direct import LinkNeighborLoader, NeighborLoader, accelerate
from pyg_direct.batch import edges as edges_module
from pyg_direct.batch.edges import SampledEdges
from pyg_direct.models.lazy.lists import Lists
from pyg_direct.models.lazy.operations import Gather
from pyg_direct.models.lazy.sums import Scatter
from pyg_direct.models.training import costs
from pyg_direct.models.training.accelerate import Acceleration
from pyg_direct.ops.products import Adjacency


def sage(layers: int = 3, **options) -> torch.nn.Module:
    return GraphSAGE(WIDTH, 16, layers, OUT, **options).double()


def check(model, loader, names=(), batches: int = 3):
    fast = accelerate(model, loader)
    for number, batch in enumerate(loader):
        assert isinstance(batch.edge_index, SampledEdges)
        assert_same_training(fast, model, arguments(batch, names), batch.batch_size)
        if number + 1 == batches:
            break
    assert fast.acceleration.reason == ""
    return fast


KINDS = {
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "weighted": {"weight_attr": "edge_weight"},
    "all neighbours": {"num_neighbors": [-1, -1, -1]},
    "a hop of nothing": {"num_neighbors": [2, 0, 2]},
    "producers": {"num_workers": 2},
    "the consumer gathers": {"filter_per_worker": False},
    "seeds twice": {"input_nodes": torch.tensor([3, 5, 3, 3, 8, 5, 1, 1])},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cls", [GraphSAGE, GCN])
def test_kinds_of_sampling(kind, cls) -> None:
    options = {"num_neighbors": [3, 2, 2], "batch_size": 7, "seed": 0, **KINDS[kind]}
    data = homogeneous_graph()
    check(cls(WIDTH, 16, 3, OUT).double(), NeighborLoader(data, **options))


@pytest.mark.parametrize("hops", [1, 2, 4])
@pytest.mark.parametrize("cls", [GraphSAGE, GCN, GAT])
def test_more_layers_than_hops_and_fewer(cls, hops) -> None:
    check(cls(WIDTH, 16, 3, OUT).double(), loader_of(homogeneous_graph(), hops))


def counts_of_seeds(batch, seeds: str) -> dict[str, int]:
    """Return how many rows of each node type are seeds."""
    return {key: batch[key].batch_size if key == seeds else 0 for key in batch.node_types}


def test_a_model_of_to_hetero_is_accelerated_with_equal_gradients() -> None:
    model = to_hetero_sage().double()
    loader = loader_of(heterogeneous_graph(), hops=2)
    fast = accelerate(model, loader)
    for batch in loader:
        inputs = {"x": batch.x_dict, "edge_index": batch.edge_index_dict}
        assert_same_training(fast, model, inputs, counts_of_seeds(batch, "paper"))
        out = fast(**inputs)
        assert all(len(out[key]) == 0 for key in out if key != "paper")
    assert fast.acceleration.forms()["sums"] == "products"


class TwoLayers(torch.nn.Module):
    def __init__(self, aggr) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(8, 8, aggr=aggr), SAGEConv(8, 4, aggr=aggr)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class TwoHeteroConvs(torch.nn.Module):
    def __init__(self, edge_types, kind) -> None:
        super().__init__()
        if kind == "gat":
            layer = lambda: GATConv((8, 8), 8, add_self_loops=False)  # noqa: E731
        else:
            layer = lambda: SAGEConv((8, 8), 8)  # noqa: E731
        self.convs = torch.nn.ModuleList(
            HeteroConv({key: layer() for key in edge_types}, aggr="sum") for _ in range(2)
        )

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = {key: value.relu() for key, value in conv(x, edge_index).items()}
        return x


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["to_hetero mean", "to_hetero max", "sage", "gat"])
def test_models_on_a_real_heterogeneous_graph_have_equal_gradients(kind) -> None:
    """Outputs and gradients on batches of a real graph with three node types and six of edges."""
    data = load_real_graph("debian_hetero", None)
    generator = torch.Generator().manual_seed(0)
    for key in data.node_types:
        data[key].x = torch.randn(data[key].num_nodes, 8, generator=generator).double()
    if kind.startswith("to_hetero"):
        model = to_hetero(TwoLayers(kind.split()[1]), data.metadata())
    else:
        model = TwoHeteroConvs(data.edge_types, kind)
    model = model.double()
    loader = NeighborLoader(
        data, [4, 3], input_nodes=("package", torch.arange(0, 63_000, 1000)), batch_size=21, seed=0
    )
    fast = accelerate(model, loader)
    for batch in loader:
        inputs = {"x": batch.x_dict, "edge_index": batch.edge_index_dict}
        assert_same_training(fast, model, inputs, counts_of_seeds(batch, "package"))
    assert fast.acceleration.reason == ""


class TestSmallBatches:
    """They run through the plain model, with the results of accelerated ones."""

    @pytest.fixture(autouse=True)
    def sizes(self, monkeypatch):
        monkeypatch.setattr(costs, "COST_OF_BATCH", 1120)
        self.seen = []
        step = Acceleration._step

        def noted(*arguments):
            self.seen.append(None)
            return step(*arguments)

        monkeypatch.setattr(Acceleration, "_step", noted)

    @pytest.mark.parametrize("seeds", [1, 2, 30])
    def test_work_is_shared_on_homogeneous_batches_where_it_pays(self, seeds) -> None:
        model = sage(2)
        loader = NeighborLoader(homogeneous_graph(), [3, 2], batch_size=seeds, seed=0)
        fast = accelerate(model, loader)
        for number, batch in enumerate(loader):
            inputs = arguments(batch)
            assert len(fast(**inputs)) == batch.batch_size
            self.seen.clear()
            assert_same_training(fast, model, inputs, batch.batch_size)
            assert bool(self.seen) == (batch.num_edges * (WIDTH + 16) >= 1120)
            if number == 3:
                break

    def test_work_is_shared_on_heterogeneous_batches_where_it_pays(self) -> None:
        model = to_hetero_sage().double()
        loader = NeighborLoader(
            heterogeneous_graph(), [2, 1], input_nodes="paper", batch_size=2, seed=0
        )
        fast = accelerate(model, loader)
        for batch in loader:
            inputs = {"x": batch.x_dict, "edge_index": batch.edge_index_dict}
            assert_same_training(fast, model, inputs, counts_of_seeds(batch, "paper"))
            self.seen.clear()
            assert {key: len(x) for key, x in fast(**inputs).items()} == counts_of_seeds(
                batch, "paper"
            )
            saved = sum(
                edges.size(1) * (max(NODE_WIDTHS[source], NODE_WIDTHS[destination]) + 16)
                for (source, _, destination), edges in batch.edge_index_dict.items()
            )
            assert bool(self.seen) == (saved >= 1120)

    @pytest.mark.parametrize("rows", ["all", "needed"])
    def test_statistics_of_the_rows_that_are_needed_are_those_of_any_batch(self, rows) -> None:
        model = sage(2, norm="batch_norm").train()
        loader = NeighborLoader(homogeneous_graph(), [3, 2], batch_size=2, seed=0)
        fast = accelerate(model, loader, batch_norm=rows)
        batch = next(iter(loader))
        fast(**arguments(batch))
        self.seen.clear()
        fast(**arguments(batch))
        assert bool(self.seen) == (rows == "needed")


@pytest.mark.parametrize("negatives", [None, "binary"])
def test_link_prediction_is_accelerated_with_equal_gradients(negatives) -> None:
    torch.manual_seed(0)
    model = LinkPredictor().double()
    loader = LinkNeighborLoader(
        homogeneous_graph(), [3, 2], batch_size=9, neg_sampling=negatives, seed=0
    )
    fast = accelerate(model, loader)
    for number, batch in enumerate(loader):
        inputs = arguments(batch, ("edge_label_index",))
        assert_same_training(fast, model, inputs, None)
        if number == 3:
            break
    assert fast.acceleration.reason == ""


def test_a_head_that_reads_other_nodes_than_seeds_has_equal_gradients() -> None:
    model = LinkPredictor().double()
    loader = loader_of(homogeneous_graph(), hops=2)
    fast = accelerate(model, loader)
    for batch in loader:
        last = batch.num_nodes - 1
        pairs = torch.tensor([[0, last], [last, 1]])
        inputs = {**arguments(batch), "edge_label_index": pairs}
        assert_same_training(fast, model, inputs, None)


@pytest.mark.parametrize("hops", [2, 3])
@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@given(drawn=edge_lists(max_nodes=9, max_edges=40))
@settings(max_examples=8)
def test_gcn_with_self_loops_and_parallel_edges(weighted, improved, hops, drawn) -> None:
    edge_index, num_nodes = drawn
    data = Data(
        x=torch.randn(num_nodes, WIDTH, dtype=torch.float64), edge_index=edge_index,
        edge_weight=torch.rand(edge_index.size(1), dtype=torch.float64),
    )  # fmt: skip
    # Where edges repeat a self-loop, PyG keeps one of their weights: the last one, on the CPU.
    model = GCN(WIDTH, 8, 2, OUT, improved=improved).double()
    loader = NeighborLoader(data, [3, 2, 2][:hops], batch_size=4, seed=0)
    check(model, loader, ("edge_weight",) if weighted else ())


@st.composite
def models(draw: st.DrawFn) -> torch.nn.Module:
    """Draw a model of PyG's family, or of layers with skip connections."""
    layers, act_first = draw(st.integers(1, 4)), draw(st.booleans())
    if draw(st.booleans()):
        cls = draw(st.sampled_from([GraphSAGE, GCN, GIN, GAT]))
        jk = draw(st.sampled_from([None, "last", "cat", "max"]))
        norm = draw(st.sampled_from([None, "batch_norm", "layer_norm"]))
        if cls is GIN:
            norm = None
        if norm == "layer_norm":
            options = {"norm": norm, "norm_kwargs": {"mode": "node"}}
        else:
            options = {"norm": norm}
        out = cls(WIDTH, 8, layers, OUT, jk=jk, act_first=act_first, **options)
        return out.double().train(draw(st.booleans()))
    kinds = st.sampled_from(["sage", "conv", "root"])
    skips = st.sampled_from(["none", "last", "first"])
    steps = draw(st.lists(st.tuples(kinds, skips), min_size=1, max_size=4))
    return Drawn(steps).double()


class Drawn(torch.nn.Module):
    def __init__(self, steps) -> None:
        super().__init__()
        self.encoder, self.head = torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, OUT)
        make = {
            "sage": lambda: SAGEConv(8, 8, aggr="max", normalize=True),
            "conv": lambda: GraphConv(8, 8, aggr="mean"),
            "root": lambda: SAGEConv(8, 8, root_weight=False, project=True),
        }
        self.convs = torch.nn.ModuleList([make[kind]() for kind, _ in steps])
        self.skips = [skip for _, skip in steps]

    def forward(self, x, edge_index):
        x = first = self.encoder(x).tanh()
        for conv, skip in zip(self.convs, self.skips, strict=True):
            h = conv(x, edge_index).relu()
            x = h if skip == "none" else h + (x if skip == "last" else first)
        return self.head(x)


@given(model=models(), hops=st.integers(1, 3), seed=st.integers(0, 100))
@settings(max_examples=25)
def test_drawn_models(model, hops, seed) -> None:
    loader = loader_of(homogeneous_graph(), hops, seed=seed)
    check(model, loader, batches=1)


@pytest.mark.parametrize(
    ("name", "cls"), [("cora", GraphSAGE), ("debian", GCN), ("bitcoin_otc", GAT)]
)
def test_models_on_real_graphs_have_equal_outputs_and_gradients(name, cls, tmp_path) -> None:
    data = load_real_graph(name, tmp_path)
    x = torch.randn(data.num_nodes, 16, dtype=torch.float64)
    data = Data(x=x, edge_index=data.edge_index)
    model = cls(x.size(1), 16, 2, 4).double()
    check(model, NeighborLoader(data, [10, 5], batch_size=64, seed=0), batches=1)


def test_batches_of_the_gpu_backend(emulated_loaders) -> None:
    check(sage(), loader_of(homogeneous_graph()))
    assert emulated_loaders


def test_one_model_for_several_loaders() -> None:
    model, data = sage(), homogeneous_graph()
    first, second = loader_of(data, 2), loader_of(data, 3, batch_size=5)
    fast = accelerate(model, first, second)
    for loader in (first, second):
        batch = next(iter(loader))
        assert_same_training(fast, model, arguments(batch), batch.batch_size)
        assert len(fast(batch.x, batch.edge_index)) == batch.batch_size


def test_other_loaders_stay_as_they_are() -> None:
    data = homogeneous_graph()
    accelerate(sage(), loader_of(data))
    assert type(next(iter(loader_of(data))).edge_index) is torch.Tensor


def symmetric(batch: Data) -> Data:
    """Replace the edges by as many others."""
    batch.edge_index = batch.edge_index.flip(0)
    return batch


def rewired(batch: Data) -> Data:
    """Write to the edges; they stay sorted by destination."""
    batch.edge_index[0] = 0
    return batch


@pytest.mark.parametrize("transform", [symmetric, rewired])
def test_batches_with_changed_edges_have_equal_gradients(transform) -> None:
    model, loader = sage(), loader_of(homogeneous_graph(), transform=transform)
    fast, batch = accelerate(model, loader), next(iter(loader))
    assert type(batch.edge_index) is torch.Tensor
    assert_same_training(fast, model, arguments(batch), batch.batch_size)


def test_edges_written_to_in_the_training_loop() -> None:
    model, loader = sage(), loader_of(homogeneous_graph())
    fast, batch = accelerate(model, loader), next(iter(loader))
    batch.edge_index[0] = 0
    assert len(fast(batch.x, batch.edge_index)) == batch.num_nodes  # as the plain model
    assert_same_training(fast, model, arguments(batch), batch.batch_size)


def test_ids_written_to_unseen_cannot_read_elsewhere() -> None:
    model, loader = sage(), loader_of(homogeneous_graph())
    fast, batch = accelerate(model, loader), next(iter(loader))
    fast(batch.x, batch.edge_index)
    batch.edge_index.as_tensor().numpy()[0, 0] = 1 << 40  # torch counts no version of this
    with pytest.raises(IndexError):
        fast(batch.x, batch.edge_index)


def test_added_rows_are_computed_as_they_are() -> None:
    model, loader = sage(), loader_of(homogeneous_graph())
    fast, batch = accelerate(model, loader), next(iter(loader))
    x = torch.cat([batch.x, batch.x[:1]])
    assert len(fast(x, batch.edge_index)) == len(x)


def stale(batch, transform, reused):
    """`with_sampled_edges` without a look at what the transform did."""
    sampled = list(edges_module._sampled(batch))
    batch = transform(batch)
    for _, edge_index, _, hops in sampled:
        batch.edge_index = SampledEdges(edge_index, hops)
    return batch


def one_row_short(self, rows, original=Gather.compute):
    found = original(self, rows)
    return found if len(found) < 2 else torch.cat([found[:-1], torch.zeros_like(found[-1:])])


def one_row_short_matrix(self, *arguments, original=Lists.matrix):
    found = original(self, *arguments)
    indptr = found.indptr.clone()
    indptr[-1] = indptr[-2]
    return Adjacency(indptr, found.index, found.num_sources)


def not_transposed(self):
    edges = torch.stack([self.index, torch.repeat_interleave(self.indptr.diff())])
    size = max(self.num_sources, self.num_destinations)
    indptr = torch._convert_indices_from_coo_to_csr(edges[1], size)[: self.num_sources + 1]
    index = self.index.clamp(max=max(0, self.num_destinations - 1))
    return Adjacency(indptr, index, self.num_destinations), torch.arange(len(self.index))


@pytest.mark.parametrize("fault", ["none", "stale", "rows", "matrix", "transpose"])
def test_the_comparison_catches(monkeypatch, fault) -> None:
    transform = symmetric if fault == "stale" else None
    model, loader = sage(), loader_of(homogeneous_graph(), transform=transform)
    fast = accelerate(model, loader, certify=False)
    if fault == "stale":
        monkeypatch.setattr(loading, "with_sampled_edges", stale)
    batch = next(iter(loader))
    inputs = arguments(batch)
    plain_edges = batch.edge_index.as_tensor()
    if fault == "stale":
        plain_edges = plain_edges.flip(0)  # what the user made of them
    if fault == "rows":
        monkeypatch.setattr(Gather, "compute", one_row_short)
        monkeypatch.setattr(Scatter, "_found_product", lambda self: None)
    if fault == "matrix":
        monkeypatch.setattr(Lists, "matrix", one_row_short_matrix)
    if fault == "transpose":
        monkeypatch.setattr(Adjacency, "transpose", not_transposed)

    def compare() -> None:
        ours = outputs_and_gradients(fast, inputs, batch.batch_size)
        theirs = outputs_and_gradients(
            model, {**inputs, "edge_index": plain_edges}, batch.batch_size
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)

    if fault == "none":
        compare()
    else:
        # Warnings are errors here: a step that fails would run as it is, and say so.
        with pytest.raises((AssertionError, RuntimeError, UserWarning)):
            compare()
