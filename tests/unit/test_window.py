"""One window in one process; several microbatches and ranks are in tests/distributed."""

from functools import partial

import pytest
import torch

from ddp_tokens.errors import EmptyWindowError
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.reference import gradients_of, reference_gradient
from ddp_tokens.window import accumulate, count_window
from ddp_tokens.workloads import token_labels
from tests.helpers import make_row
from tests.unit.training import TRAINING, tiny_model


def test_units_are_counted_over_all_microbatches():
    microbatches = [[make_row("a", 5, units=2), make_row("b", 3)], [make_row("c", 4, units=0)]]
    assert count_window(microbatches, "window 1") == (5, 5)


def test_a_window_without_a_unit_is_refused_by_name():
    with pytest.raises(EmptyWindowError, match="window 7 holds no supervised unit on any rank, so it has no mean"):
        count_window([[make_row("a", 5, units=0)]], "window 7")


def test_the_gradient_is_that_of_the_mean_and_the_loss_is_the_sum():
    """One row in one microbatch is the very computation of the reference: equal bit for bit."""
    model, row = tiny_model().eval(), TRAINING[1]
    expected = reference_gradient(model, token_labels, [row])
    batch = token_labels.collate([row])
    normalize = partial(global_token_loss, global_count=batch.units, world_size=1)
    loss_sum, units = accumulate(model, token_labels, [batch], normalize)
    found = gradients_of(model)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    again, _ = token_labels.loss_sum(token_labels.forward(model, batch), batch)
    assert loss_sum == float(again.detach())
    assert units == len(row.tokens)


def test_gradients_of_an_earlier_window_do_not_stay():
    model, batch = tiny_model().eval(), token_labels.collate([TRAINING[1]])
    accumulate(model, token_labels, [batch], lambda loss: loss)
    once = gradients_of(model)
    accumulate(model, token_labels, [batch], lambda loss: loss)
    assert all(torch.equal(once[name], value) for name, value in gradients_of(model).items())
    assert any(value.count_nonzero() for value in once.values())
