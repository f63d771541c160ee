"""What lies where in results/archive/EXP.zip, and the digest by which two archives are compared.

archive.json            format, experiment, comparison digest, commit, and what was left out as too large
README.md  CHECKLIST.md  report.html  CITATION.cff  LICENSE  ro-crate-metadata.json  SHA256SUMS
results/EXP/            what the verdicts were reached on, the verdicts and figures; config.yaml, all settings
results/controls/       the same of the controls
machine/                what differs each time: machine, versions, times, scaling, Snakemake's provenance
inputs/                 own rows or images that the experiment reads
source/                 the project as it was used; source.diff, its difference from the commit, where there is one
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1
DOCUMENT = "archive.json"
SUMS = "SHA256SUMS"
CRATE = "ro-crate-metadata.json"
REPORT = "report.html"
README = "README.md"
CHECKLIST = "CHECKLIST.md"
DIFFERENCE = "source.diff"
RESULTS, MACHINE, SOURCE, INPUTS = "results", "machine", "source", "inputs"
CONFIG = "config.yaml"
CONTROLS = "controls"
ENVIRONMENT = f"{MACHINE}/environment.json"
IMPORTED = f"{MACHINE}/imported.json"
WALL_TIMES = f"{MACHINE}/wall_times.csv"
PROVENANCE = f"{MACHINE}/provenance.json"
SCALING = f"{MACHINE}/scaling"


@dataclass(frozen=True)
class Document:
    """archive.json. `omitted`: path -> {"sha256", "bytes", "made_by"}, of files above the size limit.

    `source`: {"commit", "date", "dirty"}, each None where the project was no git repository.
    """

    experiment: str
    comparison_digest: str
    as_expected: bool
    version: str
    source: Mapping[str, Any]
    omitted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def omitted_sha256(self) -> dict[str, str]:
        return {path: str(of["sha256"]) for path, of in self.omitted.items()}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def results_of(experiment: str) -> str:
    return f"{RESULTS}/{experiment}"


def is_compared(path: str) -> bool:
    return path.startswith(f"{RESULTS}/")


def comparison_digest(sha256: Mapping[str, str]) -> str:
    """Of the results alone: SHA-256 over their lines in SHA256SUMS. `sha256`: path -> digest; other paths may be in it.

    Files that are left out as too large count by their digest, so that the size limit makes no difference.
    """
    return hashlib.sha256(sums({path: sha256[path] for path in sha256 if is_compared(path)}).encode()).hexdigest()


def sums(sha256: Mapping[str, str]) -> str:
    """As `sha256sum` writes and checks them, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(sha256.items()))
