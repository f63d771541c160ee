"""The front page: four questions, each answered in plain words and numbers from the verdicts alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ddp_tokens.archive.told import joined, part_of, plural, window_text
from ddp_tokens.checks.evaluation import PERPLEXITY, SPLITS
from ddp_tokens.checks.meanings import meaning_of
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict, verdict_from_json
from ddp_tokens.controls.table import Judged
from ddp_tokens.layout import FLOAT64, NATIVE
from ddp_tokens.normalization import MEAN_OF_MEANS, TOKEN_MEAN
from ddp_tokens.published import loss_text, percent_text
from ddp_tokens.report import QUESTIONS, number_text

YES, NO, UNTOLD = "Yes", "No", "Cannot be told"
GOOD, BAD, UNSURE = "good", "bad", "unsure"
PARITY = "gradient_parity"
OF_GRADIENT = (PARITY, "loss", "window", "zero_window")
OF_RESUME = ("resume", "replicas", "checkpoints")
OF_SCORES = ("evaluation",)
DTYPES = {NATIVE: "in the training dtype", FLOAT64: "in float64"}
Checks = Mapping[str, Sequence[Verdict]]


@dataclass(frozen=True)
class Answer:
    """`word`: the answer in a few words; `tone`: good, bad or unsure; `sentences`: with the numbers."""

    question: str
    word: str
    tone: str
    sentences: tuple[str, ...]


def checks_of(summary: Mapping[str, Any]) -> dict[str, list[Verdict]]:
    """Check -> its verdicts, in the order of the reports. What summary.json says of problems is not believed."""
    names = {field.name for field in fields(Verdict)}
    order = [*(check for check in QUESTIONS if check in summary["checks"]), *summary["checks"]]
    found: dict[str, list[Verdict]] = {check: [] for check in order}
    for entry in summary["verdicts"]:
        verdict = verdict_from_json({name: value for name, value in entry.items() if name in names})
        found.setdefault(entry["check"], []).append(verdict)
    return found


def of_gradient(checks: Checks, unit: str) -> Answer:
    parity = checks.get(PARITY, ())
    ours = [verdict for verdict in parity if verdict.case.startswith(f"{TOKEN_MEAN}.")]
    word, tone, sentences = _judged(checks, OF_GRADIENT)
    if tone == GOOD:
        word, tone = _on_windows(ours)
    sentences += [*_compared(ours, unit), *_largest_errors(ours), *_nearest_formula(ours)]
    sentences += [*_mistake(parity), *_undecided(parity), *_besides(checks), *_conditions(ours)]
    return Answer("Is the gradient right?", word, tone, tuple(sentences))


def of_resume(checks: Checks) -> Answer:
    word, tone, sentences = _judged(checks, OF_RESUME)
    by_case = {verdict.case: verdict for verdict in checks.get("resume", ())}
    undecided = [verdict for check in OF_RESUME for verdict in checks.get(check, ()) if _is(verdict, INCONCLUSIVE)]
    if tone == GOOD and any(verdict.case == "identity" for verdict in undecided):
        word, tone = UNTOLD, UNSURE
    elif tone == GOOD and not {"parameters", "weights_moved"} <= set(by_case):
        word, tone = UNTOLD, UNSURE
        sentences.append("No verdict says that the weights are equal and have moved.")
    sentences += [*_equal(by_case), *_moved(by_case), *_together(checks)]
    sentences += [f"Inconclusive: {verdict.case}, {verdict.criterion}." for verdict in undecided]
    return Answer("Is the resume exact?", word, tone, tuple(sentences))


def of_scores(checks: Checks, evaluation: Mapping[str, Any]) -> Answer:
    word, tone, sentences = _judged(checks, OF_SCORES)
    scored = {split: evaluation[split] for split in SPLITS if split in evaluation}
    if not scored:
        word, tone = UNTOLD, UNSURE
        sentences.append("Nothing was scored.")
    elif tone == BAD:
        word = "No score to rely on"
    elif tone == GOOD:
        split = "test" if "test" in scored else list(scored)[-1]
        word = f"{percent_text(scored[split]['accuracy'])} of the {split} {scored[split]['unit']}s right"
    sentences += [_score(split, score) for split, score in scored.items()]
    for verdict in checks.get("evaluation", ()):
        if _is(verdict, INCONCLUSIVE):
            split = verdict.case.partition(".")[0]
            sentences.append(
                f"Whether the score of the {split} split is a mean over all units or of batch means cannot be told: "
                "all its batches hold as many, so that both are the same number."
            )
    return Answer("What does the trained model score?", word, tone, tuple(sentences))


def of_controls(judged: Sequence[Judged], headline: str) -> Answer:
    """`headline`: the counts in words, see controls.table."""
    question = "Would the checks have caught known mistakes?"
    controls = [one for one in judged if one.verdict.expected == FAIL]
    if not controls:
        return Answer(question, UNTOLD, UNSURE, ("There is no control.",))
    wrong = [one for one in judged if one.verdict.problem]
    named = [_problem(one.check, one.verdict) for one in wrong]
    missed = [one for one in wrong if one.verdict.expected == FAIL]
    word, tone = (NO, BAD) if missed else (UNTOLD, UNSURE) if wrong else (YES, GOOD)
    kinds = {kind: sum(one.kind == kind for one in controls) for kind in dict.fromkeys(one.kind for one in controls)}
    of_kinds = "Controls by kind: " + ", ".join(f"{kind} {number}" for kind, number in kinds.items()) + "."
    return Answer(question, word, tone, (*named, f"{headline}.", of_kinds))


def _judged(checks: Checks, names: Iterable[str]) -> tuple[str, str, list[str]]:
    """Word, tone and one sentence for each thing that is not as expected; good where there is none."""
    word, tone, sentences = YES, GOOD, []
    for check in names:
        if not checks.get(check):
            word, tone = (word, tone) if tone == BAD else (UNTOLD, UNSURE)
            sentences.append(f"The check {check} holds no verdict.")
        for verdict in checks.get(check, ()):
            if verdict.problem is None:
                continue
            refused = verdict.expected != FAIL and verdict.outcome == FAIL
            word, tone = (NO, BAD) if refused else (word, tone) if tone == BAD else (UNTOLD, UNSURE)
            sentences.append(_problem(check, verdict))
    return word, tone, sentences


def _problem(check: str, verdict: Verdict) -> str:
    meaning = meaning_of(verdict.diagnosis)
    named = f" ({joined(verdict.diagnosis, ' or ')}{f': {meaning}' if meaning else ''})" if verdict.diagnosis else ""
    return f"Not as expected: {check}/{verdict.case} {verdict.problem}{named}."


def _is(verdict: Verdict, outcome: str) -> bool:
    return verdict.problem is None and verdict.outcome == outcome


def _pass(verdicts: Sequence[Verdict]) -> bool:
    return bool(verdicts) and all(_is(verdict, PASS) for verdict in verdicts)


def _on_windows(ours: Sequence[Verdict]) -> tuple[str, str]:
    """Of verdicts that are all as expected, whether they pass on all windows, on some or on none."""
    outcomes: dict[str, set[str]] = {}
    for verdict in ours:
        outcomes.setdefault(_window(verdict), set()).add(verdict.outcome)
    decided = [window for window, of_window in outcomes.items() if of_window == {PASS}]
    untold = [window for window in outcomes if window not in decided]
    if not decided:
        return UNTOLD, UNSURE
    if not untold:
        return YES, GOOD
    yes, no = (joined(map(window_text, windows)) for windows in (decided, untold))
    return f"{YES} on {yes}; cannot be told on {no}", GOOD


def _window(verdict: Verdict) -> str:
    return verdict.case.split(".")[-1]


def _dtype(verdict: Verdict) -> str:
    return verdict.case.split(".")[-2]


def _compared(ours: Sequence[Verdict], unit: str) -> list[str]:
    of_windows = {_window(verdict): verdict.observed for verdict in ours if "units_per_rank" in verdict.observed}
    if not of_windows:
        return []
    ranks = max(len(observed["units_per_rank"]) for observed in of_windows.values())
    windows = joined(
        f"{window_text(window)} ({joined(f'{units:,}' for units in observed['units_per_rank'])} {unit}s on the ranks)"
        for window, observed in of_windows.items()
    )
    values = joined(dict.fromkeys(f"{observed['values']:,}" for observed in of_windows.values()), " or ")
    return [
        f"The gradient that {plural(ranks, 'rank')} {'leaves' if ranks == 1 else 'leave'} is compared with that of one "
        f"process in float64, parameter by parameter: {values} values in each of {plural(len(of_windows), 'window')}, "
        f"{windows}."
    ]


def _largest_errors(ours: Sequence[Verdict]) -> list[str]:
    sentences = []
    for dtype, where in DTYPES.items():
        parts = [(part_of(verdict.observed), verdict) for verdict in ours if _dtype(verdict) == dtype]
        known = [(part, verdict) for part, verdict in parts if part is not None]
        if known:
            part, worst = max(known, key=lambda each: each[0])
            of = worst.observed
            sentences.append(
                f"Largest error {where}: {_tolerances(part)} ({number_text(of['error'])} against "
                f"{number_text(of['tolerance'])}), in {of['parameter']}, {window_text(_window(worst))}."
            )
    return sentences


def _tolerances(part: float) -> str:
    return f"{part:.2g} of its tolerance" if part < math.inf else "outside of any tolerance"


def _nearest_formula(ours: Sequence[Verdict]) -> list[str]:
    known = [verdict for verdict in ours if isinstance(verdict.observed.get("power"), int | float)]
    passed = [verdict for verdict in known if verdict.outcome == PASS]
    if passed:
        nearest = min(passed, key=lambda verdict: verdict.observed["power"])
        formula = str(nearest.observed["nearest_formula"]).replace("_", " ")
        return [
            f"The nearest wrong formula ({formula}) would be {number_text(nearest.observed['power'])} tolerances away "
            f"{DTYPES.get(_dtype(nearest), _dtype(nearest))}, {window_text(_window(nearest))}."
        ]
    alone = [verdict for verdict in ours if verdict.outcome == PASS and "power" in verdict.observed]
    return ["There is no other formula to exclude: one rank, one microbatch."] if alone and not known else []


def _mistake(parity: Sequence[Verdict]) -> list[str]:
    controls = [verdict for verdict in parity if verdict.case.startswith(f"{MEAN_OF_MEANS}.")]
    refused = [verdict for verdict in controls if _is(verdict, FAIL) and MEAN_OF_MEANS in verdict.diagnosis]
    if not controls:
        return ["The mean of means, the known mistake, was not tried."]
    parts = [part for verdict in refused if (part := part_of(verdict.observed)) is not None]
    least = f", with an error of {number_text(min(parts))} tolerances or more" if parts else ""
    of = f"all {len(controls)}" if len(refused) == len(controls) else f"{len(refused)} of {len(controls)}"
    return [f"The mean of means, the known mistake, is refused and named in {of} cases{least}."]


def _undecided(parity: Sequence[Verdict]) -> list[str]:
    """By window, what could not be told from what, where that was to be expected."""
    found = {_window(verdict): verdict for verdict in parity if _is(verdict, INCONCLUSIVE)}
    return [
        f"On {window_text(window)} it cannot be told: {str(verdict.observed.get('nearest_formula')).replace('_', ' ')} "
        "would leave the same gradient, or one too close to it."
        for window, verdict in found.items()
    ]


def _besides(checks: Checks) -> list[str]:
    """Of what holds around the gradient, what does."""
    told = {
        "loss": "the denominator is right on numbers that can be redone by hand",
        "window": "every rank reduces once per window",
        "zero_window": "a window without a supervised unit is refused by every rank",
    }
    holds = [what for check, what in told.items() if _pass(checks.get(check, ()))]
    return [f"Besides, {joined(holds)}."] if holds else []


def _conditions(ours: Sequence[Verdict]) -> list[str]:
    """What parity states in each criterion behind it, see checks.gradient_conditions."""
    stated = dict.fromkeys(part for verdict in ours for part in verdict.criterion.split("; ")[1:])
    return [f"Compared under this condition: {condition}." for condition in stated]


def _equal(by_case: Mapping[str, Verdict]) -> list[str]:
    parameters, state, history = (by_case.get(name) for name in ("parameters", "optimizer_state", "history"))
    if parameters is None or history is None:
        return []
    after, stopped = history.observed["updates"], history.observed["updates_before_interruption"]
    told = [f"{parameters.observed['values']:,} values of the model"]
    largest = [parameters.observed["max_abs_difference"]]
    if state is not None and state.observed["values"]:
        told.append(f"{state.observed['values']:,} values of optimizer state")
        largest.append(state.observed["max_abs_difference"])
    return [
        f"Stopped after update {stopped}, resumed, and compared with the uninterrupted run after update {after}: "
        f"{joined(told)}, the largest difference is {number_text(max(largest))}; "
        f"losses and counts of all {after} updates, generators and consumed rows are compared too, bit for bit."
    ]


def _moved(by_case: Mapping[str, Verdict]) -> list[str]:
    if "weights_moved" not in by_case:
        return []
    observed = by_case["weights_moved"].observed
    moved = observed["parameters"] - observed["unmoved"]
    return [
        f"Between stop and end {moved} of the model's {observed['parameters']} tensors changed, by up to "
        f"{number_text(observed['max_abs_difference'])}: what stands still would be equal for nothing."
    ]


def _together(checks: Checks) -> list[str]:
    replicas, checkpoints = checks.get("replicas", ()), checks.get("checkpoints", ())
    sentences = []
    if _pass(replicas):
        ranks = max(verdict.observed["ranks"] for verdict in replicas)
        sentences.append(f"All {ranks} ranks hold the same bits at the end of each of {len(replicas)} runs.")
    if _pass(checkpoints):
        sentences.append(f"All {len(checkpoints)} checkpoints are whole and hold nothing that can be executed.")
    return sentences


def _score(split: str, score: Mapping[str, Any]) -> str:
    unit = score["unit"]
    perplexity = f", perplexity {number_text(score[PERPLEXITY])}" if PERPLEXITY in score else ""
    return (
        f"{split.capitalize()}: loss {loss_text(score['loss'])} nats per {score.get('loss_unit', unit)}{perplexity}, "
        f"accuracy {percent_text(score['accuracy'])} of {score['units']:,} {unit}s in {score['rows']:,} rows."
    )
