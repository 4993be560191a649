"""What `python -m pyg_direct.plan` says of other orders of the fan-outs."""

import numpy as np
import pytest
from graphs import papers_and_authors

from examples.support.synthetic import power_law_graph
from pyg_direct import NeighborLoader
from pyg_direct.tools import plan
from pyg_direct.tools.plan_orders import (
    Batching,
    LayerCosts,
    fanouts_to_try,
    layer_costs,
    orders_text,
)


@pytest.mark.parametrize(
    ("fanout", "tried"),
    [
        ([4], [(4,)]),
        ([5, 5], [(5, 5), (5,)]),
        ([15, 5], [(15, 5), (5, 15), (15,)]),
        (
            [10, 15, 5],
            [(10, 15, 5), (15, 10, 5), (15, 5, 10), (10, 5, 15), (5, 15, 10), (5, 10, 15)]
            + [(10, 15), (10,)],
        ),
        ([2, 4, 1, 3], [(2, 4, 1, 3), (4, 3, 2, 1), (1, 2, 3, 4), (2, 4, 1), (2, 4), (2,)]),
    ],
)
def test_fan_outs_are_tried_in_all_orders_and_with_fewer_hops(fanout, tried) -> None:
    assert fanouts_to_try(fanout) == tried


def test_costs_are_those_of_batches() -> None:
    data = power_law_graph(20_000, 200_000, 1, 4)
    for cost in layer_costs(data, Batching([8, 4], 128)):
        loader = NeighborLoader(data, list(cost.fanout), batch_size=128, shuffle=True)
        batches = [batch for _, batch in zip(range(20), loader, strict=False)]
        nodes = np.mean([np.cumsum(batch.num_sampled_nodes) for batch in batches], axis=0)
        edges = np.mean([np.cumsum(batch.num_sampled_edges) for batch in batches], axis=0)
        assert cost.rows == pytest.approx(nodes[:-1][::-1], rel=0.05)
        assert cost.edges == pytest.approx(edges[::-1], rel=0.05)
        assert cost.read_rows == pytest.approx(nodes[-1], rel=0.05)


def test_the_smallest_first_computes_the_fewest_rows() -> None:
    data = power_law_graph(20_000, 200_000, 1, 4)
    rows = {cost.fanout: sum(cost.rows) for cost in layer_costs(data, Batching([8, 4, 2], 128))}
    assert min((f for f in rows if len(f) == 3), key=rows.__getitem__) == (2, 4, 8)


def test_types_are_added_up() -> None:
    data = papers_and_authors()
    first, *_ = layer_costs(data, Batching([3, 2], 40, "paper"))
    loader = NeighborLoader(data, [3, 2], input_nodes="paper", batch_size=40)
    batch = next(iter(loader))
    assert first.rows[-1] == 40
    assert len(first.rows) == len(first.edges) == len(batch.num_sampled_nodes_dict["paper"]) - 1


def test_the_text_of_orders_has_shares_of_the_first_line() -> None:
    costs = [
        LayerCosts((15, 5), (3000.0, 100.0), (9000.0, 1500.0), 7000.0),
        LayerCosts((5, 15), (1450.0, 100.0), (7000.0, 500.0), 6000.0),
    ]
    text = orders_text(costs)
    assert (
        "fan-out 15/5: 3,000 + 100 rows (1.00 of the rows of the first line), 9,000 + 1,500 edges"
        in text
    )
    assert "fan-out 5/15: 1,450 + 100 rows (0.50 of the rows of the first line)" in text
    assert "6,000 rows of features" in text


def test_the_command_prints_it(capsys) -> None:
    plan.main(["--nodes", "2000", "--edges", "9000", "--fanout", "6,3", "--batch-size", "64"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("  fan-out 3/6: ")]
    assert [line for line in lines if line.startswith("  fan-out 6: ")]
