"""All verdicts in one table, and the gate: is every outcome the expected one?"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddp_tokens.checks.verdict import INCONCLUSIVE, Verdict, read_verdicts
from ddp_tokens.config import Experiment
from ddp_tokens.corpora.objective import objective_of
from ddp_tokens.corpora.rows import TOKEN
from ddp_tokens.errors import GateError
from ddp_tokens.files import read_json

Checks = Mapping[str, Sequence[Verdict]]
COUNTS = ("values", "outside_tolerance")
SIZES = ("max_abs_error", "max_rel_error", "max_abs_difference")
KEY_NUMBERS = COUNTS + SIZES


def read_checks(paths: Iterable[Path | str]) -> dict[str, list[Verdict]]:
    """Check name -> its verdicts, in the order of `paths`."""
    return dict(read_verdicts(path) for path in paths)


def table(checks: Checks) -> str:
    """summary.csv: one row per verdict of all checks.

    KEY_NUMBERS have a column each, empty where a check does not observe them; `observed` and `first_difference` hold
    all of it as JSON. pandas is imported here: the gate has no use for it.
    """
    import pandas

    rows = [_row(check, verdict) for check, verdicts in checks.items() for verdict in verdicts]
    columns = ["check", "case", "expected", "outcome", "as_expected", "diagnosis", "criterion", *KEY_NUMBERS]
    frame = pandas.DataFrame(rows, columns=[*columns, "first_difference", "observed"], dtype=object)
    return str(frame.to_csv(index=False, lineterminator="\n"))


def summarize(
    experiment: Experiment, checks: Checks, evaluation: Mapping[str, Any], published: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The content of summary.json. `checks` counts verdicts, so that a check without any is seen."""
    verdicts = [
        {"check": check, **asdict(verdict), "as_expected": verdict.as_expected, "problem": verdict.problem}
        for check, of_check in checks.items()
        for verdict in of_check
    ]
    document = {
        "experiment": experiment.name,
        "objective": stated_objective(experiment, checks, evaluation),
        "checks": {check: len(of_check) for check, of_check in checks.items()},
        "verdicts": verdicts,
        "evaluation": dict(evaluation),
        "trained_anyway": experiment.train_anyway,
        "published": list(published),
    }
    return document | {"as_expected": not unexpected(document)}


def stated_objective(experiment: Experiment, checks: Checks, evaluation: Mapping[str, Any]) -> str:
    """In words and as a formula; of several terms, as the gradient check states it."""
    told = (verdict.observed.get("objective") for of_check in checks.values() for verdict in of_check)
    of_terms = next((text for text in told if text), None)
    units = (score["unit"] for score in evaluation.values() if isinstance(score, Mapping) and "unit" in score)
    return str(of_terms or objective_of(experiment).in_words(next(units, TOKEN)))


def _explained(diagnosis: Sequence[str]) -> str:
    return f" ({' or '.join(diagnosis)})" if diagnosis else ""


def unexpected(summary: Mapping[str, Any]) -> list[str]:
    """One phrase for each verdict that is not as expected, and for each check that holds none."""
    problems = [f"{check} holds no verdict" for check, number in summary["checks"].items() if not number]
    if not summary["checks"]:
        problems.append("there is no check")
    problems += [
        f"{verdict['check']}/{verdict['case']} {verdict['problem']}{_explained(verdict['diagnosis'])}"
        for verdict in summary["verdicts"]
        if verdict["problem"]
    ]
    return problems


def headline(summary: Mapping[str, Any]) -> str:
    """The sentence that a reader needs first."""
    number, problems = len(summary["verdicts"]), unexpected(summary)
    counted = f"{number} verdict{'' if number == 1 else 's'} in {len(summary['checks'])} checks"
    if problems:
        return f"{counted}, not all as expected: {'; '.join(problems)}."
    undecided = sum(verdict["outcome"] == INCONCLUSIVE for verdict in summary["verdicts"])
    told = f"; {undecided} of them inconclusive, where these rows cannot tell" if undecided else ""
    return f"{counted}, all as expected{told}."


def gate(summary_path: Path | str) -> str:
    """The text of gate.txt. Raises GateError, naming every check and case whose outcome is not the expected one."""
    summary = read_json(summary_path)
    problems = unexpected(summary)
    if problems:
        page = Path(summary_path).parent / "report" / "verdicts.html"
        raise GateError(f"{summary['experiment']}: {'; '.join(problems)}; {page} shows the numbers")
    anyway = "train_anyway was set.\n" if summary["trained_anyway"] else ""
    return f"{summary['experiment']}: {headline(summary)}\n{anyway}"


def _row(check: str, verdict: Verdict) -> dict[str, Any]:
    first = verdict.first_difference
    return {
        "check": check,
        "case": verdict.case,
        "expected": verdict.expected,
        "outcome": verdict.outcome,
        "as_expected": verdict.as_expected,
        "diagnosis": " or ".join(verdict.diagnosis) or None,
        "criterion": verdict.criterion,
        **{name: verdict.observed.get(name) for name in KEY_NUMBERS},
        "first_difference": None if first is None else json.dumps(first, sort_keys=True),
        "observed": json.dumps(verdict.observed, sort_keys=True),
    }
