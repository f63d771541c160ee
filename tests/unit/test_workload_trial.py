"""What a workload returns is tried out before it is relied on: a sum over units, its weights, a plain denominator."""

from dataclasses import replace

import numpy
import pytest
import torch

from ddp_tokens import labelled
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Criterion, Row, supervised_in
from ddp_tokens.errors import WorkloadError
from ddp_tokens.inputs import Prepared
from ddp_tokens.workload_trial import try_out
from ddp_tokens.workloads import causal_lm, images, token_labels
from tests.distributed.tiny import SquaredError, Theta
from tests.helpers import make_row, next_token_row, tiny_experiment

SHAPE = {"vocabulary": 7, "classes": 7, "positions": 8}
LABELLED = [make_row("a", 3), make_row("b", 8, units=5), make_row("c", 1)]
NEXT = [next_token_row("a", 0, 3, 1), next_token_row("b", 2, 6)]


def prepared(rows):
    assert Shape(**SHAPE)
    return Prepared({row.id: row for row in rows}, {"shape": SHAPE}, [[[[row.id for row in rows]]]])


def trial(workload, rows, **changes):
    try_out(tiny_experiment(**changes), workload, prepared(rows))


def refusal(workload, rows=LABELLED, **changes):
    with pytest.raises(WorkloadError) as error:
        trial(workload, rows, **changes)
    text = str(error.value)
    assert text.startswith("workload token_labels")  # as the experiment calls it
    return text


class Sound:
    """token_labels, to be spoilt."""

    build_model = staticmethod(token_labels.build_model)
    collate = staticmethod(token_labels.collate)
    forward = staticmethod(token_labels.forward)
    loss_sum = staticmethod(token_labels.loss_sum)
    metrics = staticmethod(token_labels.metrics)


def returning(change):
    """`change`: what becomes of (loss, units)."""

    class Spoilt(Sound):
        def loss_sum(self, outputs, batch):
            return change(*labelled.loss_sum(outputs, batch))

    return Spoilt()


def weighted(row, factor=0.5):
    return replace(row, weights=tuple(factor for _ in row.labels))


CRITERION = Criterion(class_weights=(0.5, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0), label_smoothing=0.25)
CASES = {
    "plain": LABELLED,
    "weights": [weighted(row) for row in LABELLED],
    "sequence unit": [replace(weighted(row, 0.2), units=1) for row in LABELLED],
    "class weights and smoothing": [replace(row, criterion=CRITERION) for row in LABELLED],
    "without labels": [LABELLED[0].unsupervised(), LABELLED[1]],
}


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_a_sum_is_let_through(rows):
    trial(token_labels, rows)
    trial(Sound(), rows)


def test_the_built_in_language_model_and_a_model_of_one_number_are_let_through():
    trial(causal_lm, NEXT)
    trial(SquaredError(), [Row("a", "train", (0, 0), (1, UNSUPERVISED))])


def test_a_model_in_training_mode_has_no_part_in_it():
    """Dropout would make two passes differ: with 0.9 hardly anything is left of them."""
    trial(token_labels, LABELLED, model={"width": 8, "heads": 2, "layers": 1, "feed_forward": 8, "dropout": 0.9})


def test_a_mean_is_refused_with_what_to_return():
    """(S + S) / (n + n) = S / n: the row twice has the same mean, where a sum has twice as much."""
    text = refusal(returning(lambda loss, units: (loss / units, units)))
    assert "row 'a' has a loss_sum of " in text
    once, twice = (float(word.rstrip(",")) for word in text.split() if word.rstrip(",").replace(".", "", 1).isdigit())
    assert once == pytest.approx(twice)
    assert text.endswith(
        ", not twice as much: let loss_sum return the SUM of the losses of the supervised units, and their number"
    )
    assert "and that row twice " in text


def test_a_mean_over_the_rows_of_a_batch_is_refused():
    """A sum over positions, divided by the number of rows: 1, or 2 where row 'a' with its 3 units stands twice."""
    text = refusal(returning(lambda loss, units: (loss / 2 if units > 3 else loss, units)))
    assert "not twice as much" in text


def test_a_loss_that_counts_a_row_without_labels_is_refused():
    """A rank without rows computes such a row: what it adds is in the reference too, unseen by any comparison."""

    class Penalized(Sound):
        def loss_sum(self, outputs, batch):
            loss, units = labelled.loss_sum(outputs, batch)
            return loss + (outputs**2).sum(), units

    text = refusal(Penalized())
    assert text.startswith(
        "workload token_labels: loss_sum counts row 'a' even where none of its labels is supervised (a sum of "
    )
    assert text.endswith(
        ", a gradient other than 0), and a rank without rows computes such a row: let loss_sum count nothing where no "
        "label is supervised"
    )

    class OneMore(Sound):
        def loss_sum(self, outputs, batch):
            loss, units = labelled.loss_sum(outputs, batch)
            return loss, units + 1

    assert "supervised (1 units), and a rank" in refusal(OneMore())


def test_an_image_without_its_label_counts_nothing():
    pixels = numpy.random.default_rng(3).random((2, 1, 4, 4)).astype("float32")
    rows = [Row(name, "train", (), (index,), index=index, images=pixels.__getitem__) for index, name in enumerate("ab")]
    shape = {"classes": 2, "channels": 1, "height": 4, "width": 4}
    of_images = Prepared({row.id: row for row in rows}, {"shape": shape, "images": {}}, [[[["a", "b"]]]])
    experiment = tiny_experiment(
        workload="images",
        corpus={"kind": "images"},
        model={"kind": "resnet", "stages": [4], "blocks": 1, "norm": "group", "groups": 1},
    )
    try_out(experiment, images, of_images)

    class Penalized:
        def __getattr__(self, name):
            return getattr(images, name)

        def loss_sum(self, outputs, batch):
            loss, units = images.loss_sum(outputs, batch)
            return loss + (outputs**2).sum(), units

    with pytest.raises(WorkloadError, match="loss_sum counts row 'a' even where none of its labels is supervised"):
        try_out(experiment, Penalized(), of_images)


def test_the_rounding_of_half_precision_is_no_mean():
    """In bfloat16 a loss is off by up to 2^-8, twice: 0.8 %, below the 2 % that are let through."""
    trial(returning(lambda loss, units: (loss.bfloat16().double(), units)), LABELLED)


def test_weights_that_are_ignored_are_refused():
    class Ignoring(Sound):
        def collate(self, rows, device="cpu"):
            return replace(labelled.collate(rows, device), weights=None)

    trial(Ignoring(), LABELLED)  # where there are none, nothing is ignored
    text = refusal(Ignoring(), CASES["weights"])
    assert "and with its weights doubled " in text
    assert text.endswith("let loss_sum multiply the loss of each position by row.weights, before it sums")
    assert "(which make the unit count)" in refusal(Ignoring(), CASES["sequence unit"])


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_weights_that_only_a_row_outside_of_the_window_has_are_tried(split):
    class Ignoring(Sound):
        def collate(self, rows, device="cpu"):
            return replace(labelled.collate(rows, device), weights=None)

    class Unweighted(Sound):
        def metrics(self, outputs, batch):
            return {name: value for name, value in labelled.metrics(outputs, batch).items() if name != "weight"}

    heavy = weighted(make_row("heavy", 2, split))
    of_all = prepared([*LABELLED, heavy])
    for workload in (Ignoring(), Unweighted(), Sound()):
        try_out(tiny_experiment(), workload, prepared(LABELLED))
        planned = replace(of_all, plan=[[[["a", "b", "c"]]]])
        if isinstance(workload, Ignoring | Unweighted):
            with pytest.raises(WorkloadError, match=r"row 'heavy' .*with its weights doubled|metrics lacks 'weight'"):
                try_out(tiny_experiment(), workload, planned)
        else:
            try_out(tiny_experiment(), workload, planned)


def test_rows_are_read_once_and_no_further_than_the_second_with_weights():
    class Counted(dict):
        read = 0

        def values(self):
            for row in super().values():
                Counted.read += 1
                yield row

    rows = [
        *LABELLED,
        weighted(make_row("d", 2)),
        weighted(make_row("e", 2, "test")),
        *(make_row(f"{n}", 1) for n in range(9)),
    ]
    of_all = prepared(rows)
    try_out(tiny_experiment(), Sound(), replace(of_all, rows=Counted(of_all.rows), plan=[[[["a"]]]]))
    assert Counted.read == 5


def test_a_criterion_that_is_ignored_is_refused():
    class Ignoring(Sound):
        def collate(self, rows, device="cpu"):
            return replace(labelled.collate(rows, device), criterion=self.criterion)

    workload = Ignoring()
    rows = CASES["class weights and smoothing"]
    workload.criterion = Criterion(None, 0.25)
    assert "with the class weights doubled" in refusal(workload, rows)
    workload.criterion = Criterion(CRITERION.class_weights, 0.25)
    assert "with the class weights doubled" in refusal(workload, rows)
    smoothed = [replace(row, criterion=Criterion(None, 0.25)) for row in LABELLED]
    workload.criterion = Criterion()
    assert "is the same with label_smoothing 0.25 and with 0" in refusal(workload, smoothed)


WRONG_LOSSES = {
    "no pair": (lambda loss, units: loss, "loss_sum returns a Tensor: let loss_sum return the SUM"),
    "nothing": (lambda loss, units: None, "loss_sum returns None: let loss_sum return the SUM"),
    "three": (lambda loss, units: (loss, units, 1), "loss_sum returns a tuple: let loss_sum return the SUM"),
    "a number": (lambda loss, units: (loss.item(), units), "the loss of loss_sum is a float, no tensor: let loss_sum"),
    "no scalar": (lambda loss, units: (loss.expand(2), units), "has the shape [2], and is no scalar: let loss_sum"),
    "detached": (lambda loss, units: (loss.detach(), units), "the loss of loss_sum has no gradient: compute it from"),
    "NaN": (lambda loss, units: (loss * float("nan"), units), "the loss of loss_sum is nan with the initial weights: "),
    "infinite": (lambda loss, units: (loss * float("inf"), units), "the loss of loss_sum is inf with the initial "),
}
WRONG_DENOMINATORS = {
    "of the weights": (lambda loss: loss, "depends on the model's weights (it requires grad), so that dividing by it"),
    "of some weights": (lambda loss: 3 + 0 * loss.detach().requires_grad_(), "(it requires grad)"),
    "None": (lambda loss: None, "is None, no number: return what the rows count, supervised_in(rows)"),
    "text": (lambda loss: "3", "is a str, no number"),
    "true": (lambda loss: True, "is a bool, no number"),
    "of each row": (lambda loss: torch.tensor([1.0, 2.0]), "is a Tensor, no number"),
    "negative": (lambda loss: -3, "is -3, where a number of units, or a sum of weights, is at least 0 and finite"),
    "NaN": (lambda loss: float("nan"), "is nan, where a number of units, or a sum of weights, is at least 0"),
    "NaN tensor": (lambda loss: torch.tensor(float("nan")), "is nan, where a number of units"),
    "infinite": (lambda loss: float("inf"), "is inf, where a number of units"),
}


@pytest.mark.parametrize(("change", "problem"), WRONG_LOSSES.values(), ids=WRONG_LOSSES)
def test_what_is_no_loss_is_one_sentence(change, problem):
    assert problem in refusal(returning(change))


@pytest.mark.parametrize(("units", "problem"), WRONG_DENOMINATORS.values(), ids=WRONG_DENOMINATORS)
def test_what_is_no_denominator_is_one_sentence(units, problem):
    text = refusal(returning(lambda loss, _: (loss, units(loss))))
    assert "the denominator that loss_sum returns " in text
    assert problem in text


@pytest.mark.parametrize("units", [supervised_in, lambda rows: torch.tensor(float(supervised_in(rows)))])
def test_a_number_or_a_tensor_without_a_gradient_is_a_denominator(units):
    trial(returning(lambda loss, found: (loss, units([make_row("a", int(found))]))), LABELLED)


def test_a_model_that_is_none_and_metrics_that_lack_something_are_named():
    class NoModel(Sound):
        def build_model(self, settings, shape):
            return [Theta()]

    class NoScores(Sound):
        def metrics(self, outputs, batch):
            return {"loss_sum": labelled.loss_sum(outputs, batch)[0], "units": 3}

    class NoMapping(NoScores):
        def metrics(self, outputs, batch):
            return None

    assert refusal(NoModel()).endswith("build_model returns a list: let it return a torch.nn.Module")
    assert "metrics returns a dict without loss_sum, correct as plain numbers: return {'loss_sum'" in refusal(
        NoScores()
    )
    assert "metrics returns None without loss_sum, correct, units" in refusal(NoMapping())


def test_a_loss_that_depends_on_the_padding_is_refused():
    class Padded(Sound):
        def loss_sum(self, outputs, batch):
            total, units = labelled.loss_sum(outputs, batch)
            return total / batch.labels.shape[1], units

        def metrics(self, outputs, batch):
            return labelled.metrics(outputs, batch) | {"loss_sum": float(self.loss_sum(outputs, batch)[0])}

    told = refusal(Padded())
    assert ": rows 'c' and 'b' have a loss_sum of " in told
    assert told.endswith("give padding no weight, and no row an influence on another")


def test_metrics_that_return_a_mean_are_refused():
    class Mean(Sound):
        def metrics(self, outputs, batch):
            found = labelled.metrics(outputs, batch)
            return found | {"loss_sum": found["loss_sum"] / found["units"]}

    told = refusal(Mean())
    assert ": metrics gives row 'a' a loss_sum of " in told
    assert told.endswith("let metrics return the same sum, never a mean")
