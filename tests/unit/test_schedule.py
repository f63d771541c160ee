"""The learning rate of every update by the formula f + (lr - f) (1 + cos(pi e / T)) / 2, e epochs or updates done."""

import math

import pytest
import torch

from ddp_tokens.config import Experiment
from ddp_tokens.schedule import schedule_of

LR, FINAL = 0.5, 0.125
ROWS = 17  # over two ranks at most 9 each, so three windows of 2 * 2 rows: the last holds one row


def experiment(**settings):
    return Experiment(
        **{
            "name": "a",
            "sharding": "by_epoch",
            "batch": 2,
            "accumulation": 2,
            "steps": 9,
            "interrupt_at": 1,
            "optimizer": {"lr": LR},
            "schedule": {"kind": "cosine", "final_lr": FINAL},
        }
        | settings
    )


def windows_of(of):
    return of.windows_per_epoch(ROWS)


def rates(of):
    """Before each update, and after the last."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=LR)
    schedule = schedule_of(of, optimizer, windows_of)
    found = [optimizer.param_groups[0]["lr"]]
    for step in range(1, of.steps + 1):
        schedule.after(step)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def by_formula(done, whole, final=FINAL):
    return final + (LR - final) * (1 + math.cos(math.pi * done / whole)) / 2


@pytest.mark.parametrize(
    ("steps", "epochs_begun"),
    [(9, 3), (8, 3), (7, 3), (6, 2), (2, 1)],
)
def test_per_epoch_it_falls_after_each_third_update(steps, epochs_begun):
    """A run that ends inside an epoch counts that epoch. torch works the rates out one from another: 1e-12 for that."""
    expected = [by_formula(done // 3, epochs_begun) for done in range(steps + 1)]
    assert rates(experiment(steps=steps)) == pytest.approx(expected, rel=1e-12)
    assert expected[0] == expected[min(2, steps)] == LR
    assert (expected[-1] == pytest.approx(FINAL)) == (steps % 3 == 0)


@pytest.mark.parametrize(("accumulation", "windows"), [(1, 5), (2, 3), (5, 1)])
def test_an_epoch_has_the_windows_of_the_plan(accumulation, windows):
    found = rates(experiment(accumulation=accumulation, steps=10))
    falls = [step for step in range(1, 11) if found[step] != found[step - 1]]
    assert falls == list(range(windows, 11, windows))


def test_per_update_it_falls_after_each():
    found = rates(experiment(sharding="by_length", schedule={"kind": "cosine", "per": "update", "final_lr": 0}))
    assert found == pytest.approx([by_formula(done, 9, final=0) for done in range(10)], rel=1e-12, abs=1e-16)


def test_without_a_schedule_there_is_none():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    assert schedule_of(Experiment(name="a"), optimizer, windows_of) is None
    assert "initial_lr" not in optimizer.param_groups[0]


def test_it_moves_on_although_no_update_was_made_and_says_nothing(recwarn):
    """torch warns when the optimizer has made no step yet: an update that was skipped is no mistake."""
    rates(experiment())
    assert [str(warning.message) for warning in recwarn] == []
