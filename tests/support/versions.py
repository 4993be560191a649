"""What the oldest releases of torch and PyG that we support lack; its tests are skipped there."""

import inspect

import numpy as np
import pytest
import torch.utils.data
import torch_geometric
from torch_geometric.sampler import SamplerOutput

DATA_LOADER = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
IN_ORDER = {"in_order": False} if "in_order" in DATA_LOADER else {}  # torch 2.6
OUTPUTS_ARE_MERGED = hasattr(SamplerOutput, "collate")  # PyG 2.7
needs_merged_outputs = pytest.mark.skipif(not OUTPUTS_ARE_MERGED, reason="needs PyG 2.7")
READS_LAYOUTS = [int(part) for part in torch_geometric.__version__.split(".")[:2]] >= [2, 7]
# Kernels that run as Python; compiled ones add integers as they are meant.
needs_numpy_2 = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 makes floats of int + uint64"
)
needs_layouts = pytest.mark.skipif(  # `adj` and `adj_t` as torch's own sparse matrices
    not READS_LAYOUTS, reason="needs PyG 2.7"
)
# Names of arguments and behaviours that tests carry, and that these releases do not have.
LACKING = {"in_order"} - set(DATA_LOADER) | (set() if OUTPUTS_ARE_MERGED else {"sample_direction"})
