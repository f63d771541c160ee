"""What a check concludes, in one shape for all checks."""

from collections.abc import Mapping, Sequence
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
    """

    case: str
    expected: str
    outcome: str
    criterion: str
    observed: Mapping[str, Any]
    evidence: Mapping[str, str]
    first_difference: Mapping[str, Any] | None = None

    @property
    def as_expected(self) -> bool:
        return self.outcome == self.expected


def outcome(holds: bool) -> str:
    return PASS if holds else FAIL


def write_verdicts(path: Path | str, check: str, verdicts: Sequence[Verdict]) -> None:
    write_json(path, {"check": check, "verdicts": [asdict(verdict) for verdict in verdicts]})


def read_verdicts(path: Path | str) -> tuple[str, list[Verdict]]:
    """The check's name and its verdicts."""
    document = read_json(path)
    return document["check"], [Verdict(**verdict) for verdict in document["verdicts"]]
