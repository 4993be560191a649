"""Layer-wise inference on the emulated CUDA device: the numbers of the CPU."""

import copy

import pytest
import torch
from emulator import emulated
from models import (
    HETEROGENEOUS,
    HOMOGENEOUS,
    WIDTH,
    basic,
    graph_inputs,
    hetero_data,
    hetero_inputs,
)
from torch_geometric.data import Data
from torch_geometric.nn import GCN, SGConv

from pyg_direct import inference
from pyg_direct.models.inference import inference as module


@pytest.fixture
def device(monkeypatch):
    with emulated() as backend:
        monkeypatch.setattr(module, "backend_for", lambda device: backend)
        monkeypatch.setattr(module, "device_of", lambda model: backend.device)
        yield backend


@pytest.mark.parametrize("name", ["sage-mean", "gat-attr", "gin", "residual"])
def test_inference_of_homogeneous_models_on_a_gpu_equals_the_forward(name, device):
    make, extra = HOMOGENEOUS[name]
    model, inputs = make().eval(), graph_inputs(*extra)
    with torch.no_grad():
        expected = copy.deepcopy(model)(**inputs)
    found = inference(model.to(device.device), Data(**inputs), tuple(inputs))
    assert device.library.compiler.launches > 1
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_inference_of_heterogeneous_models_on_a_gpu_equals_the_forward(device):
    model, inputs = HETEROGENEOUS["hgt"]().eval(), hetero_inputs()
    with torch.no_grad():
        expected = copy.deepcopy(model)(**inputs)
    found = inference(model.to(device.device), hetero_data())
    torch.testing.assert_close(found["paper"], expected["paper"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extra", [(), ("edge_weight",)])
@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"improved": True}])
def test_degrees_of_the_whole_graph(extra, options, device):
    model, inputs = basic(GCN, **options)().eval(), graph_inputs(*extra)
    inputs["edge_index"][:, ::9] = inputs["edge_index"][1, ::9]  # self loops, some twice
    with torch.no_grad():
        expected = copy.deepcopy(model)(**inputs)
    found = inference(model.to(device.device), Data(**inputs), tuple(inputs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_inference_of_a_layer_of_several_hops_on_a_gpu_equals_the_forward(device):
    model, inputs = SGConv(WIDTH, 4, K=2).eval(), graph_inputs()
    with torch.no_grad():
        expected = copy.deepcopy(model)(**inputs)
    found = inference(model.to(device.device), Data(**inputs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
