"""The batch that a loss is given, and rows that are told by their content, whatever they are padded to."""

import inspect
from collections import UserDict

import pytest
import torch
from torch import nn

from ddp_tokens.audit.inputs import batch_of, rows_of
from ddp_tokens.audit.losses import IGNORED


class Model(nn.Module):
    def forward(self, input_ids, attention_mask=None, *, labels=None, **rest):
        return input_ids


class Anything(nn.Module):
    def forward(self, *arguments):
        return arguments


ONE, OTHER, WATCHED = torch.ones(1), torch.zeros(2), object()


def test_a_watched_batch_comes_first():
    assert batch_of(Model(), [ONE], {"labels": OTHER}, WATCHED) is WATCHED


def test_inputs_go_by_the_names_of_forward():
    assert batch_of(Model(), [ONE, OTHER], {"labels": ONE, "extra": 3}, None) == {
        "input_ids": ONE,
        "attention_mask": OTHER,
        "labels": ONE,
        "extra": 3,
    }
    assert batch_of(Model(), [], {"input_ids": ONE}, None) == {"input_ids": ONE}
    assert batch_of(Model(), [ONE], {}, None) == {"input_ids": ONE}


def test_the_only_argument_is_the_batch_itself_unless_it_is_a_tensor():
    batch = {"input_ids": ONE}
    assert batch_of(Model(), [batch], {}, None) is batch
    assert batch_of(Model(), [batch], {"labels": OTHER}, None) == {"input_ids": batch, "labels": OTHER}


def test_forward_that_was_replaced_by_what_takes_anything():
    """As trainers do, to cast what it returns."""
    model = Model()
    model.forward = lambda *arguments, **named: None
    assert list(inspect.signature(model.forward).parameters) == ["arguments", "named"]
    assert batch_of(model, [ONE, OTHER], {}, None) == {"input_ids": ONE, "attention_mask": OTHER}


def test_arguments_without_a_name_are_numbered():
    assert batch_of(Anything(), [ONE, OTHER], {}, None) == {"0": ONE, "1": OTHER}


def batch(tokens, pad=0, length=None, labels=True, mask=True, ignored=IGNORED, **more):
    """`tokens`: rows of unequal length; each predicts its own tokens."""
    length = length or max(map(len, tokens))

    def padded(rows, by):
        return torch.tensor([[*row, *[by] * (length - len(row))] for row in rows])

    found = {"input_ids": padded(tokens, pad)}
    if mask:
        found["attention_mask"] = padded([[1] * len(row) for row in tokens], 0)
    if labels:
        found["labels"] = padded(tokens, ignored)
    return found | more


def digests(*given, **how):
    return rows_of(batch(*given, **how))[0]


WAYS = {
    "labels and mask": {},
    "labels only": {"mask": False},
    "mask only": {"labels": False},
    "another padding": {"pad": 7},
    "tokens only": {"mask": False, "labels": False},
}


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_row_is_the_same_whatever_it_is_padded_to(how):
    alone = digests([[5, 6, 9]], **how)
    for length in (4, 8):
        [found, other] = digests([[5, 6, 9], [1, 2, 3, 4]], length=length, **how)
        assert [found] == alone
        assert other != found


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("one", "other"),
    [([5, 6], [6, 5]), ([5], [5, 5]), ([5, 6], [5]), ([0, 5], [5]), ([1, 0, 5], [1, 5])],
    ids=str,
)
def test_other_rows_are_others(how, one, other):
    first, second = digests([one, other], length=4, **how)
    assert first != second
    assert digests([one], **how) != digests([other], **how)


@pytest.mark.parametrize(
    "how",
    [{}, {"mask": False}, {"labels": False}, {"pad": 7}],
    ids=("both", "labels only", "mask only", "another padding"),
)
def test_zeros_at_the_end_that_are_tokens(how):
    """What a mask or a label says of them decides."""
    rows = [[5], [5, 0], [5, 0, 0]]
    assert len(set(digests(rows, length=4, **how))) == 3
    assert [digests([row], **how)[0] for row in rows] == digests(rows, length=5, **how)


def test_without_mask_and_labels_zeros_at_the_end_cannot_be_told_from_padding():
    assert len(set(digests([[5], [5, 0]], mask=False, labels=False))) == 1


def test_another_padding_than_zero_needs_a_mask():
    """The last token of a row that is not supervised would be taken for it otherwise."""
    found = [digests([[5]], pad=7, mask=False, length=length) for length in (1, 2, 3)]
    assert len(set(map(tuple, found))) == 3


def test_a_mask_that_is_added_to_scores_is_none():
    given = batch([[5, 6]]) | {"attention_mask": torch.tensor([[0.0, -torch.inf]])}
    assert rows_of(given)[1:] == (2, 2)
    assert rows_of(given)[0] != rows_of(given | {"input_ids": torch.tensor([[4, 6]])})[0]


def test_a_mask_of_nothing_leaves_the_row():
    given = batch([[5, 6]]) | {"attention_mask": torch.zeros(1, 2, dtype=torch.long)}
    assert rows_of(given)[0] != rows_of(given | {"input_ids": torch.tensor([[4, 6]])})[0]


def test_a_row_is_padded_on_either_side():
    """A mask says where the row is."""
    left = {
        "input_ids": torch.tensor([[0, 0, 5, 6]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1]]),
        "labels": torch.tensor([[IGNORED, IGNORED, 5, 6]]),
    }
    assert rows_of(left)[0] == digests([[5, 6]], length=3)


def test_what_is_not_supervised_at_the_end_is_still_a_part_of_the_row():
    def row(*tokens):
        return {"input_ids": torch.tensor([tokens]), "labels": torch.tensor([[3, *[IGNORED] * (len(tokens) - 1)]])}

    assert rows_of(row(3, 4, 5))[0] != rows_of(row(3, 4, 6))[0]
    assert rows_of(row(3, 4, 5, 0))[0] == rows_of(row(3, 4, 5, 0, 0))[0] == rows_of(row(3, 4, 5))[0]


def test_values_that_move_from_one_tensor_to_another_are_another_row():
    def row(one, other):
        return rows_of({"one": torch.tensor([one]), "other": torch.tensor([other])})[0]

    assert row([1, 2, 0], [3, 0, 0]) != row([1, 0, 0], [2, 3, 0])
    assert row([1, 2], [3]) != row([1], [2, 3])
    assert row([], [1]) != row([1], [])


def test_dtypes_and_shapes_are_part_of_a_row():
    zeros = torch.zeros(1, 4, dtype=torch.bool)
    assert rows_of({"x": zeros})[0] != rows_of({"x": zeros.to(torch.uint8)})[0]
    assert rows_of({"x": torch.zeros(1, 4)})[0] != rows_of({"x": torch.zeros(1, 2, 2)})[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.bool, torch.uint8, torch.int64])
def test_images_and_labels(dtype):
    images = (torch.arange(24).reshape(3, 2, 2, 2) % 3).to(dtype)
    labels = torch.tensor([0, 0, 1])
    rows, positions, of_labels = rows_of((images, labels))
    assert len(set(rows)) == 3
    assert (positions, of_labels) == (3, 3)
    again, _, _ = rows_of((images[[2, 0]], labels[[2, 0]]))
    assert again == [rows[2], rows[0]]


def test_rows_do_not_depend_on_the_place_in_memory():
    images = torch.arange(24.0).reshape(2, 3, 4)
    across = images.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not across.is_contiguous()
    assert rows_of({"x": across})[0] == rows_of({"x": images})[0]


def test_features_that_are_padded_by_position_follow_the_mask():
    """As of audio: (rows, time, features)."""
    features = torch.arange(12.0).reshape(1, 4, 3)
    longer = torch.cat([features, torch.zeros(1, 2, 3)], dim=1)

    def row(values, *mask):
        return rows_of({"values": values, "attention_mask": torch.tensor([mask]), "labels": torch.tensor([1])})[0]

    assert row(features, 1, 1, 1, 1) == row(longer, 1, 1, 1, 1, 0, 0) != row(longer, 1, 1, 1, 1, 1, 0)


def test_numbers_of_positions_and_labels():
    """3 rows of up to 4 positions are 12, of which 1 + 2 + 4 are no padding."""
    given = batch([[1], [1, 2], [1, 2, 3, 4]])
    assert rows_of(given)[1:] == (12, 7)
    assert rows_of(UserDict(given))[1:] == (12, 7)
    assert rows_of(batch([[1], [1, 2], [1, 2, 3, 4]], mask=False))[1:] == (12, 12)
    assert rows_of(batch([[1], [1, 2], [1, 2, 3, 4]], labels=False))[1:] == (0, 0)


def test_what_is_not_one_for_each_row_is_left_out():
    """Such as the number of items in the batch, or a table that comes along."""
    given = batch([[1], [2]])
    more = given | {"num_items_in_batch": torch.tensor(3), "table": torch.ones(5, 2)}
    assert rows_of(more) == rows_of(given)


@pytest.mark.parametrize("value", [{}, {"x": 3}, {"x": torch.tensor(3)}, None, "text"])
def test_a_batch_without_rows(value):
    assert rows_of(value) == ([], 0, 0)


def test_a_batch_of_no_rows():
    assert rows_of({"input_ids": torch.zeros(0, 4, dtype=torch.long)}) == ([], 0, 0)
