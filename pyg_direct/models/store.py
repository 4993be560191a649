"""Files of tables, and checksums of what they were computed from."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.lazy_tensor import RowTensor

STEP_BYTES = 1 << 24  # of a tensor that are summed up at a time


def checksum_of(values: Mapping[str, Any]) -> int:
    """Return the CRC-32 of tensors, arrays, and the text of all else, with their names.

    Finds changes made by mistake, in about a second for a gigabyte; it is no protection against
    changes made on purpose.
    """
    found = 0
    for name in sorted(values):
        value = values[name]
        found = zlib.crc32(name.encode(), found)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if isinstance(value, RowTensor):
            found = zlib.crc32(str(checksum_of(value.stored_parts())).encode(), found)
            continue
        if not isinstance(value, Tensor):
            found = zlib.crc32(repr(value).encode(), found)
            continue
        found = zlib.crc32(f"{tuple(value.shape)} {value.dtype}".encode(), found)
        for piece in pieces_of(value.detach()):
            found = zlib.crc32(piece, found)
    return found


def pieces_of(value: Tensor) -> Iterator[Any]:
    """Yield the bytes of a tensor in the order of its elements, at most `STEP_BYTES` at a time.

    A tensor that is not contiguous is copied piece by piece, as there may be no room for all of it.
    """
    if value.is_contiguous():
        flat = value.view(-1)
        flat = flat.view(torch.uint8) if flat.numel() > 0 else flat
        for first in range(0, len(flat), STEP_BYTES):
            yield flat[first : first + STEP_BYTES].cpu().numpy()
        return
    rows = STEP_BYTES // (value[0].numel() * value.element_size())
    for part in torch.split(value, rows) if rows > 0 else value.unbind():
        yield from pieces_of(part.contiguous() if rows > 0 else part)
