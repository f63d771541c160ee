"""Are as many rows and units scored as the split holds, and is the score the mean over all supervised units?"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_tokens.checks.gradient_norms import plain
from ddp_tokens.checks.verdict import INCONCLUSIVE, PASS, Verdict, outcome
from ddp_tokens.corpora.rows import TOKEN
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json

PADDED_DUPLICATES = "padded_duplicates"
MEAN_OF_BATCH_MEANS = "mean_of_batch_means"
MEAN_OF_RANK_MEANS = "mean_of_rank_means"
SPLITS = ("validation", "test")
PERPLEXITY = "perplexity"  # a score of tokens
WEIGHT = "weight"  # of the loss, where supervised units are weighted
NOT_SCORED: Mapping[str, Any] = {"rows": 0, "units": 0, "unit": "unit", "correct": 0, "ranks": 1, "batches": []}
MARGIN = 3
# A library's exp is off by 2^-52 of the value at most. The score's and this check's may be those of two libraries.
EXP_ROUNDING = 2.0**-51

SUMS_AGREE = 1e-12  # of the same weights, in another order

Batches = Sequence[Mapping[str, Any]]


def check_evaluation(evaluation: Path, lock: Path) -> list[Verdict]:
    """Two verdicts for each split that the corpus holds or that was scored; one where there is no unit to average.

    Raises EvidenceError when the scores do not say what each batch counted, or lack the perplexity.
    """
    scores, locked = read_json(evaluation), read_json(lock)
    counts = locked["counts"]
    evidence = digests([evaluation, lock])
    verdicts = []
    for split in SPLITS:
        score = scores.get(split, NOT_SCORED)
        per_token = score.get("unit") == TOKEN and "objective" not in locked and WEIGHT not in score
        needed = (*NOT_SCORED, PERPLEXITY) if per_token else NOT_SCORED
        if missing := [name for name in needed if name not in score]:
            raise EvidenceError(f"{evaluation} lacks {', '.join(missing)} of split '{split}': run evaluate again")
        if split in scores or counts[split]["rows"]:
            verdicts.append(judge_rows(split, score, counts[split], evidence))
        if any(batch["units"] for batch in score["batches"]):
            verdicts.append(judge_mean(split, score, evidence))
    return verdicts


def judge_rows(split: str, score: Mapping[str, Any], counts: Mapping[str, int], evidence: Mapping[str, str]) -> Verdict:
    """`counts`: the corpus lock's `rows` and `supervised` of this split."""
    right = {"rows": counts["rows"], "units": counts["supervised"]}
    in_batches = {name: sum(batch[name] for batch in score["batches"]) for name in right}
    first_difference = None
    for name, number in right.items():
        if first_difference is None and (score[name], in_batches[name]) != (number, number):
            found = {"counted": score[name], "in_batches": in_batches[name], "in_the_corpus": number}
            first_difference = {"quantity": name, **found}
    next_multiple = math.ceil(right["rows"] / score["ranks"]) * score["ranks"]
    padded = right["rows"] < score["rows"] == next_multiple
    return Verdict(
        case=f"{split}.rows",
        expected=PASS,
        outcome=outcome(first_difference is None),
        criterion=f"{right['rows']} rows and {right['units']} supervised units are counted, as many as the corpus "
        "holds, in the totals and over all batches, whatever the number of ranks",
        observed={"error": abs(score["rows"] - right["rows"]), "tolerance": 0}
        | {"rows": score["rows"], "units": score["units"], "ranks": score["ranks"]}
        | {f"{name}_in_batches": number for name, number in in_batches.items()},
        evidence=evidence,
        first_difference=first_difference,
        diagnosis=(PADDED_DUPLICATES,) if padded else (),
    )


def judge_mean(split: str, score: Mapping[str, Any], evidence: Mapping[str, str]) -> Verdict:
    """At least one batch must have a unit. Where all batches have the same number of units, the mean of their means is
    the mean over all units: such a split can show no mistake, and the outcome is `inconclusive`.
    """
    found, batches = score["loss"], [batch for batch in score["batches"] if batch["units"]]
    units = math.fsum(map(weight_of, batches))
    right = math.fsum(batch["loss_sum"] for batch in score["batches"]) / units
    tolerance = rounding(batches, [units] * len(batches))
    wrong = wrong_means(batches)
    distances = [abs(mean - right) for _, mean, _ in wrong]
    power = min(distances) / tolerance if tolerance else 0.0
    error = abs(found - right)
    correct, counted = (sum(batch[name] for batch in batches) for name in ("correct", "units"))
    right_accuracy = (score["correct"], score["accuracy"]) == (correct, correct / counted)
    right_perplexity = PERPLEXITY not in score or is_exp(score[PERPLEXITY], found)
    agrees = error <= tolerance and right_accuracy and right_perplexity
    one_formula = are_one(list(map(weight_of, batches)))
    undecidable = agrees and power < MARGIN
    known = [name for name, mean, allowed in wrong if abs(found - mean) <= allowed]
    return Verdict(
        case=f"{split}.mean",
        expected=INCONCLUSIVE if one_formula else PASS,
        outcome=INCONCLUSIVE if undecidable else outcome(agrees),
        criterion=(
            "accuracy is what all batches got right over all units"
            + (f", {PERPLEXITY} is exp(loss)" * (PERPLEXITY in score))
            + ", and |loss - sum of loss sums / sum of units| <= (batches + 1) x 2^-52 x sum of |loss sums| / units "
            f"= {tolerance:.3g}, the rounding of float64 sums in any order, and the nearest wrong mean is at least "
            f"{MARGIN} tolerances away" + (" (all batches have the same number of units)" if one_formula else "")
        ),
        observed={
            "error": plain(error),
            "tolerance": plain(tolerance),
            "power": plain(power),
            "loss": plain(found),
            **_plain_perplexity(score),
            "mean_over_all_units": plain(right),
            "nearest_wrong_mean": plain(wrong[distances.index(min(distances))][1]),
            "batches": len(score["batches"]),
            "units": counted,
            **({WEIGHT: plain(units)} if WEIGHT in score else {}),
        },
        evidence=evidence,
        first_difference=None if agrees else _scores_and_means(score, right, correct / counted),
        diagnosis=() if agrees else tuple(dict.fromkeys(known)),
    )


def _scores_and_means(score: Mapping[str, Any], loss: float, accuracy: float) -> dict[str, Any]:
    stated = {name: plain(score[name]) for name in ("loss", "accuracy")} | _plain_perplexity(score)
    return stated | {"mean_over_all_units": plain(loss), "right_over_all_units": plain(accuracy)}


def _plain_perplexity(score: Mapping[str, Any]) -> dict[str, Any]:
    return {PERPLEXITY: plain(score[PERPLEXITY])} if PERPLEXITY in score else {}


def is_exp(value: float, of: float) -> bool:
    """A mean of batches' perplexities is none: it lies above the exponential of their mean, wherever they differ."""
    try:
        right = math.exp(of)
    except OverflowError:
        return False
    return abs(value - right) <= EXP_ROUNDING * right


def weight_of(batch: Mapping[str, Any]) -> float:
    """What the batch's loss sum is divided by: its supervised units, or their weights."""
    return float(batch[WEIGHT]) if WEIGHT in batch else int(batch["units"])


def wrong_means(batches: Batches) -> list[tuple[str, float, float]]:
    """(name, value, its rounding) of each known wrong mean, that of batch means always first.

    A mean is a sum of loss sums, each over a denominator; the right one divides all by the units of all batches. Of the
    other wrong ones, those that divide by the same numbers here are the right one here, and left out.
    """
    units = math.fsum(map(weight_of, batches))
    batches_of, weights_of = Counter(batch["rank"] for batch in batches), defaultdict[int, list[float]](list)
    for batch in batches:
        weights_of[batch["rank"]].append(weight_of(batch))
    units_of = {rank: math.fsum(weights) for rank, weights in weights_of.items()}
    ranks = len(batches_of)
    denominators = [
        (MEAN_OF_BATCH_MEANS, [len(batches) * weight_of(batch) for batch in batches]),
        # The same mistake, averaged on each rank first: another value where ranks hold unequal numbers of batches.
        (MEAN_OF_BATCH_MEANS, [ranks * batches_of[batch["rank"]] * weight_of(batch) for batch in batches]),
        (MEAN_OF_RANK_MEANS, [ranks * units_of[batch["rank"]] for batch in batches]),
    ]
    return [
        (name, _mean(batches, divisors), rounding(batches, divisors))
        for index, (name, divisors) in enumerate(denominators)
        if index == 0 or not are_one([*divisors, units])
    ]


def are_one(weights: Sequence[float]) -> bool:
    """The same number, but for the rounding of sums of weights; whole numbers of units have none."""
    return all(math.isclose(weight, weights[0], rel_tol=SUMS_AGREE) for weight in weights)


def rounding(batches: Batches, divisors: Sequence[float]) -> float:
    """How far two float64 computations of a mean may lie apart.

    Each of n - 1 additions and the division rounds by at most 2^-53 of the sum of absolute values, this check's own
    exact sum and division twice more: below (n + 1) x 2^-52 of it.
    """
    terms = (abs(batch["loss_sum"]) / divisor for batch, divisor in zip(batches, divisors, strict=True))
    return (len(batches) + 1) * 2.0**-52 * math.fsum(terms)


def _mean(batches: Batches, divisors: Sequence[float]) -> float:
    return math.fsum(batch["loss_sum"] / divisor for batch, divisor in zip(batches, divisors, strict=True))
