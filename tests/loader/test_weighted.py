"""Draws in proportion to weights, against the exact law."""

import itertools
import re

import numba
import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData

from pyg_direct import NeighborLoader
from pyg_direct.kernels import gaps, jit, weighted

pytestmark = pytest.mark.usefixtures("each_backend")

ALPHA = 1e-4
COPIES = 20_000
MOST_DRAWS = 200_000  # with these the chi-square test sees a weight that is 5 % too large
WEIGHTS = [1.0, 0.0, 5.0, 2.0, 0.5, 1.5]


def stars(weights, copies=COPIES):
    """Return `copies` nodes with the same neighbours 0, 1, ... and weights, and their ids."""
    degree = len(weights)
    centre = torch.arange(copies) + degree
    edge_index = torch.stack(
        [torch.arange(degree).repeat(copies), centre.repeat_interleave(degree)]
    )
    weight = torch.tensor(weights, dtype=torch.float64).repeat(copies)
    return Data(num_nodes=copies + degree, edge_index=edge_index, weight=weight), centre


def draws(weights, k, replace, seed=1, copies=COPIES):
    """Return the picks of each star, [copies, picks]."""
    data, centre = stars(weights, copies)
    (batch,) = NeighborLoader(
        data,
        [k],
        input_nodes=centre,
        batch_size=copies,
        weight_attr="weight",
        replace=replace,
        seed=seed,
    )
    return batch.n_id[batch.edge_index[0]].view(copies, -1).numpy()


def chi_square(observed, probability):
    """Return the p-value of counts of independent outcomes."""
    keep = probability > 0
    assert observed[~keep].sum() == 0
    expected = observed.sum() * probability[keep] / probability[keep].sum()
    q = ((observed[keep] - expected) ** 2 / expected).sum()
    return stats.chi2.sf(q, keep.sum() - 1)


def subset_law(weights, k):
    """Return the probability of every set of k, drawn one after another without replacement."""
    law = {}
    for order in itertools.permutations(np.flatnonzero(weights), k):
        left, probability = sum(weights), 1.0
        for i in order:
            probability *= weights[i] / left
            left -= weights[i]
        key = tuple(sorted(order))
        law[key] = law.get(key, 0.0) + probability
    return law


@pytest.mark.pyg("weight_attr")
@pytest.mark.parametrize("k", [1, 4, 40])
def test_with_replacement_the_frequencies_are_the_weights(k):
    copies = min(COPIES, MOST_DRAWS // k)
    picks = draws(WEIGHTS, k, replace=True, copies=copies)
    assert picks.shape == (copies, k)
    probability = np.array(WEIGHTS) / sum(WEIGHTS)
    assert chi_square(np.bincount(picks.ravel(), minlength=6), probability) > ALPHA


@pytest.mark.pyg("weight_attr")
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_without_replacement_every_set_has_its_probability(k):
    picks = np.sort(draws(WEIGHTS, k, replace=False), axis=1)
    law = subset_law(WEIGHTS, k)
    counts = dict.fromkeys(law, 0)
    for pick in map(tuple, picks.tolist()):
        counts[pick] += 1  # a set that has no probability raises
    observed = np.array([counts[key] for key in law])
    assert chi_square(observed, np.array([law[key] for key in law])) > ALPHA


def test_laws_of_weighted_draws_catch_wrong_weights():
    """The tests above see uniform draws, and draws by the wrong weights."""
    probability = np.array(WEIGHTS) / sum(WEIGHTS)
    uniform = draws([1.0, 0.0, 1.0, 1.0, 1.0, 1.0], 4, replace=True)
    assert chi_square(np.bincount(uniform.ravel(), minlength=6), probability) < ALPHA
    wrong = [1.05, 0.0, 5.0, 2.0, 0.5, 1.5]
    almost = draws(wrong, 40, replace=True, copies=MOST_DRAWS // 40)
    assert chi_square(np.bincount(almost.ravel(), minlength=6), probability) < ALPHA
    # Independent draws, duplicates thrown away, are not successive draws without replacement.
    picks = draws(WEIGHTS, 2, replace=True)
    picks = np.sort(picks[picks[:, 0] != picks[:, 1]], axis=1)
    law = subset_law(WEIGHTS, 2)
    observed = np.array([(picks == key).all(1).sum() for key in law])
    assert chi_square(observed, np.array(list(law.values()))) < ALPHA


@pytest.mark.pyg("weight_attr")
@pytest.mark.parametrize(
    ("weights", "k", "expected"),
    [
        ([1e30, 1.0, 2.0, 1e-30, 0.0], 1, {0: 1.0}),
        ([1e30, 1.0, 2.0, 1e-30, 0.0], 2, {0: 1.0, 1: 1 / 3, 2: 2 / 3}),
        ([1e30, 1.0, 2.0, 1e-30, 0.0], 3, {0: 1.0, 1: 1.0, 2: 1.0}),
        ([1e30, 1.0, 2.0, 1e-30, 0.0], 4, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}),
        ([1e30, 1.0, 2.0, 1e-30, 0.0], 9, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}),
        ([1e-300, 3e-300], 1, {0: 0.25, 1: 0.75}),
        ([0.0, 0.0], 1, {}),
        ([0.0, 7.0, 0.0], 2, {1: 1.0}),
    ],
)
def test_zero_and_huge_weights(weights, k, expected):
    picks = draws(weights, k, replace=False)
    assert all(len(set(pick)) == len(pick) for pick in picks.tolist()[:100])
    share = np.bincount(picks.ravel().astype(int), minlength=len(weights)) / COPIES
    for i in range(len(weights)):
        p = expected.get(i, 0.0)
        assert abs(share[i] - p) <= 4.5 * np.sqrt(p * (1 - p) / COPIES)


HARD_TO_ADD = {
    "a sum beyond doubles": [1e308, 1.7e308, 0.0, 1.5e308],
    "denormal": [5e-324, 1e-323, 0.0, 2e-323],
    "next to nothing": [1e-300, 0.0, 4e-300, 3e-300],
    "far apart, and beyond": [1.5e308, 1e-300, 1.5e308, 0.0],
}


@pytest.mark.parametrize("kind", HARD_TO_ADD)
@pytest.mark.parametrize(("k", "replace"), [(1, False), (2, False), (3, True)])
def test_weights_whose_sum_is_hard_follow_their_law(kind, k, replace):
    weights = np.array(HARD_TO_ADD[kind])
    easy = (weights / weights.max()).tolist()  # the same law
    picks = np.sort(draws(HARD_TO_ADD[kind], k, replace), axis=1)
    if replace:
        observed = np.bincount(picks.ravel(), minlength=4)
        assert chi_square(observed, np.array(easy)) > ALPHA
        return
    law = subset_law(easy, k)
    observed = np.array([(picks == key).all(1).sum() for key in law])
    assert observed.sum() == COPIES
    possible = np.array(list(law.values()))
    certain = possible * COPIES < 1
    assert observed[certain].sum() == 0
    assert (~certain).sum() == 1 or chi_square(observed[~certain], possible[~certain]) > ALPHA


def test_the_users_weights_are_left_alone():
    data, centre = stars([1e308, 1.7e308], copies=3)
    weight = data.weight.clone()
    (batch,) = NeighborLoader(data, [1], centre, batch_size=3, weight_attr="weight")
    assert torch.equal(data.weight, weight)
    assert torch.equal(batch.weight, weight[batch.e_id])


def test_a_small_weight_stays_above_zero():
    """All edges with weight can be drawn, however much heavier the others are."""
    picks = draws([1.5e308, 1e-320, 1.5e308, 0.0], 3, replace=False)
    assert (np.sort(picks, axis=1) == [0, 1, 2]).all()


def test_no_weight_at_all_with_replacement():
    assert draws([0.0, 0.0], 3, replace=True).size == 0


INTS, DOUBLES, SIZE = numba.int64[::1], numba.float64[::1], numba.int64
TABLE = (numba.float32[::1], numba.uint32[::1])
PICKS = (INTS, SIZE, SIZE, SIZE, SIZE, DOUBLES)


def compiled_text(function, arguments, **options):
    """Return LLVM's text and the machine code of a kernel, compiled as `jit.kernel` does."""
    options = {"nogil": True, "error_model": "numpy", **jit.FOR_ALL, **options}
    dispatcher = numba.njit(arguments, **options)(function.py_func)
    texts = [*dispatcher.inspect_llvm().values(), *dispatcher.inspect_asm().values()]
    return "\n".join(texts)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (weighted.find, (numba.float64, SIZE, SIZE, numba.boolean, *TABLE, DOUBLES)),
        (gaps.pick_exactly, (*PICKS, numba.float64)),
        (gaps.pick_from_gaps, (*PICKS, DOUBLES, numba.float64, numba.float64)),
    ],
)
def test_products_and_sums_round_one_by_one(function, arguments):
    """As on the GPU: else the two backends would pick different edges now and then."""
    merged = re.compile(r"f(mul|add) (fast|contract|reassoc)|fmuladd|vfn?m(add|sub)|llvm\.fma")
    assert "fmul double" in compiled_text(function, arguments)
    assert not merged.search(compiled_text(function, arguments))
    assert merged.search(compiled_text(function, arguments, fastmath=True)), "the test can fail"


def test_a_negative_fan_out_takes_all():
    assert draws(WEIGHTS, -1, replace=False, copies=3).tolist() == [[0, 1, 2, 3, 4, 5]] * 3


@pytest.mark.parametrize("weights", [[1e30, 3.0, 0.0, 1.0, 2.0], [1e16, 1.0, 1.0, 1.0]])
def test_the_latest_neighbours_behind_a_huge_weight(weights):
    """Their share of the list's running sum is lost in rounding."""
    data, centre = stars(weights, 6000)
    data.time = torch.arange(len(weights)).repeat(6000)
    (batch,) = NeighborLoader(
        data,
        [3],
        input_nodes=centre,
        input_time=torch.full((6000,), 9),
        batch_size=6000,
        time_attr="time",
        weight_attr="weight",
        temporal_strategy="last",
        replace=True,
        seed=1,
    )
    picks = np.bincount(batch.n_id[batch.edge_index[0]].numpy())[: len(weights)]
    late = np.array([0.0, *weights[1:]])
    assert chi_square(picks, late / late.sum()) > ALPHA


@pytest.mark.pyg("weight_attr")
def test_edge_types_without_weights_are_uniform():
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 4000, 2
    col = torch.arange(4000).repeat_interleave(2)
    for name in ("heavy", "plain"):
        data["b", name, "a"].edge_index = torch.stack([torch.arange(2).repeat(4000), col])
    data["b", "heavy", "a"].weight = torch.tensor([0.0, 1.0]).repeat(4000)
    (batch,) = NeighborLoader(
        data, [1], input_nodes="a", batch_size=4000, weight_attr="weight", seed=0
    )
    heavy = batch["b"].n_id[batch["b", "heavy", "a"].edge_index[0]]
    plain = batch["b"].n_id[batch["b", "plain", "a"].edge_index[0]]
    assert heavy.unique().tolist() == [1]
    assert abs(plain.float().mean() - 0.5) < 4 * 0.5 / 4000**0.5


def test_a_type_without_zeros_does_not_hide_those_of_another():
    """Zeros are looked for in all types, whichever comes first."""
    for zeros in ("one", "two"):
        data = HeteroData()
        data["a"].num_nodes, data["b"].num_nodes = 50, 3
        ends = torch.stack([torch.arange(3).repeat(50), torch.arange(50).repeat_interleave(3)])
        for name in ("one", "two"):
            data["b", name, "a"].edge_index = ends
            data["b", name, "a"].weight = torch.ones(150)
        data["b", zeros, "a"].weight[1::3] = 0.0
        for fanout in (1, 2, 3):
            (batch,) = NeighborLoader(
                data, [fanout], input_nodes="a", batch_size=50, weight_attr="weight", seed=0
            )
            for name in ("one", "two"):
                drawn = batch["b"].n_id[batch["b", name, "a"].edge_index[0]]
                assert (1 in drawn) == (name != zeros)


@pytest.mark.pyg("weight_attr")
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.tensor([1.0, -1.0]), r"data.weight\[1\] is -1.0"),
        (torch.tensor([float("nan"), 1.0]), r"data.weight\[0\] is nan"),
        (torch.tensor([float("inf"), 1.0]), r"data.weight\[0\] is inf"),
        (torch.ones(3), "one entry for each of 2 edges"),
        (torch.ones(2, 2), "one weight for each edge"),
        (torch.tensor(1.0), "one weight for each edge"),
        (torch.ones(2, dtype=torch.complex128), "one weight for each edge"),
        (["a", "b"], "one weight for each edge"),
        (None, "weight_attr='weight' is not an attribute"),
    ],
)
def test_weights_of_wrong_kind_or_value_are_refused(weight, message):
    data = Data(num_nodes=2, edge_index=torch.tensor([[0, 1], [1, 0]]))
    if weight is not None:
        data.weight = weight
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [1], weight_attr="weight")
