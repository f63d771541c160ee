"""What hooks note of forwards and backwards in one process, and that they leave the run alone."""

import random
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddp_tokens.audit.packing import unpack
from ddp_tokens.audit.recording import Recorder, local
from ddp_tokens.audit.watched import Watched
from ddp_tokens.generators import read_generators
from tests.unit.audit.models import Model, loss_sum, tokens_of


class Counter:
    value = 0

    def __call__(self):
        return self.value


@pytest.fixture
def recording():
    """Makes recorders of a module, and stops them."""
    made = []

    def record(module=None, loss=loss_sum, watched=None, limit_mib=64, counter=lambda: 0):
        module = module or Model()
        made.append(Recorder(module, module, loss, watched or Watched(), limit_mib, counter))
        return made[-1]

    yield record
    for recorder in made:
        recorder.stop()


def learn(module, tokens):
    loss = module(tokens)["logits"].sum()
    loss.backward()
    return loss


def test_what_is_noted_of_a_microbatch(recording):
    recorder = recording()
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with torch.no_grad():
        logits = recorder.module(tokens)["logits"]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum")
    learn(recorder.module, tokens)
    [one] = recorder.microbatches
    assert one.loss_sum == pytest.approx(float(expected), rel=1e-6)
    assert (one.units, one.positions, one.labels, len(one.rows)) == (6, 0, 0, 2)
    assert (one.has_backward, one.is_kept, one.problem, one.autocast) == (True, True, None, None)
    assert recorder.complete == [one]
    assert recorder.has_run
    assert recorder.is_surely_sum


def test_inputs_are_kept_as_they_were(recording):
    """A loop may fill the same tensor again."""
    recorder = recording()
    tokens = torch.tensor([[1, 2, 3]])
    learn(recorder.module, tokens)
    tokens.zero_()
    [one] = recorder.microbatches
    arguments, named, watched = unpack(one.tree, one.tensors, lambda tensor: tensor)
    assert (arguments[0].tolist(), named, watched) == ([[1, 2, 3]], {}, None)


def test_a_forward_without_a_backward_is_not_complete(recording):
    recorder = recording()
    recorder.module(tokens_of(1)[0])
    assert (len(recorder.microbatches), recorder.complete) == (1, [])


@pytest.mark.parametrize("how", [torch.no_grad, torch.inference_mode])
def test_forwards_that_are_not_learnt_from_are_not_noted(recording, how):
    recorder = recording()
    with how():
        recorder.module(tokens_of(1)[0])
    recorder.is_deaf = True
    learn(recorder.module, tokens_of(1)[0])
    assert (recorder.microbatches, recorder.has_run) == ([], False)


def test_it_hears_nothing_once_stopped(recording):
    recorder = recording()
    recorder.stop()
    learn(recorder.module, tokens_of(1)[0])
    assert recorder.microbatches == []
    assert not recorder.module._forward_hooks
    assert not recorder.module._forward_pre_hooks


def test_a_window_begins_anew(recording):
    recorder = recording()
    learn(recorder.module, tokens_of(1)[0])
    recorder.clear()
    assert (recorder.microbatches, recorder.problem) == ([], None)
    learn(recorder.module, tokens_of(1)[0])
    assert len(recorder.complete) == 1


def test_gradients_that_are_due_and_there(recording):
    recorder = recording()
    for clear in (False, False, True, False):
        if clear:
            recorder.module.zero_grad()
        learn(recorder.module, tokens_of(1)[0])
    found = [(one.gradients_due, one.gradients_there) for one in recorder.microbatches]
    assert found == [(False, False), (True, True), (True, False), (True, True)]


def test_two_forwards_of_one_backward_are_due_nothing(recording):
    recorder = recording()
    one, other = (recorder.module(tokens)["logits"].sum() for tokens in tokens_of(2))
    (one + other).backward()
    assert [(of.gradients_due, of.gradients_there) for of in recorder.complete] == [(False, False)] * 2


def test_a_microbatch_without_units_leaves_nothing_due(recording):
    recorder = recording(loss=lambda outputs, batch: (outputs["logits"].sum(), 0))
    learn(recorder.module, tokens_of(1)[0])
    learn(recorder.module, tokens_of(1)[0])
    assert [one.gradients_due for one in recorder.microbatches] == [False, False]


@pytest.mark.parametrize("zero", [False, True])
def test_what_was_there_before_the_window(recording, zero):
    recorder = recording()
    learn(recorder.module, tokens_of(1)[0])
    bias = recorder.module.head.bias.grad.clone()
    recorder.clear()
    if zero:
        recorder.module.zero_grad(set_to_none=False)
    learn(recorder.module, tokens_of(1)[0])
    assert set(recorder.left_over) == (set() if zero else {name for name, _ in recorder.module.named_parameters()})
    if not zero:
        assert recorder.left_over["head.bias"].tolist() == bias.tolist()
    recorder.module.zero_grad()
    recorder.clear()
    learn(recorder.module, tokens_of(1)[0])
    assert recorder.left_over == {}


def test_versions_change_with_every_update(recording):
    recorder = recording()
    optimizer = torch.optim.SGD(recorder.module.parameters(), lr=0.1)
    for step in (False, True, False):
        learn(recorder.module, tokens_of(1)[0])
        if step:
            optimizer.step()
    first, second, third = (one.versions for one in recorder.microbatches)
    assert first == second < third == recorder.versions()


def test_weights_that_another_optimizer_updates_first(recording):
    recorder = recording()
    bias = recorder.module.head.bias
    recorder.keep_weights([bias])  # nothing was computed with them yet
    learn(recorder.module, tokens_of(1)[0])
    before, kept = recorder.versions(), bias.detach().clone()
    recorder.keep_weights([bias])
    with torch.no_grad():
        bias.add_(1)
    recorder.keep_weights([bias])  # again, before the next update
    assert recorder.versions() == before
    assert torch.equal(recorder.weights()[id(bias)], kept)
    assert torch.equal(recorder.weights()[id(recorder.module.head.weight)], recorder.module.head.weight)
    recorder.clear()
    assert recorder.versions() > before
    assert torch.equal(recorder.weights()[id(bias)], bias)


def test_collectives_before_and_after_forward_and_when_backward_begins_and_ends(recording):
    counter = Counter()
    recorder = recording(counter=counter)
    counter.value = 3
    logits = recorder.module(tokens_of(1)[0])["logits"]
    counter.value = 5
    recorder.module.embedding.weight.register_post_accumulate_grad_hook(lambda _: setattr(counter, "value", 9))
    logits.sum().backward()
    counter.value = 11
    assert recorder.microbatches[0].collectives == [3, 3, 5, 9]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(recording, dtype):
    recorder = recording()
    with torch.autocast("cpu", dtype):
        learn(recorder.module, tokens_of(1)[0])
    assert recorder.microbatches[0].autocast == dtype
    assert recorder.microbatches[0].problem is None


def test_generators_are_those_before_forward(recording):
    recorder = recording(Model(dropout=0.5))
    before = read_generators("cpu").digests
    learn(recorder.module, tokens_of(1)[0])
    assert recorder.microbatches[0].generators.digests == before != read_generators("cpu").digests


def drawing(outputs, batch):
    torch.rand(1), random.random(), numpy.random.random()
    return loss_sum(outputs, batch)


def test_the_run_is_the_same_bits_with_a_recorder(recording):
    """Generators too, though the loss draws from each of them."""
    found = []
    for listens in (False, True):
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        module = Model(dropout=0.5)
        recorder = recording(module, loss=drawing) if listens else None
        losses = [learn(module, tokens) for tokens in tokens_of(3)]
        found.append(([loss.item() for loss in losses], module.head.weight.grad, read_generators("cpu").digests))
    assert recorder.problem is None
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


def test_what_does_not_fit_is_counted_and_not_kept(recording):
    """1 MiB holds one of these, of 800 kB each; the next is looked at while it is there."""
    big = torch.zeros(1, 100_000, dtype=torch.long)
    recorder = recording(limit_mib=1)
    for tokens in (big, big, torch.zeros(1, 5, dtype=torch.long)):
        learn(recorder.module, tokens)
    assert [one.is_kept for one in recorder.microbatches] == [True, False, True]
    assert [one.units for one in recorder.microbatches] == [100_000, 100_000, 5]
    assert [one.bytes for one in recorder.microbatches] == [800_000, 0, 40]


def test_a_watched_batch_is_noted_with_its_inputs(recording):
    watched = Watched()
    batches = [{"tokens": tokens, "labels": tokens, "name": "x"} for tokens in tokens_of(2)]
    recorder = recording(watched=watched)
    for batch in watched.watch(batches):
        learn(recorder.module, batch["tokens"])
    _, _, batch = unpack(recorder.microbatches[1].tree, recorder.microbatches[1].tensors, torch.clone)
    assert torch.equal(batch["labels"], batches[1]["labels"])
    assert batch["name"] == "x"
    assert len(recorder.microbatches[1].tensors) == 1  # the inputs are the batch's own


def test_a_problem_is_kept_for_the_update_and_the_run_goes_on(recording):
    def failing(outputs, batch):
        raise KeyError("labels")

    recorder = recording(loss=failing)
    recorder.module(tokens_of(1)[0])
    assert recorder.problem is None  # nothing was learnt from it
    learn(recorder.module, tokens_of(1)[0])
    assert recorder.problem == (
        "loss_sum failing fails on what the module returned, a dict, and the batch, ['tokens']: KeyError: 'labels'"
    )
    assert recorder.module.head.bias.grad is not None


def test_an_input_that_cannot_be_taken_apart_is_a_problem(recording):
    class Taking(Model):
        def forward(self, tokens, labels=None, extra=None):
            return super().forward(tokens)

    recorder = recording(Taking())
    recorder.module(tokens_of(1)[0], extra={1}, labels=None)["logits"].sum().backward()
    assert recorder.problem.startswith("an input[1].extra is a set, which cannot be taken to another rank")


@dataclass
class Output:
    logits: torch.Tensor
    extra: object = None


@dataclass(slots=True)
class Slotted:
    logits: torch.Tensor


class Holding:
    def __init__(self, logits):
        self.logits, self.itself = logits, self


@pytest.mark.parametrize(
    "kind",
    [
        lambda logits: logits,
        lambda logits: (None, logits),
        lambda logits: [{"a": [logits]}],
        lambda logits: {"logits": logits, "made by": print},
        Output,
        lambda logits: Output(logits, extra=len),
        Slotted,
        Holding,
    ],
    ids=("tensor", "tuple", "nested", "dict", "dataclass", "with a function", "slots", "holds itself"),
)
def test_outputs_of_any_kind(recording, kind):
    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.logits = None

        def forward(self, x):
            self.logits = self.linear(x)
            return kind(self.logits)

    recorder = recording(Returning(), loss=lambda outputs, batch: (recorder.module.logits.sum(), 1))
    recorder.module(torch.ones(1, 2))
    recorder.module.logits.sum().backward()
    assert len(recorder.complete) == 1
    assert recorder.problem is None


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_part_that_is_computed_again_in_backward_is_no_other_microbatch(recording, reentrant):
    class Checkpointed(Model):
        def forward(self, tokens, labels=None):
            hidden = checkpoint(self.hidden, self.embedding(tokens), use_reentrant=reentrant)
            return {"logits": self.head(hidden)}

    recorder = recording(Checkpointed())
    learn(recorder.module, tokens_of(1)[0])
    assert len(recorder.microbatches) == len(recorder.complete) == 1


def test_a_module_that_is_computed_again_as_a_whole(recording):
    recorder = recording()

    def logits(tokens, _):
        return recorder.module(tokens)["logits"]

    for reentrant in (False, True):
        tokens = tokens_of(1)[0]
        checkpoint(logits, tokens, torch.ones(1, requires_grad=True), use_reentrant=reentrant).sum().backward()
        assert len(recorder.complete) == 1
        recorder.clear()


def test_a_forward_that_fails_is_left_out(recording):
    recorder = recording()
    with pytest.raises(IndexError):
        recorder.module(torch.tensor([[99]]))
    learn(recorder.module, tokens_of(1)[0])
    assert [one.has_backward for one in recorder.microbatches] == [False, True]
    assert recorder.complete[0].units == 2


def test_sparse_gradients_are_dense_here(recording):
    module = Model()
    module.embedding = nn.Embedding(11, 6, sparse=True)
    recorder = recording(module)
    learn(module, tokens_of(1)[0])
    assert module.embedding.weight.grad.is_sparse
    learn(module, tokens_of(1)[0])
    assert [one.gradients_there for one in recorder.microbatches] == [False, True]
    assert torch.equal(local(module.embedding.weight.grad), module.embedding.weight.grad.to_dense())


def test_this_ranks_part_of_a_sharded_tensor():
    class Sharded:
        def to_local(self):
            return torch.ones(2)

    assert local(Sharded()).tolist() == [1, 1]
    assert local(torch.zeros(1)).tolist() == [0]
