"""What `accelerate` takes and returns, and how its models live with the rest of torch."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch_geometric.loader
from batches import arguments, homogeneous_graph, loader_of, plain
from models import OUT, WIDTH
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCN, BatchNorm, GraphNorm, GraphSAGE, SAGEConv, SGConv

from pyg_direct import NeighborLoader, accelerate
from pyg_direct.loading.base import hand_out_hops
from pyg_direct.models.training.batch_sizes import without_counts

SEEDS = 7


def sage(**options) -> nn.Module:
    return GraphSAGE(WIDTH, 16, 3, OUT, **options).double()


@pytest.fixture
def loader() -> NeighborLoader:
    return loader_of(homogeneous_graph())


@pytest.fixture
def batch(loader):
    hand_out_hops(loader)
    return next(iter(loader))


def reference(model: nn.Module, batch) -> torch.Tensor:
    return model(**plain(arguments(batch)))[:SEEDS]


def test_the_result_shares_everything_with_the_model(loader) -> None:
    model = sage()
    fast = accelerate(model, loader)
    assert isinstance(fast, GraphSAGE)
    assert repr(fast) == repr(model)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters(), strict=True))
    fast.eval()
    assert not model.training
    model.train()
    assert fast.training
    fast.load_state_dict(sage().state_dict())
    fast.reset_parameters()


def test_plain_tensors_run_plain(loader, batch) -> None:
    model = sage()
    fast = accelerate(model, loader)
    data = homogeneous_graph()
    assert torch.equal(fast(data.x, data.edge_index), model(data.x, data.edge_index))
    inputs = plain(arguments(batch))
    assert torch.equal(fast(**inputs), model(**inputs))


def test_the_plain_model_takes_the_batches(loader, batch) -> None:
    model = sage()
    torch.testing.assert_close(model(batch.x, batch.edge_index)[:SEEDS], reference(model, batch))


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: accelerate(m, L[0])]
)
def test_copies_are_accelerated_too(again, loader, batch) -> None:
    L[:] = [loader]
    model = sage()
    found = again(accelerate(model, loader))
    torch.testing.assert_close(found(batch.x, batch.edge_index), reference(model, batch))
    assert found.acceleration.forms() == {"sums": "products"}


L: list[NeighborLoader] = []


def test_counts_for_trimming_are_not_needed(loader, batch) -> None:
    model = sage()
    fast = accelerate(model, loader)
    out = fast(
        batch.x, batch.edge_index, num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )  # fmt: skip
    torch.testing.assert_close(out, reference(model, batch))


def test_counts_that_a_model_asks_for_are_left_to_it() -> None:
    def forward(x, num_sampled_nodes, num_sampled_edges=None, num_sampled_x=(2,)):
        return x

    given = {"num_sampled_nodes": [1], "num_sampled_edges": [3], "num_sampled_x": [4], "y": 5}
    left = without_counts(forward, given)
    assert list(left) == ["num_sampled_nodes", "num_sampled_x", "y"]


def test_hooks_of_layers_see_all_rows(loader, batch) -> None:
    for cls in (GraphSAGE, GCN):
        model, seen = cls(WIDTH, 8, 2, OUT).double(), []
        model.convs[0].register_forward_hook(lambda *a, seen=seen: seen.append(a[2].detach()))
        accelerate(model, loader)(batch.x, batch.edge_index)
        ours = seen[-1].clone()
        model(**plain(arguments(batch)))
        torch.testing.assert_close(ours + 0.0, seen[-1], check_device=False)


def test_hooks_on_messages_get_messages(loader, batch) -> None:
    model, seen = sage(), []
    model.convs[0].register_message_forward_hook(lambda *a: seen.append(len(a[2])))
    fast = accelerate(model, loader)
    torch.testing.assert_close(fast(batch.x, batch.edge_index), reference(model, batch))
    assert seen[-1] == batch.num_edges


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = SAGEConv(WIDTH, 8), GraphNorm(8), SAGEConv(8, OUT)

    def forward(self, x, edge_index):
        return self.last(self.norm(self.conv(x, edge_index)), edge_index)


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(WIDTH, OUT)

    def forward(self, x, edge_index):
        return self.conv(x if x.sum() > 0 else -x, edge_index)


class TakesData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(WIDTH, OUT)

    def forward(self, data):
        return self.conv(data.x, data.edge_index)


def test_a_model_that_takes_a_whole_batch_runs_plain_with_a_warning(loader, batch) -> None:
    model = TakesData().double()
    fast = accelerate(model, loader)
    with pytest.warns(UserWarning, match=r"takes a whole Data; .* or accelerate the module"):
        out = fast(batch)
    assert torch.equal(out, model(batch))


def test_the_module_within_a_model_that_takes_a_whole_batch(loader, batch) -> None:
    """What the warning says: the module gets the edges, and what is around it gets its rows."""
    model = TakesData().double()
    expected = model(batch)[: batch.batch_size]
    model.conv = accelerate(model.conv, loader)
    torch.testing.assert_close(model(batch), expected)
    assert model.conv.acceleration.reason == ""


class SeveralHops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SGConv(WIDTH, 8, K=2), SAGEConv(8, OUT)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = SAGEConv(WIDTH, 8), BatchNorm(8), SAGEConv(8, OUT)
        self.norm.module.momentum = 1.0

    def forward(self, x, edge_index):
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


class NormedRows(Normed):
    def __init__(self, norm) -> None:
        super().__init__()
        self.norm = norm


@pytest.mark.parametrize(
    ("make", "all_rows"),
    [
        (Pooled, True),
        (Decides, True),
        (SeveralHops, False),
        (lambda: NormedRows(nn.LayerNorm(8)), False),
        (lambda: NormedRows(nn.RMSNorm(8)), False),
    ],
    ids=["pooled", "decides", "several hops", "layer norm", "rms norm"],
)
def test_layers_get_all_rows_only_where_they_need_them(make, all_rows, loader, batch) -> None:
    model = make().double()
    fast = accelerate(model, loader)
    torch.testing.assert_close(fast(batch.x, batch.edge_index), reference(model, batch))
    assert fast.acceleration.reason == ""
    assert all_rows or fast.acceleration.forms() == {"sums": "products"}


def test_batch_norm_sees_the_rows_of_the_plain_model(loader, batch) -> None:
    model = Normed().double()
    expected = reference(model, batch)
    statistics = model.norm.module.running_mean.clone()
    model.norm.module.reset_running_stats()
    fast = accelerate(model, loader)
    torch.testing.assert_close(fast(batch.x, batch.edge_index), expected)
    torch.testing.assert_close(model.norm.module.running_mean, statistics)


def test_batch_norm_over_fewer_rows_if_asked(loader, batch) -> None:
    model = Normed().double()
    accelerate(model, loader, batch_norm="needed")(batch.x, batch.edge_index).sum().backward()
    rows = model.first(batch.x, batch.edge_index.as_tensor())[: sum(batch.num_sampled_nodes[:2])]
    torch.testing.assert_close(model.norm.module.running_mean, rows.mean(0).detach())
    torch.testing.assert_close(model.norm.module.running_var, rows.var(0).detach())
    model.eval()
    out = accelerate(model, loader, batch_norm="needed")(batch.x, batch.edge_index)
    torch.testing.assert_close(out, reference(model, batch))


def test_modes_are_told_apart(loader, batch) -> None:
    model = sage(dropout=0.9)
    fast = accelerate(model, loader)
    torch.manual_seed(0)
    first, second = (fast(batch.x, batch.edge_index) for _ in range(2))
    assert not torch.equal(first, second)
    fast.eval()
    torch.testing.assert_close(fast(batch.x, batch.edge_index), reference(model, batch))


def test_dropout_has_the_same_law(loader, batch) -> None:
    torch.manual_seed(0)
    model = GraphSAGE(WIDTH, 400, 2, OUT, dropout=0.25, act=None).double()
    fast, rows = accelerate(model, loader), []
    model.convs[1].register_forward_pre_hook(
        lambda m, args, kwargs: rows.append([*args, *kwargs.values()][0]), with_kwargs=True
    )
    fast(batch.x, batch.edge_index)
    assert (rows[-1].detach()[0] == 0).double().mean().item() == pytest.approx(0.25, abs=0.03)


def test_training_takes_the_same_way() -> None:
    losses = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        loader = loader_of(homogeneous_graph(), shuffle=True)
        model = sage()
        model = accelerate(model, loader) if accelerated else model
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(3):
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("cls", [GraphSAGE, GCN])
def test_mixed_precision_gives_outputs_and_gradients_of_the_plain_model(cls, loader, batch) -> None:
    model = cls(WIDTH, 16, 2, OUT)
    fast, x = accelerate(model, loader), batch.x.float()
    found = []
    for run in (
        lambda: fast(x, batch.edge_index),
        lambda: model(x, batch.edge_index.as_tensor())[:SEEDS],
    ):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = run()
        out.float().square().mean().backward()
        found.append([out.detach().float(), *(p.grad for p in model.parameters())])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0.05, atol=0.05)
        assert ours.abs().sum() > 0


def test_gradient_checkpointing_gives_the_gradients_of_the_plain_model(loader, batch) -> None:
    model = sage()
    fast, x = accelerate(model, loader), batch.x.clone().requires_grad_()
    out = checkpoint(fast, x, batch.edge_index, use_reentrant=False)
    (found,) = torch.autograd.grad(out.sum(), x)
    (expected,) = torch.autograd.grad(reference_of(model, x, batch).sum(), x)
    torch.testing.assert_close(found, expected)


def reference_of(model, x, batch):
    return model(x, batch.edge_index.as_tensor())[:SEEDS]


PARALLEL = """
import os, sys
import torch
from batches import arguments, homogeneous_graph, loader_of, plain
from models import OUT, WIDTH
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE
from pyg_direct import accelerate

torch.distributed.init_process_group(
    "gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1
)
loader = loader_of(homogeneous_graph())
model = GraphSAGE(WIDTH, 16, 3, OUT).double()
parallel = DistributedDataParallel(accelerate(model, loader))
batch = next(iter(loader))
out = parallel(batch.x, batch.edge_index)
torch.testing.assert_close(out, model(**plain(arguments(batch)))[:len(out)])
out.sum().backward()
try:
    accelerate(parallel, loader)
except ValueError as error:
    print(error, flush=True)
os._exit(0)  # gloo's threads may hang when the process group is taken down
"""


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARALLEL, str(tmp_path)], timeout=120, check=True,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "Call accelerate first and wrap its result" in done.stdout


def test_models_are_compiled_after_acceleration_and_not_before(loader, batch) -> None:
    model = sage()
    with pytest.raises(ValueError, match="got it wrapped in OptimizedModule"):
        accelerate(torch.compile(model, backend="eager"), loader)
    compiled = torch.compile(accelerate(model, loader), backend="eager")
    torch.testing.assert_close(compiled(batch.x, batch.edge_index), reference(model, batch))
    expected, fast = reference(model, batch), accelerate(model, loader)
    fast.compile(backend="eager")
    torch.testing.assert_close(fast(batch.x, batch.edge_index), expected)


@pytest.mark.parametrize(("part", "named"), [("", "the model"), ("convs.0", "its part 'convs.0'")])
def test_models_that_are_compiled_in_place_are_refused(part, named, loader) -> None:
    model = sage()
    model.get_submodule(part).compile(backend="eager")
    with pytest.raises(ValueError, match=rf"\.compile\(\) was called on {named}\. Call accelerate"):
        accelerate(model, loader)


def test_wrong_arguments_of_accelerate_are_refused(loader) -> None:
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, got function"):
        accelerate(sage, loader)
    with pytest.raises(TypeError, match="needs at least one loader"):
        accelerate(sage())
    with pytest.raises(TypeError, match=r"got torch_geometric\."):
        accelerate(sage(), torch_geometric.loader.DataListLoader([homogeneous_graph()]))
    with pytest.raises(ValueError, match="must be 'all' or 'needed'"):
        accelerate(sage(), loader, batch_norm="some")


def test_models_on_unordered_edges_run_plain_with_a_warning() -> None:
    loader = NeighborLoader(homogeneous_graph(), [3, 2], batch_size=7, subgraph_type="induced")
    with pytest.warns(UserWarning, match="subgraph_type is 'induced'"):
        fast = accelerate(sage(), loader)
    batch = next(iter(loader))
    assert len(fast(batch.x, batch.edge_index)) == batch.num_nodes


def test_many_ways_of_calling(loader, batch) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(WIDTH, OUT)

        def forward(self, x, edge_index, factor):
            return self.conv(x * factor, edge_index)

    model = Scaled().double()
    fast = accelerate(model, loader)
    for factor in range(1, 12):
        expected = model(batch.x, batch.edge_index.as_tensor(), float(factor))[:SEEDS]
        torch.testing.assert_close(fast(batch.x, batch.edge_index, float(factor)), expected)


def test_arguments_by_name_and_wrong_ones(loader, batch) -> None:
    model = sage().eval()
    fast, x, edges = accelerate(model, loader), batch.x, batch.edge_index
    expected = reference(model, batch)
    torch.testing.assert_close(fast(edge_index=edges, x=x), expected)
    torch.testing.assert_close(fast(x, edge_index=edges, num_sampled_nodes_per_hop=None), expected)
    for args, options in (((x,), {"edges": edges}), ((x, edges), {"x": x}), ((), {"x": edges})):
        with pytest.raises(TypeError, match="argument"):
            fast(*args, **options)
