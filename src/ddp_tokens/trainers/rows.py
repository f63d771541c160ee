"""What one run of a trainer came to: a row of the table, from the file that the run left. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import read_json
from ddp_tokens.trainers.cases import Case

NOT_RUN = "not run"
AGAIN = "delete it and run `snakemake --cores 2 audit` again"

Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Document = Mapping[str, Any]


class Window(BaseModel):
    """Of a report; fields that are not listed are left aside, here and below."""

    window: int
    verdict: Verdict
    notes: tuple[str, ...] = ()


class Report(BaseModel):
    outcome: Literal["pass", "fail", "inconclusive"]
    sentence: str
    windows: Annotated[tuple[Window, ...], Field(min_length=1)]


class Run(BaseModel):
    """Of a run that ended: what the trainer's rank 0 wrote."""

    version: str
    report: Report
    tokens_per_second: Speed
    bare_tokens_per_second: Speed


class NotRun(BaseModel):
    """Where the trainer could not be run here. `problem`: why, in one sentence."""

    version: str | None = None
    problem: str


@dataclass(frozen=True)
class Row:
    """`verdict`: of the window that says the most, with what is expected of the case; its outcome is NOT_RUN where the
    trainer could not be run. `sentence`: what the audit says, or why it was not run. `windows`: how many were judged.
    """

    case: Case
    verdict: Verdict
    sentence: str
    version: str | None = None
    window: int | None = None
    windows: int = 0
    notes: tuple[str, ...] = ()
    tokens_per_second: float | None = None
    bare_tokens_per_second: float | None = None

    @property
    def is_run(self) -> bool:
        return self.verdict.outcome != NOT_RUN

    @property
    def problem(self) -> str | None:
        """What is not as expected; a trainer that was not run is not held against anybody."""
        return self.verdict.problem if self.is_run else None

    @property
    def speed(self) -> float | None:
        """As a ratio to the bare loop."""
        if self.tokens_per_second is None or self.bare_tokens_per_second is None:
            return None
        return self.tokens_per_second / self.bare_tokens_per_second

    @property
    def of_tolerance(self) -> float:
        """error / tolerance."""
        return of_tolerance(self.verdict)


def read_run(path: Path) -> dict[str, Any]:
    """Raises EvidenceError where the file is missing or holds something else than fields."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise EvidenceError(f"{path} holds no fields; {AGAIN}")
    return document


def row_from(case: Case, document: Document, path: Path) -> Row:
    """From what a run left in `path`. Raises EvidenceError, naming the field, where that is malformed."""
    try:
        if "problem" in document:
            not_run = NotRun.model_validate(document)
            verdict = Verdict(case.name, case.expected, NOT_RUN, "", {}, {})
            return Row(case, verdict, not_run.problem, not_run.version)
        run = Run.model_validate(document)
    except ValidationError as error:
        raise EvidenceError(f"{path}: {first_problem(error)}; {AGAIN}") from None
    telling = most_telling(run.report, path)
    return Row(
        case=case,
        verdict=_of_case(telling.verdict, case),
        sentence=run.report.sentence,
        version=run.version,
        window=telling.window,
        windows=len(run.report.windows),
        notes=telling.notes,
        tokens_per_second=run.tokens_per_second,
        bare_tokens_per_second=run.bare_tokens_per_second,
    )


def first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    return f"field '{field}': {first['msg']}" if field else str(first["msg"])


def most_telling(report: Report, path: Path) -> Window:
    """Of the windows that decide the outcome, the one that is the most tolerances off."""
    outcomes = {window.verdict.outcome for window in report.windows}
    if report.outcome != next((one for one in (FAIL, PASS, INCONCLUSIVE) if one in outcomes), None):
        found = ", ".join(sorted(outcomes))
        raise EvidenceError(f"{path}: field 'report.outcome' says {report.outcome}, its windows say {found}; {AGAIN}")
    deciding = [window for window in report.windows if window.verdict.outcome == report.outcome]
    return max(deciding, key=lambda window: of_tolerance(window.verdict))


def of_tolerance(verdict: Verdict) -> float:
    """error / tolerance; infinite where none is allowed, or the error is no number."""
    error, tolerance = (verdict.observed.get(name) for name in ("error", "tolerance"))
    if not isinstance(error, int | float) or not isinstance(tolerance, int | float):
        return math.inf
    return error / tolerance if tolerance else math.inf if error else 0.0


def _of_case(verdict: Verdict, case: Case) -> Verdict:
    """With the case's name and expectations; names that explain a failure are a set, so their order says nothing."""
    return replace(
        verdict,
        case=case.name,
        expected=case.expected,
        diagnosis=_sorted(verdict.diagnosis),
        expected_diagnosis=_sorted(case.diagnosis) if case.expected == FAIL else None,
    )


def _sorted(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
