"""Attributes that are stored narrow, and the dtype that batches get them in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arguments import shown
from ..core.ordered import OrderedTensor
from ..core.quantized import QuantizedTensor

NARROW_FLOATS = (torch.float16, torch.bfloat16)
FEATURE_DTYPES = (torch.float32, *NARROW_FLOATS)


def is_narrow(value: Any) -> bool:
    """Whether an attribute is stored as int8 with a scale, as float16 or as bfloat16."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype == np.float16)
    if isinstance(value, OrderedTensor):
        return is_narrow(value.stored)
    return isinstance(value, QuantizedTensor) or (
        isinstance(value, Tensor) and value.dtype in NARROW_FLOATS
    )


def dtype_in_batch(value: Tensor, feature_dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which batches get an attribute.

    Args:
        value: the attribute; a `QuantizedTensor` passes for float32.
        feature_dtype: what the loader was asked for; None for what the attribute passes for.
    """
    return feature_dtype if feature_dtype is not None and is_narrow(value) else value.dtype


def converted(rows: Any, feature_dtype: torch.dtype | None) -> Any:
    """Return rows that PyG selected, in the dtype in which batches get them."""
    return rows.to(dtype_in_batch(rows, feature_dtype)) if isinstance(rows, Tensor) else rows


def check_feature_dtype(
    feature_dtype: Any, attributes: Iterable[tuple[str, Any]] | None
) -> torch.dtype | None:
    """Return `feature_dtype`, which is None or a dtype that narrow attributes are decoded to.

    Args:
        feature_dtype: as the user gave it.
        attributes: of the graph, with names for messages; None if they are not known.

    Raises:
        ValueError: another dtype, or no attribute that is stored narrow.
    """
    if feature_dtype is None:
        return None
    if not isinstance(feature_dtype, torch.dtype) or feature_dtype not in FEATURE_DTYPES:
        names = ", ".join(map(str, FEATURE_DTYPES))
        raise ValueError(
            f"feature_dtype must be None or one of {names}, got {shown(feature_dtype)}."
        )
    given = None if attributes is None else list(attributes)
    if given is not None and not any(is_narrow(value) for _, value in given):
        stored = ", ".join(
            f"{label} {value.dtype}" for label, value in given if hasattr(value, "dtype")
        )
        raise ValueError(
            f"feature_dtype={feature_dtype} would have no effect: it is for attributes stored as "
            f"torch.float16, torch.bfloat16 or pyg_direct.quantize's tables, and the graph has "
            f"{stored or 'no attributes'}. Store features so, data.x = "
            f"pyg_direct.quantize(data.x, torch.float16), or convert batches with transform=."
        )
    return feature_dtype
