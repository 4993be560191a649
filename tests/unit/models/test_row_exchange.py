"""Rows of nodes that enter a step from elsewhere, and the way back of their gradients."""

import gc
import weakref
from functools import partial

import pytest
import torch
from batches import (
    arguments,
    heterogeneous_graph,
    homogeneous_graph,
    loader_of,
    outputs_and_gradients,
    plain,
)
from models import HETEROGENEOUS, HOMOGENEOUS
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GraphSAGE, MessagePassing

from pyg_direct import accelerate
from pyg_direct.models.lazy.batch_run import BatchRun
from pyg_direct.models.remote.gathers import Exchanges


def let_exchange(fast, exchange_of) -> None:
    """Give steps of an accelerated model the exchanges of gathered values, of which it gets none.

    An error of such a step is not answered by the plain model, which lacks the rows.
    """
    state = fast.acceleration
    state._exchanges = lambda sizes: partial(exchange_of, sizes)
    state._on_needed_rows = state._step


# The rows from `OWN` on are those of the first nodes, in place of their own.
OWN = 12


class Copies:
    """Row OWN + i is row i, for all rows behind OWN."""

    def __init__(self, gathered, seen=None) -> None:
        self.rows, self.seen = gathered.shape[0], seen

    def extent(self, count):
        read = min(self.rows, -(-count // 4) * 4)
        return read, min(read, OWN)

    def forward(self, computed, read):
        assert len(computed) == min(read, OWN)
        if self.seen is not None:
            self.seen.append(read)
        return computed[source_rows(read)]

    def backward(self, grad):
        found = grad.new_zeros(min(len(grad), OWN), *grad.shape[1:])
        return found.index_add_(0, source_rows(len(grad)), grad)


def source_rows(count):
    rows = torch.arange(count)
    return torch.where(rows < OWN, rows, rows % OWN)


def copying(*edges):
    """Return what PyG's layers are to gather by, in place of `_index_select`."""
    lists = [part for source, target in edges for part in (source, source[source != target])]

    def gather(self, src, index):
        for sources in lists:
            if torch.equal(index[: len(sources)], sources):
                src = src[source_rows(len(src))]
                break
        return src.index_select(self.node_dim, index)

    return gather


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
@pytest.mark.parametrize(
    "name",
    ["sage-mean", "sage-jk-cat", "gcn", "gin", "gat", "gat-attr", "gatv2", "pna", "edge-cnn"],
)
def test_rows_and_gradients_go_through_the_exchange(name, training, monkeypatch) -> None:
    make, extra = HOMOGENEOUS[name]
    model = make().double().train(training)
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0  # of dropout, which draws for fewer rows
    loader = loader_of(homogeneous_graph())
    fast = accelerate(model, loader, certify=False)
    seen = []

    def exchange_of(sizes, gathered):
        assert gathered.edge_type is None
        return Copies(gathered, seen) if len(gathered.shape) > 1 else None  # not degrees of nodes

    let_exchange(fast, exchange_of)
    batch = next(iter(loader))
    inputs, size = arguments(batch, extra), batch.batch_size
    ours = outputs_and_gradients(fast, inputs, size)
    assert seen
    monkeypatch.setattr(MessagePassing, "_index_select", copying(batch.edge_index.as_tensor()))
    theirs = outputs_and_gradients(model, plain(inputs), size)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_relations_share_the_exchange_of_a_node_type(monkeypatch) -> None:
    model = HETEROGENEOUS["hetero-conv"]().double()
    loader = loader_of(heterogeneous_graph(), hops=2)
    fast = accelerate(model, loader, certify=False)
    asked = []

    def exchange_of(sizes, gathered):
        asked.append((gathered.layer, gathered.edge_type[0]))
        return Copies(gathered)

    let_exchange(fast, exchange_of)
    batch = next(iter(loader))
    inputs, size = arguments(batch), {"paper": batch["paper"].batch_size}
    ours = outputs_and_gradients(fast, inputs, size)
    assert [t for _, t in asked] == 2 * ["paper", "author", "venue"]  # of 5 relations in 2 layers
    assert [layer for layer, t in asked if t == "paper"] == [0, 1]
    edges = [edge_index.as_tensor() for edge_index in batch.edge_index_dict.values()]
    monkeypatch.setattr(MessagePassing, "_index_select", copying(*edges))
    theirs = outputs_and_gradients(model, plain(inputs), size)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


class Checkpointed(nn.Module):
    """A model whose forward runs again in the backward, outside of the step's context."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = GraphSAGE(12, 16, 2, 4)

    def forward(self, x, edge_index):
        return checkpoint(self.inner, x, edge_index, use_reentrant=False)


class Embedding(nn.Module):
    """Gathers by a function that is not looked at."""

    def forward(self, x, edge_index):
        messages = nn.functional.embedding(edge_index[0], x)
        return torch.zeros_like(x).index_add(0, edge_index[1], messages)


@pytest.mark.parametrize("make", [Checkpointed, Embedding])
def test_gathers_beside_the_exchanges_are_refused(make) -> None:
    model = make().double()
    loader = loader_of(homogeneous_graph(), hops=2)
    fast = accelerate(model, loader, certify=False)
    let_exchange(fast, lambda sizes, gathered: Copies(gathered))
    batch = next(iter(loader))
    with pytest.raises(RuntimeError, match="by other means than"):
        outputs_and_gradients(fast, arguments(batch), batch.batch_size)


def test_a_relation_without_edges_is_gathered_by_an_empty_list_alone() -> None:
    exchanges = Exchanges.__new__(Exchanges)
    none, two = torch.empty(0, dtype=torch.int64), torch.tensor([3, 1])
    exchanges._sources = [("none", 5, none), ("two", 4, two)]
    assert exchanges._read(5, none) == (True, "none")
    assert exchanges._read(5, two[:1]) == exchanges._read(4, none) == (False, None)
    assert exchanges._read(4, torch.cat([two, torch.arange(4)])) == (True, "two")


def test_layers_are_counted_and_none_means_no_exchange() -> None:
    model = HOMOGENEOUS["gat"][0]().double().eval()
    loader = loader_of(homogeneous_graph())
    fast = accelerate(model, loader, certify=False)
    asked = []
    let_exchange(fast, lambda sizes, gathered: asked.append(gathered))
    batch = next(iter(loader))
    ours = outputs_and_gradients(fast, arguments(batch), batch.batch_size)
    theirs = outputs_and_gradients(model, plain(arguments(batch)), batch.batch_size)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    assert sorted({gathered.layer for gathered in asked}) == list(range(len(model.convs)))
    assert len(asked) == 2 * len(model.convs)  # rows, and their part of the scores


def test_a_step_is_freed_without_the_collector(monkeypatch) -> None:
    loader = loader_of(homogeneous_graph())
    fast = accelerate(HOMOGENEOUS["gat"][0]().double(), loader, certify=False)
    let_exchange(fast, lambda sizes, gathered: Copies(gathered))
    batch, made = next(iter(loader)), []

    class Run(BatchRun):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            made.append(weakref.ref(self))

    monkeypatch.setattr("pyg_direct.models.training.accelerate.BatchRun", Run)
    gc.collect()
    gc.disable()
    try:
        fast(batch.x, batch.edge_index).sum().backward()
        assert [run() for run in made] == [None]
    finally:
        gc.enable()
