"""A device of the tests' own: tensors that no operation takes to the host unnoticed.

They are held in host memory, behind tensors of type "meta", which have none. So what runs on them
runs as on the host, copies between them and the host are seen, and any other way to look at their
content fails. A process group moves them as they are: gloo, which gets what is behind them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("meta")
BACKEND = "of_the_tests"


class Placed(Tensor):
    """A tensor on the device; only `Device` knows what is behind it."""

    behind: Tensor

    @staticmethod
    def __new__(cls, behind: Tensor) -> Placed:
        made: Placed = Tensor._make_wrapper_subclass(
            cls, behind.shape, strides=behind.stride(), dtype=behind.dtype, device=DEVICE
        )
        made.behind = behind
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of the device")


class Device(TorchDispatchMode):
    """Runs operations on placed tensors.

    Attributes:
        to_host: what went from the device to the host, by operation.
        moved: bytes that a process group was given on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.to_host: list[str] = []
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        given = [v for v in torch.utils._pytree.tree_leaves((args, kwargs)) if type(v) is Placed]
        on_device = bool(given)
        if target is not None:
            on_device = torch.device(target) == DEVICE
            kwargs["device"] = torch.device("cpu")
        if (given and not on_device) or (func is torch.ops.aten.copy_.default and len(given) == 1):
            self.to_host.append(str(func))
        if func is torch.ops.c10d.alltoall_base_.default and given:
            self.moved += args[1].behind.nbytes
        known = {id(v.behind): v for v in given}
        found = func(*tree_map(_behind, args), **tree_map(_behind, kwargs))

        def place(value: Any) -> Any:
            if given and isinstance(value, (bool, int, float)):
                self.to_host.append(str(func))
            if not isinstance(value, Tensor) or not on_device:
                return value
            return known[id(value)] if id(value) in known else Placed(value)

        return tree_map(place, found)


def _behind(value: Any) -> Any:
    return value.behind if type(value) is Placed else value


def group_that_moves() -> Any:
    """Return a group of the default group's ranks that moves tensors of the device as they are."""

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, create, devices=["meta"])
    return dist.new_group(backend=f"cpu:gloo,meta:{BACKEND}")
