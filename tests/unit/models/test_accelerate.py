"""Accelerated models: outputs and gradients of the plain ones, on sampled batches."""

import pytest
from batches import (
    arguments,
    assert_same_training,
    heterogeneous_graph,
    homogeneous_graph,
    loader_of,
)
from models import HETEROGENEOUS, HOMOGENEOUS

from pyg_direct import accelerate

# How the layers have to run; a model that is not named here is trimmed.
FORMS = {
    **dict.fromkeys(
        ["sage-mean", "sage-max", "sage-sum", "sage-norm", "gin", "one-conv"], "product"
    ),
    **{f"sage-jk-{jk}": "product" for jk in ("last", "cat", "max", "lstm")},
    "gcn": "gcn",
    "gcn-weight": "gcn",
    "sequential": "gcn",
    **dict.fromkeys(["gat", "gat-attr", "gatv2", "relations", "sage-several"], "pair"),
}


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous_models(name, training) -> None:
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
    assert fast.acceleration.reason == ""
    forms = set(fast.acceleration.forms().values())
    if name in FORMS:
        assert forms == {FORMS[name]}
    else:
        assert forms <= {"product", "pair", "square"}


@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_heterogeneous_models(name) -> None:
    model = HETEROGENEOUS[name]().double()
    loader = loader_of(heterogeneous_graph(), hops=2)
    fast = accelerate(model, loader)
    for batch in loader:
        assert_same_training(fast, model, arguments(batch), {"paper": batch["paper"].batch_size})
    assert fast.acceleration.reason == ""
    forms = set(fast.acceleration.forms().values())
    assert forms == ({"square"} if name == "hgt" else {"product"})
