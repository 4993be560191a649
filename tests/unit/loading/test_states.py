"""Saved states: what is refused, what is read, and what a refused one leaves behind."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from pyg_direct import LinkNeighborLoader, NeighborLoader

LINKS = torch.arange(300).repeat(2, 1)


def graph(seed: int = 0, dtype: torch.dtype = torch.int64) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(300, (2, 3000), generator=generator).to(dtype)
    return Data(
        num_nodes=300,
        edge_index=edge_index,
        time=torch.randint(50, (300,), generator=generator),
        weight=torch.rand(3000, generator=generator),
    )


def typed(data: Data) -> HeteroData:
    hetero = HeteroData()
    hetero["a"].num_nodes = 300
    hetero["a", "to", "a"].edge_index = data.edge_index
    return hetero


def build(data: Any = None, num_neighbors: Any = (4, 3), **arguments: Any) -> NeighborLoader:
    arguments = {"batch_size": 32, "seed": 7} | arguments
    data = graph() if data is None else data
    return NeighborLoader(data, list(num_neighbors), **arguments)


def links(**arguments: Any) -> LinkNeighborLoader:
    arguments = {"batch_size": 32, "seed": 7, "edge_label_index": LINKS} | arguments
    return LinkNeighborLoader(graph(), [4, 3], **arguments)


def windows(start: Tensor | None, time: int = 50) -> LinkNeighborLoader:
    times = torch.full((300,), time)
    return links(time_attr="time", edge_label_time=times, input_start_time=start)


def without_parallels(**arguments: Any) -> NeighborLoader:
    data = graph().coalesce()
    data.half = torch.zeros(300, 1, dtype=torch.float16)
    return build(data, **arguments)


def labor(**arguments: Any) -> NeighborLoader:
    return without_parallels(**{"sampling": "labor", "batch_dependency": 5, **arguments})


def saved(loader: Any, batches: int = 3) -> dict[str, Any]:
    """Return the state in mid-epoch, having been to a file and back."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return dict(torch.load(file, weights_only=True))


def ids(loader: Any) -> list[list[int]]:
    torch.manual_seed(0)  # for samplers that draw
    return [[store.e_id.tolist() for store in batch.edge_stores] for batch in loader]


OTHERS: dict[str, tuple[Any, Any, str]] = {
    "seed": (build, lambda: build(seed=8), "seed=7 .here 8"),
    "no seed": (build, lambda: build(seed=None), "seed=7 .here None"),
    "batch_size": (build, lambda: build(batch_size=16), "batch_size=32 .here 16"),
    "drop_last": (build, lambda: build(drop_last=True), "drop_last=False .here True"),
    "shuffle": (
        build,
        lambda: build(shuffle=True),
        "shuffle=.* giving .*SequentialSampler.*here.*RandomSampler[^;]*$",
    ),
    "sampler": (
        build,
        lambda: build(sampler=WeightedRandomSampler(torch.ones(300), 300)),
        "SequentialSampler.*here.*WeightedRandomSampler",
    ),
    "generator": (
        build,
        lambda: build(generator=torch.Generator()),
        "generator= given: False .here True",
    ),
    "fan-outs": (build, lambda: build(num_neighbors=(4, 4)), r"num_neighbors='\(\(4,\), \(3,\)\)"),
    "hops": (build, lambda: build(num_neighbors=(4,)), "num_neighbors"),
    "replace": (build, lambda: build(replace=True), "replace=False .here True"),
    "disjoint": (build, lambda: build(disjoint=True), "disjoint=False .here True"),
    "subgraph_type": (build, lambda: build(subgraph_type="induced"), "subgraph_type='directional'"),
    "times": (
        build,
        lambda: build(time_attr="time"),
        "another graph .edges, or what time_attr= or weight_attr= names",
    ),
    "temporal_strategy": (
        lambda: build(time_attr="time"),
        lambda: build(time_attr="time", temporal_strategy="last"),
        "temporal_strategy='uniform' .here 'last'",
    ),
    "weights": (
        build,
        lambda: build(weight_attr="weight"),
        "another graph .edges, or what time_attr= or weight_attr= names",
    ),
    "edges": (
        build,
        lambda: build(graph(1)),
        "another graph .edges, or what time_attr= or weight_attr= names",
    ),
    "dtype of the edges": (build, lambda: build(graph(dtype=torch.int32)), "id_dtype="),
    "number of nodes": (
        build,
        lambda: build(Data(num_nodes=301, edge_index=graph().edge_index)),
        "num_seeds=300 .here 301",
    ),
    "types": (build, lambda: build(typed(graph()), input_nodes="a"), "seeds of type"),
    "seeds": (
        build,
        lambda: build(input_nodes=torch.arange(300).flip(0)),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "times of seeds": (
        lambda: build(time_attr="time", input_time=torch.zeros(300, dtype=torch.int64)),
        lambda: build(time_attr="time", input_time=torch.ones(300, dtype=torch.int64)),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "ids of seeds": (
        build,
        lambda: build(input_id=torch.arange(300)),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "kind of loader": (build, links, "class 'NeighborLoader' .here 'LinkNeighborLoader'"),
    "links": (
        links,
        lambda: links(edge_label_index=LINKS.flip(1)),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "labels": (
        links,
        lambda: links(edge_label=torch.arange(300)),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "times of links": (
        lambda: windows(None),
        lambda: windows(None, 40),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "negatives": (links, lambda: links(neg_sampling="binary"), "neg_sampling"),
    "amount of negatives": (
        lambda: links(neg_sampling="binary"),
        lambda: links(neg_sampling=NegativeSampling("binary", 2)),
        "neg_sampling='binary 1",
    ),
    "weights of negatives": (
        lambda: links(neg_sampling=NegativeSampling("binary", 1, dst_weight=torch.ones(300))),
        lambda: links(neg_sampling=NegativeSampling("binary", 1, dst_weight=torch.arange(300.0))),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "windows of links": (
        lambda: windows(torch.zeros(300, dtype=torch.int64)),
        lambda: windows(torch.arange(300) % 50),
        "other seeds .input_nodes= or edge_label_index=",
    ),
    "no windows": (
        lambda: windows(torch.zeros(300, dtype=torch.int64)),
        lambda: windows(None),
        "input_start_time= and input_end_time= giving",
    ),
    "windows that begin and that end": (
        lambda: windows(torch.zeros(300, dtype=torch.int64)),
        lambda: links(
            time_attr="time",
            edge_label_time=torch.full((300,), 50),
            input_end_time=torch.zeros(300, dtype=torch.int64),
        ),
        "input_start_time= and input_end_time= giving",
    ),
    "links left out": (lambda: links(exclude_seed_edges=True), links, "exclude_seed_edges"),
    "negatives without edges": (
        lambda: links(neg_sampling="binary"),
        lambda: links(neg_sampling="binary", strict_negatives=True),
        "strict_negatives=False",
    ),
    "adaptive": (lambda: build(sampling="adaptive"), build, "sampling='adaptive'"),
    "labor": (labor, without_parallels, "sampling='labor'"),
    "batch_dependency": (labor, lambda: labor(batch_dependency=1), "batch_dependency=5"),
    "layer_dependency": (
        labor,
        lambda: labor(layer_dependency=True),
        "layer_dependency=False",
    ),
    "order": (lambda: build(order=LINKS[0] // 9), lambda: build(shuffle=True), "order="),
    "clusters": (
        lambda: build(order=LINKS[0] // 9),
        lambda: build(order=LINKS[0] // 9 % 5),
        "other clusters .order=",
    ),
    "feature_dtype": (
        lambda: without_parallels(feature_dtype=torch.float32),
        without_parallels,
        "feature_dtype='torch.float32' .here None",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_state_of_another_loader(case: str) -> None:
    one, other, message = OTHERS[case]
    state, loader = saved(one()), other()
    before = ids(other())
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)
    if loader.state_dict()["seed"] is not None:
        assert ids(loader) == before, "a refused state changes nothing"
    with pytest.warns(RuntimeWarning, match=message):
        other().load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    "arguments",
    [{"num_workers": 2}, {"prefetch": 0}, {"pin_memory": True}, {"filter_per_worker": False}],
)
def test_options_that_decide_no_batch_may_differ(arguments: dict[str, Any]) -> None:
    one = build()
    state = saved(one)
    other = build(**arguments)
    other.load_state_dict(state)
    assert ids(other) == ids(build())[3:]


def test_going_on_with_other_arguments() -> None:
    state = saved(build())
    other = build(num_neighbors=(5, 5))
    with pytest.warns(RuntimeWarning, match="num_neighbors"):
        other.load_state_dict(state, strict=False)
    assert ids(other) == ids(build(num_neighbors=(5, 5)))[3:]


MISSHAPEN: dict[str, tuple[Any, str]] = {
    "no dict": (lambda state: [state], "it is a list and no dict"),
    "nothing": (lambda state: {}, "version None"),
    "no version": (lambda state: state.pop("version"), "version None"),
    "a later version": (lambda state: state.update(version=3), "version 3.*versions 1, 2"),
    "no epoch": (lambda state: state.pop("epoch"), "lacks 'epoch'"),
    "no base seed": (lambda state: state.pop("base_seed"), "lacks 'base_seed'"),
    "no seed": (lambda state: state.pop("seed"), "lacks 'seed'"),
    "something else": (lambda state: state.update(x=1), "also has 'x'"),
    "a text": (lambda state: state.update(batch="3"), "'batch' must be an int.*got '3'"),
    "a bool": (lambda state: state.update(batch=True), "'batch' must be an int.*got True"),
    "a negative batch": (lambda state: state.update(batch=-1), "'batch' must be.*got -1"),
    "an absurd batch": (lambda state: state.update(batch=10**9), "1000000000 batches were done"),
    "an absurd epoch": (lambda state: state.update(epoch=2**32), "'epoch' must be"),
    "an epoch before the first": (lambda state: state.update(epoch=-1), "never begun"),
    "a large seed": (lambda state: state.update(base_seed=2**64), "'base_seed' must be"),
    "finished in part": (lambda state: state.update(finished=0), "'finished' must be a bool"),
    "no random state": (lambda state: state.update(default_state=None), "never begun"),
    "a short random state": (
        lambda state: state.update(default_state=torch.zeros(3, dtype=torch.uint8)),
        "'default_state' must be a state",
    ),
    "no tensor": (lambda state: state.update(generator_state="x"), "'generator_state' must be"),
    "no fingerprint": (lambda state: state.update(fingerprint=3), "'fingerprint' must be a dict"),
}


@pytest.mark.parametrize("case", MISSHAPEN)
def test_no_state_at_all(case: str) -> None:
    state, (change, message) = saved(build()), MISSHAPEN[case]
    changed = change(state)
    given = changed if case in ("no dict", "nothing") else state
    loader = build()
    good = saved(build(), 5)
    loader.load_state_dict(good)
    before = copy.deepcopy(loader._progress)
    for strict in (True, False):
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict(given, strict)
    assert same_progress(loader._progress, before)
    assert ids(loader) == ids(build())[5:], "the state loaded before still holds"


def test_the_epoch_of_a_sampler_is_compared_where_a_state_is() -> None:
    def at(epoch: int) -> NeighborLoader:
        sampler = DistributedSampler(range(300), 2, 0)  # type: ignore[arg-type]
        sampler.set_epoch(epoch)
        return build(sampler=sampler)

    state, loader = saved(at(3)), at(0)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="from epoch 3 of the DistributedSampler"):
        iter(loader)
    loader.load_state_dict(state, strict=False)
    assert len(ids(loader)) > 0


def test_more_nodes_of_a_type_without_lists_are_another_graph() -> None:
    """No array of the lists has their number."""

    def of(count: int) -> NeighborLoader:
        data = typed(graph())
        data["b"].num_nodes = count
        data["b", "to", "a"].edge_index = torch.zeros(2, 3, dtype=torch.int64)
        return build(data, input_nodes="a")

    with pytest.raises(ValueError, match=r"num_nodes=.*'b': 5.*'b': 6"):
        of(6).load_state_dict(saved(of(5)))


def same_progress(one: Any, other: Any) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in vars(one)]
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in pairs
    )


def test_a_state_of_version_1() -> None:
    """As it was saved before there was a fingerprint."""
    state, rest = saved(build(shuffle=True)), ids(build(shuffle=True))[3:]
    old = {name: value for name, value in state.items() if name != "fingerprint"}
    old |= {"version": 1, "num_seeds": 300, "batch_size": 32}
    loader = build(shuffle=True)
    loader.load_state_dict(old)
    assert ids(loader) == rest
    with pytest.raises(ValueError, match=r"batch_size=32 .here 16"):
        build(batch_size=16).load_state_dict(old)
    with pytest.raises(ValueError, match="lacks 'num_seeds'"):
        build().load_state_dict({k: v for k, v in old.items() if k != "num_seeds"})


@pytest.mark.parametrize("case", ["negatives without edges", "labor", "adaptive"])
def test_a_state_from_before_an_option_has_its_default(case: str) -> None:
    later, plain, _ = OTHERS[case]
    if case == "negatives without edges":
        later, plain = plain, later
    state = saved(plain())
    for name in ("strict_negatives", "feature_dtype", "sampling", "layer_dependency",
                 "batch_dependency"):  # fmt: skip
        state["fingerprint"].pop(name, None)
    plain().load_state_dict(state)
    with pytest.raises(ValueError, match=r"strict_negatives=False|'uniform'"):
        later().load_state_dict(state)


def test_resuming_with_a_sampler_that_became_shorter_is_an_error() -> None:
    class Shrinking:
        """Does not know its length."""

        size = 300

        def __iter__(self) -> Any:
            return iter(range(self.size))

    state, sampler = saved(build(sampler=Shrinking())), Shrinking()
    loader = build(sampler=sampler)
    loader.load_state_dict(state)
    sampler.size = 40
    with pytest.raises(ValueError, match="epoch of 3 batches or more, but the sampler gave 2"):
        iter(loader)


def test_progress_bars_count_what_is_left() -> None:
    loader = build()
    state = saved(loader, 4)
    resumed = build()
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    assert len(iterator) == 6
    assert sum(1 for _ in iterator) == 6
    assert len(iter(resumed)) == len(resumed) == 10


def test_of_two_iterators_the_later_one_counts() -> None:
    loader = build()
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    for _ in range(5):
        next(first)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 1)
    list(first)
    assert not loader.state_dict()["finished"], (
        "the end of the earlier one is not that of the later"
    )
    rest = ids(second)
    other = build()
    other.load_state_dict(state)
    assert ids(other) == rest


def test_an_iterator_from_before_a_state_was_loaded_does_not_count() -> None:
    loader = build()
    old = iter(loader)
    next(old)
    state = loader.state_dict()
    loader.load_state_dict(state)
    next(old)
    assert loader.state_dict()["batch"] == 1
    new = iter(loader)  # of the same epoch
    next(old)
    assert loader.state_dict()["batch"] == 1
    next(new)
    assert loader.state_dict()["batch"] == 2


def test_a_sampler_by_name() -> None:
    """A sampler of the user's own is told by its class alone."""
    state = saved(build(sampler=SequentialSampler(range(300))))
    other = build(sampler=SequentialSampler(range(300)))
    other.load_state_dict(state)
    assert ids(other) == ids(build())[3:]


# Ranks ############################################################################################


def of_rank(world_size: int, rank: int = 0, seed: int = 0, **arguments: Any) -> NeighborLoader:
    sampler = DistributedSampler(range(300), world_size, rank, seed=seed)
    return build(sampler=sampler, batch_size=10, **arguments)


def set_epoch(loader: NeighborLoader, epoch: int) -> NeighborLoader:
    loader.sampler.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("other", [1, 3, 4])
def test_a_state_of_a_distributed_sampler_on_another_number_of_ranks(other: int) -> None:
    """Seeds would come twice, or never."""
    state = saved(of_rank(2))
    with pytest.raises(ValueError, match=rf"num_replicas: 2 .here {other}"):
        of_rank(other).load_state_dict(state)
    with pytest.raises(ValueError, match=r"DistributedSampler of seed 0 .here 5"):
        of_rank(2, seed=5).load_state_dict(state)
    with pytest.warns(RuntimeWarning, match="num_replicas"):
        of_rank(other).load_state_dict(state, strict=False)


def test_a_state_of_one_rank_goes_on_on_every_rank() -> None:
    state = saved(of_rank(2))
    for rank in (0, 1):
        loader = of_rank(2, rank)
        loader.load_state_dict(state)
        assert ids(loader) == ids(of_rank(2, rank))[3:]


def test_a_state_of_an_earlier_release_without_sampler_fields_is_loaded() -> None:
    state = saved(of_rank(2))
    for name in ("num_replicas", "sampler_seed", "sampler_epoch"):
        del state["fingerprint"][name]
    loader = of_rank(2)
    loader.load_state_dict(state)
    assert ids(loader) == ids(of_rank(2))[3:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_in_another_epoch_of_a_distributed_sampler(num_workers: int) -> None:
    state = saved(set_epoch(of_rank(2), 3))
    expected = ids(set_epoch(of_rank(2), 3))[3:]
    loader = of_rank(2, num_workers=num_workers)
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"epoch 3 of the .* at epoch 0 .* set_epoch\(3\)"):
            iter(loader)
    assert ids(set_epoch(loader, 3)) == expected


def test_a_forgotten_set_epoch_is_said() -> None:
    loader = of_rank(2)
    first = ids(loader)
    with pytest.warns(RuntimeWarning, match=r"is still at epoch 0. Call set_epoch\(epoch\)"):
        assert len(ids(loader)) == len(first)


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_epochs_that_follow_set_epoch() -> None:
    loader = of_rank(2)
    next(iter(loader))  # a look at the first batch
    for epoch in range(3):
        assert len(ids(set_epoch(loader, epoch))) == 15
    loader.load_state_dict(loader.state_dict())  # between two epochs
    assert len(ids(set_epoch(loader, 3))) == 15
    evaluation = build(sampler=DistributedSampler(range(300), 2, 0, shuffle=False))
    assert ids(evaluation)
    assert ids(evaluation)


def test_a_forgotten_set_epoch_in_a_batch_sampler_is_said() -> None:
    sampler = DistributedSampler(range(300), 2, 0)
    loader = build(batch_sampler=BatchSampler(sampler, 10, drop_last=False), batch_size=1)
    ids(loader)
    with pytest.warns(RuntimeWarning, match="is still at epoch 0"):
        ids(loader)
    with pytest.raises(ValueError, match=r"num_replicas: 2 .here 3"):
        build(
            batch_sampler=BatchSampler(DistributedSampler(range(300), 3, 0), 10, False),
            batch_size=1,
        ).load_state_dict(loader.state_dict())
