"""What a loss_sum returns: a sum and a number, or a sentence."""

import numpy
import pytest
import torch

from ddp_tokens.audit.evaluating import evaluated, summed
from ddp_tokens.errors import AuditError

SUM = torch.tensor(2.5, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "units", [3, 3.0, torch.tensor(3), torch.tensor([3]), torch.tensor(3.0), numpy.int64(3), numpy.float32(3)], ids=repr
)
def test_units_of_any_kind(units):
    assert evaluated(lambda outputs, batch: (SUM, units), None, None) == (2.5, 3)


def test_the_sum_of_weights_need_not_be_whole():
    assert evaluated(lambda outputs, batch: (SUM, torch.tensor(0.25)), None, None) == (2.5, 0.25)


@pytest.mark.parametrize("total", [torch.tensor(2.5), torch.tensor([2.5]), torch.tensor([[2.5]], requires_grad=True)])
def test_sums_of_one_value(total):
    found, units = summed(lambda outputs, batch: [total, 1], None, None)
    assert (found.shape, float(found.detach()), units) == ((), 2.5, 1)
    assert found.requires_grad == total.requires_grad


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ((2.5, 3), "a float and 3"),
        ((torch.ones(2), 3), "a Tensor of shape (2,) and 3"),
        ((torch.ones(0), 3), "a Tensor of shape (0,) and 3"),
        ((SUM, -1), "a Tensor of shape () and -1"),
        ((SUM, torch.tensor(2.5, requires_grad=True)), "a Tensor of shape () and a Tensor"),
        ((SUM, float("nan")), "a Tensor of shape () and nan"),
        ((SUM, float("inf")), "a Tensor of shape () and inf"),
        ((SUM, numpy.float32("nan")), "a Tensor of shape () and np.float32(nan)"),
        ((SUM, None), "a Tensor of shape () and no number"),
        ((SUM, "3"), "a Tensor of shape () and a str"),
        ((SUM, torch.tensor([1, 2])), "a Tensor of shape () and a Tensor"),
        ((SUM, torch.tensor(float("nan"))), "a Tensor of shape () and a Tensor"),
        (SUM, "a Tensor of shape () and no number"),
        ((SUM, 3, 4), "a tuple and no number"),
        (None, "a NoneType and no number"),
    ],
    ids=str,
)
def test_what_is_no_sum_and_number(returned, told):
    def returning(outputs, batch):
        return returned

    with pytest.raises(AuditError) as refused:
        summed(returning, None, None)
    assert str(refused.value) == (
        f"loss_sum returning returns {told}: let it return the sum of the losses, a scalar tensor, and how many "
        "supervised units it is the sum of, or the sum of their weights"
    )


def test_a_loss_that_fails_is_named_with_what_it_was_given():
    def failing(outputs, batch):
        return batch["labels"]

    with pytest.raises(AuditError) as refused:
        summed(failing, (), {"b": 1, "a": 2})
    assert str(refused.value) == (
        "loss_sum failing fails on what the module returned, a tuple, and the batch, ['a', 'b']: KeyError: 'labels'"
    )
    with pytest.raises(AuditError, match=r"and the batch, list: TypeError"):
        summed(failing, (), [])


def test_what_a_named_loss_says_stands_as_it_is():
    def saying(outputs, batch):
        raise AuditError("so it is")

    with pytest.raises(AuditError, match=r"^so it is$"):
        summed(saying, None, None)
