"""What loss_terms may return, and what a trial of a row says."""

from dataclasses import replace

import pytest
import torch

from ddp_tokens.corpora.rows import Criterion, Row, supervised
from ddp_tokens.errors import WorkloadError
from ddp_tokens.term_losses import plain_loss, require_same_units_of_terms, sums_of_terms, weighted
from ddp_tokens.term_trial import try_terms
from ddp_tokens.terms import Term
from tests.helpers import make_row

TERMS = (Term("lm", "token"), Term("aux", "sample", 0.5), Term("l2", "once", 0.25))
ONE = torch.ones((), requires_grad=True)
GOOD = {"aux": (2 * ONE, 1), "lm": (3 * ONE, 2), "l2": (4 * ONE, 1)}


class Giving:
    TERMS = TERMS

    def __init__(self, found):
        self.found = found

    def loss_terms(self, outputs, batch):
        return self.found


def test_terms_come_in_their_declared_order():
    sums, units = sums_of_terms(Giving(GOOD), TERMS, None, None)
    assert ([float(each.detach()) for each in sums], units) == ([3.0, 2.0, 4.0], (2.0, 1.0, 1.0))


def test_what_backward_is_called_on():
    """2 * (3/6 + 1/2 * 2/4 + 1/4 * 4/5)."""
    sums, _ = sums_of_terms(Giving(GOOD), TERMS, None, None)
    assert float(weighted(TERMS, sums, (6, 4, 5), 2).detach()) == pytest.approx(2 * (0.5 + 0.25 + 0.2), rel=1e-6)
    assert float(plain_loss(Giving(GOOD), None, None).detach()) == 5.0


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"lm": GOOD["lm"]}, "loss_terms lacks aux, l2: let it give exactly the terms that TERMS names"),
        (GOOD | {"more": GOOD["lm"]}, "loss_terms adds more: let it give"),
        (GOOD["lm"], "loss_terms returns a tuple: let it return sum and number by name of a term"),
        (GOOD | {"lm": ONE}, "loss_terms gives term 'lm' as a Tensor: let it be two values"),
        (GOOD | {"lm": (3.0, 2)}, "loss_terms gives term 'lm' as a tuple: let it be two values, a SUM as a tensor"),
        (GOOD | {"lm": (torch.ones(2), 2)}, r"term 'lm' the shape \(2,\): let it be a SUM, a scalar"),
        (GOOD | {"lm": (ONE, 2 * ONE)}, r"loss_terms, term 'lm': the denominator depends on the model's weights"),
        (GOOD | {"lm": (ONE, float("nan"))}, "loss_terms, term 'lm': the denominator is nan"),
        (GOOD | {"aux": (ONE, -1)}, "loss_terms, term 'aux': the denominator is -1, where a number"),
        (
            GOOD | {"lm": (ONE, None)},
            "^loss_terms, term 'lm': the denominator is None, no number: return the number of",
        ),
        (GOOD | {"lm": (ONE, torch.ones(2))}, "the denominator is a Tensor, no number"),
        (GOOD | {"lm": (ONE, "3")}, "the denominator is a str, no number"),
    ],
)
def test_what_is_no_loss_of_these_terms_is_refused(found, said):
    with pytest.raises(WorkloadError, match=said):
        sums_of_terms(Giving(found), TERMS, None, None)


def test_units_are_held_together_by_rank_and_term():
    require_same_units_of_terms(TERMS, "window 3", [(2.0, 1.0, 1.0)], [(2, 1, 1)])
    require_same_units_of_terms(TERMS, "window 3", [(2.5 + 1e-9, 1.0, 1.0)], [(2.5, 1, 1)])
    with pytest.raises(WorkloadError, match=r"^window 3: loss_terms sums 3 units of term 'aux' on rank 1, where"):
        require_same_units_of_terms(TERMS, "window 3", [(2.0, 1.0, 1.0), (2.0, 3.0, 1.0)], [(2, 1, 1), (2, 2, 1)])


class Tried:
    """Sums over rows; `changed` makes one term something else, given the rows."""

    TERMS = TERMS

    def __init__(self, **changed):
        self.changed = changed

    def collate(self, rows, device):
        return rows

    def forward(self, model, rows):
        return model.weight.sum() + 1

    def loss_terms(self, outputs, rows):
        lm, labelled = sum(map(supervised, rows)), len([row for row in rows if supervised(row)])
        smoothing = rows[0].criterion.label_smoothing
        found = {
            "lm": (outputs * lm * (1 + smoothing), lm),
            "aux": (outputs * labelled, labelled),
            "l2": (outputs**2, 1),
        }
        return found | {name: change(outputs, rows) for name, change in self.changed.items()}


def tried(row=None, **changed):
    try_terms("mine.py:Mine", Tried(**changed), torch.nn.Linear(2, 1), row or make_row("a", 3), "cpu")


def test_sums_pass_the_trial():
    tried()
    tried(row=Row("a", "train", (1,) * 2, (0,) * 2, weights=(0.5, 2.0)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"lm": lambda out, rows: (out, 3 * len(rows))},
            "in term 'lm', and twice .*, not twice as much: let",
        ),
        ({"aux": lambda out, rows: (out, len(rows))}, "term 'aux', .*never a mean"),
        ({"l2": lambda out, rows: (out * len(rows), 1)}, "although the term counts once: let it depend on no row"),
        ({"aux": lambda out, rows: (torch.ones(()) * len(rows), len(rows))}, "term 'aux' has no gradient"),
        ({"aux": lambda out, rows: (out * float("inf"), len(rows))}, "term 'aux' is (-)?inf with the initial weights"),
    ],
)
def test_what_is_no_sum_is_named(changed, said):
    with pytest.raises(WorkloadError, match=f"^workload mine.py:Mine: .*{said}"):
        tried(**changed)


def test_weights_that_a_term_per_token_ignores_are_named():
    row = Row("a", "train", (1,) * 2, (0,) * 2, weights=(0.5, 2.0))
    with pytest.raises(WorkloadError, match=r"with its weights doubled .*multiply the loss of each position"):
        tried(row=row, lm=lambda out, rows: (out * 2 * len(rows), 2.5 * len(rows)))


EMPTY = (
    "^workload mine.py:Mine: term 'aux' counts row 'a' even where none of its labels is supervised {}, and a rank "
    "without rows computes such a row: let loss_terms and denominators count nothing where no label is supervised$"
)


@pytest.mark.parametrize(
    ("aux", "said"),
    [
        (lambda out, rows: (0.0 * out + 2 * len(rows), 0), r"\(a sum of 2\)"),
        (lambda out, rows: ((out - out.detach()) * len(rows), 0), r"\(a gradient other than 0\)"),
        (lambda out, rows: (out * sum(bool(supervised(row)) for row in rows), len(rows)), r"\(1 units\)"),
        (lambda out, rows: (0 * out + 2 * len(rows), len(rows)), r"\(a sum of 2, 1 units\)"),
    ],
)
def test_a_term_that_counts_a_row_without_labels_is_named(aux, said):
    """A rank without rows computes one: what it adds would be in the reference's gradient as well."""
    with pytest.raises(WorkloadError, match=EMPTY.format(said)):
        tried(aux=aux)


def test_denominators_that_count_a_row_without_labels_are_named():
    class Counting(Tried):
        def denominators(self, row):
            return {"aux": 1}

    with pytest.raises(WorkloadError, match=EMPTY.format(r"\(1 units\)")):
        try_terms("mine.py:Mine", Counting(), torch.nn.Linear(2, 1), make_row("a", 3), "cpu")


def test_a_criterion_that_a_term_per_token_ignores_is_named():
    """Other terms may: 'aux' is the same with it and without it."""
    smoothed = replace(make_row("a", 3), criterion=Criterion(None, 0.25))
    both = replace(make_row("a", 3), criterion=Criterion((2.0, 1.0), 0.25))
    tried(row=smoothed)
    tried(row=both)

    def plain(out, rows):
        units = sum(label >= 0 for row in rows for label in row.labels)
        return out * units, units

    with pytest.raises(
        WorkloadError, match=r"with the class weights doubled .*let loss_terms use row\.criterion\.class_w"
    ):
        tried(row=both, lm=plain)
    with pytest.raises(
        WorkloadError,
        match=r"^workload mine.py:Mine: term 'lm' of row 'a' is the same with label_smoothing 0.25 and with 0: let "
        r"loss_terms use row\.criterion\.label_smoothing, or set label_smoothing to 0$",
    ):
        tried(row=smoothed, lm=plain)
