"""The ids in a batch, `n_id`, `e_id` and `input_id`: in host memory as in PyG, or on the device.

Programs index their own CPU tensors with them, which a CUDA index cannot do, while a CPU index
works on CUDA tensors, too. So ids that were sampled on a GPU are copied back. The copies begin as
soon as the ids exist, on the stream that sampled them, and go on beside the gather.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from ..ops.ids import Ids
from .sampled import Sampled

NAMES = frozenset(["n_id", "e_id", "input_id"])
COPIES = "_host_ids"  # of a sampler's output, where copies that have begun wait for the batch


def begin_copies(out: Any, ids: Ids) -> None:
    """Begin to copy the node and edge ids of a sampled subgraph, for the batch that it becomes.

    Copies are known by the tensor they are of, so that one that is replaced meanwhile, as by a
    `transform_sampler_output`, is copied anew.
    """
    found: list[Tensor | None] = []
    if isinstance(out, Sampled):
        found = [part.given for part in out.nodes.values()]
        found += [part.given for part in out.edges.values()]
    elif isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
        found = [
            tensor
            for field in (out.node, out.edge)
            for tensor in (field.values() if isinstance(field, dict) else [field])
        ]
    if found:
        ids.begin(tensor for tensor in found if tensor is not None)
        setattr(out, COPIES, ids)
