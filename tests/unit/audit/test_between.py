"""What is noted between backward and the update, and that torch is afterwards as it was."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_

from ddp_tokens.audit.between import CLIP, GROUP, Between, Clipping, Replaced, shortened

PLACES = [
    (clip_grad, CLIP),
    (clip_grad, GROUP),
    (torch.nn.utils, "clip_grads_with_norm_"),
    (torch.amp.GradScaler, "step"),
]


def functions():
    return [getattr(owner, name, None) for owner, name in PLACES]


BEFORE = functions()


def leaves(*gradients):
    found = [nn.Parameter(torch.zeros(len(gradient))) for gradient in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    return found


@pytest.fixture
def listening():
    """Listens to two parameters, with the gradients (3, 0) and (4), of norm 5."""
    parameters = leaves([3.0, 0.0], [4.0])
    skipped = []
    between = Between(lambda: parameters, lambda: 2, skipped.append)
    between.parameters, between.skipped = parameters, skipped
    yield between
    between.stop()
    assert functions() == BEFORE


def test_clipping_is_noted_before_it_is_done(listening):
    norm = clip_grad_norm_(listening.parameters, 1.0)
    assert float(norm) == 5.0
    [clipping] = listening.clippings
    first, second = map(id, listening.parameters)
    assert clipping == Clipping(frozenset([first, second]), 1.0, 5.0, 2, {first: 3.0, second: 4.0})
    assert clipping.factor == 1 / (5 + 1e-6)


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 4.999, 5.0, 5.001, 1e6])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("foreach", [None, False])
def test_the_factor_is_what_torch_multiplies_by(listening, max_norm, norm_type, foreach):
    """min(1, max_norm / (norm + 1e-6)), for any norm; torch computes it in float32."""
    clip_grad_norm_(listening.parameters, max_norm, norm_type, foreach=foreach)
    [clipping] = listening.clippings
    assert clipping.norm == pytest.approx({2.0: 5.0, 1.0: 7.0, math.inf: 4.0}[norm_type])
    assert listening.parameters[0].grad[0].item() == pytest.approx(3 * clipping.factor, rel=3e-7)
    assert listening.parameters[1].grad[0].item() == pytest.approx(4 * clipping.factor, rel=3e-7)
    assert (clipping.factor == 1.0) == (max_norm >= clipping.norm + 1e-6)


def test_the_factor_that_undoes_random_gradients():
    torch.manual_seed(0)
    for size, max_norm in ((1, 0.5), (1000, 1.0), (5000, 0.01)):
        [parameter] = leaves(torch.randn(size).tolist())
        before = parameter.grad.clone()
        between = Between(lambda of=parameter: [of], lambda: 1, print)
        clip_grad_norm_([parameter], max_norm)
        between.stop()
        assert torch.allclose(parameter.grad / between.clippings[0].factor, before, rtol=1e-6)


@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0),
        lambda parameters: torch.nn.utils.clip_grad_norm_(iter(parameters), max_norm=1.0),
        lambda parameters: clip_grad.clip_grad_norm_(parameters, 1.0),
        lambda parameters: torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, torch.tensor(5.0)),
        lambda parameters: torch.nn.utils.clip_grads_with_norm_(
            parameters, max_norm=1.0, total_norm=torch.nn.utils.get_total_norm([p.grad for p in parameters])
        ),
    ],
    ids=("utils", "by name", "module", "with a norm", "with a norm by name"),
)
def test_every_way_to_clip_is_seen(listening, clip):
    clip(listening.parameters)
    assert [(one.norm, one.max_norm) for one in listening.clippings] == [(5.0, 1.0)]
    assert not listening.clipped_by_value


@pytest.mark.parametrize("norm_type", [1.0, math.inf])
def test_lengths_are_those_of_the_2_norm(listening, norm_type):
    clip_grad_norm_(listening.parameters, 1.0, norm_type)
    assert list(listening.clippings[0].lengths.values()) == [3.0, 4.0]


def test_lengths_of_gradients_in_half_precision(listening):
    """The norm of these two is beyond the largest number of float16; one of no gradient has no length."""
    half, without = listening.parameters
    half.grad = None
    half.data = half.data.half()
    half.grad = torch.full((2,), 60000.0, dtype=torch.float16)
    without.grad = None
    torch.nn.utils.clip_grads_with_norm_(listening.parameters, 1.0, torch.tensor(60000 * 2**0.5))
    assert listening.clippings[0].lengths == {id(half): pytest.approx(float(half.new_tensor(60000.0)) * 2**0.5)}


def test_lengths_of_sparse_gradients(listening):
    """Entries that stand twice are added up."""
    parameter = listening.parameters[0]
    parameter.grad = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), check_invariants=True)
    listening._clip(lambda *_: None, [parameter], 1.0, torch.tensor(3.0))
    assert listening.clippings[0].lengths == {id(parameter): 3.0}


def test_one_clipping_that_goes_through_two_functions_is_noted_once(listening):
    def through(parameters, max_norm, total_norm):
        return clip_grad._clip_grads_with_norm_(parameters, max_norm, total_norm)

    listening._clip(through, listening.parameters, 1.0, torch.tensor(5.0))
    assert len(listening.clippings) == 1
    clip_grad_norm_(listening.parameters, 0.5)
    assert len(listening.clippings) == 2


class Counting:
    def __init__(self):
        self.calls = []

    def call(self, value):
        """Keeps it."""
        self.calls.append(value)
        return len(self.calls)


def test_a_method_that_is_replaced_is_one_and_is_put_back():
    before = vars(Counting)["call"]
    one = Replaced(Counting, "call", lambda original, counting, value: 10 * original(counting, 2 * value))
    other = Replaced(Counting, "call", lambda original, counting, value: original(counting, value + 1))
    counting = Counting()
    assert (counting.call(3), counting.calls, counting.call.__doc__) == (10, [8], "Keeps it.")
    one.undo()
    assert (counting.call(3), counting.calls) == (2, [8, 4])
    other.undo()
    assert vars(Counting)["call"] is before


def test_a_method_of_torch_is_put_back_as_it_was():
    """What such a class gives is no method any more."""
    before = vars(torch.distributed.ProcessGroup)["allreduce"]
    one = Replaced(torch.distributed.ProcessGroup, "allreduce", lambda *_: None)
    assert vars(torch.distributed.ProcessGroup)["allreduce"] is not before
    one.undo()
    assert vars(torch.distributed.ProcessGroup)["allreduce"] is before


def test_one_parameter_by_itself(listening):
    clip_grad_norm_(listening.parameters[1], 1.0)
    assert [one.parameters for one in listening.clippings] == [frozenset([id(listening.parameters[1])])]


def test_the_part_of_a_clipping_that_is_the_modules(listening):
    other = leaves([12.0])
    clip_grad_norm_([*listening.parameters, *other], 1.0)
    [clipping] = listening.clippings
    assert clipping.norm == 13.0
    assert clipping.parameters == frozenset(map(id, listening.parameters))


def test_what_is_done_to_others_is_not_noted(listening):
    clip_grad_norm_(leaves([12.0]), 1.0)
    clip_grad_value_(leaves([12.0]), 1.0)
    assert listening.clippings == []
    assert not listening.clipped_by_value


def test_clipping_by_value_is_noted_however_it_is_called(listening):
    """This file has imported the function before."""
    clip_grad_value_(listening.parameters, 3.5)
    assert listening.clipped_by_value
    assert [parameter.grad.tolist() for parameter in listening.parameters] == [[3.0, 0.0], [3.5]]
    listening.clear()
    assert not listening.clipped_by_value
    torch.nn.utils.clip_grad_value_(listening.parameters, 3.0)
    assert listening.clipped_by_value


def test_a_norm_alone_is_no_clipping(listening):
    torch.nn.utils.get_total_norm([parameter.grad for parameter in listening.parameters])
    assert listening.clippings == []
    assert not listening.clipped_by_value


def test_a_window_begins_without_clippings(listening):
    clip_grad_norm_(listening.parameters, 1.0)
    listening.clear()
    assert listening.clippings == []


def test_factors_of_several_clippings_multiply():
    one, other = Clipping(frozenset([1, 2]), 1.0, 4.0, 2), Clipping(frozenset([2, 3]), 1.0, 0.5, 2)
    again = Clipping(frozenset([1]), 3.0, 6.0, 2)
    assert shortened([one, other, again]) == {
        1: pytest.approx(1 / 8, rel=1e-6),
        2: pytest.approx(1 / 4, rel=1e-6),
        3: 1.0,
    }
    assert shortened([]) == {}


@pytest.mark.parametrize(("max_norm", "norm"), [(1.0, math.inf), (0.0, 3.0)])
def test_what_nothing_is_left_of_cannot_be_undone(max_norm, norm):
    assert shortened([Clipping(frozenset([1]), max_norm, norm, 1)]) == {}


def test_a_norm_that_is_not_a_number_leaves_a_gradient_that_is_none():
    """torch multiplies by it, so that the gradient shows it."""
    assert Clipping(frozenset([1]), 1.0, math.nan, 1).factor == 1.0


def scaler_with(gradient, update=True):
    """A loss scaler on the CPU before its step, and the optimizer of one parameter with this gradient."""
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(parameter.sum() * gradient).backward()
    return scaler, optimizer, parameter


@pytest.mark.parametrize(("gradient", "is_skipped"), [(2.0, False), (math.inf, True)])
def test_an_update_that_a_scaler_leaves_out(listening, gradient, is_skipped):
    scaler, optimizer, parameter = scaler_with(gradient)
    optimizer.register_step_pre_hook(lambda *_: listening.has_stepped())
    scaler.step(optimizer)
    assert listening.skipped == ([optimizer] if is_skipped else [])
    assert parameter.item() == (0.0 if is_skipped else -2.0)


def test_each_step_of_a_scaler_is_looked_at_by_itself(listening):
    scaler, optimizer, _ = scaler_with(2.0)
    handle = optimizer.register_step_pre_hook(lambda *_: listening.has_stepped())
    scaler.step(optimizer)
    handle.remove()
    other_scaler, other, _ = scaler_with(math.inf)
    other_scaler.step(other)
    assert listening.skipped == [other]


def between_of(parameters):
    return Between(lambda: parameters, lambda: 1, print)


@pytest.mark.parametrize("first", [0, 1])
def test_two_audits_at_once_end_in_any_order(first):
    """As of the two models of a game."""
    parameters = leaves([3.0], [4.0])
    both = [between_of([parameter]) for parameter in parameters]
    clip_grad_norm_(parameters, 1.0)
    assert [len(one.clippings) for one in both] == [1, 1]
    both[first].stop()
    clip_grad_norm_(parameters, 0.5)
    assert [len(one.clippings) for one in both] == ([1, 2] if first == 0 else [2, 1])
    both[1 - first].stop()
    assert functions() == BEFORE


def test_stopping_twice_is_stopping():
    one, other = between_of([]), between_of([])
    one.stop()
    one.stop()
    assert functions() != BEFORE
    other.stop()
    other.stop()
    assert functions() == BEFORE


def test_what_torch_raises_passes_through(listening):
    listening.parameters[0].grad[0] = math.nan
    with pytest.raises(RuntimeError, match="is non-finite"):
        clip_grad_norm_(listening.parameters, 1.0, error_if_nonfinite=True)
    assert listening.clippings == []
