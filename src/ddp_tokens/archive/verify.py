"""Verify an archive: that its files are whole and those it was made of, that it is a Workflow RO-Crate, that its
figures are there, and that every verdict in it is reached again from the files it was reached on. Needs no GPU and no
network.

What is in the archive is unpacked into a folder of its own below TMPDIR, which is removed again.
Exit code 0: all of that holds. 1: not all. 2: the file is no archive, or not safe to unpack, and was not.
"""

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddp_tokens.archive.crate_check import problems_of_crate
from ddp_tokens.archive.digest_check import problems_of_comparison, problems_of_sums
from ddp_tokens.archive.entries import GIB
from ddp_tokens.archive.figure_check import FORMS, figures_in, problems_of_figures
from ddp_tokens.archive.layout import CRATE, DOCUMENT, README, REPORT, RESULTS, SUMS
from ddp_tokens.archive.reading import LIMIT_BYTES, Archive, open_archive
from ddp_tokens.archive.rejudge import Judgement, rejudge, unexpected_in

PROBLEM = 1


@dataclass
class Findings:
    """What was looked at, in order, a line each. `problems`: how many of them are any."""

    lines: list[str] = field(default_factory=list)
    problems: int = 0

    def add(self, holds: str, problems: Iterable[str], name: str = "") -> None:
        """`holds`: what is said where there is no problem."""
        found = list(problems)
        self.problems += len(found)
        before = f"{name}: " if name else ""
        self.lines += [f"FAIL  {before}{problem}" for problem in found] or [f"ok    {before}{holds}"]

    def note(self, text: str) -> None:
        self.lines.append(f"      {text}")


def main(program: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("archive", type=Path, metavar="ARCHIVE.zip")
    parser.add_argument(
        "--limit-gib",
        type=float,
        default=LIMIT_BYTES / GIB,
        metavar="N",
        help=f"refuse what would unpack to more (default: {LIMIT_BYTES // GIB})",
    )
    own = parser.parse_args(arguments)
    with open_archive(own.archive, _bytes(parser, own.limit_gib)) as archive:
        findings = verify(archive)
        print("\n".join([*findings.lines, conclusion(archive, findings)]))
    return PROBLEM if findings.problems else 0


def _bytes(parser: argparse.ArgumentParser, gib: float) -> int:
    if not 0 < gib < 2**30:
        parser.error(f"--limit-gib must be a number above 0, not {gib:g}")
    return int(gib * GIB)


def verify(archive: Archive) -> Findings:
    """Raises ArchiveError where an entry is damaged. Where files are not what SHA256SUMS states, only that is told."""
    findings, sha256 = Findings(), archive.sha256()
    texts = {name: archive.read(name) if name in sha256 else None for name in (SUMS, README, REPORT, CRATE)}
    findings.add(f"{len(sha256) - 1} files have the SHA-256 that {SUMS} states", problems_of_sums(sha256, texts[SUMS]))
    document = archive.document
    findings.add(
        f"{DOCUMENT}, {README} and {REPORT} state the comparison digest of the results",
        problems_of_comparison(document, sha256, texts),
    )
    for path, of in sorted(document.omitted.items()):
        findings.note(f"left out as too large: {path} ({of['bytes']:,} bytes; {of['made_by']!r} makes it)")
    if findings.problems:
        findings.note("not looked at, since files are not what they should be: crate, figures, verdicts")
        return findings
    findings.add(f"{CRATE} is a Workflow RO-Crate and describes every file", problems_of_crate(texts[CRATE], sha256))
    figures = figures_in(archive.names, document.experiment)
    forms = ", ".join(form.removeprefix(".") for form in FORMS)
    findings.add(f"{len(figures)} figures, each as {forms}", problems_of_figures(figures, archive.names, archive.read))
    _add_verdicts(findings, archive, sha256)
    return findings


def _add_verdicts(findings: Findings, archive: Archive, sha256: Mapping[str, str]) -> None:
    document = archive.document
    omitted = {path: of["sha256"] for path, of in document.omitted.items()}
    with tempfile.TemporaryDirectory(prefix="ddp-tokens-verify-") as folder:
        archive.extract(Path(folder), f"{RESULTS}/")
        judgements = rejudge(Path(folder), document.experiment, {**sha256, **omitted}, omitted)
    for judgement in judgements:
        findings.add(judgement.told, judgement.problems, judgement.name)
    as_they_are = unexpected_in(judgements)
    findings.add("every verdict is as expected", as_they_are)
    if document.as_expected == bool(as_they_are):
        stated = "true, and not every verdict is" if document.as_expected else "false, and every verdict is"
        findings.add("", [f"{DOCUMENT}: as_expected is {stated}"])
    _note_what_was_not_computed(findings, judgements)


def _note_what_was_not_computed(findings: Findings, judgements: Sequence[Judgement]) -> None:
    reread = [judgement.name for judgement in judgements if judgement.only_reread]
    if reread:
        findings.note(f"not computed again, since files were left out: {', '.join(reread)}")
    if not any(judgement.name == "controls" for judgement in judgements):
        findings.note("without controls: the archive holds none")


def conclusion(archive: Archive, findings: Findings) -> str:
    document = archive.document
    if findings.problems:
        number = f"{findings.problems} problem{'' if findings.problems == 1 else 's'}"
        return f"NOT verified: {document.experiment}, {number} in {archive.path}"
    return f"verified: {document.experiment}, comparison digest {document.comparison_digest}"
