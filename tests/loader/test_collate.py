"""`collate_fn` as a method that subclasses override, and as an argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import assert_same_batch, example_graph
from torch_geometric.sampler import SamplerOutput

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler


class Marked:
    """Mixed into a loader class: changes what `collate_fn` returns."""

    def collate_fn(self, index: Any) -> Any:
        out = super().collate_fn(index)
        out.mark = list(index)
        return out


class Twice(NeighborLoader):
    """Samples every batch two times, independently."""

    def collate_fn(self, index: Any) -> Any:
        return super().collate_fn(index), super().collate_fn(index)


ARGUMENTS: dict[str, Any] = {"batch_size": 5, "input_nodes": torch.arange(12)}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_a_subclass_overrides_collate_fn(
    loader_class: type, num_workers: int, filter_per_worker: bool
) -> None:
    arguments = {**ARGUMENTS, "filter_per_worker": filter_per_worker, "num_workers": num_workers}
    if loader_class is not NeighborLoader and num_workers:
        pytest.skip("PyG would start processes")
    kind = type("Loader", (Marked, loader_class), {})
    if not filter_per_worker:  # then it is the sampler's output, as in PyG
        marks: list[Any] = []
        loader = kind(example_graph(), [2], **arguments)
        loader.transform_sampler_output = lambda out: marks.append(out.mark) or out
        assert len(list(loader)) == 3
    else:
        marks = [batch.mark for batch in kind(example_graph(), [2], **arguments)]
    assert marks == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_batches_of_a_subclass_follow_the_seed(num_workers: int) -> None:
    kind: Any = type("Loader", (Marked, NeighborLoader), {})
    plain = NeighborLoader(example_graph(), [2, 2], seed=4, **ARGUMENTS)
    changed = kind(example_graph(), [2, 2], seed=4, num_workers=num_workers, **ARGUMENTS)
    for one, other in zip(plain, changed, strict=True):
        del other.mark
        assert_same_batch(one, other)


def test_two_calls_for_one_batch_draw_independently() -> None:
    def pairs() -> list[list[list[int]]]:
        loader = Twice(example_graph(), [2, 2], seed=4, **ARGUMENTS)
        return [[batch.e_id.tolist() for batch in pair] for pair in loader]

    plain = NeighborLoader(example_graph(), [2, 2], seed=4, **ARGUMENTS)
    assert [pair[0] for pair in pairs()] == [batch.e_id.tolist() for batch in plain]
    assert any(first != second for first, second in pairs())
    assert pairs() == pairs()


def test_the_batches_of_a_subclass_are_pinned() -> None:
    kind: Any = type("Loader", (Marked, NeighborLoader), {})
    loader = kind(example_graph(), [2], pin_memory=True, **ARGUMENTS)
    loader._pinned = lambda batch: ("pinned", batch)
    assert [pinned for pinned, _ in loader] == ["pinned"] * 3


def test_a_call_behind_an_epoch_is_no_part_of_it() -> None:
    kind: Any = type("Loader", (Marked, NeighborLoader), {})
    loader, drawn = kind(example_graph(), [1, 1], **ARGUMENTS), []
    list(loader)
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(loader(list(range(12))).e_id.tolist())
    assert drawn[0] == drawn[1]


def test_a_collate_fn_set_on_the_loader() -> None:
    loader = NeighborLoader(example_graph(), [2], **ARGUMENTS)
    loader.collate_fn = len
    assert list(loader) == [5, 5, 2]


@pytest.mark.pyg("kwargs", "dataset", "collate_fn")
@pytest.mark.parametrize(
    ("argument", "value"), [("collate_fn", lambda batch: batch), ("dataset", [1, 2])]
)
def test_arguments_that_pyg_drops_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{argument}=.* would have no effect"):
        NeighborLoader(example_graph(), [2], **{argument: value})


def test_a_loader_built_anew_from_its_own_attributes() -> None:
    """As Lightning does."""
    loader = NeighborLoader(example_graph(), [2], seed=1, **ARGUMENTS)
    again = NeighborLoader(
        example_graph(), [2], seed=1, dataset=loader.dataset, collate_fn=loader.collate_fn,
        **ARGUMENTS,
    )  # fmt: skip
    for one, other in zip(loader, again, strict=True):
        assert_same_batch(one, other)


class SeesOutputs:
    """Mixed into a loader class: `filter_fn` looks at what PyG's interface promises."""

    def filter_fn(self, out: Any) -> Any:
        assert isinstance(out, SamplerOutput)
        batch = super().filter_fn(out)
        batch.found = out.node
        return batch


class Seeing(SeesOutputs, NeighborLoader):
    pass


def test_a_subclass_overrides_filter_fn() -> None:
    for batch in Seeing(example_graph(), [2], **ARGUMENTS):
        assert torch.equal(batch.found, batch.n_id)


class Reversed(NeighborSampler):
    def sample_from_nodes(self, index: Any, **options: Any) -> Any:
        return super().sample_from_nodes(index[torch.arange(len(index.node)).flip(0)], **options)


class Resampling(NeighborLoader):
    def _sample(self, inputs: Any, key: Any) -> Any:
        return super()._sample(inputs[torch.arange(len(inputs.node)).flip(0)], key)


@pytest.mark.parametrize(
    "loader",
    [
        lambda data: NeighborLoader(data, [2], neighbor_sampler=Reversed(data, [2]), **ARGUMENTS),
        lambda data: Resampling(data, [2], **ARGUMENTS),
    ],
    ids=["sampler", "loader"],
)
def test_a_subclass_overrides_how_it_is_sampled(loader: Any) -> None:
    assert next(iter(loader(example_graph()))).n_id[:5].tolist() == [4, 3, 2, 1, 0]


class SeeingLinks(SeesOutputs, LinkNeighborLoader):
    pass


LINKS: dict[str, Any] = {"batch_size": 3, "edge_label_index": torch.tensor([[0, 1, 2], [3, 4, 5]])}


@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_a_subclass_of_a_link_loader_sees_outputs_and_gets_the_same_batch(
    negatives: str | None, disjoint: bool
) -> None:
    options = {**LINKS, "neg_sampling": negatives, "disjoint": disjoint, "seed": 1}
    (seen,) = SeeingLinks(example_graph(), [2, 2], **options)
    (batch,) = LinkNeighborLoader(example_graph(), [2, 2], **options)
    assert torch.equal(seen.found, seen.n_id)
    del seen.found
    assert_same_batch(batch, seen)


@pytest.mark.parametrize("loader_class", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("name", ["filter_fn", "transform_sampler_output"])
def test_an_attribute_assigned_between_batches_holds_from_the_next_one(
    loader_class: Any, name: str
) -> None:
    arguments = ARGUMENTS if loader_class is NeighborLoader else {**LINKS, "batch_size": 1}
    loader, seen = loader_class(example_graph(), [2], **arguments), []
    own = loader.filter_fn if name == "filter_fn" else lambda out: out
    batches = iter(loader)
    next(batches)
    setattr(loader, name, lambda out: (seen.append(type(out)), own(out))[1])
    next(batches)
    assert seen == [SamplerOutput]
