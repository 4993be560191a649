"""Training that takes rows of layer 1 from a table of earlier steps."""

import copy
import pickle
import random
import time
from types import SimpleNamespace

import pytest
import torch
from batches import homogeneous_graph
from models import HOMOGENEOUS, OUT, WIDTH
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, PairNorm, SAGEConv
from torch_geometric.transforms import RemoveDuplicatedEdges

import pyg_direct
from pyg_direct import NeighborLoader, Reuse, accelerate
from pyg_direct.models.remote.reuse import ReusedValue, _RowTable
from pyg_direct.models.training import certificate

HIDDEN = 16  # some batches have as many edges, which look like columns
THREE_LAYERS = {"sage-jk-last", "sage-jk-cat", "sage-jk-max", "gcn"}
# Rows of these depend on what other rows of the batch have: degrees of their neighbours.
OF_THE_BATCH = {"gcn", "gcn-weight", "sequential"}
CUT = [
    "sage-mean", "sage-max", "sage-sum", "sage-jk-last", "sage-jk-cat", "sage-jk-max",
    "sage-several", "gcn", "gcn-weight", "gat", "gatv2-conv", "pna", "edge-cnn", "residual",
    "sequential",
]  # fmt: skip


class TwoLayers(nn.Module):
    def __init__(self, layer=SAGEConv, norm=None, before=None) -> None:
        super().__init__()
        self.first, self.second = layer(WIDTH, HIDDEN), layer(HIDDEN, OUT)
        self.norm, self.before = norm or nn.Identity(), before or nn.Identity()

    def forward(self, x, edge_index):
        x = self.norm(self.first(self.before(x), edge_index)).relu()
        return self.second(x, edge_index)


class Mean(TwoLayers):
    """Looks at all rows of the batch."""

    def forward(self, x, edge_index):
        x = self.first(x, edge_index)
        return self.second(x + x.mean(0), edge_index)


def made(name):
    torch.manual_seed(0)
    if name == "gatv2-conv":
        return TwoLayers(GATv2Conv).double(), ()
    make, extra = HOMOGENEOUS[name]
    model = make().double()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    return model, extra


def simple(dtype=torch.float64):
    """Return the graph without parallel edges."""
    return RemoveDuplicatedEdges("edge_attr")(homogeneous_graph(dtype))


def sage(**kwargs):
    torch.manual_seed(0)
    return TwoLayers(**kwargs).double()


def loader_of(fanouts=(2, -1), data=None, **options):
    options = {"batch_size": 20, "seed": 0, **options}
    return NeighborLoader(homogeneous_graph() if data is None else data, [*fanouts], **options)


def trained(model, loader, reuse, epochs=2, extra=(), rate=0.0, **options):
    """Return outputs and gradients of each step, and the accelerated model."""
    fast = accelerate(model, loader, reuse=reuse, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    outs, grads = [], []
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            out = fast(batch.x, batch.edge_index, **{k: batch[k] for k in extra})
            out = out[: batch.batch_size]
            (out * torch.arange(1.0, 1 + out.size(1)).double()).sum().backward()
            optimizer.step()
            outs.append(out.detach())
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    return outs, grads, fast


@pytest.mark.parametrize("name", CUT)
def test_rows_of_the_table_are_those_of_the_plain_model(name, monkeypatch) -> None:
    monkeypatch.setattr(functional, "dropout", lambda x, *args, **kwargs: x)
    model, extra = made(name)
    fanouts, options = [2, 2, -1][-3 if name in THREE_LAYERS else -2 :], {}
    if name in OF_THE_BATCH:  # the same batch again
        fanouts, options = [-1] * len(fanouts), {"input_nodes": torch.arange(9), "batch_size": 9}
    plain, expected, _ = trained(model, loader_of(fanouts, **options), None, extra=extra)
    found, _, fast = trained(model, loader_of(fanouts, **options), Reuse(), extra=extra)
    assert fast.acceleration.reused().share > 0.3
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)
    all_refreshed = Reuse(gradient="refresh", refresh=1.0)
    _, grads, fast = trained(model, loader_of(fanouts, **options), all_refreshed, extra=extra)
    assert fast.acceleration.reused().share == 0
    torch.testing.assert_close(grads, expected, rtol=1e-9, atol=1e-12)
    own_draws = Reuse(staleness=0)
    found, _, _ = trained(model, loader_of(fanouts, **options), own_draws, extra=extra)
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


def test_none_cuts_the_gradient_of_rows_that_could_be_reused() -> None:
    class Cut(TwoLayers):
        def forward(self, x, edge_index):
            x = self.first(x, edge_index).relu()
            seeds = batch.num_sampled_nodes[0]
            x = torch.cat([x[:seeds], x[seeds:].detach()])
            return self.second(x, edge_index)

    torch.manual_seed(0)
    plain = Cut().double()
    loader = loader_of((-1, -1), batch_size=60)
    batch = next(iter(loader))
    (plain(batch.x, batch.edge_index)[:60] * torch.arange(1.0, 1 + OUT).double()).sum().backward()
    _, (grads,), _ = trained(sage(), loader, Reuse(staleness=0), epochs=1, certify=False)
    torch.testing.assert_close(grads, [p.grad for p in plain.parameters()], rtol=1e-9, atol=1e-12)


def test_the_gradient_of_refresh_is_that_of_all_rows_on_average() -> None:
    options = {"input_nodes": torch.arange(9), "batch_size": 9}
    _, expected, _ = trained(sage(), loader_of([-1, -1], **options), None, epochs=1)
    reuse = Reuse(staleness=0, gradient="refresh", refresh=0.3)
    _, grads, _ = trained(sage(), loader_of([-1, -1], **options), reuse, epochs=300, certify=False)
    for place, value in enumerate(expected[0]):
        drawn = torch.stack([step[place] for step in grads])
        error = drawn.std(0) / len(drawn) ** 0.5
        assert bool(((drawn.mean(0) - value).abs() <= 5 * error + 1e-9).all())


@pytest.mark.parametrize("seed", range(4))
def test_batches_made_ahead_are_those_made_when_asked_for(seed) -> None:
    """Also with pauses at random, and iterations that are broken off."""
    draw, pauses = random.Random(seed), random.Random(seed + 100)

    def steps(**options):
        draw.seed(seed)
        model, loader = sage(), loader_of(shuffle=True, batch_size=5, **options)
        fast = accelerate(model, loader, reuse=Reuse(staleness=3, gradient="refresh", refresh=0.3))
        optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.05), []
        for _ in range(4):
            stop = draw.randint(2, 12)
            for number, batch in enumerate(loader):
                if number == stop:
                    break
                if options:
                    time.sleep(0.004 * pauses.random())
                optimizer.zero_grad()
                out = fast(batch.x, batch.edge_index)[: batch.batch_size]
                loss = functional.cross_entropy(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
        return losses, fast.acceleration.reused()

    def pause(batch):
        time.sleep(0.004 * pauses.random())
        return batch

    losses, reused = steps()
    assert reused.share > 0.1
    assert 1 <= reused.oldest_steps <= 3
    assert 0 < reused.mean_steps <= 3
    assert steps(num_workers=1, prefetch=3, transform=pause) == (losses, reused)
    assert steps(num_workers=1, prefetch=2, persistent_workers=True, transform=pause)[0] == losses


def test_a_row_that_is_too_old_is_noticed() -> None:
    model, loader = sage(), loader_of(batch_size=5)
    fast = accelerate(model, loader, reuse=Reuse(staleness=2))
    loader._reusing._rule = loader._reusing._rule._replace(staleness=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps():
        for batch in loader:
            step(fast, batch, [optimizer])

    with pytest.raises(RuntimeError, match="3 steps of the optimizer old"):
        steps()


def step(fast, batch, optimizers=(), times=1) -> None:
    fast(batch.x, batch.edge_index)[: batch.batch_size].sum().backward()
    for optimizer in times * [*optimizers]:
        optimizer.step()


def test_a_table_has_the_dtype_of_what_is_computed() -> None:
    batch = SimpleNamespace(
        fresh=torch.tensor([0]), fresh_slots=torch.tensor([1]), batch=1, end=2, read=3
    )
    tables = SimpleNamespace(steps=SimpleNamespace(count=0))
    table = _RowTable(2)
    for rows in (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64) / 3):
        ReusedValue(tables, table, batch, False).forward(rows, 2)
        assert table.rows is not None
        assert torch.equal(table.rows[1], rows[0])


@pytest.mark.parametrize(
    ("count", "of_edges", "extent"),
    [(2, False, (2, 2)), (3, False, (3, 2)), (3, True, (3, 3)), (4, False, (4, 4))],
)
def test_rows_of_edges_and_of_nodes_without_edges_are_computed_up_to_the_last(
    count, of_edges, extent
) -> None:
    batch = SimpleNamespace(end=2, read=3)
    assert ReusedValue(None, None, batch, of_edges).extent(count) == extent


def test_ages_count_steps_of_the_optimizer() -> None:
    def oldest(steps, times=1, optimizers=1, skip=False):
        model, loader = sage(), loader_of(batch_size=5)
        fast = accelerate(model, loader, reuse=Reuse(staleness=4))
        parts = [model.first, model.second] if optimizers == 2 else [model]
        made = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
        other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for number, batch in enumerate(loader):
            step(fast, batch, made if number % steps == 0 and not skip else (), times)
            other.step()
            if skip:  # a gradient that is not finite
                scaler.scale(fast.first.lin_l.weight.sum() * float("inf")).backward()
                scaler.step(made[0])
                scaler.update()
        return fast.acceleration.reused().oldest_steps

    assert oldest(1) == 4
    assert oldest(1, optimizers=2) == 4
    assert oldest(2) == 2  # of accumulated gradients
    assert oldest(1, skip=True) == 0
    with pytest.raises(RuntimeError, match="there were several steps a batch"):
        oldest(1, times=2)


def test_an_evaluation_never_reuses() -> None:
    data = homogeneous_graph()
    model, loader = sage(), loader_of(data=data)
    fast = accelerate(model, loader, reuse=Reuse())
    batches = list(loader)
    step(fast, batches[0])
    with torch.no_grad(), pytest.raises(RuntimeError, match="that is evaluated"):
        fast(batches[1].x, batches[1].edge_index)
    fast.eval()
    with pytest.raises(RuntimeError, match="that is evaluated"):
        fast(batches[1].x, batches[1].edge_index)
    whole = fast(data.x, data.edge_index)
    torch.testing.assert_close(whole, model(data.x, data.edge_index))
    torch.testing.assert_close(pyg_direct.inference(fast, data), whole.detach())
    other = loader_of(data=data)
    evaluated = accelerate(model, other)
    for batch in other:  # of a loader of its own
        out = model(batch.x, torch.as_tensor(batch.edge_index))[: batch.batch_size]
        torch.testing.assert_close(evaluated(batch.x, batch.edge_index), out)


def test_steps_whose_rows_are_missing_fail() -> None:
    model, loader = sage(), loader_of(batch_size=5)
    fast = accelerate(model, loader, reuse=Reuse())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = list(loader)
    with pytest.raises(RuntimeError, match="are not in the table: the model was not trained on"):
        step(fast, batches[4])
    for batch in loader:  # goes by what is there
        step(fast, batch, [optimizer])
    for loading in (model, fast):
        ahead = list(loader)
        loading.load_state_dict(copy.deepcopy(loading.state_dict()))
        with pytest.raises(RuntimeError, match="has been given other weights"):
            step(fast, ahead[0])
        for batch in loader:
            step(fast, batch, [optimizer])
    ahead = list(loader)
    step(fast, ahead[0])
    with torch.no_grad():  # not a step of torch.optim
        model.first.lin_l.bias += 1
    with pytest.raises(RuntimeError, match="begin a new iteration"):
        step(fast, ahead[1])
    first, second = iter(loader), iter(loader)
    step(fast, next(second))
    with pytest.raises(RuntimeError, match="Another iteration of this loader was begun"):
        next(first)


def test_older_rows_do_not_stand_for_those_of_a_batch_that_was_left_out() -> None:
    model, loader = sage(), loader_of(batch_size=5)
    fast = accelerate(model, loader, reuse=Reuse(staleness=4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):  # every node has a row then
        for batch in loader:
            step(fast, batch, [optimizer])
    ahead = list(loader)
    step(fast, ahead[0], [optimizer])
    errors = []
    for batch in ahead[2:]:
        try:
            step(fast, batch, [optimizer])
        except RuntimeError as error:
            errors.append(str(error))
    assert "are not in the table: the model was not trained on" in errors[0]


def test_other_edges_are_refused_in_training() -> None:
    model, loader = sage(), loader_of()
    fast = accelerate(model, loader, reuse=Reuse())
    batch = next(iter(loader))
    with pytest.raises(RuntimeError, match="on edges as its loader gives them"):
        fast(batch.x, batch.edge_index.as_tensor())
    with pytest.raises(RuntimeError, match="on edges as its loader gives them"):
        fast(batch.x, batch.edge_index.flip(0))
    step(fast, batch)

    def changed(batch):
        batch.edge_index = batch.edge_index.flip(1)
        return batch

    loader = loader_of(transform=changed)
    accelerate(model, loader, reuse=Reuse())
    with pytest.raises(RuntimeError, match="transform= has changed the edges"):
        next(iter(loader))


def test_copies_have_no_table_and_no_loader() -> None:
    model, loader = sage(), loader_of()
    fast = accelerate(model, loader, reuse=Reuse())
    keys = list(fast.state_dict())
    batches = list(loader)
    step(fast, batches[0])
    assert list(fast.state_dict()) == keys
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert other.acceleration.reused() is None
        with pytest.raises(RuntimeError, match="Call accelerate again for this model"):
            step(other, batches[1])
    again = accelerate(model, loader, reuse=Reuse())
    with pytest.raises(RuntimeError, match="whose rows another model has"):
        step(again, batches[1])
    for batch in pickle.loads(pickle.dumps(loader)):
        assert batch.edge_index.hops is None or batch.edge_index.hops.reused is None
    accelerate(model, loader)  # and nothing is reused
    assert next(iter(loader)).edge_index.hops.reused is None


def test_compared_batches_compute_all_rows(monkeypatch) -> None:
    monkeypatch.setattr(certificate, "CALLS", (1, 4))
    model, loader = sage(), loader_of(batch_size=5)
    fast = accelerate(model, loader, reuse=Reuse(staleness=5))
    seen = []
    check = certificate.Certificate.check
    monkeypatch.setattr(
        certificate.Certificate, "check", lambda *args: seen.append(0) or check(*args)
    )
    kinds = []
    for batch in loader:
        step(fast, batch)
        reused = batch.edge_index.hops.reused
        kinds.append((reused.certified, reused.end < reused.read, len(seen)))
    assert [certified for certified, _, _ in kinds] == [number in (0, 3) for number in range(12)]
    assert [reused for _, reused, _ in kinds][:5] == [False, False, True, False, True]
    assert [compared for _, _, compared in kinds] == [1, 1, 1] + 9 * [2]


def test_a_model_that_differs_fails(monkeypatch) -> None:
    class Stores(TwoLayers):
        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index), edge_index) + bool(x.data_ptr())

    loader = loader_of()
    fast = accelerate(Stores().double(), loader, reuse=Reuse())
    with pytest.raises(RuntimeError, match="cannot run Stores"):
        step(fast, next(iter(loader)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: HOMOGENEOUS["relations"][0](),
        lambda: HOMOGENEOUS["sage-jk-lstm"][0](),
        lambda: TwoLayers(norm=PairNorm()),
        Mean,
        lambda: nn.ModuleList([TwoLayers(), TwoLayers()]),
    ],
    ids=["relations", "lstm", "pair-norm", "mean", "more-layers"],
)
def test_models_that_are_not_cut_are_refused(make) -> None:
    model = make().double()
    if isinstance(model, nn.ModuleList):
        model = nn.Sequential(*model)
        model.forward = lambda x, e: model[1](model[0](x, e) @ torch.ones(OUT, WIDTH).double(), e)
    loader = loader_of((2, 3))
    fast = accelerate(model, loader, reuse=Reuse(), certify=False)

    def steps():
        for batch in loader:
            extra = [batch.edge_type] if type(model).__name__ == "Relations" else []
            fast(batch.x, batch.edge_index, *extra).sum().backward()

    with pytest.raises(RuntimeError, match="needs a model that reads rows of layer 1 as"):
        steps()


def test_norms_over_the_batch_need_to_be_those_of_needed_rows() -> None:
    model, loader = sage(norm=nn.BatchNorm1d(HIDDEN)), loader_of()
    with pytest.raises(ValueError, match="'norm' has statistics over all of them"):
        accelerate(model, loader, reuse=Reuse())
    _, _, fast = trained(model, loader, Reuse(), batch_norm="needed", rate=0.01)
    assert fast.acceleration.reused().share > 0.3
    model = sage(norm=nn.LayerNorm(HIDDEN), before=nn.Linear(WIDTH, WIDTH))
    plain, _, _ = trained(model, loader_of(), None)
    found, _, _ = trained(model, loader_of(), Reuse())
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_workers": 2}, "num_workers above 1"),
        ({"fanouts": [3]}, "fan-outs of fewer than two hops"),
        ({"disjoint": True}, "disjoint=True"),
        ({"sampling": "adaptive", "fanouts": [3, 2]}, "sampling='adaptive'"),
        ({"sampling": "labor", "data": simple(), "batch_dependency": 4}, "batch_dependency"),
        ({"rank": 0, "world_size": 2}, "split_by_rank or world_size"),
        ({"subgraph_type": "induced"}, "subgraph_type is 'induced'"),
        ({"transform_sampler_output": lambda out: out}, "transform_sampler_output= may change"),
    ],
)
def test_loaders_that_cannot_are_refused_by_name(options, match) -> None:
    with pytest.raises(ValueError, match=match):
        accelerate(sage(), loader_of(**options), reuse=Reuse())


def test_other_wrong_arguments() -> None:
    model, loader = sage(), loader_of()
    links = pyg_direct.LinkNeighborLoader(homogeneous_graph(), [2, 2], batch_size=4)
    with pytest.raises(ValueError, match="a LinkNeighborLoader with"):
        accelerate(model, links, reuse=Reuse())
    with pytest.raises(ValueError, match="takes one loader, that of the training, got 2"):
        accelerate(model, loader, loader_of(), reuse=Reuse())
    with pytest.raises(TypeError, match=r"reuse must be a pyg_direct\.Reuse"):
        accelerate(model, loader, reuse=0.2)
    with pytest.raises(ValueError, match="parameters have their shapes"):
        accelerate(TwoLayers(lambda _, out: SAGEConv(-1, out)), loader, reuse=Reuse())
    with pytest.raises(ValueError, match="hot must hold one number for each of 60 nodes"):
        accelerate(model, loader, reuse=Reuse(share=0.5, hot=torch.ones(3)))
    for arguments, match in [
        ({"share": 0.0}, "share must be a number in"),
        ({"staleness": -1}, "staleness must be an int of 0 or more"),
        ({"gradient": "some"}, "gradient must be one of 'none', 'refresh'"),
        ({"refresh": 2.0}, "refresh must be a number in"),
        ({"hot": "warm"}, "hot must be one of 'visits', 'degree'"),
    ]:
        with pytest.raises(ValueError, match=match):
            Reuse(**arguments)


@pytest.mark.parametrize("hot", ["visits", "degree", torch.arange(60) // 30])
def test_a_share_of_the_nodes_has_rows(hot) -> None:
    model, loader = sage(), loader_of()
    plain, _, _ = trained(model, loader_of(), None)
    found, _, fast = trained(model, loader, Reuse(share=0.25, hot=hot))
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)
    (table,) = fast.acceleration.tables._tables.values()
    assert len(table.rows) == 15
    assert fast.acceleration.reused().reused_rows > 0
    if isinstance(hot, torch.Tensor):
        assert int(loader._reusing._slot.argmax()) == 44  # the first of those with equal numbers


@pytest.mark.parametrize("how", ["saved", "weights", "labor", "bfloat16", "memory", "replace"])
def test_reuse_works_with_other_options_of_loader_and_model(how, tmp_path) -> None:
    data, options = homogeneous_graph(torch.float32), {}
    if how == "saved":
        pyg_direct.save(data, tmp_path / "graph")
        data = pyg_direct.open(tmp_path / "graph")
    if how == "weights":
        options = {"weight_attr": "edge_weight"}
    if how == "labor":
        data, options = simple(torch.float32), {"sampling": "labor"}
    if how == "replace":
        options = {"replace": True}
    if how == "memory":
        pyg_direct.keep_memory()
    loader = loader_of((3, 4), data=data, shuffle=True, **options)
    model = TwoLayers()
    fast = accelerate(model, loader, reuse=Reuse(staleness=6))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        for batch in loader:
            assert torch.equal(batch.x, data.x[batch.n_id])
            edges = data.edge_index[:, batch.e_id]
            assert torch.equal(batch.n_id[batch.edge_index.as_tensor()], edges)
            with torch.autocast("cpu", torch.bfloat16, enabled=how == "bfloat16"):
                step(fast, batch, [optimizer])
    assert fast.acceleration.reused().share > 0.3
    assert fast.acceleration.reused().edges > 0


def test_resuming_begins_with_an_empty_table() -> None:
    def left(loader):
        return [batch.n_id[: batch.batch_size] for batch in loader]

    model, loader = sage(), loader_of(shuffle=True)
    fast = accelerate(model, loader, reuse=Reuse())
    batches = iter(loader)
    for _ in range(3):
        step(fast, next(batches))
    state, expected = loader.state_dict(), left(batches)
    model, loader = sage(), loader_of(shuffle=True)
    fast = accelerate(model, loader, reuse=Reuse())
    loader.load_state_dict(state)
    found = []
    for batch in loader:
        step(fast, batch)
        found.append(batch.n_id[: batch.batch_size])
    torch.testing.assert_close(found, expected)
    assert fast.acceleration.reused().batches == len(expected)


def test_gat_and_gcn_train_with_dropout() -> None:
    ages = set()
    for layer in (SAGEConv, GATConv, GCNConv):  # which gather one value, two, and degrees
        model, loader = TwoLayers(layer, norm=nn.Dropout(0.5)).double(), loader_of((3, 3))
        _, _, fast = trained(model, loader, Reuse(staleness=5), rate=0.01)
        reused = fast.acceleration.reused()
        assert reused.share > 0.2
        ages.add((reused.mean_steps, reused.oldest_steps))
    assert len(ages) == 1


class OnAllRows(TwoLayers):
    """Has an operation that runs on all rows, also on those of nodes without edges."""

    def forward(self, x, edge_index):
        self.steps = [*getattr(self, "steps", []), random.random()]
        x = torch.renorm(self.first(x, edge_index).relu(), 2, 0, 1e9)  # changes nothing
        return self.second(x, edge_index)


def test_row_wise_operations_on_all_rows_train_as_plain() -> None:
    for reuse in (Reuse(), Reuse(gradient="refresh", refresh=0.5), Reuse(staleness=0)):
        expected = trained(sage(), loader_of(), reuse, certify=False)
        torch.manual_seed(0)
        model = OnAllRows().double()
        random.seed(1)
        found = trained(model, loader_of(), reuse, certify=False)
        random.seed(1)  # steps that are taken again for these rows are taken once
        assert model.steps == [random.random() for _ in found[0]]
        torch.testing.assert_close(found[:2], expected[:2], rtol=1e-9, atol=1e-12)
        assert "renorm" in found[2].acceleration.forms()["all rows"]
        assert found[2].acceleration.reused() == expected[2].acceleration.reused()
