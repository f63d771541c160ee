"""W * S_r / N: exact in fractions, so that no test needs a tolerance."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddp_tokens.errors import NormalizationError
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss


def average(values):
    """What DDP makes of one value per rank."""
    values = list(values)
    return sum(values) / len(values)


def test_sums_over_unequal_counts_give_the_mean_over_all_tokens():
    # 2 * 12 / 48 = 0.5 and 2 * 108 / 48 = 4.5; their average is 120 / 48.
    scaled = [global_token_loss(12.0, 48, 2), global_token_loss(108.0, 48, 2)]
    assert scaled == [0.5, 4.5]
    assert average(scaled) == 2.5


def test_mean_of_means_weights_ranks_alike():
    assert average([mean_of_means_loss(12.0, 12), mean_of_means_loss(108.0, 36)]) == 2.0  # (1 + 3) / 2


@pytest.mark.parametrize("count", [0, -1])
def test_refuses_a_denominator_that_is_not_positive(count):
    with pytest.raises(NormalizationError, match=f"the denominator is {count}, but it must count at least one"):
        global_token_loss(1.0, count, 2)


def test_a_single_rank_divides_by_its_own_count():
    assert global_token_loss(Fraction(12), 5, 1) == Fraction(12, 5)


counts = st.integers(0, 50)
token_losses = st.fractions(min_value=-100, max_value=100, max_denominator=9)
microbatch = st.tuples(token_losses, counts).map(lambda pair: (pair[0] * pair[1], pair[1]))  # (loss sum, units)
ranks = st.lists(st.lists(microbatch, min_size=1, max_size=4), min_size=1, max_size=4)


@given(ranks)
def test_the_average_over_ranks_is_the_mean_over_all_units(window):
    """For any world size, microbatches and counts, ranks and microbatches without a unit included."""
    units = sum(count for of_rank in window for _, count in of_rank)
    assume(units > 0)
    scaled = [sum(global_token_loss(part, units, len(window)) for part, _ in of_rank) for of_rank in window]
    assert average(scaled) == sum(part for of_rank in window for part, _ in of_rank) / units


@given(ranks, st.randoms(use_true_random=False))
def test_only_the_sums_matter_not_who_holds_which_microbatch(window, rng):
    units = sum(count for of_rank in window for _, count in of_rank)
    assume(units > 0)
    everything = [part for of_rank in window for part, _ in of_rank]
    dealt = [[] for _ in window]
    for part in everything:
        rng.choice(dealt).append(part)
    before = average(sum(global_token_loss(p, units, len(window)) for p, _ in of_rank) for of_rank in window)
    after = average(sum(global_token_loss(p, units, len(window)) for p in of_rank) for of_rank in dealt)
    assert before == after
