"""One window in one process; several microbatches and ranks are in tests/distributed."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch

from ddp_tokens import window
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


def test_the_sum_is_made_on_the_device_of_the_group(monkeypatch):
    """NCCL sums what is on a GPU. No GPU is needed to see which device is asked for."""
    monkeypatch.setattr(window, "global_count", lambda local, device: {"cuda:1": 10 * local}[device])
    assert count_window([[make_row("a", 3)]], "window 1", "cuda:1") == (3, 30)


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


def test_a_parameter_that_the_window_does_not_use_has_no_gradient():
    """Not zeros: a comparison of gradients tells by their names that one is missing."""
    model, batch = tiny_model().eval(), token_labels.collate([TRAINING[1]])
    model.unused = torch.nn.Parameter(torch.ones(1))
    model.unused.grad = torch.ones(1)
    accumulate(model, token_labels, [batch], lambda loss: loss)
    assert "unused" not in gradients_of(model)
    assert len(gradients_of(model)) == len(list(model.parameters())) - 1


class Tracing(torch.nn.Module):
    """theta * batch, which is its own loss; notes which of its passes stand inside no_sync."""

    def __init__(self):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.ones(()))
        self.theta.register_hook(lambda gradient: self.passes.append(("backward", self.inside)))
        self.passes, self.inside = [], False

    @contextmanager
    def no_sync(self):
        self.inside = True
        yield
        self.inside = False

    def forward(self, model, batch):
        self.passes.append(("forward", self.inside))
        return self.theta * batch

    def loss_sum(self, outputs, batch):
        return outputs, 1


def test_both_passes_of_all_microbatches_but_the_last_stand_inside_no_sync():
    """DDP then reduces once. (1 + 10 + 100) * theta at theta = 1, and its derivative."""
    tracing = Tracing()
    loss_sum = accumulate(tracing, tracing, [1.0, 10.0, 100.0], lambda loss: loss)
    inside, outside = ([("forward", held), ("backward", held)] for held in (True, False))
    assert tracing.passes == [*inside, *inside, *outside]
    assert (loss_sum, float(tracing.theta.grad)) == ((111.0, 3.0), 111.0)
