"""The loop in one process; ranks are in tests/distributed."""

import copy

import pytest
import torch

from ddp_tokens.config import Sgd
from ddp_tokens.errors import EmptyWindowError
from ddp_tokens.reference import reference_gradient
from ddp_tokens.trainer import build_optimizer
from ddp_tokens.workloads import token_labels
from tests.unit.training import PLAN, ROWS, advance, new_state, tiny_model


def parameters_of(state):
    return {name: parameter.detach().clone() for name, parameter in state.model.named_parameters()}


def test_records_hold_sums_counts_and_the_global_mean():
    state = new_state()
    records = advance(state, 3)
    assert [record["step"] for record in records] == [1, 2, 3]
    assert state.history == records
    for record, window in zip(records, PLAN, strict=False):
        units = sum(len(ROWS[row_id].tokens) for microbatch in window[0] for row_id in microbatch)
        assert record["units"] == units
        assert record["loss"] == record["loss_sum"] / units


def test_a_rank_notes_the_rows_that_it_consumed():
    state = new_state()
    advance(state, 2)
    assert [record["rows"] for record in state.rank_history] == [PLAN[0][0], PLAN[1][0]]
    assert [record["step"] for record in state.rank_history] == [1, 2]


def test_every_parameter_moves():
    state = new_state()
    before = parameters_of(state)
    advance(state, 1)
    assert [name for name, value in parameters_of(state).items() if torch.equal(value, before[name])] == []


def test_an_update_follows_the_gradient_of_the_mean():
    """theta - lr * gradient in the first update, when the momentum buffer is the gradient itself. Bit for bit: a window
    of one row, without dropout, is the very computation of the reference."""
    row_id = PLAN[0][0][0][0]
    state = new_state(lambda model: build_optimizer(model, Sgd(lr=0.5)), dropout=0.0)
    gradient = reference_gradient(copy.deepcopy(state.model), token_labels, [ROWS[row_id]])
    expected = {name: value - 0.5 * gradient[name] for name, value in parameters_of(state).items()}
    advance(state, 1, plan=[[[[row_id]]]])
    assert all(torch.equal(value, expected[name]) for name, value in parameters_of(state).items())


def test_going_on_starts_after_the_last_update():
    at_once, in_two = new_state(dropout=0.0), new_state(dropout=0.0)
    advance(at_once, 4)
    advance(in_two, 2)
    assert [record["step"] for record in advance(in_two, 4)] == [3, 4]
    assert in_two.history == at_once.history


def test_nothing_is_left_to_do_at_the_end():
    state = new_state()
    advance(state, 2)
    assert advance(state, 2) == []


def test_an_empty_window_is_named_and_changes_nothing():
    emptied = {row_id: row.unsupervised() if row_id in PLAN[1][0][0] else row for row_id, row in ROWS.items()}
    plan = [[[[next(i for i in PLAN[0][0][0] if i not in PLAN[1][0][0])]]], PLAN[1]]
    state = new_state()
    advance(state, 1, plan, emptied)
    before = parameters_of(state)
    with pytest.raises(EmptyWindowError, match="window 2 holds no supervised unit on any rank"):
        advance(state, 2, plan, emptied)
    assert state.step == 1
    assert all(torch.equal(value, before[name]) for name, value in parameters_of(state).items())


def test_the_optimizer_is_momentum_sgd():
    optimizer = build_optimizer(tiny_model(), Sgd(lr=0.25, momentum=0.5))
    assert isinstance(optimizer, torch.optim.SGD)
    [group] = optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.25, 0.5, 0, False)
    assert len(group["params"]) == len(list(tiny_model().parameters()))
