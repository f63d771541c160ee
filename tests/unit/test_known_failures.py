"""Ways in which distributed training has gone wrong for other people, in small numbers.

Each test holds the right value, and shows that the mistaken formula gives the wrong value that was reported. Here is
the arithmetic; what needs ranks is in tests/distributed. A test's name begins with that of its case.
"""

import re
from fractions import Fraction

import pytest
import torch

from ddp_tokens.errors import NormalizationError
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss
from tests.helpers import PROJECT

# Case -> the files that hold its tests, below tests/.
CASES = {
    "lone_token": ["unit/test_known_failures.py", "distributed/test_gradient_on_ranks.py"],
    "three_to_one": ["unit/test_known_failures.py"],
    "local_counts_four_ranks": ["unit/test_known_failures.py", "distributed/test_gradient_on_ranks.py"],
    "count_inside_node_only": ["unit/test_known_failures.py"],
    "signature_decides_formula": [
        "unit/test_reference.py",
        "unit/workloads/test_load.py",
        "distributed/test_units_of_the_workload.py",
    ],
    "short_last_window": ["unit/test_known_failures.py", "distributed/test_accumulation.py"],
    "extra_division": ["unit/test_known_failures.py"],
    "forward_outside_no_sync": ["distributed/test_accumulation.py"],
    "one_rank_empty": ["unit/test_known_failures.py", "distributed/test_windows_without_units.py"],
    "window_empty_everywhere": ["unit/test_known_failures.py", "distributed/test_windows_without_units.py"],
    "clip_per_microbatch": ["distributed/test_clipping.py"],
    "scaler_not_restored": ["distributed/test_mixed_precision.py"],
    "evaluation_mean_of_batches": ["unit/test_evaluation.py", "distributed/test_evaluation_on_ranks.py"],
    "padded_sampler_counts_twice": ["unit/test_evaluation.py", "distributed/test_evaluation_on_ranks.py"],
}


def average(values):
    """What DDP makes of one value per rank."""
    values = list(values)
    return sum(values) / len(values)


def right(sums, counts):
    return average(global_token_loss(part, sum(counts), len(counts)) for part in sums)


def wrong(sums, counts):
    return average(mean_of_means_loss(part, count) for part, count in zip(sums, counts, strict=True))


@pytest.mark.parametrize(("case", "file"), [(case, file) for case, files in CASES.items() for file in files])
def test_each_case_is_found_by_its_name(case, file):
    """Where a reader looks for it; so that a renamed test is not lost."""
    assert re.search(rf"^def test_{case}(_\w+)?\(", (PROJECT / "tests" / file).read_text(), flags=re.MULTILINE)


def test_lone_token():
    """5 and 1 tokens: a token's weight is what remains of the mean when its loss is 1 and all others are 0."""
    counts, one_of_five, the_lone_one = (5, 1), (Fraction(1), Fraction(0)), (Fraction(0), Fraction(1))
    assert right(one_of_five, counts) == right(the_lone_one, counts) == Fraction(1, 6)
    assert wrong(the_lone_one, counts) == 5 * wrong(one_of_five, counts)


def test_lone_token_in_the_gradient():
    """(theta - target)^2 at theta = 0 has gradient -2 * target: five targets 0, and the lone one 1."""
    sums, counts = (Fraction(0), Fraction(-2)), (5, 1)
    assert right(sums, counts) == Fraction(-1, 3)
    assert wrong(sums, counts) == -1


def test_three_to_one():
    assert right((1, 9), (1, 3)) == 2.5  # 10 / 4
    assert wrong((1, 9), (1, 3)) == 2.0  # (1 + 3) / 2


def test_local_counts_four_ranks():
    """Four ranks, 1 to 4 targets: sum of sums over sum of counts, as one process has it on the concatenated data."""
    losses = [[Fraction(8)], [Fraction(1), Fraction(3)], [Fraction(2)] * 3, [Fraction(5)] * 4]
    sums, counts = [sum(part) for part in losses], [len(part) for part in losses]
    one_process = average(loss for part in losses for loss in part)
    assert right(sums, counts) == one_process == Fraction(38, 10)
    assert wrong(sums, counts) == average([8, 2, 2, 5]) == 4.25


def test_count_inside_node_only():
    """The denominator summed over the microbatches of a rank, not over ranks: ranks weigh alike whatever they hold."""
    sums, counts = ((4, 8), (30, 78)), ((4, 8), (9, 27))
    units = sum(map(sum, counts))
    scaled = [sum(global_token_loss(part, units, 2) for part in of_rank) for of_rank in sums]
    assert average(scaled) == 2.5
    inside = [
        sum(global_token_loss(part, sum(of_rank_counts), 1) for part in of_rank)
        for of_rank, of_rank_counts in zip(sums, counts, strict=True)
    ]
    assert inside == [1, 3]
    assert average(inside) == 2.0


def test_short_last_window():
    """Accumulation 4, two microbatches of 625 units left: the window's own 1250 units divide, not 4 microbatches."""
    sums, units, accumulation = (624, 624), 1250, 4
    assert sum(global_token_loss(part, units, 1) for part in sums) == 0.9984
    assert sum(mean_of_means_loss(part, 625) for part in sums) / accumulation == 0.4992


def test_extra_division():
    """Sums 12 and 108 over 12 and 36 in two microbatches per rank."""
    scaled = [sum(global_token_loss(part, 48, 2) for part in of_rank) for of_rank in ((4, 8), (30, 78))]
    assert average(scaled) == 2.5
    assert average(scaled) / 2 == 1.25  # divided once more, by the number of microbatches
    assert sum(scaled) == 5.0  # the division of the averaging is missing


def test_one_rank_empty():
    """7 units with loss sum 21 on rank 0, none on rank 1: the mean of the 7, where 0/0 would spread NaN."""
    sums, counts = (torch.tensor(21.0), torch.tensor(0.0)), (7, 0)
    assert float(right(sums, counts)) == 3.0
    assert bool(wrong(sums, counts).isnan())


def test_one_rank_empty_in_the_gradient():
    """Loss 3 * theta^2 per token at theta = 1 has gradient 6; the rank without a unit contributes a sum of zero."""
    assert right((7 * 6, 0), (7, 0)) == 6.0
    with pytest.raises(ZeroDivisionError):
        wrong((7 * 6, 0), (7, 0))


def test_window_empty_everywhere():
    with pytest.raises(NormalizationError, match="the denominator is 0"):
        right((0, 0), (0, 0))
