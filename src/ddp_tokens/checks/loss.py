"""The arithmetic of the denominator, on numbers that a reader can redo in their head."""

import math
from collections.abc import Mapping, Sequence

from ddp_tokens.checks.verdict import PASS, Verdict, outcome
from ddp_tokens.corpora.objective import Objective, weights_of_documents
from ddp_tokens.corpora.rows import PLAIN, Row, position_weights, supervised
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss
from ddp_tokens.objective_settings import DOCUMENT, SAMPLE, SEQUENCE, TOKEN

SUMS = (12.0, 108.0)
COUNTS = (12, 36)
MICROBATCH_SUMS = ((4.0, 8.0), (30.0, 78.0))
ACCUMULATION = 2
TARGETS = (1.0, -1.0)
CLASS_WEIGHTS = (3.0, 1 / 3)
# Rank 0 holds one sequence, rank 1 a packed row of three, which are one document; the losses of each row's tokens.
ROWS = (
    Row("short", "train", (0,) * 12, (0,) * 12, document="short"),
    Row("packed", "train", (0,) * 36, (0,) * 36, document="packed", starts=(0, 6, 18)),
)
LOSSES = ((1.0,) * 12, (1.0,) * 6 + (2.0,) * 12 + (13 / 3,) * 18)
BY_UNIT = {
    TOKEN: (2.5, "120/48 = 2.5"),
    SEQUENCE: (25 / 12, "(1 + 1 + 2 + 13/3)/4 = 25/12"),
    DOCUMENT: (2.0, "(1 + 3)/2 = 2.0, as the mean of means"),
    SAMPLE: (2.0, "(1 + 3)/2 = 2.0, as the mean of means"),
}


def averaged_over_ranks(losses: Sequence[float]) -> float:
    """What DDP makes of one value per rank."""
    return sum(losses) / len(losses)


def token_mean(values: Sequence[float], counts: Sequence[float]) -> float:
    """Per-rank sums (of losses or of gradients), averaged as DDP does after each rank scaled its own."""
    return averaged_over_ranks([global_token_loss(value, sum(counts), len(counts)) for value in values])


def mean_of_means(values: Sequence[float], counts: Sequence[float]) -> float:
    return averaged_over_ranks([mean_of_means_loss(value, count) for value, count in zip(values, counts, strict=True)])


def check_loss() -> list[Verdict]:
    return [_global_mean(), _microbatches(), _extra_division(), _theta(), *map(_by_unit, BY_UNIT), _class_weights()]


def _global_mean() -> Verdict:
    observed = {
        "local_loss_sums": list(SUMS),
        "local_tokens": list(COUNTS),
        "mean_of_means": mean_of_means(SUMS, COUNTS),
        "global_mean": token_mean(SUMS, COUNTS),
    }
    return _verdict(
        "global_mean",
        observed["global_mean"] == 2.5 and observed["mean_of_means"] == 2.0,
        "sums (12, 108) over counts (12, 36): the global mean is 120/48 = 2.5, the mean of means (1 + 3)/2 = 2.0",
        observed,
    )


def _microbatches() -> Verdict:
    scaled = [sum(global_token_loss(part, sum(COUNTS), len(COUNTS)) for part in of_rank) for of_rank in MICROBATCH_SUMS]
    observed = {
        "microbatch_loss_sums": [list(sums) for sums in MICROBATCH_SUMS],
        "global_mean": averaged_over_ranks(scaled),
    }
    return _verdict(
        "two_microbatches",
        observed["global_mean"] == 2.5,
        "the same sums in two microbatches per rank, each scaled by the window's denominator, give 2.5 again",
        observed,
    )


def _extra_division() -> Verdict:
    observed = {"divided_again": token_mean(SUMS, COUNTS) / ACCUMULATION, "global_mean": token_mean(SUMS, COUNTS)}
    return _verdict(
        "extra_division",
        observed["divided_again"] == 1.25,
        "dividing once more by the 2 microbatches gives 1.25, not 2.5: the denominator counts them already",
        observed,
    )


def _theta() -> Verdict:
    """Squared error (theta - target)^2 at theta = 0 has loss target^2 and gradient -2 * target per token."""
    losses = [count * target**2 for count, target in zip(COUNTS, TARGETS, strict=True)]
    gradients = [count * -2 * target for count, target in zip(COUNTS, TARGETS, strict=True)]
    observed = {
        "loss_mean_of_means": mean_of_means(losses, COUNTS),
        "loss_token_mean": token_mean(losses, COUNTS),
        "gradient_mean_of_means": mean_of_means(gradients, COUNTS),
        "gradient_token_mean": token_mean(gradients, COUNTS),
    }
    return _verdict(
        "equal_losses_unequal_gradients",
        list(observed.values()) == [1.0, 1.0, 0.0, 1.0],
        "12 targets at +1 and 36 at -1, squared error at theta = 0: both losses are 1, the gradients are 0 and 1",
        observed,
    )


def _by_unit(unit: str) -> Verdict:
    """Each position weighted as its unit has it, sums and numbers of units go through the same formula."""
    objective = Objective(unit, documents=weights_of_documents(ROWS, PLAIN) if unit == DOCUMENT else {})
    rows = [objective.counted(row) for row in ROWS]
    sums = [
        math.fsum(weight * loss for weight, loss in zip(position_weights(row), losses, strict=True))
        for row, losses in zip(rows, LOSSES, strict=True)
    ]
    units = [supervised(row) for row in rows]
    mean, (right, formula) = token_mean(sums, units), BY_UNIT[unit]
    return _verdict(
        f"each_{unit}",
        math.isclose(mean, right, rel_tol=1e-14),
        "sums (12, 108) over counts (12, 36), the 36 a packed row of sequences of 6, 12 and 18 tokens whose sums are "
        f"6, 24 and 78: where each {unit} counts the same, the mean is {formula}",
        {"sums_of_weighted_losses": sums, "units": units, "global_mean": mean},
    )


def _class_weights() -> Verdict:
    """As CrossEntropyLoss with weights: the weighted sum over the sum of weights, here of all ranks."""
    weights = [count * weight for count, weight in zip(COUNTS, CLASS_WEIGHTS, strict=True)]
    sums = [value * weight for value, weight in zip(SUMS, CLASS_WEIGHTS, strict=True)]
    observed = {
        "weighted_sums": sums,
        "sums_of_weights": weights,
        "mean_of_means": mean_of_means(sums, weights),
        "global_mean": token_mean(sums, weights),
    }
    return _verdict(
        "class_weights",
        (observed["global_mean"], observed["mean_of_means"]) == (1.5, 2.0),
        "the same sums where the class of rank 0's tokens weighs 3 and that of rank 1's 1/3: (36 + 36) / (36 + 12) = "
        "1.5, and the mean of CrossEntropyLoss's means is 2.0 as before",
        observed,
    )


def _verdict(case: str, holds: bool, criterion: str, observed: Mapping[str, object]) -> Verdict:
    return Verdict(case, PASS, outcome(holds), criterion, observed, evidence={})
