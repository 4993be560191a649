"""On which batches the trimmed steps of a model pay."""

import pytest

from pyg_direct.models import costs


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "COST_OF_BATCH", 1000)
    monkeypatch.setattr(costs, "COST_OF_LAYER", 100)


def test_edges_times_columns_pay_the_cost() -> None:
    made = costs.StepCosts()
    made.add([None], "product", 30)
    made.add([None], "pair", 50)  # 30 + 0.6 * 50 = 60 an edge, for 1200
    assert not made.pay(lambda _: 19)
    assert made.pay(lambda _: 20)


def test_types_count_by_their_edges() -> None:
    made = costs.StepCosts()
    made.add(["a", "b"], "product", 10)
    assert made.pay({"a": 110, "b": 0}.__getitem__)
    assert not made.pay({"a": 50, "b": 59}.__getitem__)


def test_layers_on_the_whole_batch_never_pay() -> None:
    made = costs.StepCosts()
    made.add([None], "whole", 1000)
    assert not made.pay(lambda _: 1 << 40)
