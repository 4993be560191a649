"""What several ranks load in a step, as `plan --ranks` tells it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from graphs import papers_and_authors
from torch_geometric.data import Data

from pyg_direct.tools import plan
from pyg_direct.tools.plan_cooperative import (
    CommonStep,
    Rates,
    common_step,
    layer_bytes,
    owners_lines,
)
from pyg_direct.tools.plan_orders import Batching
from pyg_direct.tools.plan_ranks import (
    RanksAsked,
    StepOfRanks,
    Work,
    layer_flop,
    ranks_text,
    step_of_ranks,
    work_of,
)


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(500, (2, 3000), generator=generator)
    return Data(edge_index=edges, num_nodes=500)


def test_all_ranks_load_the_whole_graph_once_where_they_reach_all_of_it() -> None:
    data = graph()
    step = step_of_ranks(data, RanksAsked(4, Batching([-1] * 6, 20), {None: 8}, steps=1))
    reached = step.common
    assert 450 < reached <= 500
    assert step.alone.rows == pytest.approx(4 * reached, rel=0.02)
    assert step.common_bytes == 8 * reached
    assert step.sent_bytes == 0.75 * step.alone.row_bytes


def test_rows_of_steps_that_are_made_together_are_loaded_and_sent_once() -> None:
    step = step_of_ranks(graph(), RanksAsked(4, Batching([-1] * 6, 20), {None: 8}, steps=4))
    assert 450 < 4 * step.common <= 500
    # Each rank needs all of them, and has a quarter.
    assert step.sent_bytes == pytest.approx(8 * 4 * 0.75 * step.common, rel=0.02)
    assert step.alone.rows == pytest.approx(4 * 4 * step.common, rel=0.02)
    assert "as rows of 4 steps are loaded together" in ranks_text(step)


def test_seeds_alone_are_loaded_by_one_rank_each() -> None:
    step = step_of_ranks(graph(), RanksAsked(3, Batching([0], 20), {None: 4}))
    assert (step.alone.rows, step.common) == (60.0, 60.0)
    assert "that pays" not in ranks_text(step)


def test_types_count_with_their_own_rows() -> None:
    torch.manual_seed(0)
    data: Any = papers_and_authors()
    wide = dict.fromkeys(data.node_types, 0) | {"author": 10}
    step = step_of_ranks(data, RanksAsked(2, Batching([3], 5, "author"), wide))
    assert step.alone.row_bytes >= 10 * 10  # the seeds are authors
    assert step.common_bytes <= step.alone.row_bytes < 10 * step.alone.rows


def test_operations_of_layers() -> None:
    asked = RanksAsked(2, Batching([2, 2], 1), {None: 12}, columns={None: 3}, widths=(4, 5))
    # Layer 1: 3 rows by matrices of 3 x 4, twice, and 6 edges; layer 2: 1 row by 4 x 5 and 2 edges.
    first, second = 2 * (3 * 2 * 2 * 3 * 4) + 6 * 3, 3 * (1 * 2 * 2 * 4 * 5) + 2 * (2 * 4)
    assert layer_flop({None: [1, 2, 4]}, {None: [2, 4]}, asked) == first + second
    typed = asked._replace(columns={"a": 3, "b": 2})
    nodes, edges = {"a": [1, 0, 0], "b": [0, 2, 1]}, {("b", "to", "a"): [2, 0]}
    found = 2 * (2 * (3 + 2) * 4) + 2 * 2 + 3 * (2 * (4 + 4) * 5) + 2 * (2 * 4)
    assert layer_flop(nodes, edges, typed) == found
    assert layer_flop(nodes, edges, typed._replace(widths=())) == 0


def test_edges_are_read_in_each_layer_that_needs_them() -> None:
    """Those of the first hop in both layers, those of the second in the first one."""
    asked = RanksAsked(2, Batching([3, 3], 1, "a"), {"a": 8, "b": 2})
    edges = {("a", "to", "a"): [3, 2], ("b", "to", "a"): [1, 0]}
    work = work_of({"a": 5, "b": 1}, {"a": [1, 3, 2], "b": [0, 1, 0]}, edges, asked)
    assert work == Work(6, 42, 6, 3 + 5 + 1 + 1, 0)


def test_the_plan_names_the_speed_at_which_sharing_rows_pays() -> None:
    step = StepOfRanks(2, Work(100, 4000, 0, 0, 0), 4, 60, 2400, 2000)
    assert "1,000 bytes" not in ranks_text(step)
    assert "each rank sends 1.0 kB a step" in ranks_text(step)
    assert "that pays where ranks send 1.2 times as fast as they load" in ranks_text(step)


@pytest.mark.parametrize(("speed", "pays"), [(5e9, "it pays"), (3.9e9, "it does not pay")])
def test_the_plan_names_the_speed_at_which_common_batches_pay(speed: float, pays: str) -> None:
    """A rank sends 8 GB, of which 4 between layers, and saves a second of each kind."""
    alone, together = Work(0, 4e9, 0, 0, 5e12), Work(0, 2e9, 0, 0, 3e12)
    step = CommonStep(together, 0, 8e9, 10, 4e9, 1.25)
    text = "\n".join(owners_lines("hash", 2, alone, step, Rates(1e9, 1e12, speed)))
    assert "sends 4.0 GB to load its part, in 10 collectives, and 2.0 GB between layers" in text
    assert "the largest samples 1.25 times the mean" in text
    assert "saves 1000.00 ms of loading at 1.0 GB/s and 1000.00 ms of computing" in text
    assert "sends more than 4.0 GB/s" in text
    assert f"sending takes {8e12 / speed:.2f} ms: {pays}" in text


def test_one_rank_that_owns_all_draws_all() -> None:
    data, asked = (
        graph(),
        RanksAsked(2, Batching([2], 20), {None: 8}, widths=(4,), columns={None: 2}),
    )
    step = common_step(data, asked, [np.zeros(500, np.int16)])
    assert step.largest == 2.0
    assert step.layer_bytes == 4 * 4 * 20  # float32, of the seeds of the other's loop


def test_layers_send_the_rows_that_the_next_one_reads() -> None:
    """Of the last layer outputs of 2 seeds, of the first one rows of 10 nodes within a hop."""
    send = SimpleNamespace(counts_within=lambda hop: [7 * hop, 3 * hop])
    plan: Any = SimpleNamespace(
        rank=0, outputs=SimpleNamespace(send=[[8], [0, 1]]),
        nodes={None: SimpleNamespace(send=send)},
    )  # fmt: skip
    assert layer_bytes(plan, (6, 5)) == 4 * (5 * 2 + 6 * 10)
    assert layer_bytes(plan, ()) == 0.0


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--nodes", "2000", "--edges", "20000", "--fanout", "5,5", "--batch-size", "64"]
    plan.main([*sizes, "--ranks", "2"])
    text = capsys.readouterr().out
    assert "a step of 2 ranks: " in text
    assert "each rank sends" in text
    assert "the same with cooperative=True, one batch of 128 seeds:" in text
    assert "that write 128/128 in place of" in text
    assert "  owners by hash: each rank sends " in text
    assert "sending takes" not in text
    plan.main(sizes)
    assert "ranks" not in capsys.readouterr().out
    plan.main([*sizes[:4], "--fanout", "5,-1", "--ranks", "2"])
    assert "cooperative=True takes no negative fan-outs" in capsys.readouterr().out


def test_the_command_knows_owners_and_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(torch.arange(2000) // 1000, path := tmp_path / "part.pt")
    sizes = ["--nodes", "2000", "--edges", "20000", "--fanout", "5,5", "--batch-size", "64"]
    given = [*sizes, "--sampling", "labor", "--ranks", "3", "--widths", "16,4"]
    plan.main([*given, "--link", "1e9", "--owners", "ldg", str(path)])
    text = capsys.readouterr().out
    assert "that write 16/4 in place of" in text
    assert f"  owners by {path}: " in text
    sent = re.findall(r"owners by .*: each rank sends ([0-9.]+) .* in 10 collectives", text)
    assert len(sent) == 2
    assert text.count("at 1e+09 GB/s sending takes 0.00 ms: it pays") == 2
    plan.main([*given, "--link", "1e-6"])
    assert "it does not pay" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--ranks", "0"], "--ranks must be at least 1, got 0"),
        (["--link", "3"], "--link would have no effect without --ranks of at least 2"),
        (["--owners", "hash"], "--owners would have no effect"),
        (["--tflops", "3", "--widths", "128"], "--widths, --tflops would have no effect"),
        (["--ranks", "2", "--link", "0"], "--link must be above 0, got 0.0"),
        (
            ["--ranks", "2", "--widths", "1,2,3"],
            "--widths must be one number above 0, or 2 for as many hops",
        ),
    ],
)
def test_invalid_ranks_of_a_plan_are_refused(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        plan.main(["--nodes", "20", "--edges", "50", "--fanout", "5,5", *more])
    assert message in capsys.readouterr().err


def test_invalid_owners_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(torch.arange(7), path := tmp_path / "part.pt")
    given = ["--nodes", "20", "--edges", "50", "--fanout", "2", "--ranks", "2", "--owners"]
    wrong = {str(path): "one integer for each of 20 nodes", "nothing": "No such file"}
    for name, told in wrong.items():
        with pytest.raises(SystemExit, match=r"^2$"):
            plan.main([*given, name])
        error = capsys.readouterr().err
        assert f"--owners {name}: " in error
        assert told in error
