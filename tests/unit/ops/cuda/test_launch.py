"""Many small edge types cost a GPU what one large one costs: as many launches.

Counted is the sampling of one batch. Gathering is one launch for each table of features.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from emulator import emulated, give_to_loaders
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, NodeSamplerInput

from pyg_direct import NeighborSampler
from pyg_direct.core.types import BatchKey
from pyg_direct.ops.cuda import tuning
from pyg_direct.ops.cuda.launch import Grid, Kernel, Launch

NODES, EDGES = 60, 2000  # 50 edges for each of 40 types: a fan-out of 40 stays as it is
NODE_TYPES = ("a", "b")
# Torch's operations that only look at memory, or reserve it: no work on a device.
FREE = {
    "aten.empty.memory_format", "aten.slice.Tensor", "aten.view.default", "aten.select.int",
    "aten.unbind.int", "aten.detach.default", "aten.as_strided.default", "aten.view.dtype",
    "aten._unsafe_view.default", "aten.alias.default", "aten.split_with_sizes.default",
}  # fmt: skip


def graph(edge_types: int) -> HeteroData:
    """Return two node types and always the same edges, dealt out to `edge_types` edge types."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    for name in NODE_TYPES:
        data[name].num_nodes = NODES
        data[name].time = torch.randint(50, (NODES,), generator=generator)
    edges = torch.randint(NODES, (2, EDGES), generator=generator)
    weight = torch.rand(EDGES, generator=generator)
    for r in range(edge_types):
        source, target = NODE_TYPES[r % 2], NODE_TYPES[r // 2 % 2]
        store = data[source, f"r{r}", "a" if r == 0 else target]
        store.edge_index, store.weight = edges[:, r::edge_types], weight[r::edge_types]
    return data


class Work(TorchDispatchMode):
    """Counts launches of our kernels and torch's operations while it is entered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.inside = False
        original = Kernel.bind

        def bind(kernel: Kernel, *arguments: Any, **named: Any) -> Launch:
            launch = original(kernel, *arguments, **named)

            def counted(grid: Grid) -> None:
                if self.inside:
                    self.launches[kernel.name] += 1
                launch(grid)

            return counted

        monkeypatch.setattr(Kernel, "bind", bind)

    def __enter__(self) -> Work:
        self.inside = True
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inside = False
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) not in FREE:
            self.operations[str(func)] += 1
        return func(*args, **kwargs or {})


def work_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, edge_types: int, rounds: int = 0, **arguments: Any
) -> tuple[Counter[str], Counter[str]]:
    """Return the launches and torch's operations of one batch that meets every edge type.

    `rounds` are those of one block, 0 for many blocks.
    """
    data = graph(edge_types)
    inputs = NodeSamplerInput(torch.arange(4), torch.arange(4), input_type="a")
    with monkeypatch.context() as patch, emulated() as backend:
        give_to_loaders(backend, patch)
        patch.setattr(tuning, "ONE_BLOCK_ROUNDS", rounds)
        work = Work(patch)  # launches are prepared in the first batch
        sampler = NeighborSampler(data, arguments.pop("num_neighbors", [3, 3]), **arguments)
        sampler.sample_from_nodes(inputs, key=BatchKey(1, 2))  # the first batch reserves memory
        with work:
            out = sampler.sample_from_nodes(inputs, key=BatchKey(3, 4))
    assert isinstance(out, HeteroSamplerOutput)
    assert sum(len(row) > 0 for row in out.row.values()) == edge_types, "a type without work"
    return work.launches, work.operations


SAMPLING = {
    "uniform": {},
    "replace": {"replace": True},
    "large fan-outs": {"num_neighbors": [40, 40]},
    "all": {"num_neighbors": [-1, -1]},
    "disjoint": {"disjoint": True},
    "induced": {"subgraph_type": "induced"},
    "disjoint and induced": {"disjoint": True, "subgraph_type": "induced"},
    "by time": {"time_attr": "time"},
    "by weight": {"weight_attr": "weight"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLING)
def test_launches_do_not_grow_with_the_edge_types(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    one, five, forty = (work_of_a_batch(monkeypatch, n, **SAMPLING[name]) for n in (1, 5, 40))
    assert one == five == forty
    assert sum(forty[0].values()) <= 26


def test_the_kinds_of_fan_out_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch a hop for each kind, however the edge types share them."""

    def fanouts(edge_types: int) -> dict[Any, list[int]]:
        kinds = ([-1, -1], [3, 3], [40, 40])
        return {key: kinds[r % 3] for r, key in enumerate(graph(edge_types).edge_types)}

    three, forty = (work_of_a_batch(monkeypatch, n, num_neighbors=fanouts(n)) for n in (3, 40))
    assert three == forty
    kinds = {name: n for name, n in forty[0].items() if name.startswith("sample_")}
    assert [kinds[f"sample_{kind}"] for kind in ("all", "floyd", "large")] == [2, 2, 2]


def test_more_hops_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is able to grow: eight launches a hop."""
    two, three = (work_of_a_batch(monkeypatch, 5, num_neighbors=[3] * n) for n in (2, 3))
    assert sum(three[0].values()) == sum(two[0].values()) + 8


@pytest.mark.parametrize("name", ["uniform", "replace", "disjoint", "by time"])
def test_small_hops_are_one_launch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With the seeds before them; two more launches write the batch out."""
    for hops in (1, 3):
        arguments = {**SAMPLING[name], "num_neighbors": [3] * hops}
        launches, _ = work_of_a_batch(monkeypatch, 1, rounds=1000, **arguments)
        assert launches == {"sample_small": 1, "emit_edges": 1, "emit_nodes": 1}


def test_hops_too_large_for_one_block_get_their_own_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hop of large fan-outs stands between two of small ones, which are small launches."""
    launches, _ = work_of_a_batch(monkeypatch, 1, rounds=1000, num_neighbors=[2, 40, 2])
    assert launches["sample_small"] == 2
    assert launches["sample_large"] == launches["plan_items"] == 1
    assert launches["list_seeds"] == 0
    launches, _ = work_of_a_batch(monkeypatch, 1, rounds=1000, **SAMPLING["by weight"])
    assert launches["sample_small"] == 0
