"""What several ranks load in a step, as `plan --ranks` tells it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import papers_and_authors
from torch_geometric.data import Data

from pyg_direct.tools import plan
from pyg_direct.tools.plan_ranks import ranks_text, step_of_ranks


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(500, (2, 3000), generator=generator)
    return Data(edge_index=edges, num_nodes=500)


def test_all_ranks_load_the_whole_graph_once_where_they_reach_all_of_it() -> None:
    data = graph()
    step = step_of_ranks(data, [-1] * 6, 20, {None: 8}, 4)
    reached = step.common
    assert 450 < reached <= 500
    assert step.alone == pytest.approx(4 * reached, rel=0.02)
    assert step.common_bytes == 8 * reached
    assert step.sent_bytes == 0.75 * step.alone_bytes


def test_seeds_alone_are_loaded_by_one_rank_each() -> None:
    step = step_of_ranks(graph(), [0], 20, {None: 4}, 3)
    assert (step.alone, step.common) == (60.0, 60.0)
    assert "that pays" not in ranks_text(step)


def test_types_count_with_their_own_rows() -> None:
    torch.manual_seed(0)
    data: Any = papers_and_authors()
    wide = dict.fromkeys(data.node_types, 0) | {"author": 10}
    step = step_of_ranks(data, [3], 5, wide, 2, "author")
    assert step.alone_bytes >= 10 * 10  # the seeds are authors
    assert step.common_bytes <= step.alone_bytes < 10 * step.alone


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--nodes", "2000", "--edges", "20000", "--fanout", "5,5", "--batch-size", "64"]
    plan.main([*sizes, "--ranks", "2"])
    text = capsys.readouterr().out
    assert "a step of 2 ranks: " in text
    assert "each rank sends" in text
    plan.main(sizes)
    assert "ranks" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        plan.main([*sizes, "--ranks", "0"])
