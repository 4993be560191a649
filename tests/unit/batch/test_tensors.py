"""Which tensors a walk over a batch finds, and what it never looks into."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
import torch
from emulator.runtime import OutOfBounds
from graphs import example_graph
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.batch.tensors import tensors_made, tensors_of


class Holder:
    def __init__(self, value: Any) -> None:
        self.value, self.me = value, self


class Slots:
    __slots__ = ("__hidden", "never_set", "value")

    def __init__(self, value: Any, hidden: Any) -> None:
        self.value, self.__hidden = value, hidden


class MoreSlots(Slots):
    pass


class Answers:
    """As the wrappers of some C libraries: it answers to every name, and has no `__dict__`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return Answers


class Pair(NamedTuple):
    first: Tensor
    second: Any


def sizes(value: Any, without: frozenset[int] = frozenset()) -> set[int]:
    return {tensor.numel() for tensor in tensors_of(value, without)}


def numbered(count: int) -> list[Tensor]:
    return [torch.zeros(i + 1) for i in range(count)]


def test_through_containers_and_attributes() -> None:
    a, b, c, d = numbered(4)
    data = Data(x=a, y=[b, {"c": (c, "text", None)}], z=Holder(Holder(d)))
    assert sizes(data) == {1, 2, 3, 4}
    assert sizes(data, frozenset([id(data.z), id(a)])) == {2, 3}
    assert list(tensors_of(5)) == []


def test_tensors_in_slots_of_an_object_are_found() -> None:
    a, b, c = numbered(3)
    made = MoreSlots(a, Pair(b, None))
    made.own = c
    assert sizes({"object": made}) == {1, 2, 3}


def test_never_through_modules_functions_and_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "trap", OutOfBounds(), raising=False)
    (a,) = numbered(1)

    def function() -> None: ...

    function.trap = OutOfBounds()
    beside = [
        sys.modules[__name__],
        sys.modules,
        function,
        Holder,
        Holder(a).__init__,
        len,
        Answers(),
    ]
    assert sizes(Data(x=a, user=Holder(beside))) == {1}


def test_loaders_samplers_and_iterators_are_not_searched_for_tensors() -> None:
    """A loader and a sampler refer to graphs, backends and threads, which are not the batch's."""
    (a,) = numbered(1)
    loader = NeighborLoader(example_graph(), [2], batch_size=4)
    iterator = iter(loader)
    beside = [loader, loader.node_sampler, loader._backend, loader._site, iterator]
    assert sizes(Data(x=a, user=Holder(beside))) == {1}


class Computed(dict[str, Tensor]):
    """Makes its values when it is asked for them, so that nothing else keeps them alive."""

    def values(self) -> Any:
        return [[torch.zeros(i + 1)] for i in range(50)]


def test_computed_values_are_found() -> None:
    assert sizes([Computed()]) == set(range(1, 51))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_a_sparse_tensor_is_held_by_strided_ones(layout: str) -> None:
    """CUDA's `record_stream` refuses any other layout."""
    dense = torch.eye(4)
    blocks = {"bsr": ((2, 2),), "bsc": ((2, 2),)}.get(layout, ())
    made = getattr(dense, "to_sparse" if layout == "coo" else f"to_sparse_{layout}")(*blocks)
    found = list(tensors_of({"adj_t": made}))
    assert len(found) == (2 if layout == "coo" else 3)
    assert all(part.layout == torch.strided for part in found)
    assert sum(part.nbytes for part in found if part.dtype == torch.float32) >= 4 * 4


def test_an_edge_index_is_held_by_all_that_it_keeps() -> None:
    edges = EdgeIndex([[0, 1, 1], [1, 0, 1]], sparse_size=(2, 2), sort_order="row")
    edges.fill_cache_()
    found = list(tensors_of(Data(edge_index=edges)))
    kept = [value for value in vars(edges).values() if isinstance(value, Tensor)]
    assert len(kept) >= 3
    assert {id(tensor) for tensor in kept} <= {id(tensor) for tensor in found}
    assert all(type(tensor) is Tensor for tensor in found)


def test_tensors_shared_with_the_graph_are_not_made_by_a_batch() -> None:
    shared, own = numbered(2)
    assert [len(tensor) for tensor in tensors_made(Data(y=shared), Data(y=shared, x=own))] == [2]
