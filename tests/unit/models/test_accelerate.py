"""Accelerated models: outputs and gradients of the plain ones, on sampled batches."""

import pytest
import torch
from batches import (
    arguments,
    assert_same_training,
    heterogeneous_graph,
    homogeneous_graph,
    loader_of,
)
from graphs import citations
from models import HETEROGENEOUS, HOMOGENEOUS

import pyg_direct
from pyg_direct import accelerate

PRODUCTS = {
    "sage-mean", "sage-sum", "sage-norm", "gin", "one-conv", "gcn", "gcn-weight", "sequential",
    *(f"sage-jk-{jk}" for jk in ("last", "cat", "max", "lstm")),
}  # fmt: skip
# Batch norm, recurrent layers and weights of self-loops take all rows.
ALL_ROWS = {"sage-norm", "gin", "sage-jk-lstm", "gcn-weight"}


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous_models_have_equal_outputs_and_gradients(name, training) -> None:
    make, extra = HOMOGENEOUS[name]
    model = make().double().train(training)
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0  # of dropout, which draws for fewer rows
    if name == "residual" and training:
        pytest.skip("F.dropout with p=0.5 in its forward")
    loader = loader_of(homogeneous_graph())
    fast = accelerate(model, loader)
    for number, batch in enumerate(loader):
        if number < 3 or number == len(loader) - 1:
            assert_same_training(fast, model, arguments(batch, extra), batch.batch_size)
        if number == 2:
            forms = fast.acceleration.forms()
    assert fast.acceleration.reason == ""
    assert forms["sums"] == "products" or name not in PRODUCTS
    if name in PRODUCTS - ALL_ROWS:
        assert forms.keys() == {"sums"}, forms


@pytest.mark.parametrize("name", [n for n in HOMOGENEOUS if n not in ("residual", "sage-jk-lstm")])
def test_evaluation_in_inference_mode(name) -> None:
    """Autograd, which takes operations apart, is left out there."""
    make, extra = HOMOGENEOUS[name]
    model = make().double().eval()
    graph, found = homogeneous_graph(), []
    for mode in (torch.no_grad, torch.inference_mode):
        loader = loader_of(graph)
        fast = accelerate(model, loader)
        with mode():
            for batch in loader:
                given = arguments(batch, extra)
                out = fast(**given)
                torch.testing.assert_close(out, model(**given)[: len(out)])
        found.append(fast.acceleration.forms())
    assert found[0] == found[1]
    assert fast.acceleration.reason == ""


@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_heterogeneous_models_have_equal_outputs_and_gradients(name) -> None:
    model = HETEROGENEOUS[name]().double()
    loader = loader_of(heterogeneous_graph(), hops=2)
    fast = accelerate(model, loader)
    for batch in loader:
        assert_same_training(fast, model, arguments(batch), {"paper": batch["paper"].batch_size})
    assert fast.acceleration.reason == ""
    assert ("products" in fast.acceleration.forms().get("sums", "")) == (name != "hgt")


def test_acceleration_returns_the_record_of_an_accelerated_model() -> None:
    plain = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="Linear is not an accelerated model"):
        pyg_direct.acceleration(plain)
    loader = pyg_direct.NeighborLoader(citations(), [2])
    fast = pyg_direct.accelerate(plain, loader)
    assert pyg_direct.acceleration(fast) is fast.acceleration
    with pytest.raises(TypeError, match="not a wrapper"):
        pyg_direct.acceleration(torch.nn.Sequential(fast))
