"""`inference` of every model of the matrix, by blocks of few rows, against the whole graph."""

import copy
import dataclasses
import random

import pytest
import torch
from models import graph_inputs
from models_matrix import matrix
from torch_geometric.data import Data

from pyg_direct import inference
from pyg_direct.models.inference import blocks, executor

MODELS = matrix()
DEFAULT = [n for n in MODELS if not n.startswith("layer-")] + [
    "layer-GAT-attr", "layer-GCN", "layer-PNA", "layer-Cheb", "layer-EG", "layer-GPS",
]  # fmt: skip


def flat(value):
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return [entry for key in value for entry in flat(value[key])]
    if isinstance(value, (list, tuple)):
        return [entry for part in value for entry in flat(part)]
    return [value]


def assert_same(found, expected):
    assert type(found) is type(expected)
    for one, other in zip(flat(found), flat(expected), strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert type(one) is torch.Tensor
        exact = not other.is_floating_point() or other.numel() == 0
        atol = 0.0 if exact else 2e-5 * max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one, other.detach(), rtol=2e-5, atol=atol, check_stride=False)


def check(name, monkeypatch, block_bytes):
    monkeypatch.setattr(executor, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(blocks, "HUB_BYTES", 2 * block_bytes)
    make, extra = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make().eval(), graph_inputs(*(e for e in extra if e != "sorted"))
    if "sorted" in extra:
        by_column = inputs["edge_index"][1].argsort(stable=True)
        inputs["edge_index"] = inputs["edge_index"][:, by_column]
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    random.seed(1)
    with torch.no_grad():
        expected = other(**copy.deepcopy(inputs))
    torch.manual_seed(1)
    random.seed(1)
    given = {name: name if name != "edge_label_index" else inputs[name] for name in inputs}
    assert_same(inference(model, Data(**inputs), given), expected)
    for kept in ("losses", "counter", "kept"):
        if hasattr(other, kept):
            both = zip(flat(getattr(model, kept)), flat(getattr(other, kept)), strict=True)
            assert all(torch.allclose(a.clone(), b, rtol=1e-4, atol=1e-5) for a, b in both)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DEFAULT)
def test_inference_in_small_blocks_equals_the_forward(name, monkeypatch):
    check(name, monkeypatch, 3000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block_bytes", [1000, 3000, 8 << 20])
@pytest.mark.parametrize("name", MODELS)
def test_all_sizes_of_blocks(name, block_bytes, monkeypatch):
    check(name, monkeypatch, block_bytes)
