"""`pyg_direct.unified`: a tensor in host memory whose rows a GPU selects by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ..core.config import as_device
from ..core.lazy_tensor import LazyTensor
from ..core.private_torch import wrapper_tensor
from ..core.types import Table
from .backend import Backend, row_out_of_range
from .devices import backend_for, cuda_available, usable_device
from .staging import empty_for


class _Reader:
    """A GPU that reads a unified tensor, and the ids out of range that it met.

    The GPU writes such an id to `wrong`. A copy of that is put on its way after each selection, so
    that a later one finds the id in host memory, and nobody waits.
    """

    def __init__(self, backend: Backend, host: Tensor) -> None:
        self.backend = backend
        self.wrong = torch.zeros(1, dtype=torch.int64, device=backend.device)
        self._arrived = empty_for(backend.device, (1,), torch.int64).zero_()
        backend.memory.place_tables([("the unified tensor", host)], "host")  # waits for the zero

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """Return rows of the tensor, as the GPU reads it."""
        if row := int(self._arrived):
            self.wrong.zero_().cpu()  # waits: other streams may come next
            self._arrived = torch.zeros_like(self._arrived)
            raise row_out_of_range(row, len(table))
        (found,) = self.backend.gather([Table(table)], ids, wrong=self.wrong)
        self._arrived.copy_(self.wrong, non_blocking=True)
        return found


class UnifiedTensor(LazyTensor):
    """A tensor [N, ...] in host memory; an index on the GPU selects its rows on the GPU.

    `unified` makes one. Everything else that torch computes with it is computed on the host, with
    the tensor that it was made of.
    """

    host: Tensor
    readers: dict[torch.device, _Reader]  # of the GPUs that read it

    @staticmethod
    def __new__(cls, host: Tensor, *backends: Backend) -> UnifiedTensor:
        """Return the tensor, whose memory these devices can read from now on."""
        self: UnifiedTensor = wrapper_tensor(cls, host.shape, host.dtype, host.device)
        self.host, self.readers = host, {}
        for backend in backends:
            self._add(backend)
        return self

    def _add(self, backend: Backend) -> _Reader:
        reader = self.readers[backend.device] = _Reader(backend, self.host)
        return reader

    def dense(self) -> Tensor:
        """Return the tensor in host memory that this one was made of; no copy."""
        return self.host

    def __getitem__(self, index: Any) -> Any:
        """Return rows: on the GPU for an index there, else on the host."""
        return self._rows(index) if _on_a_gpu(index) else self.host[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Change the tensor of the host."""
        self.host[index] = value

    def selected(self, func: Callable[..., Any], args: Sequence[Any]) -> Tensor | None:
        """Return rows that `index_select` and `embedding` select on the GPU; None for all else.

        Raises:
            TypeError: a change in place, of which torch would not tell the tensor of the host.
        """
        name = str(func).split(".")[1]  # of "aten.add_.Tensor"
        if name.endswith("_"):
            raise TypeError(
                f"{name} changes a unified tensor in place: change the tensor that it was made of, "
                f"or assign, u[:] = ..."
            )
        aten = torch.ops.aten
        index: Any = None
        if func is aten.index_select.default and args[0] in (0, -self.dim()):
            index = args[1]
        elif func is aten.embedding.default:
            index = args[0]
        return self._rows(index) if _on_a_gpu(index) else None

    def _rows(self, index: Tensor) -> Tensor:
        """Return the rows of an index on a GPU, of any shape, or of a mask [N]."""
        reader = self.readers.get(index.device) or self._add(backend_for(index.device))
        if index.dtype in (torch.bool, torch.uint8):
            if index.shape != self.shape[:1]:
                raise IndexError(
                    f"A mask of a unified tensor must be of shape {list(self.shape[:1])}, got "
                    f"{list(index.shape)}."
                )
            index = index.nonzero().view(-1)
        ids = index.to(torch.int64).reshape(-1)
        ids = torch.where(ids < 0, ids + len(self.host), ids)
        rows = reader.backend.memory.readable(self.host)
        if rows is None:  # it cannot be page-locked, of which a warning told
            return self.host[index.cpu()].to(index.device)
        found = reader.rows(rows, ids)
        return found.view(*index.shape, *self.host.shape[1:])

    def share_memory_(self) -> UnifiedTensor:
        """Move the host's memory to shared memory; the device reads it there from then on."""
        self.host.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy of its own."""
        return UnifiedTensor(self.host.clone(), *(r.backend for r in self.readers.values()))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the tensor of the host; where there is no GPU, it is loaded as that."""
        return _loaded, (self.host,)


def _on_a_gpu(index: Any) -> TypeGuard[Tensor]:
    return isinstance(index, Tensor) and index.device.type not in ("cpu", "meta")


def _loaded(host: Tensor) -> Tensor:
    """Return what was pickled, for the GPU of the first index: a process chooses its own later."""
    return UnifiedTensor(host) if cuda_available() else host


def unified(tensor: Tensor, device: torch.device | str | int | None = None) -> Tensor:
    """Return a tensor whose rows a GPU reads where they lie, in host memory.

    ``u[index]``, `torch.index_select` and `torch.nn.functional.embedding` with an index on the GPU
    give rows on the GPU: a kernel reads them over PCIe, and neither the index nor the table is
    copied. From 32 MiB on the memory is registered in place, for as long as the result lives;
    smaller tensors get a pinned copy, which follows changes that torch makes. All other
    operations, also a slice or an index on the host, give ordinary tensors of the host; with a
    tensor on the GPU torch refuses them, as for any tensor of the host. Each GPU whose index
    selects rows reads the same memory, also in other processes that are given the tensor. Values
    are assigned by ``u[index] = values``, or to the tensor itself; other changes in place are
    refused. Loaders take it as the attribute that it was made of.

    The host waits for nothing but the number of true entries of a mask. So the IndexError of an id
    out of range is raised by a later selection. Its row is NaN until then, or -1 of integers.
    (Min et al., "PyTorch-Direct: Enabling GPU Centric Data Access for Very Large Graph Neural
    Network Training", arXiv 2101.07956, in two lines: the table, and nothing else.)

    Args:
        tensor: [N, ...] on the host, contiguous, that asks for no gradient. It is kept alive.
        device: the GPU that is checked, and that can read the memory, when this returns; None for
            torch's current one. Others follow with their first index.

    Returns:
        A `Tensor`; `tensor` itself where there is no GPU, so that one script runs on both.

    Raises:
        TypeError: no tensor.
        ValueError: one elsewhere, not contiguous, without rows, or that asks for a gradient.

    Example:
        >>> features = pyg_direct.unified(data.x)
        >>> index = torch.tensor([5, 2], device="cuda" if torch.cuda.is_available() else "cpu")
        >>> features[index].shape
        torch.Size([2, 16])
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor must be a Tensor, got {type(tensor).__name__}.")
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.device.type != "cpu" or tensor.dim() == 0 or not tensor.is_contiguous():
        raise ValueError(
            f"tensor must be a contiguous dense tensor of the host with rows, got "
            f"{type(tensor).__name__} {list(tensor.shape)} on {tensor.device}. Pass "
            f"x.cpu().contiguous()."
        )
    if tensor.requires_grad:
        raise ValueError("tensor asks for a gradient, which rows of it would lack: x.detach().")
    wanted = usable_device() if device is None else as_device(device, "device")
    backend = backend_for(wanted)
    return tensor if backend.device.type == "cpu" else UnifiedTensor(tensor, backend)
