"""The loop in one process; ranks are in tests/distributed."""

import copy

import pytest
import torch

from ddp_tokens.config import Sgd
from ddp_tokens.errors import DivergedError, EmptyWindowError
from ddp_tokens.precision import Precision
from ddp_tokens.reference import reference_gradient
from ddp_tokens.trainer import How, build_optimizer
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


def plain_update(model, row_id, lr, weight_decay):
    """As anyone writes it: zero, forward, backward, w - lr * (g + wd * w). One row, so the mean is over its units."""
    model.train()
    model.zero_grad()
    batch = token_labels.collate([ROWS[row_id]])
    loss, units = token_labels.loss_sum(token_labels.forward(model, batch), batch)
    (loss * 1 / units).backward()
    return {
        name: value.detach() - lr * (value.grad + weight_decay * value.detach())
        for name, value in model.named_parameters()
    }


@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
def test_without_mixed_precision_an_update_is_the_plain_one(weight_decay):
    """A scaler that is not enabled does nothing: w - lr * (g + wd * w), in which g + wd * w may be one rounding away
    (torch multiplies and adds at once). Two roundings of float32, 2^-23 of each of both terms.
    """
    row_id = PLAN[0][0][0][0]
    settings = Sgd(lr=0.5, weight_decay=weight_decay)
    state = new_state(lambda model: build_optimizer(model, settings), dropout=0.0)
    before = parameters_of(state)
    expected = plain_update(copy.deepcopy(state.model), row_id, 0.5, weight_decay)
    [record] = advance(state, 1, plan=[[[[row_id]]]])
    assert set(record) == {"step", "units", "loss_sum", "loss"}
    for name, value in parameters_of(state).items():
        if weight_decay == 0:
            assert torch.equal(value, expected[name])
        largest = max(value.abs().max(), before[name].abs().max())
        assert (value - expected[name]).abs().max() <= 2 * 2**-23 * largest
        assert not torch.equal(value, before[name])


def test_weight_decay_pulls_every_weight_towards_zero():
    """Against the same update without: lr * wd * w = 0.5 * 0.25 * w. Three roundings, of w at most."""
    with_decay, without = (
        new_state(lambda model, decay=decay: build_optimizer(model, Sgd(lr=0.5, weight_decay=decay)), dropout=0.0)
        for decay in (0.25, 0.0)
    )
    before = parameters_of(without)
    for state in (with_decay, without):
        advance(state, 1)
    pulled = parameters_of(with_decay)
    for name, value in parameters_of(without).items():
        largest = max(value.abs().max(), before[name].abs().max())
        assert (value - pulled[name] - 0.125 * before[name]).abs().max() <= 3 * 2**-23 * largest
    assert any(value.abs().max() > 0.1 for value in before.values())


def scaled(scale, clip_norm=None):
    """float32 with a loss scale: all that a scale changes is powers of two, which float32 holds exactly."""
    return How(clip_norm, Precision(scaler=torch.amp.GradScaler("cpu", init_scale=scale)))


@pytest.mark.parametrize("scale", [2.0**-10, 1.0, 2.0**16, 2.0**24])
@pytest.mark.parametrize("clip_norm", [None, 0.125])
def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit(scale, clip_norm):
    """Clipped or not, the norm in the record among it: gradients are clipped after they are unscaled."""
    without, with_scale = new_state(dropout=0.0), new_state(dropout=0.0)
    plain = advance(without, 3, how=How(clip_norm))
    records = advance(with_scale, 3, how=scaled(scale, clip_norm))
    assert [record | {"scale": scale, "skipped": False} for record in plain] == records
    assert ("gradient_norm" in records[0]) == (clip_norm is not None)
    assert all(record.get("gradient_norm", 1) > 0.125 for record in records), "every window is clipped"
    expected = parameters_of(without)
    assert all(torch.equal(value, expected[name]) for name, value in parameters_of(with_scale).items())


def blown_up(model, factor, until):
    """The gradient of the head's bias is multiplied in the first `until` updates; returns the calls."""
    calls = []

    def multiply(gradient):
        calls.append(len(calls) < until)
        return gradient * factor if calls[-1] else gradient

    model.head.bias.register_hook(multiply)
    return calls


def test_an_update_that_overflows_is_skipped_and_the_next_one_is_made():
    """Backoff 1/2: 4096, then 2048. The schedule of the position in the run is in tests/distributed."""
    state = new_state(dropout=0.0)
    before, calls = parameters_of(state), blown_up(state.model, float("inf"), until=1)
    [record] = advance(state, 1, how=(how := scaled(4096.0, clip_norm=1.0)))
    assert calls == [True]
    assert (record["scale"], record["skipped"], record["gradient_norm"]) == (4096.0, True, None)
    assert all(torch.equal(value, before[name]) for name, value in parameters_of(state).items())
    assert state.optimizer.state_dict()["state"] == {}
    [record] = advance(state, 2, how=how)
    assert (record["scale"], record["skipped"]) == (2048.0, False)
    assert not torch.equal(parameters_of(state)["head.bias"], before["head.bias"])


def test_an_overflow_without_a_scale_that_could_be_lowered_ends_the_run():
    """Else every further update would be skipped in silence: 4, 2, and at 1 the gradient itself is infinite."""
    state = new_state(dropout=0.0)
    blown_up(state.model, float("inf"), until=99)
    with pytest.raises(DivergedError, match=r"gradient of update 3 overflows float16 although .*\(scale 1\): lower"):
        advance(state, 6, how=scaled(4.0))
    assert [record["scale"] for record in state.history] == [4.0, 2.0]


@pytest.mark.parametrize("how", [How(1.0), scaled(4.0, 1.0)], ids=["without a scale", "with a scale"])
def test_a_norm_that_is_no_number_though_the_gradient_is_finite_ends_the_run(how):
    """1e30 squared is infinite in float32: clipped by an infinite norm, the gradient would be 0."""
    state = new_state(dropout=0.0)
    blown_up(state.model, 1e30, until=99)
    with pytest.raises(DivergedError, match="the gradient's norm of update 1 is inf"):
        advance(state, 1, how=how)
    assert state.history == []
