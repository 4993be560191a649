"""A batch that the only rank makes: the same as by the exchanges of several, without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_direct import NeighborSampler
from pyg_direct.core.types import BatchKey, ExtendedKey, Variates
from pyg_direct.exchange.common_hops import CommonBatches, of_one_rank
from pyg_direct.exchange.rows import RowTraffic
from pyg_direct.ranks.channel import Channel
from pyg_direct.sampling.sampler import keyed

GENERATOR = torch.Generator().manual_seed(0)


def edges(source: int, destination: int, count: int) -> Tensor:
    ends = [torch.randint(n, (count,), generator=GENERATOR) for n in (source, destination)]
    return torch.stack(ends).unique(dim=1)


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 50, 30
    data["a", "to", "b"].edge_index = edges(50, 30, 200)
    data["b", "to", "a"].edge_index = edges(30, 50, 200)
    data["a", "near", "a"].edge_index = edges(50, 50, 200)
    return data


def content(value: Any) -> Any:
    """Return nested tuples with tensors as lists."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    return [content(part) for part in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("sampling", ["uniform", "labor"])
@pytest.mark.parametrize(
    "data", [Data(edge_index=edges(60, 60, 400), num_nodes=60), typed()], ids=["data", "typed"]
)
def test_a_batch_of_one_rank_is_that_of_the_exchanges(data: Any, sampling: str) -> None:
    core = keyed(NeighborSampler(data, [3, 2], sampling=sampling, seed=1))
    csc, kinds = core.graph.csc, core.graph.node_types
    owners = [np.zeros(n, np.int16) for n in csc.num_nodes.tolist()]
    channel, variates = Channel(None, 1.0), None
    if sampling == "labor":
        variates = Variates(BatchKey(1, 2), BatchKey(3, 4), 1 << 31)
    common = CommonBatches(csc, core.plan, owners, channel, core.backend, RowTraffic())
    for t in range(len(kinds)):
        seeds: list[Tensor | None] = [None] * len(kinds)
        seeds[t] = torch.tensor([4, 17, 4, 0, 29])
        key = ExtendedKey.of(BatchKey(5, 6), step=7, variates=variates)
        graph, describe = common.sample(seeds, key)
        alone, describe_alone = of_one_rank(core.sample(seeds, key), seeds, csc, 7)
        assert content(alone) == content(graph)
        expected, found = describe(kinds, channel), describe_alone(kinds, channel)
        assert found.nodes.keys() == expected.nodes.keys()
        for kind, nodes in expected.nodes.items():
            assert content(found.nodes[kind]) == content(nodes)
        assert content(found.outputs) == content(expected.outputs)
        rest = "rank", "size", "step", "group", "timeout_seconds", "input_type", "channel"
        assert [getattr(found, n) for n in rest] == [getattr(expected, n) for n in rest]
