"""The random numbers: known answers, an independent Philox, exact bounds, counters used once."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from versions import needs_numpy_2

from pyg_direct.core.types import BatchKey, Csc, SamplingPlan
from pyg_direct.kernels import hops, philox, sample
from pyg_direct.kernels.jit import entry
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.host import keys as rng

WORDS = tuple[int, ...]

PHILOX, BELOW = entry(philox.philox4x32), entry(philox.below)
WITH_REPLACEMENT = entry(sample.with_replacement)
WITHOUT_REPLACEMENT = entry(sample.without_replacement)


def reference(counter: WORDS, key: WORDS) -> WORDS:
    """Philox4x32-10 in plain integers, written from section 3.3 of Salmon et al. (SC 2011)."""
    left_0, right_0, left_1, right_1 = counter
    key_0, key_1 = key
    for i in range(10):
        if i > 0:
            key_0, key_1 = (key_0 + 0x9E3779B9) % 2**32, (key_1 + 0xBB67AE85) % 2**32
        high_0, low_0 = divmod(0xD2511F53 * left_0, 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * left_1, 2**32)
        left_0, right_0, left_1, right_1 = (
            high_1 ^ right_0 ^ key_0, low_1, high_0 ^ right_1 ^ key_1, low_0
        )  # fmt: skip
    return left_0, right_0, left_1, right_1


def ours(counter: WORDS, key: WORDS) -> WORDS:
    return tuple(int(w) for w in PHILOX(*(np.uint64(w) for w in (*counter, *key))))


# From the file kat_vectors of the authors' library, Random123.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def ours_in_python(counter: WORDS, key: WORDS) -> WORDS:
    return tuple(philox.philox4x32_of_ints(*counter, *key))


@pytest.mark.parametrize("generate", [ours, ours_in_python, reference])
@pytest.mark.parametrize("vector", KNOWN_ANSWERS)
def test_philox_gives_the_published_words_for_known_vectors(
    generate: Any, vector: tuple[str, str, str]
) -> None:
    counter, key, words = (tuple(int(w, 16) for w in part.split()) for part in vector)
    assert generate(counter, key) == words


word = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1]))


@given(counter=st.tuples(word, word, word, word), key=st.tuples(word, word))
def test_equals_the_reference(counter: WORDS, key: WORDS) -> None:
    assert ours(counter, key) == ours_in_python(counter, key) == reference(counter, key)


# Draws from a range ###############################################################################


def below(first_word: int, bound: int, at: WORDS = (0, 0, 0), key: WORDS = (1, 2)) -> int:
    return int(BELOW(*(np.uint64(v) for v in (first_word, bound, *at, *key))))


def by_hand(first_word: int, bound: int, at: WORDS, key: WORDS) -> tuple[int, int]:
    """Return (draw, attempts refused), from the definition: refuse the words left over."""
    left_over = 2**32 % bound
    refused = 0
    while first_word * bound % 2**32 < left_over:
        refused += 1
        first_word = reference((*at, refused << 8), key)[0]
    return first_word * bound >> 32, refused


BOUNDS = [1, 2, 3, 5, 7, 10, 100, 641, 2**16 + 1, 2**31, 2**31 + 1, 3 * 2**30 + 7, 2**32 - 1]


@pytest.mark.parametrize("bound", BOUNDS)
def test_every_result_has_the_same_number_of_accepted_words(bound: int) -> None:
    """Exactness without a statistic: the words of each result are an interval, and are counted.

    The draw is word * bound >> 32, so result r belongs to the words in [ceil(r 2^32 / bound),
    ceil((r + 1) 2^32 / bound)). Of them floor(2^32 / bound) must be accepted, for each r.
    """
    left_over = 2**32 % bound
    for r in {0, min(1, bound - 1), bound // 3, bound // 2, max(0, bound - 2), bound - 1}:
        first, last = -(-r * 2**32 // bound), -(-(r + 1) * 2**32 // bound)
        accepted = last - first - (first * bound % 2**32 < left_over)
        assert accepted == 2**32 // bound
        # Only the first word of an interval can be one of those to refuse: its ends tell.
        for w in {first, min(first + 1, last - 1), last - 1}:
            drawn, refused = by_hand(w, bound, (0, 0, 0), (1, 2))
            assert below(w, bound) == drawn
            assert refused == 0 or w == first
            if refused == 0:
                assert drawn == r


@given(
    first_word=word,
    bound=st.one_of(st.integers(1, 2**32 - 1), st.integers(1, 100)),
    at=st.tuples(st.integers(0, 300), word, word),
    key=st.tuples(word, word),
)
def test_below_equals_the_definition(first_word: int, bound: int, at: WORDS, key: WORDS) -> None:
    assert below(first_word, bound, at, key) == by_hand(first_word, bound, at, key)[0]


def test_refused_words_are_replaced() -> None:
    """A bound just above 2^31 refuses almost every second word, so chains of refusals are long."""
    bound, longest = 2**31 + 1, 0
    for slot in range(300):
        at, key = (slot, 17, 3), (5, 6)
        first_word = reference((slot // 4, 17, 3, 0), key)[slot % 4]
        drawn, refused = by_hand(first_word, bound, at, key)
        assert below(first_word, bound, at, key) == drawn
        longest = max(longest, refused)
    assert longest >= 4
    assert below(0, 3) == by_hand(0, 3, (0, 0, 0), (1, 2))[0]
    assert by_hand(0, 3, (0, 0, 0), (1, 2))[1] == 1


# No counter twice #################################################################################


class Recorder:
    """Stands in for `philox4x32` and remembers every counter."""

    def __init__(self) -> None:
        self.counters: list[WORDS] = []

    def __call__(self, *words: Any) -> tuple[np.uint64, ...]:
        counter, key = tuple(map(int, words[:4])), tuple(map(int, words[4:]))
        self.counters.append(counter)
        return tuple(map(np.uint64, reference(counter, key)))


def run_as_python(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    """Let `sample_hop` and what it calls run uncompiled, over `recorder`."""
    for module in (philox, sample):
        patch.setattr(module, "philox4x32", recorder)
    called = ("with_replacement", "without_replacement", "empty_slots", "enter", "stream_of")
    for name in (*called, "below", "excluded_of", "step_over", "read_sources", "local_of"):
        patch.setattr(sample, name, getattr(sample, name).py_func)
    patch.setattr(hops, "hop_sampled", sample.sample_hop.py_func)
    patch.setattr(sample, "prefetch", lambda array, index: None)


@needs_numpy_2
def test_no_counter_serves_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over hops, relations, nodes, slots and refusals."""
    recorder = Recorder()
    nodes, degree = 30, 3 * 2**29 + 1  # a degree for which a quarter of the words is refused
    # Two relations between nodes of one type, whose edges need not be stored.
    csc = Csc(
        indptr=np.arange(2 * (nodes + 1)) * degree,
        indices=np.broadcast_to(np.int64(0), (2 * (nodes + 1) * degree,)),
        perm=None,
        src_type=np.zeros(2, np.int64),
        dst_type=np.zeros(2, np.int64),
        indptr_base=np.array([0, nodes + 1]),
        edge_base=np.array([0, 1, 2]) * nodes * degree,
        num_nodes=np.array([nodes]),
    )
    fanouts = np.array([[9, 70], [5, 2]], np.int64)  # 70 is looked up by hashing
    numbers = []
    for replace in (False, True):
        plan = SamplingPlan(
            fanouts=fanouts, replace=replace, disjoint=False, recent=False, id_dtype=torch.int64
        )
        work = CpuBackend().workspace(csc, plan)
        work.begin([torch.arange(1, nodes)], BatchKey(11, 12))
        for hop in range(2):
            work.plan(hop)
            # numba wraps around in silence, as hashing wants it.
            with monkeypatch.context() as patch, np.errstate(over="ignore"):
                run_as_python(patch, recorder)
                work.sample_edges(hop)
            work.relabel(hop)
        counters, recorder.counters = recorder.counters, []
        retries = [c for c in counters if c[3] != 0]
        assert len(retries) > 100
        # Four slots share one call: 3 + 18 in the first hop; the second finds the one node 0.
        assert len(counters) - len(retries) == (nodes - 1) * (3 + 18) + 2 + 1
        assert len(set(counters)) == len(counters)
        numbers.append(len(retries))
    assert min(numbers) > 0


# Keys #############################################################################################


def test_key_of_a_batch_is_philox_of_seed_epoch_and_batch() -> None:
    seed, epoch, batch = 0x1234567890ABCDEF, 77, 0x500000003
    expected = reference((3, 5, epoch, 0), (0x90ABCDEF, 0x12345678))
    assert rng.derive(seed, epoch, batch) == expected[:2]


def test_derived_keys_differ_by_seed_epoch_batch_and_domain() -> None:
    seeds = [0, 1, 2**32, 2**64 - 1]
    keys = {
        rng.derive(seed, epoch, batch, domain)
        for seed in seeds
        for epoch in range(5)
        for batch in [0, 1, 2, 2**32, 2**32 + 1]
        for domain in (rng.LOADER_DOMAIN, rng.CALL_DOMAIN, rng.SHUFFLE_DOMAIN)
    }
    assert len(keys) == len(seeds) * 5 * 5 * 3


# Floyd's algorithm, and the draws with replacement, slot by slot ##################################


def picks_by_hand(k: int, degree: int, local: int, stream: int, key: WORDS) -> list[int]:
    picks: list[int] = []
    for j in range(k):
        first_word = reference((j // 4, local, stream, 0), key)[j % 4]
        top = degree - k + j
        pick, _ = by_hand(first_word, top + 1, (j, local, stream), key)
        picks.append(top if pick in picks else pick)
    return picks


@pytest.mark.parametrize("k", [1, 4, 5, 31, 32, 33, 63, 64, 65, 100, 257])
def test_without_replacement_is_floyds_algorithm(k: int) -> None:
    draw = random.Random(k)
    for degree in (k + 1, k + 2, 2 * k + 1, 5000, 3 * 2**30 + 7):
        local, key = draw.randrange(2**31), (draw.randrange(2**32), draw.randrange(2**32))
        position = np.full(k + 4, -1, np.int64)
        WITHOUT_REPLACEMENT(
            position,
            2,
            k,
            1000,
            degree,
            np.uint64(local),
            np.uint64(5),
            *map(np.uint64, key),
            np.empty(1024, np.int64),
        )
        expected = picks_by_hand(k, degree, local, 5, key)
        assert (position[2:-2] - 1000).tolist() == expected
        assert len(set(expected)) == k
        assert (position[[0, 1, -2, -1]] == -1).all()


@pytest.mark.parametrize("k", [1, 3, 4, 5, 66, 200])
def test_with_replacement_is_one_draw_a_slot(k: int) -> None:
    for degree in (1, 2, 7, 1000, 3 * 2**30 + 7):
        position = np.full(k + 4, -1, np.int64)
        WITH_REPLACEMENT(
            position, 2, k, 1000, degree, np.uint64(9), np.uint64(5), np.uint64(3), np.uint64(4)
        )
        words = [reference((j // 4, 9, 5, 0), (3, 4))[j % 4] for j in range(k)]
        expected = [by_hand(w, degree, (j, 9, 5), (3, 4))[0] for j, w in enumerate(words)]
        assert (position[2:-2] - 1000).tolist() == expected
        assert (position[[0, 1, -2, -1]] == -1).all()


@pytest.mark.parametrize(
    ("seed", "epoch", "first"), [(0, 0, 0), (2**64 - 1, 2**32 - 1, 2**32 - 3), (5, 7, 2**40)]
)
def test_the_keys_of_an_epoch_are_those_of_its_batches(seed, epoch, first) -> None:
    """Many are made at a time, past 2^32 batches, too."""
    made = list(itertools.islice(rng.keys(seed, epoch, first), 2 * rng.KEYS_AT_ONCE + 3))
    assert made == [rng.derive(seed, epoch, first + i) for i in range(len(made))]
    assert {type(word) for key in made for word in key} == {int}


def test_draws_of_a_batch_share_no_stream_with_its_hops() -> None:
    hops_of = {int(philox.stream_of_ints(hop, r)) for hop in range(20) for r in range(20)}
    nodes_of = {int(rng._node_stream(draw)) for draw in range(20)}
    assert len(nodes_of) == 20
    assert not hops_of & nodes_of


def test_seeds_have_all_bits_of_a_key_but_one() -> None:
    keys = [BatchKey(low, high) for low in (2, 4) for high in (0, 1, 1 << 31)]
    seeds = {rng.as_seed(key) for key in keys}
    assert len(seeds) == len(keys)
    assert max(seeds) < 1 << 63
    assert max(seeds) >= 1 << 62


def test_uniforms_of_any_number() -> None:
    """Two come of a counter; what is asked for, and no more, is there."""
    key = BatchKey(1, 2)
    eight = rng.uniforms(key, 3, 8)
    assert len(set(eight.tolist())) == 8
    assert all(torch.equal(rng.uniforms(key, 3, size), eight[:size]) for size in range(8))
