"""Names that torch may change without notice: for each a test that fails by its name."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data
from private_names import Checks, names_in
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_direct.core import private_torch

CHECKS = Checks()
check = CHECKS.of


@check("tree_leaves", "tree_map", "tree_map_only")
def _() -> None:
    nested = {"a": [1, (2, "x")]}
    changed = private_torch.tree_map_only(int, lambda number: number + 1, nested)
    assert changed == {"a": [2, (3, "x")]}
    assert private_torch.tree_map(str, nested) == {"a": ["1", ("2", "x")]}
    assert private_torch.tree_leaves(nested) == [1, 2, "x"]


@check("group_store", "let_wait")
def _() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        store = private_torch.group_store(group)
        assert store.add("counted", 2) == 2
        assert private_torch.group_store(group).get("counted") == b"2"
        private_torch.let_wait(group, timedelta(days=3))
        dist.barrier(group)
    finally:
        dist.destroy_process_group()


@check("in_backward")
def _() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append(private_torch.in_backward()))
    assert not private_torch.in_backward()
    y.sum().backward()
    assert seen == [True]
    assert not private_torch.in_backward()


@check("without_hooks")
def _() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.register_hook(lambda grad: grad * 5)
    with private_torch.without_hooks([p]):
        (found,) = torch.autograd.grad(p.sum(), p)
    assert found.tolist() == [1, 1]
    p.sum().backward()
    assert p.grad.tolist() == [5, 5]


@check("schema_of", "overload_of")
def _() -> None:
    function = torch.ops.aten.add_.Tensor
    schema = private_torch.schema_of(function)
    assert (schema.name, schema.is_mutable) == ("aten::add_", True)
    assert [argument.name for argument in schema.arguments] == ["self", "other", "alpha"]
    assert private_torch.overload_of(function) == "Tensor"


@check("is_composite")
def _() -> None:
    x, weight = torch.randn(4, 3), torch.randn(2, 3)
    linear = torch.ops.aten.linear.default
    assert private_torch.is_composite(linear)
    assert not private_torch.is_composite(torch.ops.aten.add.Tensor)
    assert torch.equal(linear.decompose(x, weight), linear(x, weight))


@check("is_transformed")
def _() -> None:
    found: list[bool] = []

    def seen(x: Tensor) -> Tensor:
        found.append(private_torch.is_transformed())
        return x.sum()

    seen(torch.ones(2))
    torch.func.grad(seen)(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        seen(torch.ones(2))
    seen(torch.ones(2))
    assert found == [False, True, True, False]


@check("is_pointwise", "_UNTAGGED")
def _() -> None:
    names = {"add", "relu", *private_torch._UNTAGGED}
    for name in names:
        packet = getattr(torch.ops.aten, name)
        assert private_torch.is_pointwise(getattr(packet, packet.overloads()[0])), name
    assert not private_torch.is_pointwise(torch.ops.aten.mm.default)


@check("storage_of")
def _() -> None:
    values = torch.zeros(2, 2)
    assert private_torch.storage_of(values[1]) == private_torch.storage_of(values)
    assert private_torch.storage_of(values.clone()) != private_torch.storage_of(values)


@check("storage_in")
def _() -> None:
    handle = os.memfd_create("test")
    os.write(handle, bytes(range(8)))
    storages = [private_torch.storage_in(os.dup(handle), 8) for _ in range(2)]
    first, second = (torch.empty(0, dtype=torch.uint8).set_(s) for s in storages)
    assert first.is_shared()
    first[2] = 77
    os.close(handle)
    assert second.tolist() == [0, 1, 77, 3, 4, 5, 6, 7]


@check("no_torch_function", "TorchDispatchMode", "wrapper_tensor")
def _() -> None:
    seen = []

    class Watched(Tensor):
        __torch_function__ = private_torch.no_torch_function

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append("tensor")
            return torch.ones(())

    class Watch(private_torch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append("mode")
            return func(*args, **(kwargs or {}))

    made = private_torch.wrapper_tensor(Watched, (3, 2), torch.int64, torch.device("cpu"))
    assert type(made) is Watched
    assert (made.shape, made.dtype, made.device.type) == ((3, 2), torch.int64, "cpu")
    with Watch():
        assert made + 1 == 1
    assert seen[:2] == ["mode", "tensor"]


@check("WithoutFunctionModes")
def _() -> None:
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        with private_torch.WithoutFunctionModes():
            torch.ones(2).index_select(0, torch.tensor([1]))
        assert seen == []
        torch.ones(2)
    assert seen == [torch.ones]


@check("to_copy")
def _() -> None:
    found = private_torch.to_copy(torch.ones(2), dtype=torch.float64)
    assert found.dtype == torch.float64


class Refusing(torch.Tensor):
    """Refuses all operations."""

    __torch_function__ = private_torch.no_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


@check("WITHOUT_BITS")
def _() -> None:
    for func, physical in private_torch.WITHOUT_BITS.items():
        x = torch.tensor([1 + 2j, 3])
        assert func(x).is_conj() or func(x).is_neg()
        assert not physical(x).is_conj()
        assert not physical(x).is_neg()
        assert torch.equal(physical(x), func(x))


@check("WithoutDispatch")
def _() -> None:
    made = private_torch.wrapper_tensor(Refusing, (3, 2), torch.float32, torch.device("cpu"))
    with private_torch.WithoutDispatch():
        made.resize_(4, 5).as_strided_((4, 5), (1, 4), 0)
    assert (made.shape, made.stride()) == ((4, 5), (1, 4))


@check("at_end_of_backward")
def _() -> None:
    seen, x = [], torch.ones((), requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: private_torch.at_end_of_backward(lambda: seen.append(x.grad.item())))
    y.backward()
    assert seen == [2.0]


@check("compiled_in_place")
def _() -> None:
    layer, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    layer.compile()
    assert private_torch.compiled_in_place(layer)
    assert not private_torch.compiled_in_place(other)
    assert not private_torch.compiled_in_place(torch.nn.Sequential(layer))


@check("writes_to")
def _() -> None:
    values = torch.zeros(2)
    before = private_torch.writes_to(values)
    values[0] = 1
    assert private_torch.writes_to(values) == before + 1


@check("viewed_by")
def _() -> None:
    values = torch.zeros(2, 2)
    assert private_torch.viewed_by(values[0]) is values
    assert private_torch.viewed_by(values) is None


@check("batches_of")
def _() -> None:
    loader = torch.utils.data.DataLoader(list(range(4)), batch_size=3)
    assert list(private_torch.batches_of(loader)) == [[0, 1, 2], [3]]


@check("pointers_of")
def _() -> None:
    for dtype in (torch.int64, torch.int32):
        found = private_torch.pointers_of(torch.tensor([0, 0, 2], dtype=dtype), 3)
        assert (found.tolist(), found.dtype) == ([0, 2, 2, 3], torch.int64)


@check("coo_parts")
def _() -> None:
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2), check_invariants=False)
    indices, values = private_torch.coo_parts(twice)
    assert (indices.tolist(), values.tolist()) == ([[0, 0], [1, 1]], [1.0, 2.0])


@check("new_wrapper")
def _() -> None:
    class Wrapper(torch.Tensor):
        """Has a shape and no elements."""

        @classmethod
        def __torch_dispatch__(cls, *call: Any) -> Any:
            raise NotImplementedError

    made = private_torch.new_wrapper(Wrapper, (2, 3), dtype=torch.float16, device="cpu")
    assert (type(made), made.shape, made.dtype) == (Wrapper, (2, 3), torch.float16)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_private_names_do_what_we_need_of_them(name: str) -> None:
    CHECKS[name]()


def test_each_name_has_a_test() -> None:
    assert names_in(private_torch) == CHECKS.keys()
