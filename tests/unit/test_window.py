"""One window in one process; several microbatches and ranks are in tests/distributed."""

from contextlib import contextmanager, suppress
from functools import partial

import pytest
import torch

from ddp_tokens import window
from ddp_tokens.errors import EmptyWindowError, WorkloadError
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.precision import Precision
from ddp_tokens.progress import COMMUNICATION, Progress
from ddp_tokens.reference import gradients_of, reference_gradient
from ddp_tokens.window import accumulate, count_window, sums_of_window
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.helpers import make_row
from tests.unit.training import TRAINING, tiny_model


def test_units_are_counted_over_all_microbatches():
    microbatches = [[make_row("a", 5, units=2), make_row("b", 3)], [make_row("c", 4, units=0)]]
    assert count_window(microbatches, "window 1") == (5, 5)


def test_the_sum_is_made_on_the_device_of_the_group(monkeypatch):
    """NCCL sums what is on a GPU. No GPU is needed to see which device is asked for."""
    monkeypatch.setattr(window, "denominator_over_ranks", lambda local, device: {"cuda:1": 10 * local}[device])
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


class Told(Progress):
    """Notes what it is told, in order."""

    def __init__(self):
        self.notes = []

    def begins_microbatch(self, number):
        self.notes.append(number)

    @contextmanager
    def entered(self, collective, kind=COMMUNICATION):
        self.notes.append((collective, kind))
        yield

    @contextmanager
    def spent(self, kind):
        self.notes.append(kind)
        yield


FORWARDS_AND_BACKWARDS = [
    *(1, "forward", "backward"),
    *(2, "forward", "backward"),
    *(3, "forward", ("all-reduce of the gradients", "reducing_backward")),
]


def test_progress_is_told_each_part_of_a_window():
    told = Told()
    accumulate(Tracing(), Tracing(), [1.0, 10.0, 100.0], lambda loss: loss, told)
    assert told.notes == FORWARDS_AND_BACKWARDS


def test_the_first_forward_of_a_model_with_buffers_is_told_as_a_collective():
    """DDP broadcasts them there: a rank may wait in it for another."""
    tracing, told = Tracing(), Told()
    tracing.register_buffer("mean", torch.zeros(()))
    accumulate(tracing, tracing, [1.0, 10.0, 100.0], lambda loss: loss, told)
    first = ("forward, with the broadcast of the buffers", "forward")
    assert told.notes == [1, first, *FORWARDS_AND_BACKWARDS[2:]]


def test_outputs_and_batch_of_each_microbatch_are_shown():
    tracing, shown = Tracing(), []
    accumulate(tracing, tracing, [1.0, 10.0], lambda loss: loss, observe=lambda *pair: shown.append(pair))
    assert [(float(outputs.detach()), batch) for outputs, batch in shown] == [(1.0, 1.0), (10.0, 10.0)]


class Asked(Exception):
    """Stops a rank where it would wait for the others."""


@pytest.fixture
def of_ranks(monkeypatch):
    """What sums_of_window ends with on each rank, given what each contributes. Real ranks are in tests/distributed."""

    def run(*told):
        worlds = [World(rank, rank, len(told), "cuda:1") for rank in range(len(told))]
        given, ends = [], []

        def ask(values, device, what):
            assert (device, what) == ("cuda:1", "loss sum")
            given.append(values)
            raise Asked

        monkeypatch.setattr(window, "sum_over_ranks", ask)
        for world, of_rank in zip(worlds, told, strict=True):
            with suppress(Asked):
                sums_of_window(token_labels, "window 7", *of_rank, world)
        assert {len(values) for values in given} == {2 + 2 * len(told)}
        sums = [sum(of_place) for of_place in zip(*given, strict=True)]
        monkeypatch.setattr(window, "sum_over_ranks", lambda values, device, what: list(sums))
        for world, of_rank in zip(worlds, told, strict=True):
            try:
                ends.append(sums_of_window(token_labels, "window 7", *of_rank, world))
            except WorkloadError as error:
                ends.append(str(error))
        return ends

    return run


def test_the_loss_sum_of_a_window_is_that_of_all_ranks(of_ranks):
    """And what is right in it: 2, 0 and 5 units."""
    told = ([1.5, 2.0], 3.0, 3), ([20.0, 0.0], 0.0, 0), ([300.0, 5.0], 7.0, 7)
    assert of_ranks(*told) == [[321.5, 7.0]] * 3
    assert of_ranks(told[0]) == [[1.5, 2.0]]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_other_units_on_one_rank_are_refused_on_all(of_ranks, rank):
    told = [([1.0, 0.0], units, units) for units in (3, 5, 7)]
    counted = told[rank][2]
    told[rank] = ([1.0, 0.0], counted + 0.5, counted)
    [message] = set(of_ranks(*told))
    assert message.startswith(
        f"window 7: workload token_labels sums the losses of {counted}.5 units on rank {rank}, where the corpus counts "
        f"{counted}:"
    )


def test_units_that_are_right_in_sum_only_are_refused(of_ranks):
    [message] = set(of_ranks(([1.0, 0.0], 4.0, 3), ([1.0, 0.0], 4.0, 5)))
    assert "4 units on rank 0, where the corpus counts 3" in message


def test_one_process_needs_no_group():
    assert sums_of_window(token_labels, "window 1", [2.5], 3.0, 3, World()) == [2.5]
    with pytest.raises(WorkloadError, match="window 1: workload token_labels sums the losses of 2 units on rank 0"):
        sums_of_window(token_labels, "window 1", [2.5], 2.0, 3, World())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_that_is_summed_in_half_precision_is_refused(dtype):
    """257 losses of 1 would sum to 256 in bfloat16, and the gradient would be rounded with them."""

    class SumsInHalf:
        @staticmethod
        def forward(model, batch):
            return model(batch)

        @staticmethod
        def loss_sum(outputs, batch):
            return outputs.sum(), 1

    def left_by(precision):
        model = torch.nn.Linear(2, 2)
        accumulate(model, SumsInHalf(), [torch.ones(1, 2)], lambda loss: loss, precision=precision)
        return model.weight.grad

    assert left_by(Precision()) is not None
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(WorkloadError, match=rf"sums its losses in {name} when use_amp is set: let its loss_sum add up"):
        left_by(Precision(dtype=dtype))
