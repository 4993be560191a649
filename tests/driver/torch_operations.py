"""Operations of torch whose CUDA kernels the stand-in leaves out, on copies in host memory.

Each waits for the stream of its arguments, which a kernel would not do, so a wait that is missing
right before or behind one of them may go unnoticed. What a loader needs of them is in the result.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from . import standin

OPERATIONS = {
    "selection": (
        "cat cat.out index.Tensor index_select index_select.out gather masked_select nonzero "
        "repeat_interleave.Tensor "
        "where.self flip roll tril triu"
    ),
    "writing": (
        "scatter_.src scatter_.value scatter_add_ scatter_reduce_.two index_put_ _index_put_impl_ "
        "index_add_ index_copy_ index_fill_.int_Scalar"
    ),
    "order": (
        "sort sort.stable argsort.stable _unique2 unique_dim unique_consecutive bincount cumsum "
        "searchsorted.Tensor _convert_indices_from_coo_to_csr"
    ),
    "reduction": (
        "aminmax max min max.dim min.dim amax amin argmax sum sum.dim_IntList mean.dim any any.dim "
        "all all.dim equal"
    ),
    "comparison": (
        "eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor "
        "gt.Scalar ge.Tensor ge.Scalar isnan isfinite logical_not logical_not.out logical_and "
        "logical_or bitwise_not bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor"
    ),
    "arithmetic": (
        "add.Tensor add_.Tensor add.out sub.Tensor sub_.Tensor sub.out mul.Tensor mul_.Tensor "
        "mul.out div.Tensor div_.Tensor div.Tensor_mode floor_divide remainder.Scalar "
        "remainder.Tensor minimum clamp clamp_ clamp_min clamp_min_ abs neg relu relu_ "
        "threshold_backward pow.Tensor_Scalar"
    ),
    "products": "mm addmm",  # by cuBLAS, which needs more of a driver
    "new values": (
        "arange arange.start arange.start_step arange.start_out eye eye.m normal_ uniform_ random_ "
        "random_.from random_.to randperm.generator_out bernoulli_.float"
    ),
}

_ran: Counter[str] = Counter()
_registered: list[Any] = []


def ran() -> dict[str, int]:
    """Return how often each operation ran since the last call."""
    found = dict(_ran)
    _ran.clear()
    return found


def run_on_host() -> None:
    """Replace the CUDA implementation of the operations in this process."""
    library = torch.library.Library("aten", "IMPL")
    _registered.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says of each that it had an implementation
        for name in " ".join(OPERATIONS.values()).split():
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, _on_host(name, operation), "CUDA")
        sparse = _on_host("mm of lists of edges", torch.ops.aten.mm.default)  # by cuSPARSE
        library.impl("mm", sparse, "SparseCsrCUDA")


def _on_host(name: str, operation: Any) -> Callable[..., Any]:
    schema = operation._schema.arguments
    written = [a.name for a in schema if a.alias_info is not None and a.alias_info.is_write]

    def run(*arguments: Any, **named: Any) -> Any:
        _ran[name] += 1
        given = dict(zip((a.name for a in schema), arguments, strict=False)) | named
        device = _device(given)
        with standin.uncounted():
            result = operation(
                *tree_map(_to_host, arguments),
                **{key: tree_map(_to_host, value) for key, value in named.items()},
            )
            if not written:
                return tree_map(lambda value: _to_device(value, device), result)
            target = given[written[0]]
            if target.shape != result.shape:
                target.resize_(result.shape)
            target.copy_(_pinned(result), non_blocking=True)
            return target

    return run


def _device(given: dict[str, Any]) -> torch.device:
    named = given.get("device")
    if named is not None:
        return torch.device(named)
    tensors = (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
    found = (tensor.device for tensor in tensors if tensor.is_cuda)
    return next(found, torch.device("cuda", torch.cuda.current_device()))


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout == torch.sparse_csr:
        parts = (value.crow_indices(), value.col_indices(), value.values())
        return torch.sparse_csr_tensor(*map(_to_host, parts), value.shape)
    if isinstance(value, Tensor) and not value.is_contiguous():  # no kernel of torch's copies it
        memory = value.as_strided(
            (value.untyped_storage().nbytes() // value.element_size(),), (1,), 0
        )
        return memory.cpu().as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def _pinned(value: Tensor) -> Tensor:
    return value.contiguous().pin_memory() if value.numel() > 0 else value


def _to_device(value: Any, device: torch.device) -> Any:
    return _pinned(value).to(device, non_blocking=True) if isinstance(value, Tensor) else value
