"""What rank 0 computes, problems that all ranks learn of, and what a gradient is multiplied by before it is applied."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddp_tokens import audit
from ddp_tokens.audit import window as windows
from ddp_tokens.audit.between import Clipping
from ddp_tokens.audit.exchange import Exchange
from ddp_tokens.audit.window import First, RankWindow
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.errors import AuditError
from tests.unit.audit.models import Model, loss_sum, tokens_of


def rank_window(module, optimizer, clippings=()):
    """After 2 microbatches."""
    between = SimpleNamespace(clippings=clippings)
    recorder = SimpleNamespace(complete=[1, 2])
    return RankWindow(1, module, optimizer, None, recorder, between, Tolerances(), 0, None)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
        self.last.weight = self.first.weight


def test_what_is_compared():
    """What the optimizer updates, each once, under its first name."""
    module = Tied()
    everything = torch.optim.SGD(module.parameters(), lr=0.1)
    assert list(rank_window(module, everything).compared) == ["first.weight", "first.bias", "last.bias"]
    one = torch.optim.SGD([module.last.bias, *nn.Linear(1, 1).parameters()], lr=0.1)
    assert list(rank_window(module, one).compared) == ["last.bias"]


def test_what_is_not_compared():
    """Of 4 parameters that need a gradient, one stands under two names; two need none."""
    module, other = Tied(), nn.Linear(1, 1)

    def said(*parameters):
        return rank_window(module, torch.optim.SGD(parameters, lr=0.1)).not_compared

    assert said(*module.parameters()) == []
    assert said(*module.first.parameters()) == [
        "1 parameter of Tied needs a gradient and is not updated by this optimizer"
    ]
    assert said(*module.parameters(), other.bias) == [
        "1 parameter of the optimizer is not in Tied and was not compared"
    ]
    assert said(module.last.bias, *other.parameters()) == [
        "2 parameters of the optimizer are not in Tied and were not compared",
        "2 parameters of Tied need a gradient and are not updated by this optimizer",
    ]


def test_factors_of_clipping_and_of_a_scale_that_the_optimizer_undoes():
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    weight, bias = map(id, (module.weight, module.bias))
    of = rank_window(module, optimizer, [Clipping(frozenset([weight]), 1.0, 4.0, 2)])
    assert windows._factors(of) == {weight: pytest.approx(0.25, rel=1e-6)}
    optimizer.grad_scale = torch.tensor(8.0)
    assert windows._factors(of) == {weight: pytest.approx(2.0, rel=1e-6), bias: 8.0}


def test_what_was_clipped_inside_a_window_is_not_undone():
    """Its length is not that of the window's gradient either."""
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    weight = id(module.weight)
    of = rank_window(module, optimizer, [Clipping(frozenset([weight]), 1.0, 4.0, 1, {weight: 4.0})])
    assert (windows._factors(of), windows._undone(of)) == ({}, [])


def test_how_long_gradients_were_when_they_were_clipped():
    """Of what is compared; a clipping that changes nothing is not told."""
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    weight, bias, other = id(module.weight), id(module.bias), 1
    clippings = [
        Clipping(frozenset([weight, other]), 1.0, 13.0, 2, {weight: 5.0, other: 12.0}),
        Clipping(frozenset([weight]), 9.0, 5 / 13, 2, {weight: 5 / 13}),
        Clipping(frozenset([weight, bias]), 0.1, 4.0, 2, {weight: 0.3, bias: 0.4}),
        Clipping(frozenset([other]), 0.1, 4.0, 2, {other: 4.0}),
    ]
    first, second = windows._undone(rank_window(module, optimizer, clippings))
    assert (first.names, first.max_norm, first.length, first.before) == (["weight"], 1.0, 5.0, {})
    assert (second.names, second.max_norm, second.length) == (["weight", "bias"], 0.1, pytest.approx(0.5))
    assert second.before == {"weight": pytest.approx(1 / 13, rel=1e-6)}


def trained(between=lambda *_: None, before=lambda *_: None):
    """A right loop in one process, audited: `between` microbatches and `before` the update, something else is done."""
    torch.manual_seed(0)
    module = Model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    with audit(module, optimizer, loss_sum=loss_sum, windows=1) as report:
        batches = tokens_of(3)
        total = sum(tokens.numel() for tokens in batches)
        for tokens in batches:
            scaler.scale(loss_sum(module(tokens), {"tokens": tokens})[0] / total).backward()
            between(module)
        before(module, scaler, optimizer)
        scaler.step(optimizer)
        scaler.update()
    [window] = report.windows
    return report.outcome, window["verdict"]["diagnosis"], window["notes"]


def clip(module, norm_type=2.0):
    nn.utils.clip_grad_norm_(module.parameters(), 0.1, norm_type)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_clipping_before_and_after_a_scaler_divides_by_its_scale(norm_type):
    def rightly(module, scaler, optimizer):
        scaler.unscale_(optimizer)
        clip(module, norm_type)

    assert trained(before=rightly)[:2] == ("pass", [])
    too_early = trained(before=lambda module, *_: clip(module, norm_type))
    assert too_early[:2] == ("fail", ["clipped_while_scaled"])


def test_a_loop_that_adds_up_in_buffers_of_its_own_passes():
    sums = {}

    def between(module):
        for name, parameter in module.named_parameters():
            sums[name] = sums.get(name, 0) + parameter.grad
            parameter.grad = None

    def before(module, *_):
        for name, parameter in module.named_parameters():
            parameter.grad = sums[name]

    note = (
        "gradients_cleared_inside: on rank 0 gradients are cleared before microbatch 3, and the gradient is right all"
    )
    assert trained(between, before) == ("pass", [], [f"{note} the same"])


def fails(error):
    raise error


def test_after_a_problem_nothing_more_is_computed_and_it_is_raised_for_all():
    first, computed = First(Exchange(1), 3), []
    assert first.run(lambda value: value + 1, 2) == 3
    first.raise_together()
    assert first.run(fails, AuditError("x is y")) is None
    assert first.run(computed.append, 1) is None
    with pytest.raises(AuditError, match=r"^x is y$"):
        first.raise_together()
    assert computed == []


def test_a_problem_that_nobody_thought_of_is_said_with_its_place():
    first = First(Exchange(1), 3)
    first.run(fails, ZeroDivisionError("by zero"))
    with pytest.raises(AuditError) as raised:
        first.raise_together()
    assert str(raised.value).startswith("window 3 cannot be computed again in one process: ZeroDivisionError: by zero")


def test_other_ranks_compute_nothing():
    other = SimpleNamespace(rank=1, from_first=lambda value: value)
    assert First(other, 1).run(fails, ValueError("x")) is None
