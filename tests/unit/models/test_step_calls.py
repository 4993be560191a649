"""What is known of an operation from earlier calls holds for calls with other numbers of rows."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from batches import homogeneous_graph
from both_runs import of_inference, plain
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import NeighborLoader, accelerate
from pyg_direct.models.lazy import rules
from pyg_direct.models.lazy import run as lazy_run
from pyg_direct.models.lazy.batch_run import BatchRun

PACKAGE = str(Path(pyg_direct.__file__).parent)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    known = {**rules.OPERATORS}
    rules.OPERATORS.clear()
    yield
    rules.OPERATORS.update(known)


def check(operation, *shapes) -> None:
    """Compare with plain tensors, one shape after the other."""
    for shape in shapes:
        x, run = torch.randn(shape, dtype=torch.float64), BatchRun(torch.device("cpu"))
        found, expected = operation(run.enter(x)), operation(x)
        assert found.shape == expected.shape
        torch.testing.assert_close(run.rows_of(found, 2), expected[:2])
        torch.testing.assert_close(run.whole(found), expected)


def test_as_many_columns_as_rows() -> None:
    check(lambda x: x.view(len(x), -1).exp(), (4, 2, 2), (6, 2, 2), (2, 2, 2), (5, 5, 5))
    check(lambda x: x.reshape(4, -1).exp(), (4, 2, 2), (8, 2, 2), (16, 1, 1), (4, 4, 4))
    check(lambda x: x.transpose(0, 1).transpose(0, 1) * 2, (4, 4), (6, 4), (4, 6))


def test_column_slices_from_the_number_of_rows_stay_columns() -> None:
    for rows in (3, 5):
        check(lambda x, rows=rows: x[:, rows:] * 2, (rows, 8))


def test_equal_numbers_of_other_types_give_their_own_dtype() -> None:
    for number in (1, 1.0, True):
        x, run = torch.arange(6).view(3, 2), BatchRun(torch.device("cpu"))
        found = run.enter(x) + number
        assert found.dtype == (x + number).dtype
        assert torch.equal(run.whole(found), x + number)


def test_weights_with_as_many_rows() -> None:
    weight, bias = torch.randn(4, 4).double(), torch.randn(4).double()
    check(lambda x: torch.addmm(bias, x, weight), (4, 4), (7, 4), (4, 4))
    check(lambda x: x * torch.ones(len(x), 1).double() + bias, (4, 4), (7, 4))


def test_tables_with_another_number_of_rows() -> None:
    """Calls with tables of one number of rows say nothing of those with a table of one row."""
    check(lambda x: x + x.tanh(), (4, 3))
    check(lambda x: x + x[:1], (4, 3), (6, 3))
    check(lambda x: x[:1] * x, (6, 3))


def test_a_table_of_one_row_says_nothing_of_others() -> None:
    for rows in (1, 4):
        run = BatchRun(torch.device("cpu"))
        run.whole(run.enter(torch.randn(rows, 3)) * 2)
    assert run.forms.whole_calls == {}


def test_rules_are_asked_once(monkeypatch) -> None:
    asked = []
    keeps_rows = lazy_run.keeps_rows
    monkeypatch.setattr(
        lazy_run, "keeps_rows", lambda *given: (asked.append(given[0]), keeps_rows(*given))[1]
    )
    check(lambda x: x.relu(), (4, 3), (7, 3), (9, 3))
    assert len(asked) == 1
    asked.clear()
    for factor in (0.5, 0.25, 3.0):  # such as one that falls from step to step
        check(lambda x, factor=factor: x * factor, (4, 3))
    assert len(asked) == 1
    for value in (0.0, 1.0, 0.0):
        check(lambda x, value=value: x.masked_fill(torch.ones(()) > 0, value), (4, 3))
    asked.clear()
    for rows in (4, 7, 9):  # a size that torch is to find states no number of rows
        check(lambda x: x.view(-1, 1, 3), (rows, 3))
    assert len(asked) == 1


def test_a_step_of_three_layers_makes_at_most_1800_calls_and_none_for_ranks() -> None:
    graph = homogeneous_graph(torch.float32)
    loader = NeighborLoader(graph, [4, 3, 2], batch_size=20, seed=0)
    net = accelerate(GraphSAGE(graph.x.size(1), 8, 3, 4), loader, certify=False)
    first, second, *_ = loader

    def step(batch: Data) -> None:
        net(batch.x, batch.edge_index)[: batch.batch_size].square().sum().backward()

    step(first)  # plans what the others call
    called = calls_of(lambda: step(second))
    assert net.acceleration.reason == ""
    assert len(called) <= 1800
    assert [name for name in called if "/remote/" in name] == []


def calls_of(action: Callable[[], None]) -> list[str]:
    """Return the files of the package whose functions an action calls, one for each call."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE):
            found.append(file)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return found


def test_inference_asks_the_rules_once_for_tables_of_any_number_of_rows(monkeypatch) -> None:
    asked = []
    keeps_rows = lazy_run.keeps_rows
    monkeypatch.setattr(
        lazy_run, "keeps_rows", lambda *given: (asked.append(given[0]), keeps_rows(*given))[1]
    )
    rules.operator(torch.ops.aten.add.Tensor).plans.clear()
    made, other = of_inference(), torch.randn(4, 6)
    for x in (torch.randn(6, 4), torch.randn(9, 4)):
        h = made(x)  # a copy of a table: the rules are asked for it
        asked.clear()
        for weight in (x, x + 1, *([other.t(), other.t().neg()] if len(x) == 6 else [])):
            torch.testing.assert_close(plain(h + weight), x + weight)
        assert len(asked) == (1 if len(x) == 6 else 0)
    torch.testing.assert_close(plain(h + torch.ones(9, 1)), x + 1)
    assert len(asked) == 1
