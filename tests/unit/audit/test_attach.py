"""Loops of one process, audited: right ones, wrong ones, and those that cannot be audited as asked."""

import copy
import gc
import json
import random
import weakref
from collections import UserDict

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizers

from ddp_tokens import audit
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.errors import AuditError
from ddp_tokens.generators import read_generators
from tests.unit.audit.models import Model, loss_sum, tokens_of

# The mean of k microbatches' means is 1 / (k * units of the microbatch) for each, whether of a rank or of all: with one
# rank these are one formula.
MEANS = ["mean_of_microbatch_means", "microbatches_weigh_alike"]
# Right, with one rank and one microbatch: where nothing could be weighed wrongly.
ALONE = ("inconclusive", [])
GLOBAL_HOOKS = torch_optimizers._global_optimizer_pre_hooks
CLIP = clip_grad._clip_grads_with_norm_


@pytest.fixture(autouse=True)
def nothing_is_left():
    torch.manual_seed(0)
    yield
    assert not GLOBAL_HOOKS
    assert not torch_optimizers._global_optimizer_post_hooks
    assert clip_grad._clip_grads_with_norm_ is CLIP


def summed(model, tokens):
    return cross_entropy(model(tokens)["logits"].flatten(0, 1), tokens.flatten(), reduction="sum")


def right(model, window):
    units = sum(tokens.numel() for tokens in window)
    for tokens in window:
        (summed(model, tokens) / units).backward()


def mean_of_microbatch_means(model, window):
    for tokens in window:
        (summed(model, tokens) / tokens.numel() / len(window)).backward()


def one_backward(model, window):
    """Several forwards before it."""
    sum(summed(model, tokens) for tokens in window).div(sum(tokens.numel() for tokens in window)).backward()


def scaled(factor):
    def backward(model, window):
        for tokens in window:
            (summed(model, tokens) * factor).backward()

    return backward


def last_only(model, window):
    for tokens in window:
        model.zero_grad()
        (summed(model, tokens) / sum(one.numel() for one in window)).backward()


class Loop:
    def __init__(self, backward=right, model=None, between=None, accumulation=2, optimizer=torch.optim.SGD):
        self.model = model or Model()
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.backward, self.between = backward, between
        self.accumulation = accumulation

    def train(self, windows=3, clear=True):
        batches = tokens_of(windows * self.accumulation)
        for start in range(0, len(batches), self.accumulation):
            if clear:
                self.optimizer.zero_grad()
            self.backward(self.model, batches[start : start + self.accumulation])
            if self.between:
                self.between(self.model)
            self.optimizer.step()


def audited(loop, train=None, **how):
    with audit(
        loop.model, how.pop("optimizer", loop.optimizer), loss_sum=how.pop("loss_sum", loss_sum), **how
    ) as report:
        (train or loop.train)()
    return report


def found_of(report):
    verdicts = [one["verdict"] for one in report.windows]
    return [(verdict["outcome"], verdict["diagnosis"]) for verdict in verdicts]


def test_a_right_loop_passes():
    report = audited(Loop())
    assert found_of(report) == [("pass", []), ("pass", [])]
    assert report.windows[0]["seen"]["units"] == [[2, 5]]
    assert report.windows[1]["seen"]["units"] == [[3, 1]]
    assert report.windows[0]["notes"] == []
    assert report.windows[0]["verdict"]["observed"]["power"] > 100
    report.raise_if_wrong()


def test_the_document_is_json():
    document = audited(Loop()).document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    doubted = audited(Loop(between=lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.1))).document()
    assert json.loads(json.dumps(doubted, allow_nan=False)) == doubted
    assert doubted["outcome"] == "inconclusive"


@pytest.mark.parametrize("backward", [right, one_backward])
@pytest.mark.parametrize(
    "model", [Model(), Model(0.5), Model().double(), Model().bfloat16()], ids=("", "dropout", "double", "half")
)
def test_right_loops_of_many_kinds_pass(backward, model):
    assert [outcome for outcome, _ in found_of(audited(Loop(backward, copy.deepcopy(model))))] == ["pass", "pass"]


def test_a_wrong_loop_fails_by_its_name():
    report = audited(Loop(mean_of_microbatch_means))
    assert found_of(report) == [("fail", MEANS)] * 2
    assert report.sentence.startswith("fail: the gradient is off by ")
    with pytest.raises(AuditError, match="is not that of the objective: fail: the gradient is off by"):
        report.raise_if_wrong()


def test_a_loop_that_clears_gradients_inside():
    report = audited(Loop(last_only))
    assert found_of(report)[0] == ("fail", ["gradients_cleared_inside", "last_microbatch_only"])


def test_a_loop_that_does_not_clear_gradients():
    loop = Loop()
    report = audited(loop, lambda: loop.train(clear=False))
    assert found_of(report) == [("pass", []), ("fail", ["gradients_not_cleared"])]


def test_a_loop_that_never_divides():
    assert found_of(audited(Loop(scaled(1.0))))[0] == ("fail", ["not_divided"])


def test_a_loop_that_updates_inside():
    def updating(model, window):
        for tokens in window:
            (summed(model, tokens) / sum(one.numel() for one in window)).backward()
            with torch.no_grad():
                model.head.bias[0] += 1e-3  # all of them would leave the softmax as it is

    assert found_of(audited(Loop(updating)))[0][1][0] == "weights_updated_inside"


@pytest.mark.parametrize("lr", [0.1, 1e-5])
def test_another_optimizer_that_updates_inside(lr):
    loop = Loop()
    loop.optimizer = torch.optim.SGD(loop.model.head.parameters(), lr=0.1)
    other = torch.optim.SGD(loop.model.hidden.parameters(), lr=lr)

    def updating(model, window):
        for tokens in window:
            (summed(model, tokens) / sum(one.numel() for one in window)).backward()
            other.step()

    loop.backward = updating
    report = audited(loop, windows=1)
    assert report.outcome == "fail"
    assert report.windows[0]["verdict"]["diagnosis"][0] == "weights_updated_inside"


def test_another_optimizer_that_updates_at_the_end():
    loop = Loop()
    loop.optimizer = torch.optim.SGD(loop.model.head.parameters(), lr=0.1)
    other = torch.optim.SGD(loop.model.hidden.parameters(), lr=0.1)
    loop.between = lambda model: other.step()
    assert found_of(audited(loop)) == [("pass", [])] * 2


@pytest.mark.parametrize("max_norm", [0.01, 1e6])
def test_clipping_is_undone(max_norm):
    def clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    report = audited(Loop(between=clip))
    assert found_of(report) == [("pass", [])] * 2
    assert [len(one["notes"]) for one in report.windows] == [int(max_norm < 1)] * 2
    assert found_of(audited(Loop(mean_of_microbatch_means, between=clip)))[0][1] == MEANS


def test_clipping_to_an_infinite_norm_is_a_gradient_that_is_not_finite():
    """The clip divides by infinity, and the gradient is 0 or not a number."""

    def overflowing(model):
        model.head.bias.grad[0] = torch.inf
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    report = audited(Loop(between=overflowing), windows=1)
    assert report.outcome == "fail"
    assert "the gradient is not finite" in report.sentence


def test_clipping_of_another_model_is_nobodys():
    other = nn.Linear(2, 2)

    def game(model, window):
        for tokens in window:
            (summed(model, tokens) / sum(one.numel() for one in window)).backward()
            other(torch.ones(1, 2)).sum().backward()
            nn.utils.clip_grad_norm_(other.parameters(), 0.01)

    assert found_of(audited(Loop(game))) == [("pass", [])] * 2


def test_clipping_inside_is_seen_though_a_forward_is_not_learnt_from():
    def clipping(model, window):
        model(window[0])
        for tokens in window:
            (summed(model, tokens) / 7).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    assert found_of(audited(Loop(clipping)))[0][1][0] == "clipped_inside_window"


def test_the_first_optimizer_that_updates_the_model():
    loop = Loop()
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)

    def train():
        other.step()
        loop.train()

    assert found_of(audited(loop, train, optimizer=None)) == [("pass", [])] * 2


def test_an_optimizer_in_a_wrapper_and_a_model_in_one():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, tokens):
            return self.module(tokens)

    class Prepared:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    loop = Loop()
    with audit(Wrapper(loop.model), Prepared(loop.optimizer), loss_sum=loss_sum) as report:
        loop.train()
    assert report.outcome == "pass"


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adagrad])
def test_other_optimizers(optimizer):
    assert found_of(audited(Loop(optimizer=optimizer))) == [("pass", [])] * 2


def test_an_optimizer_that_computes_the_gradient_itself():
    """One window for each time that it asks for the gradient."""
    loop = Loop()
    loop.optimizer = torch.optim.LBFGS(loop.model.parameters(), lr=0.1, max_iter=3)

    def closure():
        loop.optimizer.zero_grad()
        right(loop.model, tokens_of(2))
        return torch.tensor(0.0)

    for step in (lambda: loop.optimizer.step(closure), lambda: loop.optimizer.step(closure=closure)):
        assert found_of(audited(loop, step)) == [("pass", [])] * 2


def test_labels_that_are_no_input_come_from_a_watched_loader():
    loop = Loop()
    seen = []

    def from_batch(outputs, batch):
        seen.append(sorted(batch))
        return loss_sum(outputs, {"tokens": batch["labels"]})

    batches = [{"tokens": tokens, "labels": tokens} for tokens in tokens_of(4)]
    with audit(loop.model, loop.optimizer, loss_sum=from_batch) as report:
        for batch in report.watch(batches):
            loop.optimizer.zero_grad()
            (summed(loop.model, batch["tokens"]) / batch["tokens"].numel()).backward()
            loop.optimizer.step()
    assert found_of(report) == [ALONE] * 2
    assert {tuple(one) for one in seen} == {("labels", "tokens")}


def test_a_batch_that_is_the_only_argument():
    class OfBatch(Model):
        def forward(self, batch):
            return super().forward(batch["tokens"])

    loop = Loop(lambda model, window: right(lambda tokens: model(UserDict(tokens=tokens)), window), OfBatch())
    assert audited(loop).outcome == "pass"


def test_named_losses():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x, labels):
            return self.linear(x)

    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer, loss_sum="classification", windows=1) as report:
        for count in (2, 5):
            x, labels = torch.randn(count, 3), torch.randint(0, 4, (count,))
            (cross_entropy(model(x, labels), labels, reduction="sum") / 7).backward()
        optimizer.step()
    assert found_of(report) == [("pass", [])]


def weights_and_states(listens, windows=2, **how):
    """Of a loop with dropout and momentum, after four updates."""
    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    loop = Loop(model=Model(dropout=0.5), between=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    if listens:
        audited(loop, lambda: loop.train(4), windows=windows, **how)
    else:
        loop.train(4)
    return [one.detach().clone() for one in loop.model.parameters()], read_generators("cpu").digests


@pytest.mark.parametrize("windows", [1, 2, 4, 9])
def test_training_is_the_same_bits_with_an_audit(windows):
    plain, audited_too = weights_and_states(False), weights_and_states(True, windows)
    assert all(torch.equal(one, other) for one, other in zip(plain[0], audited_too[0], strict=True))
    assert plain[1] == audited_too[1]


def test_an_audit_takes_itself_out_after_its_last_window():
    loop = Loop()
    calls = []

    def counting(outputs, batch):
        calls.append(1)
        return loss_sum(outputs, batch)

    with audit(loop.model, loop.optimizer, loss_sum=counting, windows=1) as report:
        loop.train(2)
        before = len(calls)
        assert not loop.model._forward_hooks
        assert not loop.model._forward_pre_hooks
        assert not GLOBAL_HOOKS
        assert clip_grad._clip_grads_with_norm_ is CLIP
        loop.train(2)
    assert len(calls) == before
    assert len(report.windows) == 1


def test_other_hooks_of_an_optimizer_are_called_as_before():
    """Of the step in which the audit ends, too."""
    loop = Loop()
    called = []
    loop.optimizer.register_step_pre_hook(lambda *_: called.append("first"))
    with audit(loop.model, loop.optimizer, loss_sum=loss_sum, windows=1):
        loop.optimizer.register_step_pre_hook(lambda *_: called.append("last"))
        handle = torch_optimizers.register_optimizer_step_pre_hook(lambda *_: called.append("global"))
        loop.train(2)
    handle.remove()
    assert called == ["global", "first", "last"] * 2


def multiplying(loop, factor):
    """Its optimizer's own hook changes the gradient before each update."""

    def multiply(*_):
        for parameter in loop.model.parameters():
            parameter.grad.mul_(factor)

    loop.optimizer.register_step_pre_hook(multiply)
    return loop


def test_what_an_optimizers_own_hook_does_to_the_gradient_is_judged():
    assert found_of(audited(multiplying(Loop(), 3.7))) == [("fail", ["scaled"])] * 2
    divided = multiplying(Loop(scaled(1.0), accumulation=1, model=Model()), 1 / 2)
    assert found_of(audited(divided, windows=1)) == [ALONE]  # the first batch has 2 units


def test_a_hook_that_is_added_inside_the_block_is_judged_too():
    loop = Loop()
    with audit(loop.model, loop.optimizer, loss_sum=loss_sum, windows=1) as report:
        multiplying(loop, 3.7)
        loop.train(1)
    assert report.outcome == "fail"


def test_an_own_hook_and_a_closure():
    def of_step(loop):
        def closure():
            loop.optimizer.zero_grad()
            right(loop.model, tokens_of(2))
            return torch.tensor(0.0)

        return lambda: loop.optimizer.step(closure)

    loop, called = Loop(), []
    loop.optimizer.register_step_pre_hook(lambda *_: called.append(1))
    assert found_of(audited(loop, of_step(loop), windows=1)) == [("pass", [])]
    assert called == [1]


def test_no_hook_of_the_audit_stays_in_the_optimizer():
    loop = Loop()
    audited(loop, windows=1)
    assert not loop.optimizer._optimizer_step_pre_hooks

    def raising(*_):
        raise ZeroDivisionError

    loop = Loop()
    handle = loop.optimizer.register_step_pre_hook(raising)
    with pytest.raises(ZeroDivisionError):
        audited(loop)
    handle.remove()
    assert not loop.optimizer._optimizer_step_pre_hooks


def test_a_report_holds_neither_model_nor_optimizer():
    loop = Loop()
    report = audited(loop, windows=1)
    left = [weakref.ref(loop.model), weakref.ref(loop.optimizer)]
    del loop
    gc.collect()
    assert [one() for one in left] == [None, None]
    assert report.outcome == "pass"


def test_two_models_at_once():
    loops = Loop(), Loop(mean_of_microbatch_means)
    with (
        audit(loops[0].model, loops[0].optimizer, loss_sum=loss_sum, windows=1) as one,
        audit(loops[1].model, loops[1].optimizer, loss_sum=loss_sum, windows=2) as other,
    ):
        for _ in range(2):
            for loop in loops:
                loop.train(1)
    assert found_of(one) == [("pass", [])]
    assert found_of(other) == [("fail", MEANS)] * 2


def test_an_exception_of_the_loop_passes_through():
    loop = Loop()

    def train():
        loop.train(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audited(loop, train)
    assert not loop.model._forward_hooks


@pytest.mark.parametrize(("factor", "units"), [(1.0, [2, 5]), (torch.inf, [5])])
def test_an_update_that_a_scaler_leaves_out_is_no_window(factor, units):
    loop = Loop(accumulation=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def train():
        for tokens, of_loss in zip(tokens_of(2), (factor, 1.0), strict=True):
            loop.optimizer.zero_grad()
            scaler.scale(summed(loop.model, tokens) / tokens.numel() * of_loss).backward()
            scaler.unscale_(loop.optimizer)
            scaler.step(loop.optimizer)
            scaler.update()

    report = audited(loop, train)
    assert found_of(report) == [ALONE] * len(units)
    assert [one["seen"]["units"] for one in report.windows] == [[[count]] for count in units]


def test_a_loss_scale_that_was_not_undone():
    loop = Loop(scaled(64 / 7))
    report = audited(loop, windows=1)
    assert found_of(report) == [("inconclusive", ["loss_scale_kept"])]


def test_parameters_that_are_not_updated_are_not_compared():
    loop = Loop()
    loop.optimizer = torch.optim.SGD(loop.model.head.parameters(), lr=0.1)
    assert found_of(audited(loop)) == [("pass", [])] * 2


def test_a_gradient_that_is_taken_away():
    def without_bias(model):
        model.head.bias.grad = None

    report = audited(Loop(between=without_bias), windows=1)
    assert found_of(report) == [("fail", ["gradient_missing"])]
    assert "parameter head.bias: gradient_missing (a parameter that the objective depends on" in report.sentence


def test_sparse_gradients():
    model = Model()
    model.embedding = nn.Embedding(11, 6, sparse=True)
    assert found_of(audited(Loop(model=model))) == [("pass", [])] * 2
    assert found_of(audited(Loop(mean_of_microbatch_means, model)))[0][1] == MEANS


def test_what_is_random_and_not_replayed_is_a_doubt():
    class Odd(Model):
        calls = 0

        def forward(self, tokens, labels=None):
            type(self).calls += 1
            return {"logits": super().forward(tokens)["logits"] * (1 + 0.1 * self.calls)}

    report = audited(Loop(model=Odd()), windows=1)
    assert report.outcome == "inconclusive"
    assert report.sentence.startswith("inconclusive: window 1: the loss sum of microbatch 1 of rank 0 was ")
    assert report.sentence.endswith(
        "something random or a state is not replayed; switch it off for the audit (dropout: model.eval())"
    )


REFUSED = {
    "no update": (
        lambda loop: right(loop.model, tokens_of(2)),
        {},
        "nothing was audited: Model ran, but the optimizer made no update inside the block: let it train for a window "
        "or more",
    ),
    "no forward": (
        lambda loop: None,
        {},
        "nothing was audited: Model never ran with gradients enabled inside the block: pass the module that is trained",
    ),
    "no window": (lambda loop: None, {"windows": 0}, "windows is 0: audit one or more"),
    "no loss": (
        lambda loop: None,
        {"loss_sum": "mse"},
        "loss_sum is 'mse', which is none of causal-lm, token-classification, classification: take one, or pass a "
        "function",
    ),
    "no optimizer": (
        lambda loop: None,
        {"optimizer": 3},
        "the optimizer is a int, which is no torch.optim.Optimizer: pass that one",
    ),
    "another optimizer": (
        lambda loop: None,
        {"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)},
        "the optimizer, a SGD, updates no parameter of Model: pass the model that it updates, and both as the trainer "
        "has prepared them",
    ),
    "no forward before the update": (
        lambda loop: loop.optimizer.step(),
        {},
        "window 1: the optimizer updates and Model was not called with gradients enabled on any rank: pass the module "
        "whose outputs the loss is made of",
    ),
    "no unit": (
        lambda loop: loop.train(),
        {"loss_sum": lambda outputs, batch: (outputs["logits"].sum(), 0)},
        "window 1: loss_sum counts no supervised unit on any rank, so there is no mean: check how it counts, or leave "
        "such windows out",
    ),
}


@pytest.mark.parametrize(("train", "how", "sentence"), REFUSED.values(), ids=REFUSED)
def test_loops_that_cannot_be_audited_as_asked(train, how, sentence):
    loop = Loop()
    with pytest.raises(AuditError) as refused:
        audited(loop, lambda: train(loop), **how)
    assert str(refused.value) == sentence
    assert not loop.model._forward_hooks


def test_the_optimizers_of_other_models():
    other = Loop()
    with pytest.raises(AuditError) as refused:
        audited(Loop(), other.train, optimizer=None)
    assert str(refused.value) == (
        "nothing was audited: the optimizers that made updates hold no parameter of Model: pass the model that they "
        "update"
    )


def test_a_loss_that_is_a_mean_is_refused_at_the_update():
    def mean(outputs, batch):
        total, units = loss_sum(outputs, batch)
        return total / units, units

    with pytest.raises(AuditError, match=r"^rank 0, window 1: loss_sum mean returns a mean: of the same rows twice"):
        audited(Loop(), loss_sum=mean)


def test_what_was_audited_stays_in_the_report_where_the_next_window_fails():
    loop, reports = Loop(), []

    def train():
        loop.train(1)
        loop.optimizer.step()

    def all_of_it():
        with audit(loop.model, loop.optimizer, loss_sum=loss_sum, windows=2) as report:
            reports.append(report)
            train()

    with pytest.raises(AuditError, match="window 2: the optimizer updates and Model was not called"):
        all_of_it()
    assert found_of(reports[0]) == [("pass", [])]


def test_too_much_to_keep_is_a_doubt():
    report = audited(Loop(), record_mib=0)
    assert report.outcome == "inconclusive"
    assert "the inputs of a window, and buffers that forward changes, take more than 0 MiB" in report.sentence


def test_tolerances_may_be_given():
    report = audited(Loop(), tolerances=Tolerances(native=1e-9))
    assert report.outcome == "fail"
    assert "is at most 1e-09 times" in report.windows[0]["verdict"]["criterion"]
