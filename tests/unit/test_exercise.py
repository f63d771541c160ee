import pytest

from ddp_tokens.config import Exercise
from ddp_tokens.exercise import as_text, work_out


def test_equal_counts_hide_the_mistake():
    """12 tokens of loss 1 and 12 of loss 3: (1 + 3)/2 = (12 + 36)/24 = 2; gradients of l * theta^2 are twice that."""
    before = work_out(Exercise())["before"]
    assert (before["loss_mean_of_means"], before["loss_token_mean"]) == (2.0, 2.0)
    assert (before["gradient_mean_of_means"], before["gradient_token_mean"]) == (4.0, 4.0)


def test_unequal_counts_show_it():
    """12 tokens of loss 1 and 36 of loss 3: (1 + 3)/2 = 2, but (12 + 108)/48 = 2.5."""
    after = work_out(Exercise())["after"]
    assert after["tokens"] == [12, 36]
    assert (after["loss_mean_of_means"], after["loss_token_mean"]) == (2.0, 2.5)
    assert (after["gradient_mean_of_means"], after["gradient_token_mean"]) == (4.0, 5.0)


def test_other_numbers_and_three_ranks():
    """Losses 1, 2, 6 over 1, 2, 5 tokens: mean of means 9/3 = 3, token mean 35/8 = 4.375."""
    exercise = Exercise(counts_before=(1, 1, 1), counts_after=(1, 2, 5), losses=(1, 2, 6))
    after = work_out(exercise)["after"]
    assert (after["loss_mean_of_means"], after["loss_token_mean"]) == (3.0, 4.375)
    assert (after["gradient_mean_of_means"], after["gradient_token_mean"]) == (6.0, 8.75)


@pytest.mark.parametrize(("moment", "numbers"), [("before", "[12, 12] 2 2 4 4"), ("after", "[12, 36] 2 2.5 4 5")])
def test_the_table_shows_the_numbers(moment, numbers):
    lines = as_text(work_out(Exercise())).splitlines()
    [line] = [line for line in lines if line.startswith(moment)]
    assert " ".join(line.split()[1:]) == numbers
