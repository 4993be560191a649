"""Where the rows of a common batch lie, and what is added to types of which a rank has few."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from pyg_direct.batch.edges import HopEnds, SampledEdges
from pyg_direct.core.cooperation import Cooperation, NodesInCommon, RowsBetween, SeedOutputs
from pyg_direct.models.remote.common_rows import FEW_EDGES, CommonNorm, PaddingRows
from pyg_direct.models.remote.cooperative import telling
from pyg_direct.models.remote.messages import NUMBERS, RowBlocks, StepMessages
from pyg_direct.ranks.board import ExchangeError


def test_more_agreements_than_fit_into_a_message() -> None:
    channel: Any = SimpleNamespace(rank=0, size=2, group=None)
    messages, asked = StepMessages(channel), list(range(NUMBERS + 5))
    said: Any = lambda titles, numbers: torch.tensor([numbers, numbers])  # noqa: E731
    messages._say = said  # type: ignore[method-assign]
    agreements: Any = [
        SimpleNamespace(title=str(i), asked=i, take=lambda: None) for i in reversed(asked)
    ]
    assert messages.agree(agreements)
    assert [each.asked for each in agreements] == asked[::-1]


def test_an_error_amid_a_step_is_told_to_the_other_ranks() -> None:
    told: list[str] = []
    channel: Any = SimpleNamespace(rank=0, size=2, group=None, fail=told.append)
    for error in (ZeroDivisionError("planted"), ExchangeError("which they know")):
        with pytest.raises(type(error)), telling(channel):
            raise error
    assert told == ["ZeroDivisionError: planted"]


@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=["weight", "bias"])
def test_one_of_weight_and_bias_of_a_common_norm_may_be_frozen(wanted: tuple[bool, bool]) -> None:
    """The gradient of the other one is that of torch."""
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = [torch.ones(3, dtype=torch.float64, requires_grad=one) for one in wanted]
    functional.batch_norm(x, None, None, *parameters, training=True).pow(3).sum().backward()
    var, mean = torch.var_mean(x, 0, correction=0)
    norm: Any = CommonNorm.__new__(CommonNorm)
    norm.mean, norm.scale, norm._first = mean, (var + 1e-5).rsqrt(), 0
    grad = 3 * ((x - mean) * norm.scale + 1) ** 2
    of_x, *found = norm.gradients(None, grad, x, [parameters[0], [False, *wanted]])
    assert of_x is None
    for one, parameter in zip(found, parameters, strict=True):
        torch.testing.assert_close(one, parameter.grad)


NOBODY = RowsBetween([], [])


def nodes(seeds: int, own: list[int], others: list[int]) -> NodesInCommon:
    return NodesInCommon(seeds, own, others, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("end", "hop"),
    [(0, 0), (3, 0), (4, 1), (6, 1), (7, 1), (8, 1), (9, 2), (10, 2)],
)
def test_rows_tell_the_hop_of_the_messages_that_read_them(end: int, hop: int) -> None:
    blocks = RowBlocks(nodes(2, [1, 3, 0], [0, 2, 1]), 4)
    assert (blocks.own, blocks.others, blocks.num_rows) == ([3, 6, 6], [6, 8, 9], 13)
    assert blocks.hop(end) == hop


def test_of_hops_that_need_no_other_rows_it_is_the_last() -> None:
    blocks = RowBlocks(nodes(2, [1, 3, 2], [0, 2, 0]), 0)
    assert blocks.hop(10) == 2  # own rows of the second hop may be read, too


def made(
    size: int, edges: list[list[int]], counts: tuple[int, int], written: int = 0
) -> PaddingRows:
    """Return what a rank adds to authors and papers, with edges from the former to the latter."""
    authors, papers = counts
    plan = {"author": nodes(0, [0, authors], [0, 0]), "paper": nodes(1, [papers - 1, 0], [0, 0])}
    common = Cooperation(0, size, 0, None, 1.0, plan, "paper", SeedOutputs([], []))
    count = len(edges[0])
    hops = HopEnds((0, 0, authors), (1, papers, papers), (0, count), common=common)
    sampled = SampledEdges(torch.tensor(edges).reshape(2, -1), hops)
    if written:
        sampled.as_tensor()[0] += written
    return PaddingRows([(("author", "writes", "paper"), sampled)], common)


def test_a_type_of_few_edges_gets_more_between_rows_behind_all_others() -> None:
    padding = made(2, [[0], [1]], (2, 2))
    (_, sampled), *_ = padding.edges
    authors, papers = 2 + padding.nodes["author"], 2 + padding.nodes["paper"]
    assert authors != papers  # by which the types are told apart
    assert min(padding.nodes.values()) >= 2
    assert sampled.as_tensor().tolist() == [[0, 3, 3], [1, 2, 2]]
    assert sampled.num_ends == (authors, papers)
    assert sampled.hops.edge == (0, 3)
    assert padding.num_edges == {3: 1}
    x = padding.of({"author": torch.ones(2, 3), "paper": torch.ones(2, 3)})
    assert [len(rows) for rows in x.values()] == [authors, papers]
    assert float(x["author"].sum()) == 6.0


def test_edges_that_were_written_to_are_passed_as_they_are() -> None:
    (_, edges), *_ = made(2, [[0], [1]], (2, 2), written=1).edges
    assert edges.as_tensor().tolist() == [[1], [1]]


def test_nothing_is_added_to_many_edges_or_for_one_rank() -> None:
    many = [list(range(FEW_EDGES)), [20] * FEW_EDGES]
    for padding in (made(2, many, (FEW_EDGES, 21)), made(1, [[0], [1]], (1, 2))):
        assert set(padding.nodes.values()) == {0}
