"""The published run r1 beside the values measured here. Its corpus rule and seed are others than ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from ddp_tokens.config import Experiment, GeneratedCorpus
from ddp_tokens.normalization import MEAN_OF_MEANS, TOKEN_MEAN

R1: Mapping[str, Any] = {
    "workload": "token_labels",
    "gradient_values": 282_628,
    "atol": 1e-6,
    "rtol": 1e-4,
    "token_mean_max_abs_error": 3.73e-8,
    "mean_of_means_max_abs_error": 0.02157,
    "parameter_difference": 0.0,
    "steps": 100,
    "ranks": 2,
    "test_loss_per_token": 1.31525,
    "test_accuracy_per_token": 0.3622,
    "test_sequences": 256,
    "test_tokens": 18_231,
}
SAME_CRITERION = "same criterion"
OTHER_CRITERION = "another criterion"
SAME_QUESTION = "same question"
LEVEL_ONLY = "level only: other corpus rule and seed"
WORDS = {PASS: "within tolerance", FAIL: "refused", INCONCLUSIVE: "inconclusive"}
ABSENT = "not measured"


@dataclass(frozen=True)
class Comparison:
    """One row. `comparable`: what the two values may be compared for."""

    quantity: str
    published: str
    measured: str
    comparable: str


def compare_with_published(
    experiment: Experiment, checks: Mapping[str, Sequence[Verdict]], evaluation: Mapping[str, Any]
) -> list[Comparison]:
    """Gradients are those of the training dtype; of both windows, the one with the larger error is shown and named.

    Empty where the kind of work or of corpus is another than r1's: there is nothing to compare then.
    """
    if experiment.workload != R1["workload"] or not isinstance(experiment.corpus, GeneratedCorpus):
        return []
    return [*_gradients(experiment, checks), *_run(experiment, checks), *_scores(evaluation)]


def _gradients(experiment: Experiment, checks: Mapping[str, Sequence[Verdict]]) -> list[Comparison]:
    tolerance = experiment.tolerances.published
    same = (tolerance.atol, tolerance.rtol) == (R1["atol"], R1["rtol"])
    comparable = SAME_CRITERION if same else OTHER_CRITERION
    verdicts = {formula: _native(checks, formula) for formula in (TOKEN_MEAN, MEAN_OF_MEANS)}
    values = [verdict.observed["values"] for verdict in verdicts[TOKEN_MEAN].values()]
    return [
        Comparison(
            "Gradient values compared",
            f"{R1['gradient_values']:,}",
            f"{max(values):,} in each of {len(values)} windows" if values else ABSENT,
            "equal for a model of the same size",
        ),
        Comparison(
            "Tolerance of each value",
            _tolerance(R1["atol"], R1["rtol"]),
            _tolerance(tolerance.atol, tolerance.rtol),
            comparable,
        ),
        Comparison(
            "Token mean",
            _judged(WORDS[PASS], R1["token_mean_max_abs_error"]),
            _larger_error(verdicts[TOKEN_MEAN]),
            comparable,
        ),
        Comparison(
            "Mean of means (the known mistake)",
            _judged(WORDS[FAIL], R1["mean_of_means_max_abs_error"]),
            _larger_error(verdicts[MEAN_OF_MEANS]),
            comparable,
        ),
    ]


def _run(experiment: Experiment, checks: Mapping[str, Sequence[Verdict]]) -> list[Comparison]:
    parameters, empty = _case(checks, "resume", "parameters"), _case(checks, "zero_window", "empty_window")
    return [
        Comparison(
            "Largest difference of a parameter after the resume",
            f"{R1['parameter_difference']:g} at step {R1['steps']}",
            f"{parameters.observed['max_abs_difference']:g} at step {experiment.steps}" if parameters else ABSENT,
            SAME_QUESTION,
        ),
        Comparison(
            "Ranks that refuse a window with no supervised token",
            f"{R1['ranks']} of {R1['ranks']}",
            f"{empty.observed['ranks_that_refused']} of {experiment.world_size}" if empty else ABSENT,
            SAME_QUESTION,
        ),
    ]


def _scores(evaluation: Mapping[str, Any]) -> list[Comparison]:
    test = evaluation.get("test")
    names = ("loss", "accuracy", "rows", "units")
    loss, accuracy, rows, units = (test[name] if test else None for name in names)
    return [
        Comparison("Test loss per token", loss_text(R1["test_loss_per_token"]), loss_text(loss), LEVEL_ONLY),
        Comparison(
            "Test accuracy per token", percent_text(R1["test_accuracy_per_token"]), percent_text(accuracy), LEVEL_ONLY
        ),
        Comparison("Test sequences", count_text(R1["test_sequences"]), count_text(rows), LEVEL_ONLY),
        Comparison("Test tokens", count_text(R1["test_tokens"]), count_text(units), LEVEL_ONLY),
    ]


def _native(checks: Mapping[str, Sequence[Verdict]], formula: str) -> dict[str, Verdict]:
    """Window -> verdict, in the training dtype."""
    prefix = f"{formula}.native."
    verdicts = checks.get("gradient_parity", ())
    return {verdict.case.removeprefix(prefix): verdict for verdict in verdicts if verdict.case.startswith(prefix)}


def _case(checks: Mapping[str, Sequence[Verdict]], check: str, case: str) -> Verdict | None:
    return next((verdict for verdict in checks.get(check, ()) if verdict.case == case), None)


def _larger_error(windows: Mapping[str, Verdict]) -> str:
    """Outcome and largest absolute error, and the window that it comes from; both outcomes where they differ."""
    if not windows:
        return ABSENT
    error, window = max((float(verdict.observed["max_abs_error"]), name) for name, verdict in windows.items())
    outcomes = {name: _word(verdict) for name, verdict in windows.items()}
    if len(set(outcomes.values())) == 1:
        return f"{_judged(outcomes[window], error)} (window {window})"
    each = ", ".join(f"{name} {word}" for name, word in outcomes.items())
    return f"{each}; largest absolute error {error:.4g} (window {window})"


def _word(verdict: Verdict) -> str:
    """By the published criterion, which is not the one that decides a verdict."""
    if verdict.outcome == INCONCLUSIVE:
        return WORDS[INCONCLUSIVE]
    return WORDS[FAIL if verdict.observed["outside_tolerance"] else PASS]


def _judged(word: str, error: float) -> str:
    return f"{word}, largest absolute error {error:.4g}"


def _tolerance(atol: float, rtol: float) -> str:
    return f"atol {atol:g} and rtol {rtol:g}"


def loss_text(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.5f}"


def percent_text(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2%}".replace("%", " %")


def count_text(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"
