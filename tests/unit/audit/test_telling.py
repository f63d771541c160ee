"""What a rank tells of its window: plain values, and a message from which rank 0 can compute it."""

import json
import random

import numpy
import pytest
import torch
from torch import nn

from ddp_tokens.audit.between import Clipping
from ddp_tokens.audit.packing import unpack
from ddp_tokens.audit.recording import Recorder
from ddp_tokens.audit.seeing import Told, facts_of, seen_in
from ddp_tokens.audit.telling import PIECE, fingerprint, message_of, recorded_in, told
from ddp_tokens.audit.watched import Watched
from ddp_tokens.generators import read_generators
from tests.unit.audit.models import Model, loss_sum, tokens_of
from tests.unit.audit.synthetic import of_rank


class NothingBetween:
    clippings = ()
    clipped_by_value = False


class Counter:
    value = 0

    def __call__(self):
        return self.value


@pytest.fixture
def recording():
    made = []

    def record(module=None, limit_mib=64, counter=lambda: 0):
        module = module or Model()
        made.append(Recorder(module, module, loss_sum, Watched(), limit_mib, counter))
        return made[-1]

    yield record
    for recorder in made:
        recorder.stop()


def learnt(recorder, number=2):
    for tokens in tokens_of(number):
        recorder.module(tokens)["logits"].sum().backward()
    return recorder


def telling(recorder, between=NothingBetween, message=b"123"):
    found = told(recorder, between, dict(recorder.module.named_parameters()), message)
    assert json.loads(json.dumps(found)) == found
    return found


def test_what_is_told_has_the_form_that_is_read(recording):
    """The form of which the tests of `seeing` are made."""
    found = telling(learnt(recording()))
    assert set(found) == set(of_rank())
    assert set(found["microbatches"][0]) == set(of_rank()["microbatches"][0])
    of_ranks: Told = [found]
    assert facts_of(of_ranks, 0, None, 1, "Model").units == ((2, 5),)
    assert seen_in(of_ranks).causes == {}
    assert seen_in(of_ranks).doubts == []


def test_what_is_told(recording):
    recorder = learnt(recording())
    found = telling(recorder)
    assert [one["units"] for one in found["microbatches"]] == [2, 5]
    assert [one["gradients_there"] for one in found["microbatches"]] == [False, True]
    assert found["versions"] == recorder.versions() == found["microbatches"][0]["versions"]
    assert (found["bytes"], found["is_sharded"]) == (3, False)
    assert found["weights"] == fingerprint(list(recorder.module.parameters()))
    assert found["gradients"] == fingerprint([one.grad for one in recorder.module.parameters()])
    assert (found["problem"], found["notes"], found["clippings"], found["doubts"]) == (None, [], [], [])


def test_only_gradients_that_are_there_and_compared_count(recording):
    recorder = learnt(recording())
    module = recorder.module
    module.hidden.bias.grad = None
    compared = {"hidden.bias": module.hidden.bias, "head.bias": module.head.bias}
    assert told(recorder, NothingBetween, compared, b"")["gradients"] == fingerprint([module.head.bias.grad])


def test_forwards_without_a_backward_are_left_out(recording):
    recorder = learnt(recording())
    recorder.module(tokens_of(1)[0])
    found = telling(recorder)
    assert (len(found["microbatches"]), found["without_backward"]) == (2, 1)
    assert found["notes"] == ["1 forward without a backward was left out, with 2 supervised units"]
    recorder.module(tokens_of(1)[0])
    assert telling(recorder)["notes"] == ["2 forwards without a backward were left out, with 4 supervised units"]


def test_clippings_are_told(recording):
    class Clipped(NothingBetween):
        clippings = (Clipping(frozenset([1]), 1.0, 4.0, 2),)

    [found] = telling(learnt(recording()), Clipped)["clippings"]
    assert found == {"norm": 4.0, "max_norm": 1.0, "factor": pytest.approx(0.25, rel=1e-6), "after": 2}


@pytest.mark.parametrize(
    ("units", "note"),
    [
        ([0], "1 forward without a backward was left out"),
        ([1], "1 forward without a backward was left out, with 1 supervised unit"),
        ([0, 3, 4], "3 forwards without a backward were left out, with 7 supervised units"),
    ],
)
def test_units_of_forwards_without_a_backward(recording, units, note):
    """As of a microbatch whose backward was forgotten, or of an evaluation with gradients enabled."""
    recorder = learnt(recording())
    for one in units:
        recorder.module(tokens_of(1)[0])
        recorder.microbatches[-1].units = one
    assert telling(recorder)["notes"] == [note]


def test_what_is_not_compared_is_told(recording):
    recorder = learnt(recording())
    assert told(recorder, NothingBetween, {}, b"", ("x is y",))["not_compared"] == ["x is y"]


def test_a_complex_parameter(recording):
    recorder = learnt(recording())
    recorder.module.phases = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    recorder.module.others = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert doubts_of(recorder) == ["phases is complex, which the audit does not compare"]


def doubts_of(recorder, between=NothingBetween):
    return telling(recorder, between)["doubts"]


class With(Model):
    """A layer more, that is called with rows of 7 numbers."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, tokens, labels=None):
        return {"logits": self.head(self.layer(torch.tanh(self.hidden(self.embedding(tokens)))[0])[None])}


BATCHED = (
    "layer is batch normalization in training mode, which makes each microbatch's loss depend on its other rows, so no "
    "process can compute the objective over all of them: for the audit, call eval() on these layers, which freezes "
    "their statistics, or take GroupNorm or LayerNorm"
)


@pytest.mark.parametrize(
    ("layer", "is_doubted"),
    [
        (nn.BatchNorm1d(7), True),
        (nn.BatchNorm1d(7).eval(), False),
        (nn.BatchNorm1d(7, track_running_stats=False).eval(), True),
        (nn.LayerNorm(7), False),
        (nn.GroupNorm(7, 7), False),
    ],
    ids=("training", "frozen", "never frozen", "of layers", "of groups"),
)
def test_batch_normalization(recording, layer, is_doubted):
    recorder = recording(With(layer))
    recorder.module(tokens_of(2)[1])["logits"].sum().backward()
    assert doubts_of(recorder) == ([BATCHED] if is_doubted else [])


def test_instance_normalization_is_of_each_row():
    from ddp_tokens.audit.telling import _uses_statistics_of_rows

    assert not _uses_statistics_of_rows(nn.InstanceNorm1d(3))
    assert _uses_statistics_of_rows(nn.SyncBatchNorm(3))


def test_inputs_that_were_not_kept(recording):
    recorder = recording(limit_mib=1)
    recorder.module(torch.zeros(1, 200_000, dtype=torch.long))["logits"].sum().backward()
    assert doubts_of(recorder) == [
        "the inputs of a window, and buffers that forward changes, take more than 1 MiB: pass a larger record_mib, "
        "or audit with fewer or smaller microbatches"
    ]


def test_clipping_by_value(recording):
    class ByValue(NothingBetween):
        clipped_by_value = True

    assert doubts_of(learnt(recording()), ByValue) == [
        "gradients are clipped by value (clip_grad_value_), which cannot be undone: leave that out for the audit"
    ]


@pytest.mark.parametrize(("norm", "is_doubted"), [(3.0, True), (float("inf"), False)])
def test_clipping_to_nothing(recording, norm, is_doubted):
    class ToNothing(NothingBetween):
        clippings = (Clipping(frozenset([1]), 0.0, norm, 2),)

    doubt = "gradients are clipped to the norm 0, so nothing is left to compare: clip to a larger one"
    assert doubts_of(learnt(recording()), ToNothing) == ([doubt] if is_doubted else [])


def test_a_forward_that_communicates(recording):
    counter = Counter()

    class Communicating(Model):
        def forward(self, tokens, labels=None):
            counter.value += 1
            return super().forward(tokens)

    assert doubts_of(learnt(recording(Communicating(), counter=counter))) == [
        "the module's forward itself communicates with other ranks, so that one process cannot compute it: audit a "
        "loop whose forward is local"
    ]


def test_a_message_says_what_was_recorded(recording):
    torch.manual_seed(3), random.seed(3), numpy.random.seed(3)
    recorder = recording(Model(dropout=0.5))
    states = []
    for tokens in tokens_of(2):
        states.append(read_generators("cpu").digests)
        with torch.autocast("cpu", torch.bfloat16, enabled=len(states) == 2):
            recorder.module(tokens, labels={"x": 3})["logits"].sum().backward()
    found = recorded_in(message_of(recorder.complete))
    assert [one.generators.digests for one in found] == states
    assert [one.autocast for one in found] == [None, torch.bfloat16]
    for one, tokens in zip(found, tokens_of(2), strict=True):
        arguments, named, watched = unpack(one.tree, one.tensors, torch.clone)
        assert torch.equal(arguments[0], tokens)
        assert (named, watched) == ({"labels": {"x": 3}}, None)


def test_messages_of_nothing(recording):
    assert recorded_in(message_of([])) == []
    recorder = learnt(recording(limit_mib=0))
    assert [one.is_kept for one in recorder.complete] == [False, False]
    assert message_of(recorder.complete) == b""


DTYPES = [torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128, torch.int64])
def test_fingerprints_of_every_kind(dtype):
    tensor = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    assert fingerprint([tensor]) == fingerprint([tensor.clone()])
    for place in range(5):
        other = tensor.clone()
        other[place] = 1 - other[place].to(torch.complex128).real.item()
        assert fingerprint([other]) != fingerprint([tensor])


ONE = torch.randn(10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "other",
    [
        [ONE.flip(0)],
        [ONE[torch.tensor([1, 0, *range(2, 10)])]],
        [-ONE],
        [ONE[:9]],
        [ONE[:5], ONE[5:]],
        [ONE, torch.zeros(1)],
        [torch.nextafter(ONE, torch.tensor(9.0))],
        [ONE.double()],
    ],
    ids=("reversed", "two exchanged", "negative", "shorter", "in two", "one more", "the next number", "wider"),
)
def test_fingerprints_of_what_differs(other):
    assert fingerprint(other) != fingerprint([ONE])


def test_signs_that_are_exchanged():
    """Sums of bits do not see them."""
    assert fingerprint([torch.tensor([1.0, -1.0])]) != fingerprint([torch.tensor([-1.0, 1.0])])
    rows = torch.zeros(4, 3)
    one, other = rows.clone(), rows.clone()
    one[1], other[3] = 0.5, 0.5
    assert fingerprint([one]) != fingerprint([other])


def test_fingerprints_of_several_pieces():
    long = torch.zeros(2 * PIECE + 3)
    long[5] = 1.0
    other = torch.zeros(2 * PIECE + 3)
    other[PIECE + 5] = 1.0
    assert fingerprint([long]) != fingerprint([other]) != fingerprint([torch.zeros(2 * PIECE + 3)])


def test_fingerprints_do_not_depend_on_strides():
    square = ONE[:9].reshape(3, 3)
    assert fingerprint([square.t().contiguous().t()]) == fingerprint([square]) == fingerprint([square.reshape(-1)])
    assert fingerprint([]) == fingerprint([torch.zeros(0)]) == 0
    assert fingerprint([torch.tensor(3.0)]) == fingerprint([torch.tensor([3.0])])


def test_sparse_gradients_have_the_fingerprint_of_dense_ones():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert fingerprint([dense.to_sparse()]) == fingerprint([dense])
