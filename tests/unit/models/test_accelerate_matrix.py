"""Every model of the matrix in training and in evaluation: accelerated as plain, or plain."""

import copy
import dataclasses
import random

import pytest
import torch
from batches import EXTRA, homogeneous_graph, loader_of
from models_matrix import matrix
from torch import nn
from torch.utils._pytree import tree_leaves

from pyg_direct import accelerate
from pyg_direct.loading.base import hand_out_hops

MODELS = matrix()
DEFAULT = [
    "layer-GAT-attr", "layer-GCN", "layer-GCN-cached", "layer-EG", "layer-AntiSymmetric",
    "norm-batch", "reduce-min", "reduce-mean0", "between-size", "between-reverse", "between-numpy",
    "between-straight", "between-no-grad", "between-autocast", "between-is-grad-enabled", "prefix",
    "between-in-place", "between-remember", "between-set-data", "between-seeded", "between-relu",
    "between-batch-norm", "counted", "named-tuple", "dataclass", "score", "twice", "own-messages",
]  # fmt: skip


@pytest.fixture(scope="module")
def batches():
    loader = loader_of(homogeneous_graph(torch.float32))
    hand_out_hops(loader)
    return loader, list(loader)[:3]


def arguments(batch, extra, plain):
    """Return fresh arguments, as a forward may write to them."""
    names = [name for name in extra if name in EXTRA]
    inputs = {name: batch[name].clone() for name in names}
    inputs["x"] = batch.x.clone().requires_grad_()
    inputs["edge_index"] = batch.edge_index.as_tensor().clone() if plain else batch.edge_index
    if "edge_label_index" in extra:
        inputs["edge_label_index"] = torch.arange(6).view(2, 3) % batch.num_nodes
    return inputs


def tensors_of(value):
    if dataclasses.is_dataclass(value):
        value = vars(value)
    return [v if isinstance(v, torch.Tensor) else torch.tensor(0) for v in tree_leaves(value)]


def step(model, inputs, count):
    """Return the outputs of a step, with the gradients of its parameters and of x; or its error."""
    torch.manual_seed(1)
    random.seed(1)
    model.zero_grad()
    try:
        outputs = tensors_of(model(**inputs))
        outputs = [t[:count] if t.dim() and len(t) == len(inputs["x"]) else t for t in outputs]
        wanted = [t for t in outputs if t.requires_grad]
        draw = torch.Generator().manual_seed(2)
        sum((t * torch.randn(t.shape, generator=draw)).sum() for t in wanted).backward()
    except Exception as error:
        return error
    leaves = [inputs["x"], *model.parameters()]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in leaves]
    return [t.detach() for t in outputs], grads, list(model.state_dict().values())


def assert_same(found, expected):
    if isinstance(expected, Exception):
        assert type(found) is type(expected)
        return
    assert not isinstance(found, Exception), found
    for one, other in zip(found, expected, strict=True):
        largest = max((float(t.abs().max()) for t in other if t.numel()), default=0.0)
        for ours, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * max(1e-3, largest))


def check(name, training, certify, batches):
    loader, some = batches
    make, extra = MODELS[name]
    torch.manual_seed(0)
    model = make().train(training)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    twin = copy.deepcopy(model)
    fast = accelerate(model, loader, certify=certify)
    for batch in some:
        count = batch.batch_size
        expected = step(twin, arguments(batch, extra, plain=True), count)
        assert_same(step(fast, arguments(batch, extra, plain=False), count), expected)
    for kept in ("losses", "kept", "count"):
        ours, theirs = (tensors_of(getattr(m, kept, None)) for m in (model, twin))
        assert [t.shape for t in ours] == [t.shape for t in theirs]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("certify", [True, False], ids=["compared", "alone"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("name", DEFAULT)
def test_a_sample_of_models_has_equal_outputs_and_gradients(name, training, certify, batches):
    check(name, training, certify, batches)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("certify", [True, False], ids=["compared", "alone"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in DEFAULT])
def test_all_models_have_equal_outputs_and_gradients(name, training, certify, batches):
    check(name, training, certify, batches)
