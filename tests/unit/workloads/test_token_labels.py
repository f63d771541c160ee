import math

import pytest
import torch

from ddp_tokens import workloads
from ddp_tokens.config import GeneratedCorpus
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import Row
from ddp_tokens.workloads import token_labels
from tests.helpers import PROJECT
from tests.unit.training import TRAINING, tiny_model

# Float64 rounds by 1.1e-16; a loss here is at most some 1000 operations deep in sequence, so sums that are taken in
# another order agree to about 1e-13, and 1e-12 leaves a margin of ten.
REORDERED = 1e-12

UNEQUAL = [Row("a", "train", (0, 1, 2, 3, 1), (0, 1, -100, 3, 2)), Row("b", "train", (2,), (1,)), TRAINING[1]]


def loss_of(model, rows):
    batch = token_labels.collate(rows)
    return token_labels.loss_sum(token_labels.forward(model, batch), batch)


def test_the_minimum_experiment_has_the_published_number_of_parameters():
    """4 x 128 + 128 x 128 embeddings, 2 layers of 132,480, a LayerNorm of 256, a head of 516."""
    experiment = load_experiment(PROJECT / "config" / "minimum.yaml")
    corpus = experiment.corpus
    assert isinstance(corpus, GeneratedCorpus)
    model = token_labels.build_model(experiment.model, Shape(corpus.vocabulary, corpus.classes, corpus.max_length))
    assert sum(parameter.numel() for parameter in model.parameters()) == 282_628


def test_every_parameter_gets_a_gradient():
    model = tiny_model()
    loss, _ = loss_of(model, UNEQUAL)
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_padding_and_units_of_a_batch():
    batch = token_labels.collate(UNEQUAL[:2])
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 1], [2, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [[0, 1, -100, 3, 2], [1, -100, -100, -100, -100]]
    assert batch.padding.tolist() == [[False] * 5, [False, True, True, True, True]]
    assert batch.units == 5


def test_a_batch_has_the_loss_of_its_rows_one_by_one():
    model = tiny_model(torch.float64).eval()
    together, units = loss_of(model, UNEQUAL)
    one_by_one = [loss_of(model, [row]) for row in UNEQUAL]
    assert units == sum(of_row for _, of_row in one_by_one) == 5 + len(TRAINING[1].tokens)
    summed = sum(loss.item() for loss, _ in one_by_one)
    assert together.item() == pytest.approx(summed, rel=REORDERED)


def test_what_stands_in_the_padding_does_not_matter():
    """Bit for bit: a padded position has an attention weight of exactly 0, and its own label is not counted."""
    model = tiny_model().eval()
    batch = token_labels.collate(UNEQUAL)
    assert bool(batch.padding.any())
    before, _ = token_labels.loss_sum(token_labels.forward(model, batch), batch)
    batch.tokens[batch.padding] = 3
    after, _ = token_labels.loss_sum(token_labels.forward(model, batch), batch)
    assert torch.equal(before, after)


def test_it_is_a_sum_of_which_the_unsupervised_are_no_part():
    """Equal logits for 4 classes cost ln 4 per supervised token, here 5 of 10 positions."""
    batch = token_labels.collate(UNEQUAL[:2])
    total, units = token_labels.loss_sum(torch.zeros(2, 5, 4, dtype=torch.float64), batch)
    assert units == 5
    assert float(total) == pytest.approx(5 * math.log(4), rel=1e-15 * 5)  # one rounding per addition


def test_a_batch_without_a_supervised_token_has_loss_zero_and_gradient_zero():
    """Neither NaN nor a missing gradient: a rank without units takes part in the averaging like any other."""
    model = tiny_model()
    loss, units = loss_of(model, [row.unsupervised() for row in UNEQUAL])
    assert (loss.item(), units) == (0.0, 0)
    loss.backward()
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in model.parameters())


def test_metrics_are_sums_and_counts():
    batch = token_labels.collate(UNEQUAL[:2])
    logits = torch.zeros(2, 5, 4)
    logits[0, :, :] = torch.eye(4)[torch.tensor([0, 1, 2, 3, 3])]  # right at 3 of 4 supervised positions
    logits[1, :, 1] = 1.0  # right at its only supervised position; padding would be "right" nowhere
    found = token_labels.metrics(logits, batch)
    assert (found["correct"], found["units"]) == (4, 5)
    assert found["loss_sum"] == float(token_labels.loss_sum(logits, batch)[0])


def test_dropout_is_on_in_training_and_off_in_evaluation():
    model = tiny_model(dropout=0.5)
    training = [float(loss_of(model.train(), UNEQUAL)[0].detach()) for _ in range(2)]
    evaluating = [float(loss_of(model.eval(), UNEQUAL)[0].detach()) for _ in range(2)]
    assert training[0] != training[1]
    assert evaluating[0] == evaluating[1]


def test_a_workload_is_loaded_by_the_name_of_its_file():
    assert workloads.load("token_labels") is token_labels
