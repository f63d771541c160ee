"""What an archive records of a run, as plain values, and only where its digests hold."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ddp_tokens.archive.digest_check import problems_of_digest, problems_of_sums
from ddp_tokens.archive.entries import AGAIN
from ddp_tokens.archive.layout import (
    CONFIG,
    CONTROLS,
    RESULTS,
    SUMS,
    is_compared,
    results_of,
)
from ddp_tokens.archive.plain import plain_yaml
from ddp_tokens.archive.reading import LIMIT_BYTES, Archive, open_archive
from ddp_tokens.archive.told import more, shown
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.errors import ArchiveError, ConfigError
from ddp_tokens.files import from_json

CONTROLS_FOLDER = f"{RESULTS}/{CONTROLS}"


@dataclass(frozen=True)
class RecordedVerdict(Verdict):
    check: str = ""


class PublishedRow(BaseModel):
    quantity: str
    published: str
    measured: str
    comparable: str


class Summary(BaseModel):
    """Of summary.json; fields that are not listed are left aside, here and below."""

    verdicts: tuple[RecordedVerdict, ...]
    evaluation: dict[str, Any]
    published: tuple[PublishedRow, ...] = ()


class Check(BaseModel):
    """Of checks/NAME.json."""

    check: str
    verdicts: tuple[Verdict, ...]

    def as_verdicts(self) -> tuple[RecordedVerdict, ...]:
        return tuple(RecordedVerdict(**vars(verdict), check=self.check) for verdict in self.verdicts)


class Control(BaseModel):
    check: str
    verdict: Verdict


class Controls(BaseModel):
    """Of controls.json."""

    headline: str
    verdicts: tuple[Control, ...]

    def as_verdicts(self) -> tuple[RecordedVerdict, ...]:
        return tuple(RecordedVerdict(**vars(control.verdict), check=control.check) for control in self.verdicts)


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Run:
    """A run as its archive has it. `sha256`: path -> digest, also of files that were left out as too large."""

    archive: Archive
    sha256: Mapping[str, str]

    @property
    def experiment(self) -> str:
        return self.archive.document.experiment

    @property
    def results(self) -> dict[str, str]:
        """Of `sha256`, what lies below results/."""
        return {path: digest for path, digest in self.sha256.items() if is_compared(path)}

    @property
    def holds_controls(self) -> bool:
        return any(path.startswith(f"{CONTROLS_FOLDER}/") for path in self.sha256)

    def summary(self) -> Summary:
        return self._as(Summary, f"{results_of(self.experiment)}/summary.json")

    def controls(self) -> Controls | None:
        return self._as(Controls, f"{CONTROLS_FOLDER}/controls.json") if self.holds_controls else None

    def verdicts(self) -> list[RecordedVerdict]:
        """Of every check, in the files of the checks, and of the controls."""
        below = f"{results_of(self.experiment)}/checks/"
        paths = [name for name in self.archive.names if name.startswith(below) and name.endswith(".json")]
        found = [verdict for path in paths for verdict in self._as(Check, path).as_verdicts()]
        controls = self.controls()
        return [*found, *(controls.as_verdicts() if controls else ())]

    def settings(self) -> dict[str, Any]:
        """Every setting, nested as in config.yaml."""
        name = f"{results_of(self.experiment)}/{CONFIG}"
        try:
            values = plain_yaml(self._bytes(name), name)
        except ConfigError as error:
            raise ArchiveError(f"{self.archive.path}: {shown(str(error))}: {AGAIN}") from None
        if not values:
            raise self._wrong(name, "holds no settings")
        return values

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON file that the archive need not hold: then empty."""
        values = self._json(name) if name in self.archive.names else {}
        if not isinstance(values, dict):
            raise self._wrong(name, "holds no fields")
        return values

    def _as(self, model: type[Model], name: str) -> Model:
        try:
            return model.model_validate(self._json(name))
        except ValidationError as error:
            first = error.errors()[0]
            raise self._wrong(name, f"field '{'.'.join(map(str, first['loc']))}': {first['msg']}") from None

    def _json(self, name: str) -> Any:
        try:
            return from_json(self._bytes(name).decode())
        except (ValueError, RecursionError) as error:
            raise self._wrong(name, f"is not valid JSON ({error})") from None

    def _bytes(self, name: str) -> bytes:
        if name not in self.archive.names:
            raise self._wrong(name, "is not in it")
        return self.archive.read(name)

    def _wrong(self, name: str, problem: str) -> ArchiveError:
        """`problem`: may quote what the file says."""
        return ArchiveError(f"{self.archive.path}: {name} {shown(problem)}: {AGAIN}")


@contextmanager
def opened(path: Path, limit: int = LIMIT_BYTES) -> Iterator[Run]:
    """Raises ArchiveError where a file is not what SHA256SUMS says, or the digest in archive.json is another."""
    with open_archive(path, limit) as archive:
        yield Run(archive, _sha256(archive))


def _sha256(archive: Archive) -> dict[str, str]:
    found = archive.sha256()
    problems = problems_of_sums(found, archive.read(SUMS) if SUMS in found else None)
    problems = problems or problems_of_digest(archive.document, found)
    if problems:
        others = more(len(problems) - 1, " (and {} more)")
        raise ArchiveError(f"{archive.path}: {shown(problems[0])}{others}: {AGAIN}")
    every = {**archive.document.omitted_sha256, **{name: of for name, of in found.items() if name != SUMS}}
    return dict(sorted(every.items()))
