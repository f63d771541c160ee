"""A sum is told from a mean by what it makes of the same rows twice."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from ddp_tokens.audit.doubling import require_sum
from ddp_tokens.errors import AuditError

LOGITS = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.5]])
BATCH = {"labels": torch.tensor([1, 0, 0]), "id": torch.tensor(7), "name": "x"}


def sums(outputs, batch):
    return cross_entropy(outputs, batch["labels"], reduction="sum"), len(batch["labels"])


def means(outputs, batch):
    return cross_entropy(outputs, batch["labels"]), len(batch["labels"])


def required(loss_sum, outputs=LOGITS, batch=BATCH, rows=3):
    total, units = loss_sum(outputs, batch)
    return require_sum(loss_sum, outputs, batch, rows, float(total), units)


def test_a_sum_is_seen_as_one():
    assert required(sums)


def test_a_mean_is_refused():
    with pytest.raises(AuditError) as refused:
        required(means)
    mean = float(cross_entropy(LOGITS, BATCH["labels"]))
    assert str(refused.value) == (
        f"loss_sum means returns a mean: of the same rows twice it is {mean:.6g}, as of them once, with 3 units and "
        "with 6: let it return the sum of the losses (reduction='sum') and their number"
    )


def test_a_function_without_a_name():
    class Mean:
        def __call__(self, outputs, batch):
            return means(outputs, batch)

    with pytest.raises(AuditError, match="loss_sum Mean returns a mean"):
        required(Mean())


@pytest.mark.parametrize(
    "loss_sum",
    [
        lambda outputs, batch: (sums(outputs, batch)[0], 3),  # counts from somewhere else
        lambda outputs, batch: (sums(outputs, batch)[0] * 0, len(batch["labels"])),
        lambda outputs, batch: (sums(outputs, batch)[0], 0),
        lambda outputs, batch: (sums(outputs, batch)[0] ** 2, len(batch["labels"])),
    ],
    ids=("units of the run", "nothing", "no unit", "neither"),
)
def test_what_cannot_be_told(loss_sum):
    assert not required(loss_sum)


def test_a_function_that_does_not_expect_twice_the_rows():
    def only_three(outputs, batch):
        assert len(outputs) == 3
        return sums(outputs, batch)

    assert not required(only_three)


def test_outputs_that_cannot_be_taken_apart():
    class Outputs:
        __slots__ = ("logits",)

    outputs = Outputs()
    outputs.logits = LOGITS
    assert not required(lambda outputs, batch: sums(outputs.logits, batch), outputs)


def test_nothing_of_it_reaches_the_run():
    """Neither a generator's state, nor the tensors themselves."""
    kept = LOGITS.clone()

    def changing(outputs, batch):
        found = sums(outputs, batch)
        if len(outputs) == 6:
            outputs.zero_()
        return found

    assert required(changing)
    assert torch.equal(LOGITS, kept)


def test_a_loss_that_the_module_has_computed_itself_cannot_be_doubled():
    """Its own mean, times the number of labels, is a sum: it stays the same, and yet it is none of a mean's doing."""
    labels = torch.ones(3)
    assert not require_sum(lambda loss, batch: (loss * 3, len(batch)), torch.tensor(0.5), labels, 3, 1.5, 3)
