"""What a check concludes, in one shape for all checks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddp_tokens.files import read_json, write_json

PASS = "pass"
FAIL = "fail"
INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Verdict:
    """`criterion`: a sentence with its numbers. `observed`: numbers by name. `evidence`: path -> SHA-256 of what was
    compared. `first_difference`: parameter, rank, step or file of the first disagreement, or None.

    `diagnosis`: names of the known mistakes that explain a failure; several when they cannot be told apart here, none
    when no known one does. `expected_diagnosis`: what a control must be diagnosed as; None where nothing is expected.
    """

    case: str
    expected: str
    outcome: str
    criterion: str
    observed: Mapping[str, Any]
    evidence: Mapping[str, str]
    first_difference: Mapping[str, Any] | None = None
    diagnosis: tuple[str, ...] = ()
    expected_diagnosis: tuple[str, ...] | None = None

    @property
    def as_expected(self) -> bool:
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """What is not as expected: the outcome or, where one is expected, the diagnosis."""
        if self.outcome != self.expected:
            return f"is {self.outcome}, expected {self.expected}"
        if self.expected_diagnosis is not None and self.diagnosis != self.expected_diagnosis:
            return f"is diagnosed as {_names(self.diagnosis)}, expected {_names(self.expected_diagnosis)}"
        return None


def _names(diagnosis: Sequence[str]) -> str:
    return " or ".join(diagnosis) or "nothing known"


def diagnosis_of(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """The known mistakes that explain the failures among these verdicts, each once, in alphabetical order."""
    return tuple(sorted({name for verdict in verdicts if verdict.outcome == FAIL for name in verdict.diagnosis}))


def outcome(holds: bool) -> str:
    return PASS if holds else FAIL


def write_verdicts(path: Path | str, check: str, verdicts: Sequence[Verdict]) -> None:
    write_json(path, {"check": check, "verdicts": [asdict(verdict) for verdict in verdicts]})


def read_verdicts(path: Path | str) -> tuple[str, list[Verdict]]:
    """The check's name and its verdicts."""
    document = read_json(path)
    return document["check"], [verdict_from_json(verdict) for verdict in document["verdicts"]]


def verdict_from_json(verdict: Mapping[str, Any]) -> Verdict:
    """JSON knows lists only."""
    names = ("diagnosis", "expected_diagnosis")
    tuples = {name: tuple(verdict[name]) for name in names if verdict.get(name) is not None}
    return Verdict(**{**verdict, **tuples})
