"""On which batches steps on the needed rows pay."""

import pytest

from pyg_direct.models import costs


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "COST_OF_BATCH", 1000)
    monkeypatch.setattr(costs, "COST_OF_CALL", 10)


def test_the_first_step_shows_what_there_is_to_save() -> None:
    made = costs.StepCosts()
    assert made.pay(1)
    made.learn(num_edges=50, entries=3000, calls=20, products=0)  # 60 an edge, for 1200
    assert not made.pay(19)
    assert made.pay(20)


def test_products_with_dense_matrices_count() -> None:
    made = costs.StepCosts()
    made.learn(num_edges=50, entries=2000, calls=20, products=1000 * costs.PRODUCTS_PER_ENTRY)
    assert not made.pay(19)
    assert made.pay(20)


def test_a_step_without_edges_shows_nothing() -> None:
    made = costs.StepCosts()
    made.learn(num_edges=0, entries=0, calls=20, products=0)
    assert made.pay(1)


def test_models_without_messages_never_pay() -> None:
    made = costs.StepCosts()
    made.learn(num_edges=50, entries=0, calls=20, products=0)
    assert not made.pay(1 << 40)
