"""What holds for every loader: keys, workers, resuming, ranks, subclasses, no extension."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.loader
import torch_geometric.sampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.models import Node2Vec

import pyg_direct

ROOT = Path(__file__).parents[3]


def graph() -> Data:
    edge_index = torch.randint(40, (2, 240), generator=torch.Generator().manual_seed(0))
    return Data(
        edge_index=edge_index, num_nodes=40, x=torch.arange(40.0), edge_attr=torch.arange(240)
    )


def typed_graph() -> HeteroData:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(30.0), torch.arange(20.0)
    writes = torch.stack(
        [
            torch.randint(20, (90,), generator=generator),
            torch.randint(30, (90,), generator=generator),
        ]
    )
    data["author", "writes", "paper"].edge_index = writes
    data["paper", "by", "author"].edge_index = writes.flip(0)
    data["paper", "cites", "paper"].edge_index = torch.randint(30, (2, 120), generator=generator)
    return data


def cluster(**kwargs: Any) -> Any:
    parts = pyg_direct.ClusterData(graph(), 8, log=False, partition=torch.arange(40) % 8)
    return pyg_direct.ClusterLoader(parts, batch_size=2, **kwargs)


def walk_windows(**kwargs: Any) -> Any:
    torch.manual_seed(0)
    return pyg_direct.Node2Vec(graph().edge_index, 4, 5, 3, num_nodes=40, p=0.5, q=2.0).loader(
        batch_size=7, **kwargs
    )


def simple_graph() -> Data:
    """Return a graph without parallel edges, with times and rows of float16."""
    data = graph().coalesce()
    data.time, data.half = torch.arange(40) % 11, torch.arange(40).half()
    return data


def nodes(data: Any = None, **given: Any) -> Callable[..., Any]:
    return lambda **kw: pyg_direct.NeighborLoader(
        simple_graph() if data is None else data, [3, 2], batch_size=7, **{**given, **kw}
    )


def links(**given: Any) -> Callable[..., Any]:
    link_type = ("author", "writes", "paper")
    return lambda **kw: pyg_direct.LinkNeighborLoader(
        typed_graph().coalesce(), [3, 2], link_type, batch_size=20, **{**given, **kw}
    )


FAMILY: dict[str, Callable[..., Any]] = {
    "shadow": lambda **kw: pyg_direct.ShaDowKHopSampler(graph(), 2, 2, batch_size=7, **kw),
    "pagerank": lambda **kw: pyg_direct.PageRankLoader(graph(), 5, batch_size=7, **kw),
    "saint_node": lambda **kw: pyg_direct.GraphSAINTNodeSampler(
        graph(), 6, num_steps=7, sample_coverage=3, log=False, **kw
    ),
    "saint_edge": lambda **kw: pyg_direct.GraphSAINTEdgeSampler(graph(), 6, num_steps=7, **kw),
    "saint_walk": lambda **kw: pyg_direct.GraphSAINTRandomWalkSampler(
        graph(), 4, 3, num_steps=7, **kw
    ),
    "hgt": lambda **kw: pyg_direct.HGTLoader(typed_graph(), [3, 2], "paper", batch_size=4, **kw),
    "cluster": cluster,
    "node2vec": walk_windows,
}
TIMES = torch.arange(40) % 5 + 6
LOADERS: dict[str, Callable[..., Any]] = {
    **FAMILY,
    "types": nodes(typed_graph(), input_nodes="paper"),
    "windows": nodes(time_attr="time", input_time=TIMES, input_start_time=TIMES - 4),
    "labor": nodes(sampling="labor", batch_dependency=3),
    "adaptive": nodes(sampling="adaptive", time_attr="time"),
    "proximity": nodes(order="proximity"),
    "feature_dtype": nodes(feature_dtype=torch.float32),
    "links": links(neg_sampling="binary"),
    "strict negatives": links(neg_sampling="triplet", strict_negatives=True),
    "links left out": links(exclude_seed_edges=("paper", "by", "author"), neg_sampling="binary"),
    "labor of links": links(sampling="labor", batch_dependency=5, order="proximity"),
}
SHUFFLED = set(LOADERS) - {"proximity", "labor of links"} - {n for n in FAMILY if "saint" in n}


def contents(batch: Any) -> Any:
    """Return a batch as nested lists."""
    if isinstance(batch, tuple):
        return [part.tolist() for part in batch]
    stores = batch.to_dict()
    return {
        key: value.tolist() if isinstance(value, torch.Tensor)
        else {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in value.items()}
        if isinstance(value, dict) else value
        for key, value in stores.items()
    }  # fmt: skip


def epoch(loader: Any) -> list[Any]:
    return [contents(batch) for batch in loader]


def options(name: str) -> dict[str, Any]:
    return {"seed": 3, **({"shuffle": True} if name in SHUFFLED else {})}


@pytest.mark.pyg("num_workers")
@pytest.mark.parametrize("name", LOADERS)
def test_batches_depend_on_the_seed_alone(name: str) -> None:
    expected = LOADERS[name](**options(name))
    first, second = epoch(expected), epoch(expected)
    assert first != second, "each epoch draws anew"
    for workers, prefetch in ((1, 1), (3, 2), (2, 0)):
        loader = LOADERS[name](**options(name), num_workers=workers, prefetch=prefetch)
        assert epoch(loader) == first
        assert epoch(loader) == second
    assert epoch(LOADERS[name](**{**options(name), "seed": 4})) != first


@pytest.mark.pyg("batch.manual_seed")
@pytest.mark.parametrize("name", LOADERS)
def test_torch_manual_seed_governs_without_a_seed(name: str) -> None:
    def run(seed: int) -> list[Any]:
        shuffle = {"shuffle": True} if name in SHUFFLED else {}
        torch.manual_seed(0)
        loader = LOADERS[name](**shuffle)
        torch.manual_seed(seed)
        return epoch(loader)

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("name", LOADERS)
def test_an_epoch_goes_on_where_it_was_left(name: str) -> None:
    whole = epoch(LOADERS[name](**options(name)))
    loader = LOADERS[name](**options(name), num_workers=2)
    batches = iter(loader)
    done = [contents(next(batches)) for _ in range(3)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = LOADERS[name](**options(name))
    resumed.load_state_dict(state)
    assert done + epoch(resumed) == whole


@pytest.mark.parametrize("name", sorted(set(FAMILY) - {"node2vec", "hgt"}))
def test_stats_count_what_batches_hold(name: str) -> None:
    loader = LOADERS[name](**options(name), num_workers=1)
    batches, stats = list(loader), loader.stats()
    assert (stats.batches, stats.made) == (len(batches), len(batches))
    assert stats.nodes == sum(batch.num_nodes for batch in batches)
    assert stats.edges == sum(batch.num_edges for batch in batches)
    assert stats.gathered_bytes["x"] == sum(batch.x.nbytes for batch in batches)
    assert stats.seeds == (40 if name in {"shadow", "pagerank"} else 0)


def test_a_state_of_another_law_is_refused() -> None:
    def saint(length: int) -> Any:
        return pyg_direct.GraphSAINTRandomWalkSampler(graph(), 4, length, num_steps=7, seed=0)

    loader = saint(3)
    next(iter(loader))
    with pytest.raises(ValueError, match="walk_length"):
        saint(2).load_state_dict(loader.state_dict())
    contexts = [pyg_direct.PageRankLoader(graph(), 4, tolerance=t, seed=0) for t in (1e-3, 1e-4)]
    with pytest.raises(ValueError, match="tolerance"):
        contexts[0].load_state_dict(contexts[1].state_dict())


def test_a_state_of_another_loader_its_seeds_or_its_parts_is_refused() -> None:
    papers = torch.arange(8)
    parts = [
        pyg_direct.ClusterData(graph(), 8, log=False, partition=torch.arange(40).clamp(max=k) % 8)
        for k in (39, 9)
    ]
    pairs: list[Any] = [
        (LOADERS["saint_node"], LOADERS["saint_edge"], "class 'GraphSAINTNodeSampler'"),
        (
            lambda **kw: pyg_direct.ShaDowKHopSampler(graph(), 1, 2, papers, **kw),
            lambda **kw: pyg_direct.ShaDowKHopSampler(graph(), 1, 2, papers.flip(0), **kw),
            "other seeds",
        ),
        (
            lambda **kw: pyg_direct.HGTLoader(typed_graph(), [2], ("paper", papers), **kw),
            lambda **kw: pyg_direct.HGTLoader(typed_graph(), [2], ("paper", papers.flip(0)), **kw),
            "other seeds",
        ),
        (
            lambda **kw: pyg_direct.ClusterLoader(parts[0], **kw),
            lambda **kw: pyg_direct.ClusterLoader(parts[1], **kw),
            "other seeds",
        ),
    ]
    for one, other, message in pairs:
        with pytest.raises(ValueError, match=message):
            other(seed=3).load_state_dict(one(seed=3).state_dict())


def test_a_loader_is_built_anew_from_what_it_has() -> None:
    """As Lightning does."""
    loader = LOADERS["saint_edge"](seed=3)
    again = LOADERS["saint_edge"](seed=3, dataset=loader.dataset, collate_fn=loader.collate_fn)
    assert epoch(again) == epoch(loader)


@pytest.mark.parametrize("name", LOADERS)
def test_a_batch_can_be_asked_for_alone(name: str) -> None:
    loader = LOADERS[name](**options(name))
    assert contents(loader([0])) != {}
    assert len(loader) == len(epoch(loader))
    assert contents(pickle.loads(pickle.dumps(loader))([0])) != {}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "seed"),
        ({"num_workers": -1}, "num_workers"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_wrong_options_are_refused(name: str, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        LOADERS[name](**wrong)


@pytest.mark.parametrize(
    "name",
    [
        "ShaDowKHopSampler", "GraphSAINTSampler", "GraphSAINTNodeSampler", "GraphSAINTEdgeSampler",
        "GraphSAINTRandomWalkSampler", "HGTLoader", "ClusterData", "ClusterLoader",
    ],
)  # fmt: skip
def test_classes_are_subclasses_of_pygs(name: str) -> None:
    assert issubclass(getattr(pyg_direct, name), getattr(torch_geometric.loader, name))


def test_samplers_and_models_are_subclasses_of_pygs() -> None:
    assert issubclass(pyg_direct.HGTSampler, torch_geometric.sampler.HGTSampler)
    assert issubclass(pyg_direct.Node2Vec, Node2Vec)


PROGRAM = """
import sys
for name in ("torch_sparse", "pyg_lib", "torch_cluster", "torch_scatter"):
    sys.modules[name] = None  # an import of it fails
sys.path[:0] = [{root!r}, {here!r}]
import torch_geometric.typing
assert not torch_geometric.typing.WITH_TORCH_SPARSE
assert not torch_geometric.typing.WITH_PYG_LIB
import test_all
for name, make in test_all.LOADERS.items():
    assert len(test_all.epoch(make(**test_all.options(name)))) > 1
    print(name)
"""


@pytest.mark.slow
def test_no_compiled_extension_is_needed() -> None:
    program = PROGRAM.format(root=str(ROOT), here=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == list(LOADERS), done.stderr


@pytest.mark.slow
def test_the_program_notices_a_missing_extension() -> None:
    program = PROGRAM.format(root=str(ROOT), here=str(Path(__file__).parent)).replace(
        "import test_all", "import torch_geometric.loader as L, test_all\n"
        "test_all.pyg_direct.ShaDowKHopSampler = L.ShaDowKHopSampler",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0


@pytest.mark.parametrize("name", LOADERS)
def test_ranks_share_one_epoch(name: str) -> None:
    expected = epoch(LOADERS[name](**options(name)))
    for world_size in (1, 3):
        ranks = [
            LOADERS[name](**options(name), rank=rank, world_size=world_size, tail="uneven")
            for rank in range(world_size)
        ]
        shares = [epoch(loader) for loader in ranks]
        assert [len(loader) for loader in ranks] == [len(share) for share in shares]
        for rank, share in enumerate(shares):
            assert share == expected[rank::world_size]
