"""What the package uses of torch that is private there; see `pyg` for how each is tested.

It is a module of its own, so that who computes without PyG does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_storage_fd

# Sees each operation that is computed, also inside of other operations.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

# They go through nested lists and dicts; torch has no public ones.
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils.data import DataLoader, Sampler

# What `.to()` calls.
to_copy: Any = torch.ops.aten._to_copy.default

# Views that are a bit of the tensor, which nothing sees that a subclass calls for an operation, and
# what computes their numbers.
WITHOUT_BITS: dict[Any, Any] = {
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}

# How often a tensor was written to in place; autograd's own count.
writes_to: Callable[[Tensor], int] = attrgetter("_version")

# The tensor that a view was made of, or None.
viewed_by: Callable[[Tensor], Tensor | None] = attrgetter("_base")

# The batches of positions of a DataLoader, whichever of its arguments they come from.
batches_of: Callable[[DataLoader[Any]], Sampler[Any]] = attrgetter("_index_sampler")


# The names and arguments of an operation, and which of its overloads it is.
schema_of: Callable[[Any], Any] = attrgetter("_schema")
overload_of: Callable[[Any], str] = attrgetter("_overloadname")


def is_composite(func: Any) -> bool:
    """Whether an operation of torch is made of others, which autograd has in its place.

    In inference mode, without autograd, it comes as it is, and `func.decompose` calls the others.
    """
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(func.name(), "CompositeImplicitAutograd"))


# Pointwise operations that torch 2.4 does not tag as such.
_UNTAGGED = {
    "celu", "elu", "hardshrink", "hardsigmoid", "hardtanh", "leaky_relu", "mish", "selu",
    "softplus", "softshrink", "threshold",
}  # fmt: skip


def is_pointwise(func: Any) -> bool:
    """Whether each element of an ATen operation's result depends on those in its place alone."""
    return torch.Tag.pointwise in func.tags or schema_of(func).name[6:] in _UNTAGGED


# As `__torch_function__` of a class it lets operations pass to `__torch_dispatch__`.
no_torch_function: Any = torch._C._disabled_torch_function_impl

# A context in which operations on tensors of a subclass change the tensors themselves, as their
# shapes, and not what they stand for.
WithoutDispatch: Any = torch._C._DisableTorchDispatch

# A context in which no `TorchFunctionMode` sees what is called.
WithoutFunctionModes: Any = torch._C.DisableTorchFunction


def compiled_in_place(module: torch.nn.Module) -> bool:
    """Whether `compile()` was called on a module itself, and not on its parts."""
    return getattr(module, "_compiled_call_impl", None) is not None


def storage_of(tensor: Tensor) -> int:
    """Return a number that identifies the storage of a tensor, equal for its views."""
    number: int = tensor.untyped_storage()._cdata
    return number


class _Received:
    """A file descriptor, as `torch.multiprocessing` takes it from another process."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def detach(self) -> int:
        """Return it, to be closed by who calls this."""
        return self._handle


def storage_in(handle: int, num_bytes: int) -> torch.UntypedStorage:
    """Return a storage in a file of shared memory, which torch hands over to other processes.

    The public ways make files with names, or tensors that cannot be handed over.

    Args:
        handle: file descriptor of the memory, which is closed.
        num_bytes: length of the file, above 0.
    """
    storage: torch.UntypedStorage = rebuild_storage_fd(  # type: ignore[no-untyped-call]
        torch.UntypedStorage, _Received(handle), num_bytes
    )
    return storage


# What `wrapper_tensor` calls beside inference mode.
new_wrapper: Callable[..., Any] = Tensor._make_wrapper_subclass


def wrapper_tensor(
    cls: type[Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    strides: tuple[int, ...] | None = None,
) -> Any:
    """Return a tensor of a subclass without memory of its own; torch has no public way.

    It is none of inference mode's, as a forward may go on with it outside.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return wrapper_tensor(cls, shape, dtype, device, strides)
    return new_wrapper(cls, shape, strides, dtype=dtype, device=device)


def pointers_of(sorted_ids: Tensor, size: int) -> Tensor:
    """Return how many ids are below each of 0 to `size`: the pointers of a CSC, int64 [size + 1].

    The public way makes a sparse tensor, with checks and a copy of the ids.

    Args:
        sorted_ids: int64 or int32 [n], contiguous (the operator relies on it), in [0, size).
        size: the number of lists.

    Example: ``pointers_of(tensor([0, 0, 2]), 3)`` is ``[0, 2, 2, 3]``.
    """
    return torch._convert_indices_from_coo_to_csr(sorted_ids, size)


def coo_parts(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices and values of a COO tensor; the public ones refuse one not coalesced."""
    return matrix._indices(), matrix._values()


def in_backward() -> bool:
    """Whether a backward runs in this thread, in which a checkpoint computes a forward again."""
    return torch._C._current_graph_task_id() != -1


# Calls a function at the end of the backward that runs in this thread.
at_end_of_backward: Callable[[Callable[[], None]], None] = (
    torch.autograd.Variable._execution_engine.queue_callback
)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward-mode AD is active.

    Tensor subclasses that compute on demand support neither.
    """
    functorch: Any = torch._C._functorch
    in_level = torch.autograd.forward_ad._current_level >= 0
    return in_level or functorch.peek_interpreter_stack() is not None


@contextmanager
def without_hooks(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Let no hook that was registered on a parameter see the gradients that are computed within."""
    hooks: list[tuple[Any, Any]] = [(p, p._backward_hooks) for p in parameters]
    hooked = [(p, h) for p, h in hooks if h]
    try:
        for p, _ in hooked:
            p._backward_hooks = None
        yield
    finally:
        for p, h in hooked:
            p._backward_hooks = h


def group_store(group: Any) -> Any:
    """Return the store in which the ranks of a process group have met.

    It has a connection of its own where torch makes one, so that no other thread waits for it.
    """
    store = torch.distributed.distributed_c10d._world.pg_map[group][1]
    return store.clone() if hasattr(store, "clone") else store


def let_wait(group: Any, timeout: timedelta) -> None:
    """Set how long a collective of a group may take on the host from now on."""
    group._get_backend(torch.device("cpu"))._set_default_timeout(timeout)
