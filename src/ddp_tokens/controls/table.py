"""Every control and every right variant judged: one verdict each, in one table. No torch.

`at`: the folder that holds what `controls.prepare` and `controls.ranks` left.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ddp_tokens.checks.meanings import meaning_of
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict, diagnosis_of, verdict_from_json
from ddp_tokens.config import Experiment
from ddp_tokens.controls import evaluation_cases, gradient_cases, resume_cases
from ddp_tokens.controls.gradient_cases import RIGHT, case_layout, ranks_layout
from ddp_tokens.controls.judge import judge_evaluation, judge_gradient, judge_resume
from ddp_tokens.controls.resume_cases import trained_layout
from ddp_tokens.errors import GateError
from ddp_tokens.files import read_json
from ddp_tokens.layout import Layout

COLUMNS = ("name", "kind", "check", "expected", "outcome", "diagnosis", "error", "tolerance", "power")
MORE_COLUMNS = ("expected_diagnosis", "as_expected")
NUMBERS = ("error", "tolerance", "power")


@dataclass(frozen=True)
class Judged:
    """`verdict`: its case is the variant's name. `what`: what is done in it, in one phrase."""

    kind: str
    check: str
    verdict: Verdict
    what: str = ""


def judge_all(experiment: Experiment, at: Layout) -> list[Judged]:
    """In a fixed order: what is wrong first, by kind, then what is right, then what cannot be decided."""
    judged = [*_gradients(experiment, at), *_resumes(experiment, at), *_evaluations(at)]
    order = list(dict.fromkeys(one.kind for one in judged if one.kind not in (RIGHT, gradient_cases.UNDECIDED)))
    return sorted(judged, key=lambda one: [*order, RIGHT, gradient_cases.UNDECIDED].index(one.kind))


def _gradients(experiment: Experiment, at: Layout) -> list[Judged]:
    judged = []
    for variant in gradient_cases.VARIANTS:
        left = ranks_layout(at.root, variant.case.world_size)
        verdicts = judge_gradient(variant, experiment.tolerances, case_layout(at.root, variant.case), left)
        verdict = weakest(variant.name, variant.expected, variant.diagnosis, verdicts)
        judged.append(Judged(variant.kind, variant.check, verdict, what_of(variant)))
    return judged


def _resumes(experiment: Experiment, at: Layout) -> list[Judged]:
    def into(case: resume_cases.Case) -> Callable[[str], Layout]:
        return partial(resume_cases.layout_of, ranks_layout(at.root, case.world_size))

    return [
        Judged(
            case.check if case.expected == FAIL else RIGHT,
            case.check,
            all_of(case.name, case.expected, case.diagnosis, judge_resume(case, experiment, into(case))),
            what_of(case),
        )
        for case in resume_cases.CASES
    ]


def _evaluations(at: Layout) -> list[Judged]:
    trained = trained_layout(at.root, evaluation_cases.TRAINED)
    return [
        Judged(
            evaluation_cases.EVALUATION if case.expected == FAIL else RIGHT,
            evaluation_cases.EVALUATION,
            all_of(
                case.name,
                case.expected,
                case.diagnosis,
                judge_evaluation(case, trained, ranks_layout(at.root, case.world_size)),
            ),
            what_of(case),
        )
        for case in evaluation_cases.CASES
    ]


def what_of(case: gradient_cases.Variant | resume_cases.Case | evaluation_cases.Case) -> str:
    return case.what or meaning_of(case.diagnosis)


def weakest(name: str, expected: str, diagnosis: tuple[str, ...], verdicts: Sequence[Verdict]) -> Verdict:
    """Of verdicts each of which must be as expected, the first that is not, or else the first."""
    concluded = [_renamed(verdict, name, expected, diagnosis) for verdict in verdicts]
    return next((verdict for verdict in concluded if verdict.problem), concluded[0])


def all_of(name: str, expected: str, diagnosis: tuple[str, ...], verdicts: Sequence[Verdict]) -> Verdict:
    """Of verdicts that belong together: it fails when one of them does, and is then diagnosed as all failures are.

    Numbers and the first difference are those of the verdict that names the cause, or else of the first with numbers.
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    outcome = next(outcome for outcome in (FAIL, INCONCLUSIVE, PASS) if outcome in outcomes)
    causes = [verdict for verdict in verdicts if verdict.outcome == FAIL and verdict.diagnosis]
    failures = [verdict for verdict in verdicts if verdict.outcome == FAIL]
    telling = (causes or failures or list(verdicts))[0]
    return Verdict(
        case=name,
        expected=expected,
        outcome=outcome,
        criterion=telling.criterion,
        observed={**telling.observed, **_numbers(verdicts)},
        evidence={path: digest for verdict in verdicts for path, digest in verdict.evidence.items()},
        first_difference=telling.first_difference,
        diagnosis=diagnosis_of(verdicts),
        expected_diagnosis=diagnosis if expected == FAIL else None,
    )


def _numbers(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The largest error that a verdict among these states, with its tolerance and power: 0 where it must be equal."""
    stated = [verdict.observed for verdict in verdicts if "error" in verdict.observed]
    if stated:
        worst = max(stated, key=lambda observed: (observed["error"] > observed["tolerance"], observed.get("power", 0)))
        return {name: worst.get(name) for name in NUMBERS}
    differences = [verdict.observed.get("max_abs_difference") for verdict in verdicts if _must_be_equal(verdict)]
    return {"error": max(filter(None, differences), default=0.0), "tolerance": 0, "power": None}


def _must_be_equal(verdict: Verdict) -> bool:
    """Not the one that wants the weights to have moved."""
    return "max_abs_difference" in verdict.observed and "unmoved" not in verdict.observed


def _renamed(verdict: Verdict, name: str, expected: str, diagnosis: tuple[str, ...]) -> Verdict:
    return replace(verdict, case=name, expected=expected, expected_diagnosis=diagnosis if expected == FAIL else None)


def headline(judged: Sequence[Judged]) -> str:
    """The sentence that a reader needs first."""
    groups = {
        FAIL: "controls are refused, each by its check and as what it is",
        PASS: "right variants pass",
        INCONCLUSIVE: "cases that cannot be decided end inconclusive",
    }
    parts = []
    for expected, what in groups.items():
        of_group = [one.verdict for one in judged if one.verdict.expected == expected]
        parts.append(f"{sum(verdict.as_expected for verdict in of_group)} of {len(of_group)} {what}")
    return "; ".join(parts)


def problems(judged: Sequence[Judged]) -> list[str]:
    return [f"{one.verdict.case} ({one.check}) {one.verdict.problem}" for one in judged if one.verdict.problem]


def document(judged: Sequence[Judged]) -> dict[str, Any]:
    """The content of controls.json: every verdict whole, what the rows of the table are taken from."""
    verdicts = [asdict(one) for one in judged]
    return {"headline": headline(judged), "problems": problems(judged), "verdicts": verdicts}


def gate(path: Path | str) -> str:
    """The text of gate.txt. Raises GateError, naming every variant that is not judged as expected."""
    judged = read_judged(path)
    found = problems(judged) if judged else [f"{path} holds no verdict"]
    if found:
        page = Path(path).with_name("controls.html")
        raise GateError(f"controls: {'; '.join(found)}; {page} shows the numbers")
    return f"controls: {headline(judged)}.\n"


def read_judged(path: Path | str) -> list[Judged]:
    return judged_in(read_json(path))


def judged_in(of_controls: Mapping[str, Any]) -> list[Judged]:
    """From what controls.json holds; what it says of its own problems is not believed."""
    return [
        Judged(one["kind"], one["check"], verdict_from_json(one["verdict"]), one["what"])
        for one in of_controls["verdicts"]
    ]


def row_of(judged: Judged) -> dict[str, Any]:
    verdict = judged.verdict
    return {
        "name": verdict.case,
        "kind": judged.kind,
        "check": judged.check,
        "expected": verdict.expected,
        "outcome": verdict.outcome,
        "diagnosis": " or ".join(verdict.diagnosis) or None,
        **{name: verdict.observed.get(name) for name in NUMBERS},
        "expected_diagnosis": " or ".join(verdict.expected_diagnosis or ()) or None,
        "as_expected": verdict.as_expected,
    }


def csv(judged: Sequence[Judged]) -> str:
    """controls.csv. pandas is imported here: nothing else in this file needs it."""
    import pandas

    frame = pandas.DataFrame(map(row_of, judged), columns=[*COLUMNS, *MORE_COLUMNS], dtype=object)
    return str(frame.to_csv(index=False, lineterminator="\n"))
