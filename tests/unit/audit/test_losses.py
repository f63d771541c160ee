"""Objectives with a name, against numbers by hand.

Logits log(p) have the cross entropy -log(p[label]). With two classes p = (1/4, 3/4) or (1/2, 1/2), the losses are
log 4, log 4/3 and log 2.
"""

import math
from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from ddp_tokens.audit.losses import (
    IGNORED,
    NAMED,
    causal_lm,
    classification,
    labels_in,
    logits_in,
    loss_sum_of,
    token_classification,
)
from ddp_tokens.errors import AuditError

LOG = math.log
QUARTER = [LOG(1 / 4), LOG(3 / 4)]
HALF = [LOG(1 / 2), LOG(1 / 2)]
LOGITS = torch.tensor([[QUARTER, HALF, QUARTER], [HALF, QUARTER, QUARTER]], dtype=torch.float64)


def values(found):
    total, units = found
    return float(total), units


def approx(value):
    return pytest.approx(value, rel=1e-12)


def test_causal_lm_shifts_labels_by_one():
    """Rows 0: positions 0 and 1 predict the labels at 1 and 2: 0 of (1/4, 3/4), 1 of (1/2, 1/2); the last predicts
    nothing. Row 1: 1 of (1/2, 1/2), 0 of (1/4, 3/4). The labels at position 0 are nobody's.
    """
    labels = torch.tensor([[1, 0, 1], [0, 1, 0]])
    expected = (LOG(4) + LOG(2)) + (LOG(2) + LOG(4))
    assert values(causal_lm(LOGITS, {"labels": labels})) == (approx(expected), 4)


def test_causal_lm_leaves_out_what_is_ignored():
    """-100 at position 1 of row 0 takes its first prediction away; at position 0 it takes nothing away."""
    labels = torch.tensor([[1, IGNORED, 1], [IGNORED, 1, 0]])
    assert values(causal_lm(LOGITS, {"labels": labels})) == (approx(LOG(2) + LOG(2) + LOG(4)), 3)


def test_causal_lm_is_what_hugging_face_computes():
    """transformers' ForCausalLMLoss: logits in float32, labels padded by one -100 and shifted to the left, summed, and
    divided by num_items_in_batch. Its documentation: labels may be the input_ids; -100 is ignored.
    """
    logits = torch.randn(3, 7, 11, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(2))
    labels[1, 4:] = IGNORED
    shifted = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    of_all = functional.cross_entropy(logits.view(-1, 11), shifted.view(-1), ignore_index=IGNORED, reduction="sum")
    total, units = causal_lm(SimpleNamespace(logits=logits), {"input_ids": labels, "labels": labels})
    assert float(total) == pytest.approx(float(of_all), rel=1e-6)
    assert units == int((shifted != IGNORED).sum()) == 6 + 3 + 6
    mean = functional.cross_entropy(logits.view(-1, 11), shifted.view(-1))
    assert float(total) / units == pytest.approx(float(mean), rel=1e-6)


def test_causal_lm_takes_tokens_for_labels_where_there_are_none():
    tokens = torch.tensor([[1, 0, 1], [0, 1, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    without = causal_lm(LOGITS, {"input_ids": tokens})
    assert values(without) == (approx(2 * LOG(4) + 2 * LOG(2)), 4)
    masked = causal_lm(LOGITS, {"input_ids": tokens, "attention_mask": mask})
    assert values(masked) == (approx(LOG(4) + LOG(2) + LOG(2)), 3)
    assert tokens.tolist() == [[1, 0, 1], [0, 1, 0]]


def test_token_classification_predicts_each_position():
    labels = torch.tensor([[0, 1, IGNORED], [IGNORED, IGNORED, 1]])
    expected = LOG(4) + LOG(2) + LOG(4 / 3)
    assert values(token_classification(LOGITS, {"labels": labels})) == (approx(expected), 3)


def test_classification_predicts_each_row():
    labels = torch.tensor([0, IGNORED, 1])
    assert values(classification(LOGITS[0], {"labels": labels})) == (approx(LOG(4) + LOG(4 / 3)), 2)


@pytest.mark.parametrize("loss", NAMED.values(), ids=NAMED)
def test_nothing_supervised_is_a_sum_of_zero(loss):
    logits = LOGITS[0] if loss is classification else LOGITS
    labels = torch.full(logits.shape[:-1], IGNORED)
    assert values(loss(logits, {"labels": labels})) == (0.0, 0)


@pytest.mark.parametrize("loss", NAMED.values(), ids=NAMED)
def test_the_gradient_of_a_sum(loss):
    """d loss / d logits = p - 1[label], so 1 at most, whatever the number of units: no mean is hidden in it."""
    logits = (LOGITS[0] if loss is classification else LOGITS).clone().requires_grad_()
    labels = torch.zeros(logits.shape[:-1], dtype=torch.long)
    loss(logits, {"labels": labels})[0].backward()
    found = logits.grad.reshape(-1, 2)
    expected = (logits.detach().exp() - torch.tensor([1.0, 0.0])).reshape(-1, 2)
    used = found.abs().sum(-1) > 0
    assert torch.allclose(found[used], expected[used])
    assert int(used.sum()) == loss(logits, {"labels": labels})[1]


def test_half_precision_is_summed_in_float32():
    logits = torch.zeros(1, 5000, 2, dtype=torch.bfloat16)
    total, _ = token_classification(logits, {"labels": torch.zeros(1, 5000, dtype=torch.long)})
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(5000 * LOG(2), rel=1e-4)  # bfloat16 has steps of 16 there
    assert token_classification(LOGITS, {"labels": torch.zeros(2, 3, dtype=torch.long)})[0].dtype == torch.float64


def test_labels_of_any_whole_type_serve():
    for dtype in (torch.uint8, torch.int32, torch.int64):
        assert token_classification(LOGITS, {"labels": torch.ones(2, 3, dtype=dtype)})[1] == 6


Batch = namedtuple("Batch", "tokens labels")


@dataclass
class Holding:
    labels: torch.Tensor


ONES = torch.ones(2, 3, dtype=torch.long)
TOKENS = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    "batch",
    [
        {"labels": ONES, "input_ids": TOKENS},
        {"input_ids": TOKENS, "label": ONES},
        {"targets": ONES},
        {"target": ONES},
        {"label": "a text", "targets": ONES},
        UserDict(labels=ONES),
        Batch(TOKENS, ONES),
        Holding(ONES),
        SimpleNamespace(labels=ONES),
        (TOKENS, ONES),
        [TOKENS, ONES, torch.ones(2)],
        (torch.ones(2, 3), ONES, "x"),
    ],
)
def test_labels_are_found(batch):
    assert labels_in(batch) is ONES


@pytest.mark.parametrize("batch", [{}, {"x": ONES}, (), [torch.ones(2)], None, ONES, SimpleNamespace(labels=[1])])
def test_labels_that_are_not_there(batch):
    assert labels_in(batch) is None


@pytest.mark.parametrize(
    "outputs",
    [
        LOGITS,
        {"logits": LOGITS, "loss": torch.tensor(1.0)},
        UserDict(logits=LOGITS),
        SimpleNamespace(logits=LOGITS),
        (torch.tensor(1.0), LOGITS, torch.ones(2, 2)),
        [None, torch.ones(3), LOGITS],
    ],
)
def test_logits_are_found(outputs):
    assert logits_in(outputs, "causal-lm") is LOGITS


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        (torch.tensor(1.0), "a single number, as a loss is"),
        (torch.ones(3), "a Tensor"),
        ({"x": LOGITS}, "a dict"),
        ((), "a tuple"),
    ],
)
@pytest.mark.parametrize("name", NAMED)
def test_an_output_without_logits_is_named(name, outputs, kind):
    with pytest.raises(AuditError) as refused:
        NAMED[name](outputs, {"labels": ONES})
    assert str(refused.value) == (
        f"loss {name} finds no logits in what the module returned, {kind}: audit the module that returns them (in a "
        "LightningModule: put the layers into a module of their own), or pass a function loss_sum(outputs, batch)"
    )


@pytest.mark.parametrize("name", NAMED)
def test_a_batch_without_labels_is_named(name):
    with pytest.raises(AuditError) as refused:
        NAMED[name](LOGITS, {"x": torch.ones(2)})
    assert str(refused.value) == (
        f"loss {name} finds no labels (labels, label, targets, target) in the batch: where they are no input of the "
        "module, say where batches come from (loader = report.watch(loader); by command, --watch), or pass a function "
        "loss_sum(outputs, batch)"
    )


@pytest.mark.parametrize("name", NAMED)
def test_labels_of_another_shape_are_named(name):
    with pytest.raises(AuditError) as refused:
        NAMED[name](LOGITS, {"labels": torch.zeros(2, 4, dtype=torch.long)})
    assert str(refused.value) == (f"loss {name} has logits for (2, 3) and labels of (2, 4): these must be the same")


def test_the_named_functions():
    assert {
        "causal-lm": causal_lm,
        "token-classification": token_classification,
        "classification": classification,
    } == NAMED
    for name, function in NAMED.items():
        assert loss_sum_of(name) is function
    assert loss_sum_of(max) is max


def test_a_name_that_is_not_known_is_refused():
    with pytest.raises(AuditError) as refused:
        loss_sum_of("mse")
    assert str(refused.value) == (
        "loss_sum is 'mse', which is none of causal-lm, token-classification, classification: take one, or pass a "
        "function"
    )


def test_what_cannot_be_called_is_refused():
    with pytest.raises(AuditError) as refused:
        loss_sum_of(3)
    assert str(refused.value) == (
        "loss_sum is a int: pass a function of outputs and batch that returns the sum of the losses of the supervised "
        "units and their number, or one of causal-lm, token-classification, classification"
    )
