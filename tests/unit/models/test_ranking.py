"""`pyg_direct.rank_links` against a loop over all pairs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pyg_direct


def expected(scores, links, known):
    """Rank each link by the definition: (optimistic + pessimistic rank) / 2."""
    ranks, candidates = [], []
    right = set() if known is None else set(zip(*known.tolist(), strict=True))
    for source, destination in links.T.tolist():
        others = [
            float(scores[source, other])
            for other in range(scores.shape[1])
            if other != destination and (source, other) not in right
        ]
        own = float(scores[source, destination])
        above, equal = (sum(f(s) for s in others) for f in (own.__lt__, own.__eq__))
        ranks.append(1 + above + equal / 2)
        candidates.append(1 + len(others))
    return ranks, candidates


def looked_up(scores, num_dst):
    """Return (source, destination, score) that give these scores."""
    return (
        torch.arange(len(scores))[:, None],
        torch.arange(num_dst)[:, None],
        lambda rows, _: scores[rows[:, 0]],
    )


@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 30), st.integers(0, 40),
    st.integers(0, 2**32), st.sampled_from([0, 40, 1 << 20]),
)  # fmt: skip
def test_ranks_are_those_of_a_loop_over_all_pairs(
    num_src, num_dst, num_links, num_known, seed, memory_bytes
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(4, (num_src, num_dst), generator=generator).float()  # with many ties

    def pairs(number: int) -> torch.Tensor:
        ends = (torch.randint(n, (number,), generator=generator) for n in (num_src, num_dst))
        return torch.stack(list(ends))

    links, known = pairs(num_links), pairs(num_known)
    source, destination, score = looked_up(scores, num_dst)
    for given_known in (None, known, known.to(torch.int32)):
        found = pyg_direct.rank_links(
            source, destination, links, given_known, score=score, memory_bytes=memory_bytes
        )
        ranks, candidates = expected(scores, links, given_known)
        assert found.rank.tolist() == ranks
        assert found.candidates.tolist() == candidates


def test_ranks_of_links_give_mrr_and_hits_with_and_without_known_links() -> None:
    scores = torch.tensor([[9.0, 3, 5, 1], [0, 1, 2, 3]])
    source, destination, score = looked_up(scores, 4)
    links = torch.tensor([[0, 0, 1], [1, 2, 3]])
    plain = pyg_direct.rank_links(source, destination, links, score=score)
    assert plain.rank.tolist() == [3, 2, 1]
    assert plain.mrr() == pytest.approx((1 / 3 + 1 / 2 + 1) / 3)
    assert [plain.hits(k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])
    known = torch.tensor([[0, 0, 0, 0], [0, 0, 2, 1]])  # destinations 0, 1 and 2 are right
    filtered = pyg_direct.rank_links(source, destination, links, known, score=score)
    assert filtered.rank.tolist() == [1, 1, 1]
    assert filtered.candidates.tolist() == [2, 2, 4]


def test_a_model_that_has_collapsed_gets_the_mean_rank() -> None:
    ones = torch.ones(9, 4)
    ranks = pyg_direct.rank_links(ones, ones, torch.tensor([[0, 3], [8, 0]]))
    assert ranks.rank.tolist() == [5, 5]


def test_a_block_holds_as_many_links_as_memory_allows() -> None:
    shapes = []

    def score(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        shapes.append((len(source), len(destination)))
        return source @ destination.T

    x = torch.randn(100, 8, requires_grad=True)
    links = torch.randint(100, (2, 10))
    ranks = pyg_direct.rank_links(x, x, links, score=score, memory_bytes=100 * 9 * 4)
    assert shapes == [(4, 100), (4, 100), (2, 100)]
    assert not ranks.rank.requires_grad


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"links": torch.zeros(2, 0, dtype=torch.int64)}, ValueError, "links is empty"),
        ({"links": torch.zeros(3, 2, dtype=torch.int64)}, ValueError, r"shape \[2, n\]"),
        ({"links": torch.zeros(2, 2)}, ValueError, "must be integers"),
        ({"links": torch.zeros(2, 2) > 0}, ValueError, "must be integers"),
        ({"links": [[0], [0]]}, TypeError, "links must be a tensor"),
        ({"links": torch.tensor([[5], [0]])}, IndexError, "sources of links"),
        ({"known": torch.tensor([[0], [7]])}, IndexError, "destinations of known"),
        ({"score": 3}, TypeError, "score must be a function"),
        ({"score": lambda a, b: a}, ValueError, "score must return one number for each of 1"),
        ({"source": torch.full((5, 2), torch.nan)}, ValueError, "must be finite"),
        ({"memory_bytes": -1}, ValueError, "memory_bytes"),
        ({"source": torch.ones(5, 3)}, ValueError, r"source have the shape \(3,\), and .* \(2,\)"),
    ],
)
def test_wrong_arguments_of_rank_links_are_refused(change, error, text) -> None:
    arguments = {
        "source": torch.ones(5, 2), "destination": torch.ones(7, 2),
        "links": torch.tensor([[0], [6]]),
    }  # fmt: skip
    with pytest.raises(error, match=text):
        pyg_direct.rank_links(**{**arguments, **change})


def test_hits_needs_a_number() -> None:
    ranks = pyg_direct.rank_links(torch.ones(2, 2), torch.ones(2, 2), torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="k must be an int of 1 or more"):
        ranks.hits(0)


@pytest.mark.parametrize("columns", [1, 16, 64, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_rows_have_equal_ranks_in_blocks_of_any_size(
    columns: int, dtype: torch.dtype
) -> None:
    """Entries of a matrix product differ in the last digit by where they stand."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, columns, generator=generator).to(dtype)
    source = torch.randn(37, columns, generator=generator).to(dtype)
    for num_dst in (17, 1001):
        ends = torch.arange(37), torch.randint(num_dst, (37,), generator=generator)
        for memory_bytes in (1, num_dst * 9 * 5, 1 << 28):
            found = pyg_direct.rank_links(
                source, row.repeat(num_dst, 1), torch.stack(ends), memory_bytes=memory_bytes
            )
            assert found.rank.tolist() == [(num_dst + 1) / 2] * 37


def test_some_equal_rows_among_others_are_ties() -> None:
    """Rows of small whole numbers, whose products are exact, and some of them with -0.0."""
    generator = torch.Generator().manual_seed(1)
    kinds = torch.randint(-3, 4, (5, 8), generator=generator).float()
    destination = kinds[torch.randint(5, (200,), generator=generator)]
    destination[::2] = torch.where(destination[::2] == 0, -0.0, destination[::2])
    source = torch.randint(-3, 4, (20, 8), generator=generator).float()
    links = torch.stack([torch.arange(20), torch.randint(200, (20,), generator=generator)])
    known = torch.stack([torch.arange(20), torch.randint(200, (20,), generator=generator)])
    ranks, _ = expected(source @ destination.T, links, known)
    assert pyg_direct.rank_links(source, destination, links, known).rank.tolist() == ranks


@pytest.mark.parametrize("name", ["source", "destination", "links", "known"])
@pytest.mark.parametrize("wrong", [[[1.0]], None, 3, "rows", torch.tensor(1.0)])
def test_arguments_that_are_no_tensors_of_rows_are_refused_by_name(
    name: str, wrong: object
) -> None:
    given = {"source": torch.ones(2, 3), "destination": torch.ones(4, 3),
             "links": torch.tensor([[0], [1]])}  # fmt: skip
    if name == "known" and wrong is None:
        return
    with pytest.raises((TypeError, ValueError), match=name):
        pyg_direct.rank_links(**{**given, name: wrong})  # type: ignore[arg-type]
