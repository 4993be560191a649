"""What was found of an attribute is not trusted once the same tensor has become another."""

import copy
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.batch.gather import Gatherer
from pyg_direct.batch.roles import Attribute
from pyg_direct.core.lazy_tensor import OrderedTensor, keep_rows
from pyg_direct.core.pyg import shallow_copy
from pyg_direct.ops.cpu.backend import CpuBackend


def graph() -> Data:
    edges = torch.arange(6).repeat(2, 1)
    return Data(x=torch.arange(12.0).view(6, 2), edge_index=edges, y=torch.arange(6))


def changed(change: Callable[[Data], Any]) -> tuple[Data, Any]:
    """Return a graph that is changed after the first of its batches, and the second one."""
    data = graph()
    batches = iter(NeighborLoader(data, [1], batch_size=2, prefetch=0))
    next(batches)
    change(data)
    return data, next(batches)


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "other memory": lambda x: setattr(x, "data", x.data + 1),
    "columns": lambda x: setattr(x, "data", x.data.view(6, 1, 2)),
    "type": lambda x: setattr(x, "data", x.data.view(torch.int32)),
    "strides": lambda x: x.as_strided_((6, 2), (1, 6)),
    "sign": lambda x: setattr(x, "data", torch._neg_view(x.data)),
    "type and size": lambda x: setattr(x, "data", x.data.half()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_tensor_changed_in_place_is_gathered_anew(name: str) -> None:
    data, batch = changed(lambda data: CHANGES[name](data.x))
    assert batch.x.dtype == data.x.dtype
    assert torch.equal(batch.x, data.x[batch.n_id])


class Marked(Tensor):
    """A user's own class, of which torch keeps what it selects."""


def test_rows_of_a_users_class_are_of_that_class() -> None:
    data = graph()
    data.x = data.x.as_subclass(Marked)
    assert type(next(iter(NeighborLoader(data, [1], batch_size=2))).x) is Marked


def test_rows_cut_off_are_an_error() -> None:
    """The memory is there still."""
    with pytest.raises(IndexError, match="tensor with 3 rows"):
        changed(lambda data: setattr(data.x, "data", data.x.data[:3]))


def test_a_tensor_that_asks_for_a_gradient_later_gets_one() -> None:
    data, batch = changed(lambda data: data.x.requires_grad_())
    batch.x.sum().backward()
    assert data.x.grad is not None
    assert data.x.grad.sum() == batch.x.numel()


def test_a_view_of_a_cut_storage_is_an_error() -> None:
    """It has 48 bytes, as the view, which begins at byte 16."""
    table = torch.zeros(8, 2)[2:]
    table.untyped_storage().resize_(48)
    with pytest.raises(RuntimeError, match="needs 64 bytes, but its storage has 48 bytes"):
        Gatherer(CpuBackend()).rows(table, torch.tensor([0]))


def test_attributes_that_are_read_in_several_ways_keep_their_order() -> None:
    rows, index = torch.arange(12.0).view(6, 2), torch.tensor([4, 0])
    ordered = OrderedTensor(rows.clone(), torch.arange(6).flip(0))
    rolled = OrderedTensor(rows.clone(), torch.arange(6).roll(1))
    given = {"array": rows.numpy(), "o": ordered, "p": rolled, "view": rows.flip(1)[:, ::2]}
    for names in permutations(given):
        attributes = [Attribute(name, 0) for name in names]
        found = Gatherer(CpuBackend()).named_rows(given, attributes, index)
        wanted = {"array": rows, "o": rows.flip(0), "p": rows.roll(1, 0), "view": given["view"]}
        for name, value in zip(names, found, strict=True):
            assert torch.equal(torch.as_tensor(value), wanted[name][index]), names


def test_rows_kept_with_ids_are_converted() -> None:
    ids, given = torch.tensor([3, 1]), {"x": torch.empty(6, 1)}
    keep_rows(ids, {"x": torch.ones(2, 1).half()})
    gatherer = Gatherer(CpuBackend(), feature_dtype=torch.bfloat16)
    (rows,) = gatherer.named_rows(given, [Attribute("x", 0)], ids)
    assert (rows.dtype, rows.tolist()) == (torch.bfloat16, [[1.0], [1.0]])


def test_rows_require_gradients_only_where_they_are_enabled() -> None:
    x, attribute = torch.ones(4, 2, requires_grad=True), Attribute("x", 0)
    for grad in (False, True, False):
        with torch.set_grad_enabled(grad):
            (rows,) = Gatherer(CpuBackend()).named_rows({"x": x}, [attribute], torch.tensor([1]))
        assert rows.requires_grad == grad


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("step", [1, 2])
def test_ids_of_any_integer_type_and_stride(dtype: torch.dtype, step: int) -> None:
    table, index = torch.arange(12.0).view(6, 2), torch.tensor([5, 1, 0, 3], dtype=dtype)[::step]
    assert torch.equal(Gatherer(CpuBackend()).rows(table, index), table[index])


def test_a_shallow_copy_is_pygs() -> None:
    data = graph()
    data.name, data.scale = "toy", torch.ones(3)
    assert data.num_nodes == 6  # so that PyG has something in its cache
    data.is_node_attr("x")
    for original in (data, Data(), copy.copy(data)):
        mine, theirs = shallow_copy(original), copy.copy(original)
        for one, other in ((mine, theirs), (mine._store, theirs._store)):
            assert type(one) is type(other)
            assert vars(one).keys() == vars(other).keys()
        assert mine._store._parent() is mine
        assert mine._store._mapping is not original._store._mapping
        assert list(mine._store._mapping) == list(theirs._store._mapping)
        assert all(mine[name] is theirs[name] for name in theirs.keys())  # noqa: SIM118
        mine.extra = 1
        assert "extra" not in original


def test_a_subclass_is_copied_as_it_wants() -> None:
    class Counted(Data):
        copies = 0

        def __copy__(self) -> Any:
            Counted.copies += 1
            return super().__copy__()

    loader = NeighborLoader(Counted(**graph().to_dict()), [1], batch_size=3)
    assert {type(batch) for batch in loader} == {Counted}
    assert Counted.copies == 2


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_texts_of_nodes_are_refused_by_name(kind: Any) -> None:
    data = graph()
    data.names = kind([str(node) for node in range(6)])
    with pytest.raises(ValueError, match=r"^data\.names is an? .* index it by batch\.n_id"):
        next(iter(NeighborLoader(data, [1], batch_size=2)))
