"""Idle workspaces: which are kept, and which are used again."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from graphs import example_graph
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.ops.cpu.workspace import CpuWorkspace
from pyg_direct.sampling import keyed
from pyg_direct.sampling.keyed import WorkspacePool


def test_workspaces_of_the_kinds_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "MAX_IDLE_KINDS", 2)
    pool, made = WorkspacePool(), [object() for _ in range(4)]
    given: list[tuple[str, Any]] = list(zip("abac", made, strict=True))
    for kind, work in given:
        pool.give_back(kind, work)
    assert pool.take("b") is None
    assert [pool.take(kind) for kind in "aac"] == [made[2], made[0], made[3]]
    assert pool.take("a") is None


def test_they_stay_in_their_process() -> None:
    pool = WorkspacePool()
    pool.give_back("a", torch.zeros(1))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(pool)).take("a") is None
    assert pool.take("a") is not None


def test_a_workspace_left_by_an_exception_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = Data(edge_index=torch.tensor([[1, 2, 0], [0, 1, 2]]), num_nodes=3)
    sampler = NeighborSampler(data, [2])
    seeds, key, used = NodeSamplerInput(None, torch.arange(3)), (1, 2), []
    sample = CpuWorkspace.sample

    def failing(work: Any, *given: Any) -> Any:
        used.append(work)
        sample(work, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CpuWorkspace, "sample", failing)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                sampler.sample_from_nodes(seeds, key=key)
    assert sampler.sample_from_nodes(seeds, key=key).node.tolist() == [0, 1, 2]
    assert used[0] is not used[1]


@pytest.mark.usefixtures("each_backend")
def test_a_workspace_made_in_inference_mode_serves_outside() -> None:
    loader = NeighborLoader(example_graph(), [2, 2])
    with torch.inference_mode():
        loader([0, 1])
    loader([0, 1]).n_id.add_(1)
    loader(list(range(12))).n_id.add_(1)
