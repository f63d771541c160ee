"""Every trainer's run in one table: trainers.json, trainers.csv, and whether all is as expected. No torch."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS
from ddp_tokens.errors import EvidenceError, GateError
from ddp_tokens.files import read_json
from ddp_tokens.hardware import cores, cpu_name
from ddp_tokens.trainers.cases import Case
from ddp_tokens.trainers.rows import AGAIN, Document, Row, first_problem, read_run, row_from

COLUMNS = (
    *("trainer", "version", "setting", "outcome", "expected", "error", "tolerance", "residual", "diagnosis", "speed"),
    *("remedy", "as_expected"),
)
MORE_COLUMNS = (
    *("expected_diagnosis", "case", "made_right_by", "window", "parameter"),
    *("tokens_per_second", "bare_tokens_per_second", "sentence"),
)
NUMBERS = ("error", "tolerance", "residual", "parameter")
GROUPS = {
    FAIL: "wrong settings are refused, each as what it is",
    PASS: "right settings pass",
    INCONCLUSIVE: "settings that cannot be decided end inconclusive",
}


class _StatedOne(BaseModel):
    case: Case
    run: dict[str, Any]


class _Stated(BaseModel):
    """Of trainers.json."""

    trainers: tuple[_StatedOne, ...]


@dataclass(frozen=True)
class Trainers:
    """The table, on the `machine` on which it was made. `runs`: what each run left, in the order of the rows."""

    rows: tuple[Row, ...]
    runs: tuple[Document, ...]
    machine: Mapping[str, str]


def read_trainers(cases: Iterable[Case], runs: Path, machine: Mapping[str, str]) -> Trainers:
    """From runs/CASE.json of each case, in their order. Raises EvidenceError where one is missing or malformed."""
    cases = list(cases)
    paths = [runs / f"{case.name}.json" for case in cases]
    documents = [read_run(path) for path in paths]
    rows = [row_from(case, document, path) for case, document, path in zip(cases, documents, paths, strict=True)]
    return Trainers(tuple(rows), tuple(documents), machine)


def this_machine() -> dict[str, str]:
    """What decides how fast a trainer is, besides the trainer."""
    return {
        "cpu": cpu_name(),
        "cores": str(cores()),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def headline(rows: Sequence[Row]) -> str:
    """The sentence that a reader needs first."""
    run = [row for row in rows if row.is_run]
    parts = []
    for expected, what in GROUPS.items():
        of_group = [row for row in run if row.case.expected == expected]
        if of_group or expected != INCONCLUSIVE:
            parts.append(f"{sum(not row.problem for row in of_group)} of {len(of_group)} {what}")
    wrong = [row for row in run if row.case.expected == FAIL]
    fixed = [row for row in wrong if (by := _named(rows, row.case.made_right_by)) and by.verdict.outcome == PASS]
    parts.insert(1, f"{len(fixed)} of {len(wrong)} have a remedy that was run and passes")
    missing = [row.case.name for row in rows if not row.is_run]
    if missing:
        parts.append(f"{len(missing)} of {len(rows)} {'is' if len(missing) == 1 else 'are'} not run here: ")
        parts[-1] += ", ".join(missing)
    return "; ".join(parts)


def problems(rows: Sequence[Row]) -> list[str]:
    """What is not as expected, in the order of the rows, and what is not made right by the case that should."""
    found = []
    for row in rows:
        found += [f"{row.case.name} {problem}" for problem in (row.problem, _without_remedy(row, rows)) if problem]
    return found


def _without_remedy(row: Row, rows: Sequence[Row]) -> str | None:
    if row.case.expected != FAIL:
        return None
    if not row.case.made_right_by:
        return "names no case that makes it right"
    remedy = _named(rows, row.case.made_right_by)
    if remedy is None:
        return f"should be made right by {row.case.made_right_by}, which is no case"
    if remedy.is_run and remedy.verdict.outcome != PASS:
        return f"should be made right by {remedy.case.name}, which is {remedy.verdict.outcome}"
    return None


def _named(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row.case.name == name), None)


def document(trainers: Trainers) -> dict[str, Any]:
    """The content of trainers.json: every run whole, and what the table says of it."""
    rows = trainers.rows
    return {
        "headline": headline(rows),
        "problems": problems(rows),
        "machine": dict(trainers.machine),
        "trainers": [
            {"case": asdict(row.case), "run": dict(run), "row": row_of(row)}
            for row, run in zip(rows, trainers.runs, strict=True)
        ],
    }


def rows_in(path: Path) -> list[Row]:
    """From trainers.json; what it says of its own rows and problems is not believed."""
    try:
        stated = _Stated.model_validate(read_json(path))
    except ValidationError as error:
        raise EvidenceError(f"{path}: {first_problem(error)}; {AGAIN}") from None
    return [row_from(one.case, one.run, path) for one in stated.trainers]


def gate(path: Path | str) -> str:
    """The text of gate.txt. Raises GateError, naming every row that is not as expected or not made right."""
    rows = rows_in(Path(path))
    found = problems(rows) if rows else [f"{path} holds no trainer"]
    if found:
        page = Path(path).with_name("trainers.html")
        raise GateError(f"audit: {'; '.join(found)}; {page} shows the numbers")
    return f"audit: {headline(rows)}.\n"


def row_of(row: Row) -> dict[str, Any]:
    verdict, case = row.verdict, row.case
    return {
        "trainer": case.trainer,
        "version": row.version,
        "setting": case.setting,
        "outcome": verdict.outcome,
        "expected": verdict.expected,
        **{name: verdict.observed.get(name) for name in NUMBERS},
        "diagnosis": " or ".join(verdict.diagnosis) or None,
        "speed": row.speed,
        "remedy": case.remedy or None,
        "as_expected": row.problem is None if row.is_run else None,
        "expected_diagnosis": " or ".join(case.diagnosis) or None,
        "case": case.name,
        "made_right_by": case.made_right_by or None,
        "window": row.window,
        "tokens_per_second": row.tokens_per_second,
        "bare_tokens_per_second": row.bare_tokens_per_second,
        "sentence": row.sentence,
    }


def csv(rows: Sequence[Row]) -> str:
    """trainers.csv. pandas is imported here: nothing else in this file needs it."""
    import pandas

    frame = pandas.DataFrame(map(row_of, rows), columns=[*COLUMNS, *MORE_COLUMNS], dtype=object)
    return str(frame.to_csv(index=False, lineterminator="\n"))
