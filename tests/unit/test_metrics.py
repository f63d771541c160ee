"""Sums and counts, and means by one division; real ranks are in tests/distributed/test_told_while_training.py."""

import pytest

from ddp_tokens.metrics import MetricTracker, epoch_summaries


def record(step, loss_sum, units, **more):
    return {"step": step, "loss_sum": loss_sum, "loss": loss_sum / units, "units": units} | more


def tracked(*records):
    tracker = MetricTracker()
    for one in records:
        tracker.add(one)
    return tracker


def test_a_mean_is_over_all_units_and_no_mean_of_means():
    """Sums 2 and 90 over 1 and 9 units: 92/10 = 9.2, where the mean of 2 and 10 would be 6.0."""
    tracker = tracked(record(1, 2.0, 1), record(2, 90.0, 9))
    assert tracker.loss == 9.2
    assert (tracker.updates, tracker.units, tracker.loss_sum) == (2, 10, 92.0)


def test_accuracy_is_over_all_units():
    """1 of 1 and 3 of 9 are 4 of 10, where the mean of 1 and 1/3 would be 2/3."""
    assert tracked(record(1, 2.0, 1, correct=1), record(2, 90.0, 9, correct=3)).accuracy == 0.4


def test_what_nobody_counts_is_none_and_none_of_it_is_0():
    nobody = tracked(record(1, 1.0, 1))
    assert (nobody.accuracy, nobody.skipped) == (None, None)
    none_of_it = tracked(record(1, 1.0, 1, correct=0, skipped=False))
    assert (none_of_it.accuracy, none_of_it.skipped) == (0.0, 0)


def test_epochs_are_summed_up_by_themselves_and_the_last_may_have_begun_only():
    """Two windows make an epoch; of the second epoch the run has one."""
    history = [
        record(1, 2.0, 1, correct=1, lr=0.5, skipped=True),
        record(2, 90.0, 9, correct=3, lr=0.25, skipped=False),
        record(3, 8.0, 4, correct=2, lr=0.125, skipped=False),
    ]
    first, second = epoch_summaries(history, 2, lr=1.0)
    assert first == {
        "epoch": 1,
        "windows": 2,
        "updates": 2,
        "units": 10,
        "loss_sum": 92.0,
        "loss": 9.2,
        "correct": 4,
        "accuracy": 0.4,
        "lr": 0.25,
        "skipped": 1,
    }
    assert (second["epoch"], second["updates"], second["loss"], second["accuracy"]) == (2, 1, 2.0, 0.5)


def test_without_a_schedule_the_learning_rate_is_the_optimizers():
    [only] = epoch_summaries([record(1, 2.0, 1)], 3, lr=0.1)
    assert only == {"epoch": 1, "windows": 3, "updates": 1, "units": 1, "loss_sum": 2.0, "loss": 2.0, "lr": 0.1}


@pytest.mark.parametrize("number", [0, 3])
def test_no_epoch_is_made_up(number):
    history = [record(step, 1.0, 1) for step in range(1, number + 1)]
    assert len(list(epoch_summaries(history, 3, lr=0.1))) == number // 3
