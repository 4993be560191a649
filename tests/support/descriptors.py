"""Descriptors whose fields hold something."""

from __future__ import annotations

import torch

from pyg_direct.ops.cuda.descriptor import DTYPES, Descriptor


def filled(descriptor: Descriptor) -> Descriptor:
    """Return a descriptor with an array of one element in each field, or 1, that has a place."""
    for field in descriptor.fields:
        array = field.kind != "value"
        value = torch.ones(1, dtype=DTYPES[field.type][0], device=descriptor.device) if array else 1
        descriptor.set(**{field.name: value})
    descriptor.place(torch.from_numpy(descriptor.words.copy()).to(descriptor.device))
    return descriptor
