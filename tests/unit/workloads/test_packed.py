"""A packed row is its sequences: losses and gradients are those of rows of their own, whatever stands beside them."""

from dataclasses import replace

import pytest
import torch

from ddp_tokens.config import Transformer
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Row, next_tokens, supervised_in
from ddp_tokens.errors import WorkloadError
from ddp_tokens.labelled import same_sequence
from ddp_tokens.workloads import causal_lm, token_labels

# Sums of float64 in another order: as in test_token_labels.
REORDERED = 1e-12
# The longest sequence has 4 tokens, the packed row 9: a place counted from the start of the row has no embedding.
SHAPE = Shape(vocabulary=7, classes=7, positions=4)
SEQUENCES = ((3, 1, 2, 5), (6,), (2, 6, 1, 0))
STARTS = (0, 4, 5)
WEIGHTS = ((1.0, 0.5, 2.0, 1.0), (3.0,), (0.0, 1.5, 0.25, 1.0))
GIVEN = ((0, 1, UNSUPERVISED, 2), (4,), (5, 6, 0, 3))
WORKLOADS = {"causal_lm": causal_lm, "token_labels": token_labels}


def apart(name, weighted=False):
    """The sequences as rows of their own."""
    labels = GIVEN if name == "token_labels" else [next_tokens(tokens) for tokens in SEQUENCES]
    weights = WEIGHTS if weighted else (None,) * 3
    of_rows = zip("abc", SEQUENCES, labels, weights, strict=True)
    return [Row(row_id, "train", tokens, own, weights=weight) for row_id, tokens, own, weight in of_rows]


def packed(name, weighted=False):
    rows = apart(name, weighted)
    weights = sum((row.weights for row in rows), ()) if weighted else None
    labels = sum((row.labels for row in rows), ())
    return Row("packed", "train", sum(SEQUENCES, ()), labels, weights=weights, starts=STARTS)


def model_of(name, shape=SHAPE):
    """With attention that differs from position to position: weights ten times as large as those drawn."""
    settings = Transformer(width=8, layers=2, heads=2, feed_forward=8, dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = WORKLOADS[name].build_model(settings, shape).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10 if name == "causal_lm" else 2)
    return model


def loss_and_gradients(name, model, batches):
    model.zero_grad(set_to_none=True)
    workload, total, units = WORKLOADS[name], 0.0, 0.0
    for rows in batches:
        batch = workload.collate(rows)
        loss, of_batch = workload.loss_sum(workload.forward(model, batch), batch)
        loss.backward()
        total, units = total + loss.item(), units + of_batch
    return total, units, {key: value.grad.clone() for key, value in model.named_parameters()}


def require_equal(found, expected):
    (loss, units, gradients), (expected_loss, expected_units, expected_gradients) = found, expected
    assert units == pytest.approx(expected_units, rel=REORDERED)
    assert loss == pytest.approx(expected_loss, rel=REORDERED)
    assert gradients.keys() == expected_gradients.keys()
    for key, gradient in expected_gradients.items():
        assert torch.linalg.vector_norm(gradient) > 1e-3, key
        error = torch.linalg.vector_norm(gradients[key] - gradient) / torch.linalg.vector_norm(gradient)
        assert error <= REORDERED, key


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_packed_row_has_the_loss_and_gradient_of_its_sequences_as_rows(name, weighted):
    """3 + 0 + 3 next tokens; 3 + 1 + 4 labels that are given. Weighted: of causal_lm 1 + 0.5 + 2 and 0 + 1.5 + 0.25, of
    token_labels 1 + 0.5 + 1, 3 and 0 + 1.5 + 0.25 + 1.
    """
    expected_units = {"causal_lm": (6, 5.25), "token_labels": (8, 8.25)}[name][weighted]
    model, row = model_of(name), packed(name, weighted)
    assert supervised_in([row]) == expected_units
    one_by_one = loss_and_gradients(name, model, [[row] for row in apart(name, weighted)])
    assert one_by_one[1] == expected_units
    require_equal(loss_and_gradients(name, model, [[row]]), one_by_one)


@pytest.mark.parametrize("name", WORKLOADS)
def test_it_does_so_beside_rows_of_other_lengths(name):
    """A packed row that is padded, one that is not, and a row that is not packed, in one batch."""
    model, row = model_of(name), packed(name)
    short = replace(row, id="short", tokens=row.tokens[:5], labels=(*row.labels[:4], UNSUPERVISED), starts=STARTS[:2])
    plain = apart(name)[2]
    expected = [[each] for each in (*apart(name), *apart(name)[:1], plain)]
    if name == "token_labels":  # the label of the sequence of one token was taken away
        assert short.labels[4] == UNSUPERVISED != GIVEN[1][0]
    require_equal(loss_and_gradients(name, model, [[short, row, plain]]), loss_and_gradients(name, model, expected))


@pytest.mark.parametrize("name", WORKLOADS)
def test_without_its_starts_the_row_has_another_gradient(name):
    """The test above would notice: the same tokens and labels, seen and counted as one sequence."""
    model = model_of(name, replace(SHAPE, positions=9))
    right = loss_and_gradients(name, model, [[row] for row in apart(name)])
    wrong = loss_and_gradients(name, model, [[replace(packed(name), starts=None)]])
    assert right[1] == wrong[1]
    assert abs(right[0] - wrong[0]) > 1e-3 * right[0]
    assert max(float((right[2][key] - wrong[2][key]).abs().max()) for key in right[2]) > 1e-3


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_other_sequence_moves_the_logits_of_one(name):
    model, workload, row = model_of(name), WORKLOADS[name], packed(name)
    for training in (True, False):  # of which the encoder of torch makes two paths
        model.train(training)
        with torch.no_grad():
            before = workload.forward(model, workload.collate([row]))
            tokens = (0, 0, 0, 0, *row.tokens[4:])
            labels = row.labels if name == "token_labels" else next_tokens(tokens, STARTS)
            after = workload.forward(model, workload.collate([replace(row, tokens=tokens, labels=labels)]))
        assert torch.equal(before[:, 4:], after[:, 4:])
        assert not torch.equal(before[:, :4], after[:, :4])


@pytest.mark.parametrize("name", WORKLOADS)
def test_padding_beside_packed_rows_is_no_number_that_is_lost(name):
    """A position that sees nothing would be NaN, and with it every gradient."""
    model, workload = model_of(name), WORKLOADS[name]
    batch = workload.collate([packed(name), apart(name)[1]])
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 2, 2, 2, 2], [0, -1, -1, -1, -1, -1, -1, -1, -1]]
    assert batch.places.tolist() == [[0, 1, 2, 3, 0, 0, 1, 2, 3], [0] * 9]
    for training in (True, False):
        model.train(training)
        with torch.no_grad():
            assert bool(torch.isfinite(workload.forward(model, batch)).all())


def test_positions_of_one_sequence():
    seen = same_sequence(torch.tensor([[0, 0, 1, -1]]))
    assert seen.int().tolist() == [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_rows_that_are_not_packed_know_nothing_of_it(name):
    batch = WORKLOADS[name].collate(apart(name))
    assert batch.segments is None
    assert batch.places is None


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_row_with_one_start_is_that_row(name):
    model, row = model_of(name), apart(name)[2]
    require_equal(
        loss_and_gradients(name, model, [[replace(row, starts=(0,))]]), loss_and_gradients(name, model, [[row]])
    )


def test_a_label_that_reaches_into_the_next_sequence_is_refused():
    """As all labels of a row are that was packed after it was shifted: 6 is the first token of the second sequence."""
    row = packed("causal_lm")
    whole = replace(row, labels=next_tokens(row.tokens))
    with pytest.raises(WorkloadError) as refusal:
        causal_lm.collate([whole])
    assert str(refusal.value) == (
        "row 'packed', position 3: a sequence of this packed row ends here, and the label, 6, is the first token of "
        "the next: set it to -100, or give rows without labels and corpus.labels: next_token"
    )
    causal_lm.collate([replace(whole, starts=None)])


def test_inside_a_sequence_of_a_packed_row_a_label_is_the_next_token():
    row = packed("causal_lm")
    causal_lm.collate([replace(row, labels=(*row.labels[:3], 0, *row.labels[4:]))])  # as cut from a longer text
    with pytest.raises(WorkloadError, match=r"row 'packed', position 1: .*which is 2, but the label is 4"):
        causal_lm.collate([replace(row, labels=(1, 4, *row.labels[2:]))])
